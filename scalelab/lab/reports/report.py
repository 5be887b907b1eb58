"""The report of a study: Markdown, LaTeX, CSV, figures, and a page for a browser.

FOLDER/report.md           tables, figures, hypotheses, departures, commands
FOLDER/report.html         the same, interactive; one file, no network
FOLDER/tables/<table>.md   and .tex (booktabs) and .csv (all digits)
FOLDER/figures/<figure>.png and .svg
FOLDER/cards/<run>.md      the card of every finished run
"""

import dataclasses
import pathlib
from collections.abc import Sequence

from scalelab.lab import tables
from scalelab.lab.compare import comparability, finetunings, hypotheses
from scalelab.lab.compare.claims import Finding
from scalelab.lab.compare.comparison import load_comparison
from scalelab.lab.compare.evidence import Evidence
from scalelab.lab.compare.study_scores import StudyScores
from scalelab.lab.reading import study_runs
from scalelab.lab.reading.study_runs import Study
from scalelab.lab.reports import card, content, page, scored_table, study_figures, study_notes
from scalelab.lab.reports.content import Report
from scalelab.lab.reports.scored_table import Table

CAPTIONS = {
    "score_by_size": "GLUE-Large against N, with 95% intervals; equals in N stand a little apart.",
    "score_by_task": "Each task with 95% intervals; dashed: the best constant answer.",
    "loss": "Validation loss; a line is a run, and seeds of one shape look the same.",
}


def make(
    workdir: pathlib.Path,
    name: str | None = None,
    folder: pathlib.Path | None = None,
    allow: Sequence[str] = (),
) -> pathlib.Path:
    """Reads a study, holds its runs against their files and to the contract, and reports it.

    Args:
      workdir: holds studies/ and runs/.
      name: of the study; None where there is only one.
      folder: for the report; None: WORKDIR/reports/<name>.
      allow: what may differ beyond what the study declares; every table says so.

    Returns:
      The path of report.html.

    Raises:
      ValueError: there is no such study, its file is damaged, no run is finished, or runs differ in
        what was not declared. A damaged run is named in the notes, and the others are reported.
    """
    study = finetunings.checked(study_runs.checked(study_runs.read(workdir, name, tolerant=True)))
    footnotes = comparability.check(study, allow)
    comparison = load_comparison(study.facts.get("comparison"))
    evidence = StudyScores(study, treatments=comparison.TREATMENTS)

    def evaluate(some: Study) -> list[Finding]:
        own = evidence if some is study else StudyScores(some, treatments=comparison.TREATMENTS)
        return hypotheses.of_study(some, own, comparison)

    findings = hypotheses.remark_on_collapsed(study, evaluate(study), evaluate)
    return write(
        study, folder or workdir / "reports" / study.name, evidence=evidence, findings=findings,
        published=comparison.published(), footnotes=footnotes,
    )  # fmt: skip


def write(
    study: Study,
    folder: pathlib.Path,
    *,
    evidence: Evidence | None = None,
    findings: Sequence[Finding] = (),
    published: Evidence | None = None,
    footnotes: Sequence[str] = (),
) -> pathlib.Path:
    """Writes the report of a study, finished or not.

    Args:
      study: what `study_runs.read` gave.
      folder: gets the files above; is made if it is not there.
      evidence: the study's scores; None: `StudyScores`.
      findings: its hypotheses with their verdicts.
      published: numbers to stand beside ours, but where the study is not the protocol.
      footnotes: what the comparability contract says; printed below every table.

    Returns:
      The path of report.html.

    Raises:
      ValueError: no run is finished, or the study asks for an unknown table or figure.
      OSError: a file cannot be written.
    """
    evidence = evidence or StudyScores(study)
    report = content.gather(
        study, evidence, findings=findings, published=published, footnotes=footnotes
    )
    for part in ("tables", "figures", "cards"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    extra = [table for table in (report.claims, report.departures) if table]
    for table in (*report.tables, *extra):
        path = folder / "tables" / table.name
        _write(path.with_suffix(".md"), scored_table.markdown(table))
        _write(path.with_suffix(".tex"), scored_table.latex(table, f"{study.name}-{table.name}"))
        _write(path.with_suffix(".csv"), scored_table.csv(table))
    figures = study_figures.write(
        study, evidence, folder / "figures", published=published, footnotes=footnotes
    )
    cards, missing = _cards(study, folder / "cards")
    notes = (*report.runs.notes, *missing)
    report = dataclasses.replace(report, runs=dataclasses.replace(report.runs, notes=notes))
    _write(folder / "report.md", markdown(report, figures, cards))
    _write(folder / "report.html", page.page(report))
    return folder / "report.html"


def _cards(study: Study, folder: pathlib.Path) -> tuple[list[str], list[str]]:
    """Writes the cards of finished runs; returns who has one, and why others have none."""
    written, missing = [], []
    for run in study.runs:
        try:
            text = card.of_run(run.folder) if run.finished else ""
        except (ValueError, OSError) as error:
            missing.append(study_notes.relative(study, f"No card of {run.name}: {error}."))
            continue
        if text:
            _write(folder / f"{run.name}.md", text)
            written.append(run.name)
    return written, missing


def markdown(report: Report, figures: Sequence[str], cards: Sequence[str] = ()) -> str:
    """report.md.

    Args:
      report: its content.
      figures: names of those in figures/.
      cards: names of the runs that have one in cards/.
    """
    facts = report.study.facts
    lines = [f"# {facts['title']}", f"*{facts['question']}*"]
    lines.append(tables.markdown(["", ""], [[term, text] for term, text in report.facts], 2))
    lines.append("## Results")
    for table in report.tables:
        lines += [f"### {table.title}", scored_table.markdown(table)]
    lines += ["## Figures"] if figures else []
    for name in figures:
        caption = CAPTIONS[name if name in CAPTIONS else "loss"]
        lines.append(f"![{caption}](figures/{name}.svg)\n\n{caption}")
    lines += ["## Hypotheses and systems"] if report.findings else []
    for finding in report.findings:
        lines.append(f"### {finding.title}: {finding.verdict}")
        lines += [_plain(finding.claims)] if finding.claims.rows else []
        lines.append("\n".join(f"- {line}" for line in finding.lines))
    lines += ["\n".join(f"- {note}" for note in report.claims.notes)] if report.claims else []
    lines += _end(report, cards)
    return "\n\n".join(line.rstrip("\n") for line in lines) + "\n"


def _end(report: Report, cards: Sequence[str]) -> list[str]:
    lines = ["## Departures"]
    if report.departures:
        lines.append(_plain(report.departures))
    else:
        lines.append("No system declares a departure from the control.")
    lines += ["\n".join(f"- {note}" for note in report.footnotes)] if report.footnotes else []
    lines += ["## Reproduce", f"```\n{report.commands[0]}\n```"] if report.commands else []
    rows = tuple(
        (f"[{name}](cards/{name}.md)" if name in cards else name, *cells)
        for name, *cells in report.runs.rows
    )
    runs = dataclasses.replace(report.runs, rows=rows)
    return [*lines, "## Runs", scored_table.markdown(runs)]


def _plain(table: Table) -> str:
    header, rows, _ = scored_table.words(table)
    return tables.markdown(header, rows, table.num_names)


def _write(path: pathlib.Path, text: str) -> None:
    part = path.with_name(f"{path.name}.tmp")
    part.write_text(text, encoding="utf-8")
    part.replace(path)
