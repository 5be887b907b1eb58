"""The report of a study: Markdown, LaTeX, CSV, figures, and a page for a browser.

FOLDER/report.md           tables, figures, hypotheses, departures, commands
FOLDER/report.html         the same in one file, for a browser without network
FOLDER/tables/<table>.md   and .tex (booktabs) and .csv (all digits)
FOLDER/figures/<figure>.png and .svg
FOLDER/cards.md            the cards of all finished runs

Everything that comes from a study is escaped. A Content-Security-Policy forbids the page every
connection; its pictures are inlined.
"""

import base64
import dataclasses
import hashlib
import json
import pathlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from scalelab.config.fields import flatten
from scalelab.helpers.files import write_text
from scalelab.lab import tables
from scalelab.lab.compare import comparability, hypotheses
from scalelab.lab.compare.claims import Finding
from scalelab.lab.compare.scores import SCORES, Comparison, Scores, load_comparison
from scalelab.lab.compare.study_scores import Baseline, StudyScores
from scalelab.lab.load import study_runs
from scalelab.lab.load.study_runs import Study
from scalelab.lab.show import card, figures, notes, overview, score_tables
from scalelab.lab.show.card import render
from scalelab.lab.show.score_tables import TableRequest
from scalelab.lab.tables import Cell, Column, Table, Value
from scalelab.records import archive
from scalelab.records.run_files import Environment

CLAIM_COLUMNS = (
    Column("hypothesis", "hypothesis"),
    Column("claim", "claim"),
    Column("region", "claimed to be"),
    Column("effect", "found", "short", beside=tables.INTERVAL),
    Column("p", "p (Holm)", "short"),
    Column("detectable", "smallest detectable", "short"),
    Column("verdict", "verdict"),
)
CLAIM_NOTES = (
    "Scores x 100, losses in nats; 95% intervals in square brackets.",
    "p is corrected for all claims of the report (Holm 1979). Smallest detectable: the true"
    " difference that a two-sided test at 5% finds with power 80%, before this correction.",
)
RUN_COLUMNS = (
    Column("name", "run"),
    Column("state", "state"),
    Column("steps", "steps", "count"),
    Column("tokens", "tokens", "count"),
    Column("flops", "FLOPs", "short"),
    Column("seconds", "seconds", "number"),
    Column("gib", "GiB", "fixed"),
    Column("loss", "last loss", "fixed"),
    Column("commit", "commit"),
)


def make(
    workdir: pathlib.Path,
    name: str | None = None,
    folder: pathlib.Path | None = None,
    allow: Sequence[str] = (),
    baselines: Mapping[str, Baseline] | None = None,
    trusted: str | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> pathlib.Path:
    """Reads a study, finished or not, checks that its runs are comparable, and reports it.

    Args:
      workdir: holds studies/ and runs/.
      name: of the study; None where there is only one.
      folder: for the report; None: WORKDIR/reports/<name>.
      allow: fields that may differ beyond those of the study; every table repeats them.
      baselines: objective -> the trivial baseline that it must beat; a finding without is marked.
      trusted: module outside scalelab that the study may import.
      say: is given the answer, the ranking and the verdicts, for a terminal.

    Returns:
      The path of report.html.

    Raises:
      ValueError: there is no such study, its file is damaged, no run is finished, runs differ in
        undeclared fields, or the study asks for an unknown table or figure. A damaged run is named
        in the notes, and the others are reported.
      OSError: a file cannot be written.
    """
    study = study_runs.read(workdir, name)
    if not any(run.finished for run in study.runs):
        broken = notes.damaged(study, study.points)
        reason = f" Damaged: {'; '.join(broken)}." if broken else ""
        raise ValueError(
            f"study {study.name}: none of its {len(study.runs)} runs is finished.{reason} Run the"
            " study before its report."
        )
    footnotes = comparability.check(study, allow)
    comparison = load_comparison(study.facts.comparison, trusted)
    scores = StudyScores(study, baselines=baselines)
    findings = hypotheses.judge(study, scores, comparison)
    departing, published = comparison.departures(study, footnotes), comparison.published()
    request = TableRequest(study, scores, published, departing, footnotes)
    made = score_tables.build(request, score_tables.TABLES | {**comparison.TABLES})
    claims = _tabulate_claims(findings, scores, footnotes)
    departures = _tabulate_departures(study)
    folder = folder or workdir / "reports" / study.name
    for part in ("tables", "figures"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    _write_tables(folder / "tables", study.name, [*made, claims, departures])
    finished = [run for run in study.runs if run.finished]
    cards = "\n".join(card.write(run.folder) for run in finished)
    write_text(folder / "cards.md", cards)
    headline, why_none = overview.find_headline(study, scores)
    ranking = overview.tabulate_ranking(study, scores, headline)
    answer = overview.answer(study, scores, findings, headline, why_none)
    say(overview.for_terminal(study, answer, ranking, findings))
    first = {
        "differences": overview.draw_differences(findings),
        "score_by_cost": overview.draw_cost(study, scores, headline),
    }
    first = {name: figure for name, figure in first.items() if figure is not None}
    figures.save(first, folder / "figures")
    beside = None if departing else published
    drawn = _draw(study, scores, comparison, beside, folder / "figures")
    below = [*footnotes, *score_tables.describe_absent(study, made)]
    below = notes.merge_cuts([*below, *(note for table in made for note in table.notes)])
    known = notes.describe_study(study, study.points)  # `facts` has these
    values = {
        "study": study, "facts": describe_study(study), "tables": made,
        "answer": answer, "ranking": ranking,
        "first": {name: overview.CAPTIONS[name] for name in first},
        "cards": [run.name for run in finished],
        "notes": [note for note in below if note not in known],
        "findings": [(finding, _finding_table(finding, claims)) for finding in findings],
        "claim_notes": [note for note in claims.notes if note not in below],
        "departures": departures, "runs": _tabulate_runs(study), "commands": _list_commands(study),
        "figures": drawn,
    }  # fmt: skip
    text = render(
        "report.md", **values, plain=lambda table: tables.markdown(table.texts(), table.num_names),
        with_notes=tables.with_notes, bullets=tables.bullets,
    )  # fmt: skip
    write_text(folder / "report.md", re.sub(r"\n{3,}", "\n\n", text).rstrip("\n") + "\n")
    return _write_page(folder, values)


def _draw(
    study: Study, scores: StudyScores, comparison: Comparison, published: Scores | None,
    folder: pathlib.Path,
) -> dict[str, str]:  # fmt: skip
    """Draws the figures that a study asks for; returns their captions by name."""
    makers = figures.FIGURES | {**comparison.FIGURES}
    captions = figures.CAPTIONS | {**comparison.CAPTIONS}
    drawn = figures.write(study, scores, folder, makers=makers, published=published)
    return {name: captions.get(name, name.replace("_", " ")) for name in drawn}


def _write_page(folder: pathlib.Path, values: Mapping[str, Any]) -> pathlib.Path:
    """Writes report.html with its pictures inlined; returns its path.

    The page of a packed study links only the files that `results/` keeps in git: SVG, CSV, cards.
    """
    packed = (values["study"].workdir / archive.NAME).exists()
    encode = lambda path: base64.b64encode(path.read_bytes()).decode()  # noqa: E731
    names = [*values["first"], *values["figures"]]
    pictures = {name: encode(folder / "figures" / f"{name}.svg") for name in names}
    script = render("page.js")
    digest = f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}"
    more = {"pictures": pictures, "script": script, "digest": digest, "packed": packed}
    page = render("report.html", **values, **more)
    write_text(folder / "report.html", page)
    return folder / "report.html"


def _write_tables(folder: pathlib.Path, study: str, made: Iterable[Table]) -> None:
    """Writes each table that has rows as Markdown, LaTeX and CSV."""
    for table in made:
        if table.rows:
            path = folder / table.name
            write_text(path.with_suffix(".md"), tables.with_notes(table))
            write_text(path.with_suffix(".tex"), tables.latex(table, f"{study}-{table.name}"))
            write_text(path.with_suffix(".csv"), tables.csv(table))


def describe_study(study: Study) -> dict[str, str]:
    """Returns the facts at the head of a report: its state, protocol, and what is held equal."""
    facts = study.facts
    protocol = f"scale {facts.scale}"
    if facts.protocol:
        protocol += f" of section {facts.protocol} of the benchmark protocol"
    tuned = ""
    if facts.tasks:
        seeds = f"fine-tuning seeds of each pre-training: {facts.finetune_seeds}"
        tuned = f"{', '.join(facts.tasks)}; recipe {notes.describe_recipe(study)}; {seeds}"
    parts = [task for r in study.runs for tasks in (r.tasks, r.scratch) for task in tasks.values()]
    tunings = [seed.environment for task in parts for seed in task.finished]
    environments = [run.environment for run in study.runs]
    finished = sum(run.finished for run in study.runs)
    versions = {run.environment.numerics_versions for run in study.runs if run.finished}
    own_fields = facts.system_fields.items()
    shape = f"{study.points[0].shape} (heads x width x layers), N {study.points[0].n_model:,}"
    found = {
        "State": f"{finished} of {len(study.runs)} pre-trainings finished",
        "Protocol": protocol,
        "Shape": shape if len({point.shape for point in study.points}) == 1 else "",
        "Matched": comparability.describe_clock(study, study.points),
        "May differ": ", ".join([*facts.free, *facts.allow]),
        "Set for all": ", ".join(facts.fields),
        **{f"Set for {system}": ", ".join(fields) for system, fields in own_fields},
        **{f"Variant {x}": y for x, y in notes.describe_variants(study, study.points).items()},
        "Unfinished": ", ".join(notes.unfinished(study.points)),
        "Damaged": "; ".join(notes.damaged(study, study.points)),
        "Fine-tuned on": tuned,
        "Measured by": ", ".join([*facts.yardsticks, *facts.yardstick_fields]),
        "Numerics version": ", ".join(sorted(versions)),
        "Commits": _count(map(_describe_commit, [*environments, *tunings])),
        "Devices": _count((", ".join(e.devices) for e in environments), "; "),
    }
    return {term: text for term, text in found.items() if text}


def _count(words: Iterable[str], between: str = ", ") -> str:
    """Returns words with the number of runs of each: "abc (2 runs), def (1 run)"."""
    counted = Counter(filter(None, words)).most_common()
    return between.join(f"{word} ({n} run{'s' * (n != 1)})" for word, n in counted)


def _describe_commit(environment: Environment) -> str:
    commit = (environment.git_commit or "")[:12]
    return f"{commit} with local changes" if commit and environment.git_dirty else commit


def _tabulate_claims(
    findings: Sequence[Finding], scores: Scores, footnotes: Sequence[str]
) -> Table:
    """Returns the claims of all findings."""
    rows: list[tuple[Cell, ...]] = []
    for finding in findings:
        for claim in finding.claims:
            estimate, scale = claim.estimate, claim.scale
            ends = () if estimate is None else (scale * estimate.low, scale * estimate.high)
            effect = None if claim.effect is None else Value(scale * claim.effect, *ends)
            detectable = None if claim.detectable is None else scale * claim.detectable
            numbers = (effect, claim.corrected, detectable)
            region = claim.region.describe(scale)
            rows.append((finding.id, claim.what, region, *numbers, claim.verdict))
    named = " ".join([f.text for f in findings] + [c.what for f in findings for c in f.claims])
    asked = [score for score in SCORES if score != "seconds" or score in named]
    remarks = (*CLAIM_NOTES, *scores.remarks(asked), *footnotes)
    title = "Claims of the hypotheses"
    return Table("hypotheses", title, CLAIM_COLUMNS, tuple(rows), None, remarks, tuple(footnotes))


def _finding_table(finding: Finding, claims: Table) -> Table:
    """Returns the claims of one finding; the notes are its rule, its verdict's reason, remarks."""
    rows = tuple(row[1:] for row in claims.rows if row[0] == finding.id)
    lines = [f"Confirmed if {finding.rule}."]
    if finding.why:
        lines.append(f"{finding.verdict.capitalize()}: {finding.why}.")
    if finding.cases:
        lines.append(f"Counted case by case, without a test: it {finding.counted}.")
    return dataclasses.replace(
        claims, name=f"hypothesis-{finding.id}", columns=CLAIM_COLUMNS[1:], rows=rows,
        notes=(*lines, *finding.remarks),
    )  # fmt: skip


def _tabulate_departures(study: Study) -> Table:
    """Returns every declared departure of every system, and the study's value if it differs."""
    rows: list[tuple[Cell, ...]] = []
    write = lambda value: value if isinstance(value, str) else json.dumps(value)  # noqa: E731
    for system in dict.fromkeys(point.system for point in study.points):
        config = flatten(next(p.runs[0].config for p in study.points if p.system == system))
        for departure in study.facts.departures.get(system, ()):
            given = write(departure.value)
            here = write(config.get(departure.field, departure.value))
            differs = ", here not set" if here == "null" else f", here {here}"
            text = given + differs * (here != given)
            rows.append((system, departure.field, text, departure.source))
    columns = tuple(Column(key, key) for key in ("system", "field", "value", "source"))
    return Table("departures", "Departures from the control", columns, tuple(rows))


def _tabulate_runs(study: Study) -> Table:
    """Returns every pre-training, finished or not."""
    rows: list[tuple[Cell, ...]] = []
    for run in study.runs:
        state = "finished" if run.finished else "damaged" if run.damaged else "unfinished"
        numbers = [getattr(run.result, k, None) for k in ("steps", "tokens", "flops", "seconds")]
        size = run.result and run.result.peak_memory_bytes
        commit = _describe_commit(run.environment) or None
        rows.append((run.name, state, *numbers, size and size / 2**30, run.loss, commit))
    return Table("runs", "Runs", RUN_COLUMNS, tuple(rows))


def _list_commands(study: Study) -> list[str]:
    """Returns the study's own command, then those that its runs recorded, each once."""
    recorded = Counter(run.environment.command for run in study.runs)
    commands = [study.facts.command, *(command for command, _ in recorded.most_common())]
    return list(dict.fromkeys(filter(None, commands)))
