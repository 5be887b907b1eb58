"""Notes on a study's tables: meaning of the numbers, missing and degenerate fine-tunings."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from scalelab.eval.names import BIAS, EVALUATIONS
from scalelab.eval.score_names import TASK_SCORES, TASK_TITLES
from scalelab.lab.compare import comparability
from scalelab.lab.load.study_runs import Row, Study
from scalelab.lab.load.task_runs import SeedRun, TaskRuns
from scalelab.lab.show.card import render
from scalelab.lab.show.score_tables import TableRequest
from scalelab.lab.tables import Table, Value
from scalelab.records import archive
from scalelab.tasks.glue import ABOUT_MEANS

OTHER_METRICS = {
    "matthews": "Matthews' correlation", "pearson": "Pearson's correlation", "f1": "F1",
    "answer_f1": "F1 of the answers' words", "exact_match": "exact match", "bleu": "BLEU",
    "rouge2": "ROUGE-2",
}  # fmt: skip
NUMBER = re.compile(r"\b\d+(?:,\d{3})*(?:\.\d+)?")
STATES: dict[str, Callable[[SeedRun], object]] = {
    "unfinished": lambda seed: seed.unfinished,
    "failed": lambda seed: seed.failed,
    "degenerate and still counted": lambda seed: seed.finished and seed.degenerate,
}


def describe(request: TableRequest, made: Sequence[Table]) -> list[str]:
    """Returns what a reader of a report's tables must know: numbers, what is missing, differences.

    The notes on fine-tunings from random weights are those of a table `scratch`.
    """
    study, facts = request.study, request.study.facts
    columns = {c.key: c for table in made for c in table.columns if c.scored}
    tasks = [c.key for c in columns.values() if c.tasks]
    metrics = [(TASK_SCORES.get(key, ("",))[-1], columns[key].title) for key in tasks]
    parts = ["scratch" if table.name == "scratch" else "tasks" for table in made]
    text = render(
        "notes.txt", keys=[*columns], tasks=tasks, scratch="scratch" in parts,
        recipe=describe_recipe(study), tuned=not EVALUATIONS.keys() >= {*tasks},
        evaluations=EVALUATIONS.keys() & {*tasks}, stereotypes={*BIAS} & {*tasks},
        most=max(len(p.finished) for p in study.points),
        other=[f"{OTHER_METRICS[m]} ({title})" for m, title in metrics if m in OTHER_METRICS],
        seeds=facts.finetune_seeds, about_means=ABOUT_MEANS,
    )  # fmt: skip
    found = text.splitlines() + (_describe_losses(study.points) if "loss" in columns else [])
    rows = [row for table in made for row in table.rows]
    if any(isinstance(cell, Value) and cell.published is not None for row in rows for cell in row):
        found.append("In round brackets: the published number.")
    elif reasons := "; ".join(request.departing):
        found.append(f"No published number is comparable, as this study differs: {reasons}.")
    if request.published:
        labels = {f" {p.label}, " for p in study.points}
        doubtful = request.published.remarks(columns)
        found += [text for text in doubtful if any(label in text for label in labels)]
    shown = {task for column in columns.values() for task in column.tasks}
    asked = {"all": True, "none": False}  # in older files, of best:k only what has begun
    for part in dict.fromkeys(parts):
        own = [r for r in study.runs if r.finished and (r.tuned[part] if part == "scratch" else
               asked.get(facts.stages[r.stage].finetune, bool(r.tuned[part])))]  # fmt: skip
        for task in (task for task in facts.measured if task in shown and own):
            found += _describe_task(study, task, {r.name: r.tuned[part].get(task) for r in own})
    found += request.scores.remarks(columns)
    absent = [TASK_TITLES.get(name, name) for name in facts.measured if name not in shown]
    found += [f"Measured, but in no table of this report: {', '.join(absent)}."] * bool(absent)
    return merge_cuts([*found, *request.footnotes])


def _describe_task(study: Study, task: str, tuned: Mapping[str, TaskRuns | None]) -> list[str]:
    """Returns what is missing, failed or degenerate among the fine-tunings on a task, by run."""
    found, title = [], TASK_TITLES.get(task, task)
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
    return found + [f"{x}." if x.startswith(title) else f"{title}: {x}." for x in remarks]


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


def _describe_losses(points: Sequence[Row]) -> list[str]:
    """Returns the kinds of the losses of some rows, if there are several."""
    found = comparability.differing_losses(points)
    kinds = {
        letter: ", ".join(
            f"{name} {x}" for name, own in found.items() if (x := own[place]) is not None
        )
        for place, letter in enumerate(comparability.loss_groups(points).values())
    }
    text = "; ".join(f"{letter}: {own}" for letter, own in kinds.items())
    return [comparability.LOSSES.format(text)] if found else []
