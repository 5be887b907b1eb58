"""The report of a study as a page of a paper: Markdown, LaTeX, CSV, figures, a page for a browser.

FOLDER/report.md           question, answer, design, primary table, checks, limits; an appendix
FOLDER/report.html         the same in one file, for a browser without network
FOLDER/tables/<table>.tex  (booktabs) and .csv (all digits)
FOLDER/figures/<figure>.png, .svg and .pdf
FOLDER/cards.md            the cards of all finished runs

Everything that comes from a study is escaped. A Content-Security-Policy forbids the page every
connection; its pictures are inlined.
"""

import base64
import hashlib
import json
import pathlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from scalelab.config.fields import flatten
from scalelab.eval.score_names import SCORES, title_of
from scalelab.helpers.files import write_text
from scalelab.lab import tables
from scalelab.lab.compare import comparability, hypotheses
from scalelab.lab.compare.claims import Finding
from scalelab.lab.compare.scores import Comparison, Scores, load_comparison
from scalelab.lab.compare.study_scores import Baseline, StudyScores
from scalelab.lab.load import study_runs
from scalelab.lab.load.study_runs import PretrainRun, Study
from scalelab.lab.show import answer, card, figures, notes, score_tables
from scalelab.lab.show.card import DIGEST, render
from scalelab.lab.show.score_tables import TableRequest
from scalelab.lab.tables import Cell, Column, Table, Value
from scalelab.records import archive
from scalelab.records.run_files import Environment

CLAIM_COLUMNS = (
    Column("hypothesis", "hypothesis"),
    Column("comparison", "comparison"),
    Column("region", "expected"),
    Column("effect", "found", "short", beside=tables.INTERVAL),
    Column("p", "p (Holm)", "short"),
    Column("detectable", "smallest detectable", "short"),
    Column("verdict", "verdict"),
)
CLAIM_NOTES = (
    "Scores x 100, losses in nats. p is corrected for all tests of the report (Holm 1979), and the"
    " interval has the level of this test. Smallest detectable: the true difference that a"
    " two-sided test at 5% finds with power 80%, before this correction.",
)
MOST_UNUSED = 8  # runs that are named
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


def judge(
    study: Study, baselines: Mapping[str, Baseline] | None = None, trusted: str | None = None
) -> tuple[StudyScores, Comparison, list[str], list[Finding]]:
    """Checks that the runs of a study are comparable, and finds its verdicts; see `make`.

    Returns:
      The scores, the comparison, the differences that the study allows, and the findings.

    Raises:
      ValueError: no run is finished, or runs do not compare.
    """
    if not any(run.finished for run in study.runs):
        broken = _damaged(study)
        reason = f" Damaged: {'; '.join(broken)}." if broken else ""
        raise ValueError(
            f"study {study.name}: none of its {len(study.runs)} runs is finished.{reason} Run the"
            " study before its report."
        )
    footnotes = comparability.check(study)
    comparison = load_comparison(study.facts.comparison, trusted)
    scores = StudyScores(study, baselines=baselines)
    return scores, comparison, footnotes, hypotheses.judge(study, scores, comparison)


def make(
    workdir: pathlib.Path,
    name: str | None = None,
    folder: pathlib.Path | None = None,
    baselines: Mapping[str, Baseline] | None = None,
    trusted: str | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> pathlib.Path:
    """Reports a study, finished or not, whose runs are comparable; returns the path of report.html.

    Args:
      workdir: holds studies/ and runs/.
      name: of the study; None where there is only one.
      folder: for the report; None: WORKDIR/reports/<name>.
      baselines: objective -> the trivial baseline that it must beat; a finding without is marked.
      trusted: module outside scalelab that the study may import.
      say: is given the answer, the primary table and the verdicts, for a terminal.

    Raises:
      ValueError: there is no such study, its file is damaged, no run is finished, runs differ in
        undeclared fields, or the study asks for an unknown table or figure. A damaged run is named
        in the limits, and the others are reported.
      OSError: a file cannot be written.
    """
    study = study_runs.read(workdir, name)
    scores, comparison, footnotes, findings = judge(study, baselines, trusted)
    finished = [run for run in study.runs if run.finished]
    departing = comparison.departures(study, footnotes)
    published = None if departing else comparison.published()
    request = TableRequest(study, scores, published, departing, footnotes)
    made = score_tables.build(request, score_tables.TABLES | {**comparison.TABLES})
    claims = tabulate_claims(findings, scores, footnotes)
    departures = _tabulate_departures(study)
    folder = folder or workdir / "reports" / study.name
    for part in ("tables", "figures"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    for table in (table for table in (*made, claims, departures) if table.rows):
        path = folder / "tables" / table.name
        write_text(path.with_suffix(".tex"), tables.latex(table, f"{study.name}-{table.name}"))
        write_text(path.with_suffix(".csv"), tables.csv(table))
    write_text(folder / "cards.md", "\n".join(card.write(run.folder) for run in finished))
    score, why_none = answer.find_primary(scores)
    primary = answer.tabulate_primary(scores, (score, why_none), findings)
    say(answer.for_terminal(scores, findings, primary))
    first = {
        "differences": figures.draw_differences(findings),
        "score_by_cost": None if why_none else figures.draw_cost(scores, score),
    }
    asked = figures.draw(request, figures.FIGURES | {**comparison.FIGURES})
    first, drawn = (figures.save(own, folder / "figures") for own in (first, asked))
    captions = figures.captions(study) | {**comparison.CAPTIONS}
    return _write_pages(folder, {
        "study": study, "design": describe_design(study), "primary": primary,
        "answer": answer.answer(findings, why_none, study.facts.primary),
        "verdicts": answer.tabulate_verdicts(findings), "checks": answer.checks(findings),
        "limits": describe_limits(study), "first": {name: captions[name] for name in first},
        "tables": made, "notes": notes.describe(request, made),
        "findings": answer.tabulate_findings(findings), "claims": claims,
        "departures": departures, "runs": _tabulate_runs(study), "commands": _list_commands(study),
        "cards": [run.name for run in finished],
        "figures": {name: captions.get(name, name.replace("_", " ")) for name in drawn},
    })  # fmt: skip


def _write_pages(folder: pathlib.Path, values: Mapping[str, Any]) -> pathlib.Path:
    """Writes report.md, and report.html with its pictures inlined; returns the path of the page.

    The page of a packed study links only the files that `results/` keeps in git: SVG, CSV, cards.
    """
    show = lambda table: tables.markdown(table.texts(), table.num_names)  # noqa: E731
    text = render("report.md", **values, show=show, bullets=tables.bullets)
    write_text(folder / "report.md", re.sub(r"\n{3,}", "\n\n", text).rstrip("\n") + "\n")
    encode = lambda path: base64.b64encode(path.read_bytes()).decode()  # noqa: E731
    names = [*values["first"], *values["figures"]]
    pictures = {name: encode(folder / "figures" / f"{name}.svg") for name in names}
    script = (pathlib.Path(__file__).parent / "templates/page.js").read_text("utf-8")
    digest = f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}"
    packed = (values["study"].workdir / archive.NAME).exists()
    more = {"pictures": pictures, "script": script, "digest": digest, "packed": packed}
    write_text(folder / "report.html", render("report.html", **values, **more))
    return folder / "report.html"


def describe_design(study: Study) -> dict[str, str]:
    """Returns what the study compares, on which data, at which budget, with which optimizer."""
    facts = study.facts
    runs = [run for run in study.runs if run.finished]
    known = sorted({point.n_model for point in study.points})
    sizes = " to ".join(f"{size:,}" for size in dict.fromkeys((known[0], known[-1])))
    shape = f"{study.points[0].shape} (heads x width x layers), N {sizes}"
    seeds = Counter(len(point.finished) for point in study.points)
    tasks, recipe = ", ".join(map(title_of, facts.tasks)), notes.describe_recipe(study)
    tuned = f"{tasks}; recipe {recipe}; fine-tuning seeds of each pre-training:" \
            f" {facts.finetune_seeds}" if tasks else ""  # fmt: skip
    read = sorted(filter(None, (run.result.passes for run in runs if run.result)))
    passes = [f"{number:.2g}" for number in read]
    systems = {point.system for point in study.points}
    own_fields = [(name, own) for name, own in facts.system_fields.items() if name in systems]
    variants = {p.variant: p.lines for p in study.points if p.lines and not p.values}
    varied = study_runs.varied_fields(study.points)
    section = f" of section {facts.protocol} of the benchmark protocol" if facts.protocol else ""
    found = {
        "Arms": ", ".join(point.label for point in study.points),
        **{f"Variant {x}": ", ".join(y) for x, y in variants.items()},
        **{f"Set for {system}": ", ".join(fields) for system, fields in own_fields},
        "Set for all": ", ".join(line for line in facts.fields if line.split("=")[0] not in varied),
        "May differ": ", ".join([*facts.free, *facts.allow]),
        "Shape": shape if len({point.shape for point in study.points}) == 1 else "",
        "Seeds": ", ".join(f"{n} ({rows} arms)" for n, rows in seeds.items()),
        "Data": _describe_data(runs),
        "Passes over the corpus": " to ".join(dict.fromkeys(passes[:1] + passes[-1:])),
        "Budget": f"scale {facts.scale}{section}. {comparability.describe_clock(study)}",
        "Optimizer": _describe_optimizer(runs),
        "Fine-tuned on": tuned,
        "Primary outcome": title_of(facts.primary) if facts.primary else "none fixed in advance",
        "Measured by": ", ".join([*map(title_of, facts.evaluations), *facts.evaluation_fields]),
        "Hardware": _count((", ".join(run.environment.devices) for run in runs), "; "),
        "Numerics version": ", ".join(sorted({r.environment.numerics_versions for r in runs})),
    }
    return {term: text for term, text in found.items() if text}


def _describe_data(runs: Iterable[PretrainRun]) -> str:
    """Returns each corpus with its digest, and for each vocabulary tokens and validation."""
    found: dict[str, dict[str, None]] = {}
    for run in sorted(runs, key=lambda run: not (run.result and run.result.corpus)):
        assert run.result
        flat, corpus, held = flatten(run.config), run.result.corpus, run.result.validation
        digest = f" (sha256 {run.result.data_hash[:DIGEST]})" if run.result.data_hash else ""
        own = found.setdefault(f"{flat.get('data.corpus')}{digest}", {})
        kind = f"{flat.get('tokenizer.kind')} of {flat.get('tokenizer.vocab_size'):,} pieces"
        size = "size not recorded"
        if corpus:
            size = f"{corpus.documents:,} documents, {corpus.tokens:,} tokens"
        elif any(text.startswith(kind) for text in own):  # another run has it
            continue
        counts = [phase.valid_examples for phase in run.result.phases]
        if not (counts and all(counts)):
            counts = [flat.get("eval.num_examples") or 0]
        valid = [f"{held.documents:,} documents, {held.tokens:,} tokens"] if held else []
        valid += [f"{' and '.join(f'{n:,}' for n in counts)} examples"] if all(counts) else []
        own[f"{kind}, {size}" + f", validation {', '.join(valid)}" * bool(valid)] = None
    return ". ".join(f"{corpus}: {'; '.join(own)}" for corpus, own in found.items())


def _describe_optimizer(runs: Iterable[PretrainRun]) -> str:
    """Returns the optimizer's fields that are set, each with its values."""
    found: dict[str, dict[str, None]] = {}
    for run in runs:
        for name, value in flatten(run.config.get("optim") or {}).items():
            if value is not None:
                text = f"{value:,.10g}" if isinstance(value, float) else str(value)
                found.setdefault(name, {})[text] = None
    return ", ".join(f"{name} {' or '.join(texts)}" for name, texts in found.items())


def describe_limits(study: Study) -> list[str]:
    """Returns what a reader must not overlook: missing and damaged runs, single seeds, code."""
    unfinished = [r.name for r in study.runs if not r.finished and not r.damaged]
    finished = sum(run.finished for run in study.runs)
    parts = [r.tuned[part] for r in study.runs for part in ("tasks", "scratch")]
    tunings = [x.environment for own in parts for task in own.values() for x in task.finished]
    environments = [run.environment for run in study.runs]
    single = [point.label for point in study.points if len(point.finished) == 1]
    bounds = {
        point.label: f"{point.label} {held.unknown / held.tokens:.2%}"
        for point in study.points for run in point.finished
        if run.result and (held := run.result.validation) and held.unknown
    }  # fmt: skip
    found = {
        f"{finished} of {len(study.runs)} pre-trainings finished; unfinished": unfinished,
        "Damaged": _damaged(study),
        "One pre-training seed, no interval over seeds": single,
        "Bits per byte are a lower bound, as validation tokens are unknown": [*bounds.values()],
        "Code": [_count(map(_describe_commit, [*environments, *tunings]))],
    }
    lines = [f"{what}: {'; '.join(own)}." for what, own in found.items() if any(own)]
    if unused := study_runs.find_unused(study):
        num, several = len(unused), len(unused) > 1
        what = f"{num} finished run{'s' * several} in this folder {'are' if several else 'is'}"
        shown = ", ".join([*unused[:MOST_UNUSED], *["..."] * (len(unused) > MOST_UNUSED)])
        lines.append(f"{what} not part of this study: {shown}.")
    return lines + answer.describe_changes(study)


def _damaged(study: Study) -> list[str]:
    """Returns the names of damaged runs with the reasons."""
    runs = [run for run in study.runs if run.damaged]
    return [f"{run.name}: {archive.shorten(study.workdir, run.damaged or '')}" for run in runs]


def _count(words: Iterable[str], between: str = ", ") -> str:
    """Returns words with the number of runs of each: "abc (2 runs), def (1 run)"."""
    counted = Counter(filter(None, words)).most_common()
    return between.join(f"{word} ({n} run{'s' * (n != 1)})" for word, n in counted)


def _describe_commit(environment: Environment) -> str:
    commit = (environment.git_commit or "")[:12]
    return f"{commit} with local changes" if commit and environment.git_dirty else commit


def tabulate_claims(findings: Sequence[Finding], scores: Scores, footnotes: Sequence[str]) -> Table:
    """Returns the claims of all findings."""
    rows: list[tuple[Cell, ...]] = []
    for finding in findings:
        for claim in finding.claims:
            scale, ends = claim.scale, [claim.scale * end for end in claim.ends]
            effect = None if claim.effect is None else Value(scale * claim.effect, *ends)
            least = claim.estimate and claim.estimate.detectable
            numbers = (effect, claim.corrected, None if least is None else scale * least)
            region = claim.region.describe(scale)
            rows.append((finding.id, claim.what, region, *numbers, claim.words))
    named = " ".join([f.text for f in findings] + [c.what for f in findings for c in f.claims])
    asked = [score for score in SCORES if score != "seconds" or score in named]
    chosen = (f"{c.compared}: {c.chosen}." for f in findings for c in f.claims if c.chosen)
    remarks = (*CLAIM_NOTES, *chosen, *scores.remarks(asked))
    title = "Tests of the hypotheses"
    return Table("hypotheses", title, CLAIM_COLUMNS, tuple(rows), remarks, tuple(footnotes))


def _tabulate_departures(study: Study) -> Table:
    """Returns the declared differences of every system, with the study's value if it differs."""
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
    return Table(
        "declared_differences", "Declared differences from the base config", columns, tuple(rows)
    )


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
