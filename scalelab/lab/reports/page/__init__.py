"""report.html: one file that needs no network, with sortable tables and interactive curves.

The curves are drawn by chart.js, our own, rather than by a library. The only bundle that Python's
plotly has is 4.8 MB (2.0 MB compressed and in base64, in each report; 40 MB installed), is slow to
start, and names the hosts of maps and fonts that a page without network should not; chart.js is
12 kB, and a change of a report stays readable as a difference of texts.

All that comes from data is escaped. The page forbids itself every connection, and every script and
style but its own (Content-Security-Policy).
"""

import base64
import hashlib
import html
import json
from collections.abc import Sequence
from importlib import resources

from scalelab.lab.compare.claims import CONFIRMED, REFUTED, UNDECIDED
from scalelab.lab.palette import COLORS
from scalelab.lab.reports import scored_table
from scalelab.lab.reports.content import Report, sort_value
from scalelab.lab.reports.scored_table import Cell, Table, Value
from scalelab.lab.reports.shown_findings import Shown

# Verdict -> colour; the word stands beside it, so nothing is told by colour alone.
VERDICTS = {CONFIRMED: COLORS[2], REFUTED: COLORS[1], UNDECIDED: "#999"}
FIRST = ' class="first"'  # the first row of another system

TEMPLATE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<svg class="hidden" aria-hidden="true"></svg>
{body}
<script type="application/json" id="charts">{charts}</script>
<script>{script}</script>
</body>
</html>
"""


def page(report: Report) -> str:
    """The whole page."""
    style = _file("page.css")
    # A verdict's colour stands in the style sheet, as the policy forbids it in the text.
    style += "".join(f".{name} {{ border-color: {color}; }}\n" for name, color in VERDICTS.items())
    script = _file("chart.js") + _file("page.js")
    policy = "; ".join([
        "default-src 'none'", f"style-src {_digest(style)}", f"script-src {_digest(script)}",
        "base-uri 'none'", "form-action 'none'",
    ])  # fmt: skip
    charts = json.dumps(report.charts, separators=(",", ":"), allow_nan=False)
    return TEMPLATE.format(
        policy=policy,
        title=_escape(f"{report.study.facts['title']} ({report.study.name})"),
        style=style,
        body=_body(report),
        charts=charts.replace("<", "\\u003c"),  # nothing in it can end the script
        script=script,
    )


def _body(report: Report) -> str:
    facts = report.study.facts
    sections = {
        "Results": "".join(_titled(table) for table in report.tables),
        "Curves": "".join(
            f"<h3>{_escape(chart['title'])}</h3>\n"
            f'<div class="chart" data-chart="{_escape(name)}"></div>\n'
            f"{_notes([chart['note']] if chart['note'] else [])}"
            for name, chart in report.charts.items()
        ),
        "Hypotheses and systems": "".join(map(_finding, report.findings))
        + _notes(report.claims.notes if report.claims else ()),
        "Departures": _departures(report),
        "Reproduce": _reproduce(report),
        "Runs": _table(report.runs) + _notes(report.runs.notes),
    }
    sections = {title: text for title, text in sections.items() if text}
    nav = "".join(f'<a href="#{_slug(t)}">{t}</a>' for t in sections)
    terms = "".join(f"<dt>{_escape(t)}</dt><dd>{_escape(x)}</dd>\n" for t, x in report.facts)
    head = (
        f"<h1>{_escape(facts['title'])}</h1>\n"
        f'<p class="question">{_escape(facts["question"])}</p>\n'
        f'<dl class="facts">\n{terms}</dl>\n<nav>{nav}</nav>\n'
    )
    return head + "".join(
        f'<section id="{_slug(t)}">\n<h2>{t}</h2>\n{x}</section>\n' for t, x in sections.items()
    )


def _titled(table: Table) -> str:
    return f"<h3>{_escape(table.title)}</h3>\n{_table(table)}{_notes(table.notes)}"


def _table(table: Table) -> str:
    """A table whose columns can be sorted by their full digits."""
    names = table.num_names
    kinds = [column.kind for column in table.columns]
    grouped = table.columns[0].key == "system"
    heads = "".join(
        f'<th scope="col"{_name(i, names)}><button type="button">{_escape(c.title)}</button></th>'
        for i, c in enumerate(table.columns)
    )
    rows = ""
    for before, row in zip([None, *table.rows], table.rows, strict=False):
        first = before is not None and grouped and before[0] != row[0]
        cells = "".join(
            f'<td{_name(i, names)} data-value="{_escape(sort_value(c))}">{_cell(c, kinds[i])}</td>'
            for i, c in enumerate(row)
        )
        rows += f"<tr{FIRST if first else ''}>{cells}</tr>\n"
    foot = ""
    if table.footer:
        label, *numbers = table.footer
        span = next(i for i, c in enumerate(numbers, 1) if c is not None)
        cells = f'<td class="name" colspan="{span}">{_cell(label, "text")}</td>' + "".join(
            f"<td>{'' if c is None else _cell(c, kinds[i])}</td>"
            for i, c in enumerate(table.footer[span:], span)
        )
        foot = f"<tfoot><tr>{cells}</tr></tfoot>\n"
    return (
        f'<div class="wide"><table class="sortable" id="table-{_escape(table.name)}">\n'
        f"<thead><tr>{heads}</tr></thead>\n<tbody>\n{rows}</tbody>\n{foot}</table></div>\n"
    )


def _cell(cell: Cell, kind: str) -> str:
    """A cell; an interval and a published number stand below the number itself."""
    if not isinstance(cell, Value):
        return _escape(scored_table.text(cell, kind))
    show = scored_table.FORMATS[kind]
    text = _escape(show(cell.value))
    interval = scored_table.interval(cell, kind)
    text += f'<span class="interval">{_escape(interval)}</span>' if interval else ""
    if cell.published is not None:
        text += f'<span class="published">({_escape(show(cell.published))})</span>'
    return text


def _finding(finding: Shown) -> str:
    claims = _table(finding.claims) if finding.claims.rows else ""
    return (
        f'<div class="finding"><h3>{_escape(finding.title)}'
        f'<span class="verdict {_escape(finding.verdict)}">{_escape(finding.verdict)}</span></h3>\n'
        f"{claims}{_notes(finding.lines)}</div>\n"
    )


def _departures(report: Report) -> str:
    """Where systems differ from the control, and what the contract has to say."""
    text = "<p>No system declares a departure from the control.</p>\n"
    if report.departures:
        text = (
            "<p>Fields in which a system declares that it differs from the control"
            " (<code>configs/base.py</code>), with the source.</p>\n" + _table(report.departures)
        )
    return text + _notes(report.footnotes)


def _reproduce(report: Report) -> str:
    if not report.commands:
        return ""
    first, *others = (f"<pre>{_escape(command)}</pre>\n" for command in report.commands)
    if not others:
        return first
    more = f"<summary>{len(others)} commands of its runs</summary>\n{''.join(others)}"
    return f"{first}<details>{more}</details>\n"


def _notes(notes: Sequence[str]) -> str:
    items = "".join(f"<li>{_escape(note)}</li>\n" for note in notes)
    return f'<ul class="notes">\n{items}</ul>\n' if items else ""


def _name(place: int, num_names: int) -> str:
    return ' class="name"' if place < num_names else ""


def _slug(title: str) -> str:
    return title.lower().replace(" ", "-")


def _escape(text: str) -> str:
    return html.escape(text, quote=True)


def _file(name: str) -> str:
    return resources.files("scalelab.lab.reports.page").joinpath(name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    """How the policy names a script or style that stands in the page."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
