"""Notes on a study's tables: meaning of the numbers, missing runs, equal and free fields."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from scalelab.eval.names import BIAS, YARDSTICKS
from scalelab.lab.compare import comparability
from scalelab.lab.load.study_runs import BASELINE, Point, Study
from scalelab.lab.load.task_runs import ALL_TITLES, TASK_SCORES, SeedRun, TaskRuns
from scalelab.lab.show.card import render
from scalelab.lab.tables import Cell, Column, Value
from scalelab.records import archive
from scalelab.tasks.glue import ABOUT_MEANS

OTHER_METRICS = {
    "matthews": "Matthews' correlation", "pearson": "Pearson's correlation", "f1": "F1",
}  # fmt: skip
DETECTABLE = (
    "Smallest detectable difference: the true difference to the first row that a two-sided test at"
    " 5% finds with power 80%, the largest over all rows; none where all runs agree."
)
LOSSES = (
    "Losses of different kinds do not compare ({}). Compare yardsticks, or bits per byte if"
    " objective and mask rate are the same."
)
NUMBER = re.compile(r"\b\d+(?:,\d{3})*(?:\.\d+)?")
STATES: dict[str, Callable[[SeedRun], object]] = {
    "unfinished": lambda seed: seed.unfinished,
    "failed": lambda seed: seed.failed,
    "degenerate and still counted": lambda seed: seed.finished and seed.degenerate,
}


def describe_scores(
    study: Study, points: Sequence[Point], columns: Sequence[Column], part: str = "tasks"
) -> list[str]:
    """Describes the scores of these rows and columns of a table; `part` as in `StudyScores`."""
    keys, tasks = [c.key for c in columns], [c.key for c in columns if c.tasks]
    metrics = [(TASK_SCORES.get(c.key, ("",))[-1], c.title) for c in columns if c.tasks]
    text = render(
        "notes.txt", keys=keys, tasks=tasks, part=part, recipe=describe_recipe(study),
        tuned=not YARDSTICKS.keys() >= {*tasks}, yardsticks=YARDSTICKS.keys() & {*tasks},
        stereotypes={*BIAS} & {*tasks}, most=max(len(p.finished) for p in points),
        other=[f"{OTHER_METRICS[m]} ({title})" for m, title in metrics if m in OTHER_METRICS],
        seeds=study.facts.finetune_seeds, about_means=ABOUT_MEANS,
    )  # fmt: skip
    return text.splitlines() + (_describe_losses(points) if "loss" in keys else [])


def describe_published(
    departing: Sequence[str], rows: Iterable[Sequence[Cell]], source: str = ""
) -> list[str]:
    """Returns which published numbers stand beside ours, or why none do; `source` names them."""
    if any(isinstance(cell, Value) and cell.published is not None for row in rows for cell in row):
        return [f"In round brackets: the published number{source}."]
    reasons = f"No published number is comparable, as this study differs: {'; '.join(departing)}."
    return [reasons] if departing else []


def describe_study(
    study: Study, points: Sequence[Point], footnotes: Iterable[str] = (), tasks: Iterable[str] = (),
    part: str = "tasks",
) -> list[str]:  # fmt: skip
    """Returns the notes of every table: what is missing, what is equal, what its variants change.

    `tasks` are the tasks of the table's numbers; `footnotes` are added at the end; `part` is as in
    `StudyScores`.
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
    runs = [run for run in runs if run.scratch or part != "scratch"]
    for task in facts.measured if runs else ():
        by_run = {run.name: getattr(run, part).get(task) for run in runs}
        found += _describe_task(study, task, by_run) if task in tasks else []
    free = ", ".join([*facts.free, *facts.allow])
    found.append(f"{comparability.describe_clock(study, points)} Runs may differ in {free}.")
    found += [f"{name}: {text}." for name, text in describe_variants(study, points).items()]
    return [*found, *footnotes]


def describe_variants(study: Study, points: Sequence[Point]) -> dict[str, str]:
    """Returns the fields that each variant of some rows sets."""
    names = dict.fromkeys(p.variant for p in points if p.variant != BASELINE)
    return {name: ", ".join(study.facts.variants.get(name) or ["no change"]) for name in names}


def _describe_task(study: Study, task: str, tuned: Mapping[str, TaskRuns | None]) -> list[str]:
    """Returns what is missing, failed or degenerate among the fine-tunings on a task, by run."""
    found, title = [], ALL_TITLES.get(task, task)
    by_run = {name: own.runs if own else () for name, own in tuned.items()}
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
    remarks = merge_numbers(x for s in seeds if s.result for x in s.result.remarks)
    remarks = [f"{x}." if x.startswith(title) else f"{title}: {x}." for x in remarks]
    return found + merge_cuts(remarks)


def merge_numbers(texts: Iterable[str]) -> list[str]:
    """Returns each text once; texts that differ only in numbers become one with their ranges."""
    found: dict[str, list[list[str]]] = {}
    for text in texts:
        found.setdefault(NUMBER.sub("\0", text), []).append(NUMBER.findall(text))
    merged = []
    for form, numbers in found.items():
        for column in zip(*numbers, strict=True):
            low, *_, high = sorted([*column, column[0]], key=lambda x: float(x.replace(",", "")))
            form = form.replace("\0", low if low == high else f"{low} to {high}", 1)
        merged.append(form)
    return merged


def merge_cuts(notes: Iterable[str]) -> list[str]:
    """Returns each note once; those on texts that were cut become one for a task and length."""
    found: dict[str, dict[str, None]] = {}
    for note in notes:
        head, mark, tail = note.partition(" tokens: ")
        tails = tail.removesuffix(".").split("; ") if mark else ()
        found.setdefault(head if mark else note, {}).update(dict.fromkeys(tails))
    return [f"{h} tokens: {'; '.join(tails)}." if tails else h for h, tails in found.items()]


def describe_recipe(study: Study) -> str:
    """Returns the fine-tuning recipe, and the fields that the study sets on it."""
    fields = study.facts.finetune.fields
    return study.facts.recipe + (f" and {', '.join(fields)}" if fields else "")


def _describe_losses(points: Sequence[Point]) -> list[str]:
    """Returns the kinds of the losses of some rows, if there are several."""
    found = comparability.differing_losses(points)
    kinds = {
        letter: ", ".join(f"{name} {own[place]}" for name, own in found.items())
        for place, letter in enumerate(comparability.loss_groups(points).values())
    }
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
