"""Renders the templates (jinja2) of reports and cards; text of users is escaped."""

import jinja2

from scalelab.lab import tables

TEXT = jinja2.Environment(
    loader=jinja2.PackageLoader("scalelab.lab.show", "templates"),
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
TEXT.filters["md"] = tables.escape_markdown
PAGE = TEXT.overlay(autoescape=True)


def render(template: str, /, **values: object) -> str:
    """Renders a template: report.md, report.html or card.md."""
    environment = PAGE if template.endswith(".html") else TEXT
    return environment.get_template(template).render(**values)
