"""The content of a report, whatever its format: gathered once from a study and its scores."""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from scalelab.lab.compare import comparability
from scalelab.lab.compare.claims import Finding
from scalelab.lab.compare.evidence import SCORES, Evidence
from scalelab.lab.load import study_runs
from scalelab.lab.load.study_runs import Study
from scalelab.lab.show import notes, score_tables
from scalelab.lab.show.score_tables import MakeTable
from scalelab.lab.show.tables import Cell, Column, Table, Value
from scalelab.runs.records import Environment

CLAIM_COLUMNS = (
    Column("hypothesis", "hypothesis", "text"),
    Column("claim", "claim", "text"),
    Column("region", "claimed to be", "text"),
    Column("effect", "found", "effect"),
    Column("p", "p (Holm)", "effect"),
    Column("detectable", "smallest detectable", "effect"),
    Column("verdict", "verdict", "text"),
)
CLAIM_NOTES = (
    "Scores are fractions, losses are in nats; 95% intervals in square brackets.",
    "p is corrected for all claims of the report (Holm 1979). Smallest detectable: the true"
    " difference that a two-sided test at 5% finds with power 80%, before this correction.",
)
RUN_COLUMNS = (
    Column("name", "run", "text"),
    Column("state", "state", "text"),
    Column("steps", "steps", "count"),
    Column("tokens", "tokens", "count"),
    Column("flops", "FLOPs", "scientific"),
    Column("seconds", "seconds", "number"),
    Column("expected_seconds", "planned seconds", "number"),
    Column("gib", "GiB", "gib"),
    Column("expected_gib", "planned GiB", "gib"),
    Column("loss", "last loss", "fixed"),
    Column("commit", "commit", "text"),
)


@dataclasses.dataclass(frozen=True)
class ShownFinding:
    """A hypothesis as the report shows it.

    Attributes:
      title: its number and statement.
      verdict: such as "confirmed".
      lines: the rule, the reason and remarks.
      claims: the claims that it rests on, perhaps without rows.
    """

    title: str
    verdict: str
    lines: tuple[str, ...]
    claims: Table


@dataclasses.dataclass(frozen=True)
class Report:
    """The content of a report.

    Attributes:
      study: the comparison.
      facts: (term, text): state, protocol, what is equal.
      tables: of results.
      shared: the notes that all these tables have, which the report prints once.
      findings: hypotheses with their verdicts.
      claims: all claims of the hypotheses; None without hypotheses.
      departures: a table; None if no system declares any.
      footnotes: what was allowed to differ.
      commands: of the study and its runs, the most frequent first.
      runs: a table of every pre-training and its state.
    """

    study: Study
    facts: list[tuple[str, str]]
    tables: list[Table]
    shared: list[str]
    findings: list[ShownFinding]
    claims: Table | None
    departures: Table | None
    footnotes: Sequence[str]
    commands: list[str]
    runs: Table


def gather(
    study: Study,
    evidence: Evidence,
    *,
    makers: Mapping[str, MakeTable],
    findings: Sequence[Finding] = (),
    published: Evidence | None = None,
    departing: Sequence[str] = (),
    footnotes: Sequence[str] = (),
) -> Report:
    """Gathers a report's content.

    Args:
      study: the comparison.
      evidence: its scores.
      makers: kinds of tables by name.
      findings: hypotheses with their verdicts.
      published: scores to show beside ours.
      departing: reasons why published scores do not compare.
      footnotes: what was allowed to differ.

    Raises:
      ValueError: no run is finished, or the study asks for an unknown table.
    """
    if not any(run.finished for run in study.runs):
        broken = notes.damaged(study, study.points)
        reason = f" Damaged: {'; '.join(broken)}." if broken else ""
        raise ValueError(
            f"study {study.name}: none of its {len(study.runs)} runs is finished.{reason} Run the"
            " study before its report."
        )
    tables = score_tables.build(
        study, evidence, makers=makers, published=published, departing=departing,
        footnotes=footnotes,
    )  # fmt: skip
    shared = [
        note for note in (tables[0].notes if len(tables) > 1 else ())
        if note not in footnotes and all(note in table.notes for table in tables)
    ]  # fmt: skip
    environments = [run.environment for run in study.runs]
    return Report(
        study, _describe_state(study, environments), tables, shared, [*map(show_finding, findings)],
        tabulate_claims(findings, evidence.caveats(SCORES), footnotes) if findings else None,
        _tabulate_departures(study), footnotes, _list_commands(study, environments),
        _tabulate_runs(study, environments, footnotes),
    )  # fmt: skip


def show_finding(finding: Finding) -> ShownFinding:
    """Returns a finding as the report shows it."""
    lines = [f"Confirmed if {finding.rule}."]
    if finding.why:
        lines.append(f"{finding.verdict.capitalize()}: {finding.why}.")
    if finding.cases:
        lines.append(f"Counted case by case, without a test: it {finding.counted}.")
    title = f"{finding.id}: {finding.statement.rstrip('.')}"
    claims = _claims([finding], CLAIM_COLUMNS[1:], f"hypothesis-{finding.id}", ())
    return ShownFinding(title, finding.verdict, (*lines, *finding.remarks), claims)


def tabulate_claims(
    findings: Sequence[Finding], caveats: Sequence[str] = (), footnotes: Sequence[str] = ()
) -> Table:
    """Returns all claims of all findings, with notes."""
    made = _claims(findings, CLAIM_COLUMNS, "hypotheses", (*CLAIM_NOTES, *caveats, *footnotes))
    return dataclasses.replace(made, footnotes=tuple(footnotes))


def _claims(
    findings: Sequence[Finding], columns: Sequence[Column], name: str, remarks: tuple[str, ...]
) -> Table:
    rows = []
    for finding in findings:
        for claim in finding.claims:
            estimate = claim.estimate
            ends = (None, None) if estimate is None else (estimate.low, estimate.high)
            cells: dict[str, Cell] = {
                "hypothesis": finding.id, "claim": claim.what, "region": str(claim.region),
                "effect": None if claim.effect is None else Value(claim.effect, *ends),
                "p": claim.corrected, "detectable": claim.detectable, "verdict": claim.verdict,
            }  # fmt: skip
            rows.append(tuple(cells[column.key] for column in columns))
    return Table(name, "Claims of the hypotheses", tuple(columns), tuple(rows), None, remarks)


def _describe_state(study: Study, environments: Sequence[Environment]) -> list[tuple[str, str]]:
    facts = study.facts
    finished = sum(run.finished for run in study.runs)
    protocol = f"scale {facts['scale']}"
    if facts.get("protocol"):
        protocol += f" of section {facts['protocol']} of the benchmark protocol"
    tuned = ""
    if facts["tasks"]:
        seeds = f"{facts['finetune_seeds']} seeds of each pre-training"
        tuned = f"{', '.join(facts['tasks'])}; recipe {notes.describe_recipe(study)}; {seeds}"
    parts = [task for r in study.runs for tasks in (r.tasks, r.scratch) for task in tasks.values()]
    tunings = [seed.environment for task in parts for seed in task.finished]
    devices = (", ".join(e.devices) for e in environments if e.devices)
    found = {
        "State": f"{finished} of {len(study.runs)} pre-trainings finished",
        "Protocol": protocol,
        "Matched": comparability.describe_clock(study, study.points),
        "May differ": ", ".join([*facts["free"], *facts["allow"]]),
        "Set for all": ", ".join(facts.get("fields") or ()),
        "Unfinished": ", ".join(notes.unfinished(study.points)),
        "Damaged": "; ".join(notes.damaged(study, study.points)),
        "Fine-tuned on": tuned,
        "Commits": _count(map(_describe_commit, environments)),
        "Commits of fine-tunings": _count(map(_describe_commit, tunings)),
        "Devices": _count(devices, "; "),
    }
    return [(term, text) for term, text in found.items() if text]


def _count(words: Iterable[str], between: str = ", ") -> str:
    """Words with the number of runs of each: "abc (2 runs), def (1 run)"."""
    counted = Counter(filter(None, words)).most_common()
    return between.join(f"{word} ({n} run{'s' * (n != 1)})" for word, n in counted)


def _tabulate_departures(study: Study) -> Table | None:
    """Every declared departure of every system."""
    systems = dict.fromkeys(p.system for p in study.points)
    rows = [(s, *departure) for s in systems for departure in notes.departures(study, s)]
    keys = ("system", "field", "value", "source")
    columns = tuple(Column(key, key, "text") for key in keys)
    title = "Departures from the control"
    return Table("departures", title, columns, tuple(rows)) if rows else None


def _tabulate_runs(
    study: Study, environments: Sequence[Environment], footnotes: Sequence[str]
) -> Table:
    """Every pre-training, finished or not, with the plan's expectation."""
    plan = study_runs.read_plan(study.workdir, study.name)
    rows: list[tuple[Cell, ...]] = []
    for run, environment in zip(study.runs, environments, strict=True):
        result = run.result
        state = "finished" if run.finished else "damaged" if run.damaged else "unfinished"
        numbers = (getattr(result, k, None) for k in ("steps", "tokens", "flops", "seconds"))
        expected = study_runs.planned(plan, run.name, run.stage, run.n_model) or {}
        memory = (
            None if size is None else size / 2**30
            for size in (result and result.peak_memory_bytes, expected.get("peak_bytes"))
        )
        commit = _describe_commit(environment) or None
        row = (*numbers, expected.get("secs"), *memory, run.loss, commit)
        rows.append((run.name, state, *row))
    return Table("runs", "Runs", RUN_COLUMNS, tuple(rows), None, tuple(footnotes), tuple(footnotes))


def _list_commands(study: Study, environments: Sequence[Environment]) -> list[str]:
    """The study's own command, then those that its runs recorded, each once."""
    recorded = Counter(e.command for e in environments if e.command)
    own = [study.facts["command"]] if study.facts.get("command") else []
    return list(dict.fromkeys([*own, *(command for command, _ in recorded.most_common())]))


def _describe_commit(environment: Environment) -> str:
    commit = (environment.git_commit or "")[:12]
    return f"{commit} with local changes" if commit and environment.git_dirty else commit
