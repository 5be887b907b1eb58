"""Notes below a study's tables: meaning of the numbers, missing runs, equal and free fields."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from scalelab.lab.compare import comparability
from scalelab.lab.load import archive
from scalelab.lab.load.study_runs import BASELINE, Point, PretrainRun, Study
from scalelab.lab.load.task_runs import ALL_TITLES, SeedRun
from scalelab.lab.tables import Cell, Column, Value

METRICS = (
    "Scores x 100 on the dev sets after the last step: accuracy, but Matthews' correlation (CoLA),"
    " Pearson's (STS-B), F1 (MRPC). GLUE-Large is the mean of MNLI-m, QQP"
    " (by accuracy, or by F1 where a column says so) and QNLI."
)
DETECTABLE = (
    "Smallest detectable difference: the true difference to the first row that a two-sided test at"
    " 5% finds with power 80%, the largest over all rows; none where all runs agree."
)
LOSSES = (
    "Losses of different kinds do not compare ({}). Yardsticks compare, and bits per byte where the"
    " objective is one."
)
STATES: dict[str, Callable[[SeedRun], object]] = {
    "unfinished": lambda seed: seed.unfinished,
    "failed": lambda seed: seed.failed,
    "degenerate and still counted": lambda seed: seed.finished and seed.degenerate,
}


def describe_scores(study: Study, points: Sequence[Point], columns: Sequence[Column]) -> list[str]:
    """Describes the scores of these rows and columns of a table."""
    found, task_columns = [], [c for c in columns if c.tasks]
    if task_columns:
        found.append(METRICS)
        most = max(len(p.finished) for p in points)
        repeated = (
            f" and up to {most} pre-training seeds, widened to Student's t over these" if most > 1
            else "; pre-training was not repeated, so its variation is not included"
        )  # fmt: skip
        found.append(
            f"Fine-tuned with recipe {describe_recipe(study)}. 95% intervals in square brackets:"
            " Multi-Bootstrap over dev examples, fine-tuning seeds"
            f" ({study.facts.finetune_seeds}){repeated}."
        )
    if len(task_columns) < len(columns):
        found.append(
            "Loss and time: 95% intervals by Student's t over pre-training seeds; [-]: one run."
        )
    if any(c.key == "loss" for c in columns):
        found.append("Validation loss in nats, at the end and at the longest trained length.")
        found += _describe_losses(points)
    return found


def describe_published(
    departing: Sequence[str], rows: Iterable[Sequence[Cell]], source: str = ""
) -> list[str]:
    """Returns which published numbers stand beside ours, or why none do; `source` names them."""
    if any(isinstance(cell, Value) and cell.published is not None for row in rows for cell in row):
        return [f"In round brackets: the published number{source}."]
    reasons = f"No published number is comparable, as this study differs: {'; '.join(departing)}."
    return [reasons] if departing else []


def describe_study(
    study: Study, points: Sequence[Point], footnotes: Iterable[str] = (), tasks: Iterable[str] = ()
) -> list[str]:
    """Returns the notes of every table: what is missing, what is equal, what its variants change.

    `tasks` are the tasks of the table's numbers; `footnotes` are added at the end.
    """
    facts, names = study.facts, [run.name for point in points for run in point.runs]
    found = []
    for state, those in (("unfinished", unfinished(points)), ("damaged", damaged(study, points))):
        if those:
            found.append(f"{len(those)} of {len(names)} runs are {state}: {'; '.join(those)}.")
    wanted = {r.name: facts.stages[r.stage].finetune for r in study.runs}
    # For stages with "best:k": the runs with a started fine-tuning.
    runs = [run for point in points for run in point.finished if wanted[run.name] == "all"
            or (wanted[run.name] != "none" and run.tasks)]  # fmt: skip
    for task in facts.measured if runs else ():
        found += _describe_task(study, task, runs) if task in tasks else []
    free = ", ".join([*facts.free, *facts.allow])
    found.append(f"{comparability.describe_clock(study, points)} Runs may differ in {free}.")
    for variant in dict.fromkeys(p.variant for p in points if p.variant != BASELINE):
        fields = facts.variants.get(variant)
        found.append(f"{variant}: {', '.join(fields or ['no change'])}.")
    return [*found, *footnotes]


def _describe_task(study: Study, task: str, runs: Sequence[PretrainRun]) -> list[str]:
    """Returns what is missing, failed or degenerate among the fine-tunings on a task."""
    found, title = [], ALL_TITLES.get(task, task)
    by_run = {r.name: r.tasks[task].runs if task in r.tasks else () for r in runs}
    seeds = [seed for own in by_run.values() for seed in own]
    without = [name for name, own in by_run.items() if not any(seed.finished for seed in own)]
    if without:
        found.append(f"{title}: missing for {', '.join(without)}.")
    for state, holds in STATES.items():
        named = Counter(name for name, own in by_run.items() for seed in own if holds(seed))
        if named:
            runs_named = ", ".join(f"{num} of {name}" for name, num in named.items())
            several = f"{named.total()} of {len(seeds)} fine-tunings"
            found.append(f"{title}: {several} are {state}: {runs_named}.")
    found += [
        f"{title}: {archive.shorten(study.workdir, f'{s.folder}: {s.failed}')}."
        for s in seeds
        if s.failed
    ]
    # Subsets, capped training sets and absent splits are never passed off as the whole.
    remarks = dict.fromkeys(x for s in seeds if s.result for x in s.result.remarks)
    return found + [f"{remark}." for remark in remarks]


def describe_recipe(study: Study) -> str:
    """Returns the fine-tuning recipe, and the fields that the study sets on it."""
    fields = study.facts.finetune.fields
    return study.facts.recipe + (f" and {', '.join(fields)}" if fields else "")


def _describe_losses(points: Sequence[Point]) -> list[str]:
    """Returns the kinds of the losses of some rows, if there are several."""
    found = comparability.differing_losses(points)
    letters = comparability.loss_groups(points).values()
    kinds = {}  # letter -> the fields in which kinds differ
    for place, letter in enumerate(letters):
        kinds[letter] = ", ".join(f"{name} {own[place]}" for name, own in found.items())
    text = "; ".join(f"{letter}: {own}" for letter, own in kinds.items())
    return [LOSSES.format(text)] if found else []


def unfinished(points: Iterable[Point]) -> list[str]:
    """Returns the names of the pre-trainings that are neither finished nor damaged."""
    return [r.name for p in points for r in p.runs if not r.finished and not r.damaged]


def damaged(study: Study, points: Iterable[Point]) -> list[str]:
    """Returns the names of damaged runs with the reasons."""
    runs = (run for point in points for run in point.runs)
    return [
        f"{run.name}: {archive.shorten(study.workdir, run.damaged)}" for run in runs if run.damaged
    ]
