"""The report of a study: Markdown, LaTeX, CSV, figures, and a page for a browser.

FOLDER/report.md           tables, figures, hypotheses, departures, commands
FOLDER/report.html         the same with interactive charts; one file, no network
FOLDER/tables/<table>.md   and .tex (booktabs) and .csv (all digits)
FOLDER/figures/<figure>.png and .svg
FOLDER/cards/<run>.md      the card of every finished run

Everything that comes from a study is escaped. The page forbids itself every connection and every
script but its own (Content-Security-Policy); the charts' library is inlined.
"""

import base64
import dataclasses
import functools
import hashlib
import json
import pathlib
import re
import urllib.parse
from collections.abc import Sequence

from scalelab.helpers.files import write_text
from scalelab.lab.compare import comparability, hypotheses
from scalelab.lab.compare.claims import CONFIRMED, REFUTED, Finding
from scalelab.lab.compare.evidence import Evidence, load_comparison
from scalelab.lab.compare.study_scores import StudyScores
from scalelab.lab.load import study_runs
from scalelab.lab.load.study_runs import Study
from scalelab.lab.show import (
    card,
    charts,
    content,
    figures,
    notes,
    plots,
    score_tables,
    tables,
    templates,
)
from scalelab.lab.show.content import Report

# Verdict -> colour; the word stands beside it, so that nothing is told by colour alone.
VERDICTS = {CONFIRMED: plots.COLORS[2], REFUTED: plots.COLORS[1]}


def make(
    workdir: pathlib.Path,
    name: str | None = None,
    folder: pathlib.Path | None = None,
    allow: Sequence[str] = (),
) -> pathlib.Path:
    """Reads a study, checks that its runs are comparable, and reports it.

    Args:
      workdir: holds studies/ and runs/.
      name: of the study; None where there is only one.
      folder: for the report; None: WORKDIR/reports/<name>.
      allow: fields that may differ beyond those of the study; every table repeats them.

    Returns:
      The path of report.html.

    Raises:
      ValueError: there is no such study, its file is damaged, no run is finished, or runs differ in
        undeclared fields. A damaged run is named in the notes, and the others are reported.
    """
    study = study_runs.read(workdir, name)
    footnotes = comparability.check(study, allow)
    comparison = load_comparison(study.facts.get("comparison"))
    evidence = StudyScores(study, treatments=comparison.TREATMENTS)
    findings = hypotheses.judge(study, evidence, comparison)
    folder = folder or workdir / "reports" / study.name
    return write(study, folder, evidence=evidence, findings=findings, footnotes=footnotes)


def write(
    study: Study,
    folder: pathlib.Path,
    *,
    evidence: Evidence | None = None,
    findings: Sequence[Finding] = (),
    footnotes: Sequence[str] = (),
) -> pathlib.Path:
    """Writes the report of a study, finished or not.

    Args:
      study: as `study_runs.read` returns it.
      folder: receives the files above; is made if it does not exist.
      evidence: the study's scores; None: `StudyScores`.
      findings: its hypotheses with their verdicts.
      footnotes: fields that were allowed to differ; printed below every table.

    Returns:
      The path of report.html.

    Raises:
      ValueError: no run is finished, or the study asks for an unknown table or figure.
      OSError: a file cannot be written.
    """
    evidence = evidence or StudyScores(study)
    comparison = load_comparison(study.facts.get("comparison"))
    departing = comparison.departures(study, footnotes)
    published = comparison.published()
    report = content.gather(
        study, evidence, makers=score_tables.TABLES | {**comparison.TABLES}, findings=findings,
        published=published, departing=departing, footnotes=footnotes,
    )  # fmt: skip
    for part in ("tables", "figures", "cards"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    for table in (*report.tables, report.claims, report.departures):
        if table:
            path = folder / "tables" / table.name
            write_text(path.with_suffix(".md"), tables.markdown(table))
            write_text(path.with_suffix(".tex"), tables.latex(table, f"{study.name}-{table.name}"))
            write_text(path.with_suffix(".csv"), tables.csv(table))
    drawn = figures.write(
        study, evidence, folder / "figures",
        makers=figures.FIGURES | {**comparison.FIGURES},
        published=None if departing else published,
    )  # fmt: skip
    cards, missing = _write_cards(study, folder / "cards")
    runs = dataclasses.replace(report.runs, notes=(*report.runs.notes, *missing))
    report = dataclasses.replace(report, runs=runs)
    write_text(folder / "report.md", render_markdown(report, drawn, cards))
    write_text(folder / "report.html", render_page(report, evidence))
    return folder / "report.html"


def render_markdown(report: Report, drawn: Sequence[str], cards: Sequence[str] = ()) -> str:
    """Returns report.md.

    Args:
      report: its content.
      drawn: names of the figures in figures/.
      cards: names of the runs that have a card in cards/.
    """
    links = {name: f"cards/{urllib.parse.quote(name)}.md" for name in cards}
    runs = tables.frame_markdown(report.runs.texts(), 2, links)
    text = templates.render(
        "report.md", report=report, runs=f"{runs}\n{tables.bullets(report.runs.notes)}",
        figures={name: figures.caption(name) for name in drawn}, markdown=tables.markdown,
        bullets=tables.bullets, fenced=_fence,
    )  # fmt: skip
    return re.sub(r"\n{3,}", "\n\n", text).rstrip("\n") + "\n"


def render_page(report: Report, evidence: Evidence) -> str:
    """Returns report.html."""
    study = report.study
    drawn = {"losses": charts.draw_losses(study), "scores": charts.draw_scores(study, evidence)}
    specs = {name: chart.to_dict() for name, chart in drawn.items() if chart is not None}
    titles = {
        "losses": ("Validation loss in training", charts.describe_losses(study)),
        "scores": (
            "Scores on dev sets",
            "Bars: 95% intervals; systems stand slightly apart."
            + figures.describe_constants(study, evidence),
        ),
    }
    style = templates.source("page.css")
    style += "".join(f".{name} {{ border-color: {color}; }}\n" for name, color in VERDICTS.items())
    library, script = charts.library() if specs else "", templates.source("page.js")
    policy = (
        "default-src 'none'; base-uri 'none'; form-action 'none'; style-src 'unsafe-inline';"
        f" script-src {_digest(library)} {_digest(script)}"
    )
    return templates.render(
        "report.html", report=report, policy=policy, style=_Safe(style), library=_Safe(library),
        script=_Safe(script), charts={name: titles[name] for name in specs},
        # Nothing in the data can end its script element.
        specs=_Safe(json.dumps(specs, separators=(",", ":")).replace("<", "\\u003c")),
    )  # fmt: skip


class _Safe(str):
    """Text of our own that a template does not escape."""

    def __html__(self) -> str:
        return self


def _write_cards(study: Study, folder: pathlib.Path) -> tuple[list[str], list[str]]:
    """Writes the cards of finished runs; returns their names, and why others have none."""
    written, missing = [], []
    for run in study.runs:
        if not run.finished:
            continue
        try:
            write_text(folder / f"{run.name}.md", card.write(run.folder))
            written.append(run.name)
        except (ValueError, OSError) as error:
            missing.append(notes.relative(study, f"No card of {run.name}: {error}."))
    return written, missing


def _fence(command: str) -> str:
    """A block of code in Markdown, with a fence that its content does not have."""
    longest = max(map(len, re.findall("`+", command)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{command}\n{fence}"


@functools.cache
def _digest(text: str) -> str:
    """The name of an inline script in a Content-Security-Policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
