"""Templates (jinja2) of the report, its page and the cards; text of users is escaped."""

import functools

import jinja2

from scalelab.lab.show import tables


@functools.cache
def _environment(html: bool) -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("scalelab.lab.show", "templates"),
        undefined=jinja2.StrictUndefined,
        autoescape=html,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters |= {
        "md": tables.escape_markdown,
        "sort_key": tables.sort_key,
        "interval": tables.format_interval,
    }
    made.globals |= {"formats": tables.FORMATS, "format_cell": tables.format_cell}
    return made


def render(template: str, /, **values: object) -> str:
    """Renders a template: report.md, report.html or card.md."""
    return _environment(template.endswith(".html")).get_template(template).render(**values)


def source(name: str) -> str:
    """Returns the text of a file beside the templates, such as page.css."""
    environment = _environment(False)
    assert environment.loader is not None
    return environment.loader.get_source(environment, name)[0]
