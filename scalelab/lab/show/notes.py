"""Notes below the tables of a study: what its numbers are, what is missing, equal and different."""

import json
from collections.abc import Iterable, Mapping, Sequence

from scalelab.lab.compare import comparability
from scalelab.lab.load import archive
from scalelab.lab.load.study_runs import BASELINE, Point, PretrainRun, Study
from scalelab.lab.load.task_runs import TITLES

SCORES = {
    "large": "GLUE-Large: mean of MNLI-m, QQP and QNLI",
    "qqp": "QQP: accuracy",
    "cola": "CoLA: Matthews' correlation",
    "stsb": "STS-B: Pearson's correlation",
    "mrpc": "MRPC: F1",
}
DETECTABLE = (
    "Smallest detectable difference: the true difference to the first row that a two-sided test at"
    " 5% finds with power 80%, the largest over all rows; none where all runs agree."
)
THESE_WEIGHTS = (
    " Task scores hold for these weights only: rows with a single pre-training do not show how"
    " much another pre-training would differ."
)
LOSSES = "Losses of different objectives, or on other tokens, do not compare."
LENGTHS = "Losses at different lengths do not compare; the length stands beside them."
LOSS_FIELDS = ("objective", "tokenizer.kind", "tokenizer.vocab_size", "data.format")
MOST_REASONS = 4  # reasons in a sentence; more are counted


def describe_scores(
    study: Study,
    points: Sequence[Point],
    scores: Sequence[str],
    left_out: Sequence[str],
    departing: Sequence[str],
    has_published: bool,
) -> list[str]:
    """Returns what a table's numbers are, and which are missing.

    Args:
      study: the comparison.
      points: the table's rows.
      scores: keys of its columns of scores.
      left_out: titles of columns whose tasks the study does not have.
      departing: reasons why published numbers may not stand beside ours.
      has_published: whether published numbers stand beside ours.
    """
    found = []
    of_tasks = [s for s in scores if s not in ("loss", "seconds")]
    if of_tasks:
        metrics = "; ".join(SCORES[s] for s in of_tasks if s in SCORES)
        metrics = f" {metrics}." if metrics else ""
        found.append(f"Scores x 100 on the dev sets after the last step.{metrics}")
        found.append(f"Fine-tuned with recipe {describe_recipe(study)}.")
    found += _describe_intervals(study, points, bool(of_tasks), len(of_tasks) < len(scores))
    if "loss" in scores:
        found.append("Validation loss in nats, at the end and at the longest trained length.")
        found += [LOSSES] if len({loss_kind(p) for p in points}) > 1 else []
        found += [LENGTHS] if len({loss_length(p) for p in points} - {None}) > 1 else []
    if "seconds" in scores:
        found.append("Seconds of training, without compilation and evaluation.")
    found += describe_published(study, departing, has_published)
    if left_out:
        found.append(f"Not in this study: {', '.join(left_out)}.")
    return found


def describe_published(
    study: Study, departing: Sequence[str], has_published: bool, source: str = ""
) -> list[str]:
    """Returns which published numbers stand beside ours, or why none do; `source` names them."""
    if has_published:
        return [f"In round brackets: the published number{source}."]
    if study.facts["scale"] != "full":
        return [f"Scale {study.facts['scale']}: no published number is comparable."]
    if not departing:
        return []
    more = len(departing) - MOST_REASONS
    reasons = "; ".join(departing[:MOST_REASONS]) + (f"; and {more} more" if more > 0 else "")
    return [f"No published number is comparable, because this study differs: {reasons}."]


def describe_detectable(points: Sequence[Point]) -> str:
    """Returns what the smallest detectable difference of a table is, and what it leaves out."""
    single = any(len(point.finished) == 1 for point in points)
    return DETECTABLE + THESE_WEIGHTS * single


def describe_study(
    study: Study, points: Sequence[Point], footnotes: Iterable[str] = (), tasks: Iterable[str] = ()
) -> list[str]:
    """Returns the notes of every table: state of its runs, what is equal, what departs.

    Args:
      study: the comparison.
      points: the table's rows.
      footnotes: added at the end.
      tasks: those that its numbers come from.
    """
    facts = study.facts
    found = _describe_runs(study, points, tasks)
    found.append(
        f"{comparability.describe_clock(study, points)} Runs may differ in {_join(facts['free'])}."
    )
    if facts.get("allow"):
        found.append(f"The study also allows differences in {_join(facts['allow'])}.")
    for variant in dict.fromkeys(p.variant for p in points):
        if variant != BASELINE:
            fields = (facts.get("variants") or {}).get(variant)
            found.append(f"{variant}: {_join(fields or ['no change'])}.")
    for system in dict.fromkeys(p.system for p in points):
        declared = departures(study, system)
        if declared:
            fields = "; ".join(f"{field} = {value} ({source})" for field, value, source in declared)
            found.append(f"{system} departs from the control: {fields}.")
        if own := (facts.get("system_fields") or {}).get(system):
            found.append(f"The study sets for {system}: {_join(own)}.")
    return [*found, *footnotes]


def describe_recipe(study: Study) -> str:
    """Returns the fine-tuning recipe, and the fields that the study sets on it."""
    fields = study.facts["finetune"].get("fields")
    return study.facts["recipe"] + (f" and {_join(fields)}" if fields else "")


def loss_kind(point: Point) -> tuple[object, ...]:
    """Returns the fields that decide which losses compare."""
    config = point.runs[0].config
    return tuple(_get(config, field, None) for field in LOSS_FIELDS)


def loss_length(point: Point) -> int | None:
    """Returns the length of a row's validation loss; None while nothing is finished."""
    evals = [run.result.eval for run in point.finished if run.result]
    return max((int(length) for by_length in evals for length in by_length), default=None)


def departures(study: Study, system: str) -> list[tuple[str, str, str]]:
    """Returns the departures that a system declares: field, value and source.

    The value says so where its runs have another one, because the study or a budget sets it.
    """
    declared = (study.facts.get("departures") or {}).get(system, [])
    config = next((p.runs[0].config for p in study.points if p.system == system), {})
    found = []
    for departure in declared:
        given = format_value(departure["value"])
        actual = _get(config, departure["field"], departure["value"])
        if format_value(actual) != given:
            given += ", here not set" if actual is None else f", here {format_value(actual)}"
        found.append((departure["field"], given, departure["source"]))
    return found


def unfinished(points: Iterable[Point]) -> list[str]:
    """Returns the names of the pre-trainings that are neither finished nor damaged."""
    return [r.name for p in points for r in p.runs if not r.finished and not r.damaged]


def damaged(study: Study, points: Iterable[Point]) -> list[str]:
    """Returns the names of damaged runs with the reasons."""
    return [
        f"{run.name}: {relative(study, run.damaged)}"
        for point in points for run in point.runs if run.damaged
    ]  # fmt: skip


def relative(study: Study, text: str) -> str:
    """Returns a message without the path of the study's folder."""
    return archive.shorten(study.workdir, text)


def format_value(value: object) -> str:
    """Returns a config value as it is written: null, true, 0.1, a word."""
    return value if isinstance(value, str) else json.dumps(value)


def _describe_runs(study: Study, points: Sequence[Point], tasks: Iterable[str]) -> list[str]:
    """What is unfinished, damaged, missing, failed or degenerate behind the rows."""
    found, tasks = [], set(tasks)
    planned = sum(len(point.runs) for point in points)
    waiting, broken = unfinished(points), damaged(study, points)
    if waiting:
        found.append(f"{len(waiting)} of {planned} pre-trainings are unfinished: {_join(waiting)}.")
    if broken:
        found.append(f"{len(broken)} of {planned} runs are damaged: {'; '.join(broken)}.")
    runs = [run for point in points for run in point.finished if _finetunes(study, run)]
    for task in study.facts["tasks"] if runs else ():
        if task in tasks:
            found += _describe_task(study, task, runs)
    return found


def _describe_task(study: Study, task: str, runs: Sequence[PretrainRun]) -> list[str]:
    """What is missing, failed or degenerate among the fine-tunings on a task."""
    found, title = [], TITLES.get(task, task)
    without = [r.name for r in runs if task not in r.tasks or not r.tasks[task].finished]
    if without:
        found.append(f"{title}: no finished fine-tuning of {_join(without)}.")
    by_run = {r.name: r.tasks[task].runs for r in runs if task in r.tasks}
    seeds = [seed for own in by_run.values() for seed in own]
    waiting, failed = [s for s in seeds if s.unfinished], [s for s in seeds if s.failed]
    if waiting:
        found.append(f"{title}: {len(waiting)} of {len(seeds)} fine-tunings are unfinished.")
    if failed:
        reasons = "; ".join(relative(study, f"{s.folder}: {s.failed}") for s in failed)
        found.append(f"{title}: {len(failed)} of {len(seeds)} fine-tunings failed: {reasons}.")
    degenerate = {
        name: sum(bool(s.finished and s.degenerate) for s in own) for name, own in by_run.items()
    }
    if any(degenerate.values()):
        names = _join(f"{num} of {name}" for name, num in degenerate.items() if num)
        some = f"{sum(degenerate.values())} of {len(seeds)} fine-tunings"
        found.append(f"{title}: {some} are degenerate and still counted: {names}.")
    # Subsets, capped training sets and absent splits are never passed off as the whole.
    remarks = dict.fromkeys(x for s in seeds if s.result for x in s.result.remarks)
    return found + [f"{remark}." for remark in remarks]


def _finetunes(study: Study, run: PretrainRun) -> bool:
    """Whether the study fine-tunes a run; of stages with "best:k", the runs already begun."""
    wanted = {r["name"]: r.get("finetune", "all") for r in study.facts["runs"]}[run.name]
    return wanted == "all" or (wanted != "none" and bool(run.tasks))


def _describe_intervals(
    study: Study, points: Sequence[Point], of_tasks: bool, of_runs: bool
) -> list[str]:
    most = max((len(p.finished) for p in points), default=0)
    num = study.facts["finetune_seeds"]
    few = f"{num} fine-tuning seeds" if num > 1 else "one fine-tuning seed"
    found = []
    if of_tasks and most < 2:
        found.append(
            f"95% intervals of scores in square brackets: Multi-Bootstrap over {few} and dev"
            " examples; pre-training was not repeated, so its variation is not included."
        )
    elif of_tasks:
        found.append(
            "95% intervals of scores in square brackets: Multi-Bootstrap over up to"
            f" {most} pre-training seeds, {few} and dev examples, widened to Student's t over the"
            " seeds."
        )
    if of_runs:
        found.append(
            "95% intervals of loss and time: Student's t over pre-training seeds; [-]: one run."
        )
    return found


def _get(config: Mapping[str, object], field: str, otherwise: object) -> object:
    """The value of a dotted field; `otherwise` if there is no such field."""
    value: object = config
    for name in field.split("."):
        if not isinstance(value, Mapping) or name not in value:
            return otherwise
        value = value[name]
    return value


def _join(names: Iterable[object]) -> str:
    return ", ".join(map(str, names))
