"""What a report says, whatever it is written in: gathered once from a study and its evidence."""

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import Any

from scalelab.lab.compare import matched
from scalelab.lab.compare.claims import Finding
from scalelab.lab.compare.evidence import SCORES, Evidence
from scalelab.lab.reading import run_check, run_files, study_plan, study_runs
from scalelab.lab.reading.study_runs import Study
from scalelab.lab.reports import chart_data, shown_findings, study_notes, study_tables
from scalelab.lab.reports.scored_table import Cell, Column, Table, Value
from scalelab.lab.reports.shown_findings import Shown


@dataclasses.dataclass(frozen=True)
class Report:
    """The content of a report.

    Attributes:
      study: it is about.
      facts: (term, text): state, protocol, what is held equal.
      tables: of results.
      findings: hypotheses with their verdicts.
      claims: all that the hypotheses rest on; None without hypotheses.
      departures: a table; None if no system declares any.
      footnotes: of the comparability contract.
      charts: name -> what page/chart.js draws.
      commands: what was run, most frequent first.
      runs: a table of every pre-training and its state.
    """

    study: Study
    facts: list[tuple[str, str]]
    tables: list[Table]
    findings: list[Shown]
    claims: Table | None
    departures: Table | None
    footnotes: Sequence[str]
    charts: dict[str, dict[str, Any]]
    commands: list[str]
    runs: Table


def gather(
    study: Study,
    evidence: Evidence,
    *,
    findings: Sequence[Finding] = (),
    published: Evidence | None = None,
    footnotes: Sequence[str] = (),
) -> Report:
    """Gathers a report's content; arguments as for `report.write`.

    Raises:
      ValueError: no run is finished, or the study asks for an unknown table.
    """
    finished = [run for run in study.runs if run.finished]
    if not finished:
        broken = study_notes.damaged(study, study.points)
        why = f"; damaged: {'; '.join(broken)}" if broken else ""
        raise ValueError(
            f"study {study.name}: a report over no finished runs, {len(study.runs)} planned{why};"
            " run the study first"
        )
    tables = study_tables.build(study, evidence, published=published, footnotes=footnotes)
    environments = [_environment(run.folder) for run in study.runs]
    charts = {"loss": chart_data.losses(study), "score": chart_data.scores(study, evidence)}
    return Report(
        study, _facts(study, environments), tables, shown_findings.show(findings),
        shown_findings.table(findings, evidence.caveats(SCORES), footnotes) if findings else None,
        _departures(study), footnotes,
        {name: chart for name, chart in charts.items() if chart}, _commands(study, environments),
        _runs(study, environments, footnotes),
    )  # fmt: skip


def _facts(study: Study, environments: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    facts = study.facts
    finished = sum(run.finished for run in study.runs)
    protocol = f"{facts['scale']} scale"
    if facts.get("protocol"):
        protocol += f" of the benchmark protocol's section {facts['protocol']}"
    found = [("State", f"{finished} of {len(study.runs)} pre-trainings finished"),
             ("Protocol", protocol), ("Matched", matched.said(study, study.points)),
             ("May differ", ", ".join([*facts["free"], *facts["allow"]]))]  # fmt: skip
    found.append(("Set for all", ", ".join(facts.get("fields") or ())))
    waiting = study_notes.unfinished(study.points)
    broken = study_notes.damaged(study, study.points)
    if waiting:
        found.append(("Unfinished", ", ".join(waiting)))
    if broken:
        found.append(("Damaged", "; ".join(broken)))
    if facts["tasks"]:
        tasks = ", ".join(facts["tasks"])
        seeds = f"{facts['finetune_seeds']} seeds of each pre-training"
        found.append(("Fine-tuned on", f"{tasks}; recipe {study_notes.adapted(study)}; {seeds}"))
    found.append(("Commits", _commits(environments)))
    found.append(("Commits of fine-tunings", _commits(_finetuned(study))))
    devices = Counter(", ".join(e["devices"]) for e in environments if e.get("devices"))
    found.append(("Devices", "; ".join(f"{d} ({_runs_of(n)})" for d, n in devices.most_common())))
    return [(term, text) for term, text in found if text]


def _departures(study: Study) -> Table | None:
    """Every declared departure of every system."""
    systems = dict.fromkeys(p.system for p in study.points)
    rows = [(s, *departure) for s in systems for departure in study_notes.departures(study, s)]
    keys = ("system", "field", "value", "source")
    columns = tuple(Column(key, key, "text") for key in keys)
    title = "Departures from the control"
    return Table("departures", title, columns, tuple(rows), None, ()) if rows else None


def _runs(study: Study, environments: Sequence[dict[str, Any]], footnotes: Sequence[str]) -> Table:
    """Every pre-training, finished or not, and what the plan expected of it."""
    keys = ("name", "state", "steps", "tokens", "flops", "seconds", "expected_seconds")
    keys += ("gib", "expected_gib", "loss", "commit")
    titles = ("run", "state", "steps", "tokens", "FLOPs", "seconds", "planned", "GiB", "planned")
    titles += ("last loss", "commit")
    kinds = ("text", "text", "count", "count", "scientific", "seconds", "seconds", "gib", "gib")
    kinds += ("loss", "text")
    plan = study_runs.read_plan(study.workdir, study.name)
    rows = []
    for run, environment in zip(study.runs, environments, strict=True):
        result = run.result or {}
        state = "finished" if run.finished else "damaged" if run.damaged else "unfinished"
        numbers = (result.get(k) for k in ("steps", "tokens", "flops", "seconds"))
        expected = study_plan.planned(plan, run.name, run.stage, run.n_model) or {}
        memory = [
            None if size is None else size / 2**30
            for size in (result.get("peak_memory_bytes"), expected.get("peak_bytes"))
        ]
        commit = _commit(environment) or None
        rows.append((run.name, state, *numbers, expected.get("secs"), *memory, run.loss, commit))
    columns = tuple(map(Column, keys, titles, kinds))
    return Table("runs", "Runs", columns, tuple(rows), None, tuple(footnotes), tuple(footnotes))


def _commands(study: Study, environments: Sequence[dict[str, Any]]) -> list[str]:
    """The study's own command, then those that its runs recorded, each once."""
    recorded = Counter(e["command"] for e in environments if e.get("command"))
    own = [study.facts["command"]] if study.facts.get("command") else []
    return list(dict.fromkeys([*own, *(command for command, _ in recorded.most_common())]))


def _environment(folder: Any) -> dict[str, Any]:
    """What a run says of where it ran; empty if it says nothing yet."""
    problems: list[str] = []
    found, _ = run_files.read_json(folder / "environment.json", problems)
    return {} if problems or run_check.of_environment(found) else found


def _finetuned(study: Study) -> list[dict[str, Any]]:
    """What the fine-tunings that count say of where they ran, those of random weights too."""
    tasks = [t for r in study.runs for part in (r.tasks, r.scratch) for t in part.values()]
    return [_environment(seed.folder) for task in tasks for seed in task.finished]


def _commits(environments: Sequence[dict[str, Any]]) -> str:
    commits = Counter(filter(None, map(_commit, environments)))
    return ", ".join(f"{c} ({_runs_of(n)})" for c, n in commits.most_common())


def _commit(environment: dict[str, Any]) -> str:
    commit = str(environment.get("git_commit") or "")[:12]
    return f"{commit} with local changes" if commit and environment.get("git_dirty") else commit


def _runs_of(num: int) -> str:
    return f"{num} run" if num == 1 else f"{num} runs"


def sort_value(cell: Cell) -> str:
    """What a column is sorted by; empty for what is unknown."""
    if cell is None:
        return ""
    return repr(cell.value) if isinstance(cell, Value) else str(cell)
