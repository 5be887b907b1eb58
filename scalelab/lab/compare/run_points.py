"""Finished runs as points (a measurement against clocks and size), and pools of comparable points.

A point is a pre-training that ended. Its measurement is its validation loss at the end, or a score
of a study's tables, the mean over its fine-tunings: one of `score_names.TASK_SCORES`,
the main score of a task by its name, "glue_large", or "glue", the mean main score of all nine.

A point is a line of a frame: system, shape, budget (of its config), seed, value (a loss, or a score
as a fraction), AXES (NaN: unknown), fields, key (equal for seeds of one point), and the loaded run.

`fields` has the fields that must agree: of a pre-training its science fields, "data" (a digest of
its texts) and "numerics" (the numerics versions of its starts); of its fine-tunings
"finetune.epochs" and so on. Seeds, and fields that are None, are left out.

Runs share a pool (a curve, or a grid) if they agree in all fields except those that the caller sets
free: SHAPE, or BUDGET if an axis shows it. Runs are seeds of one point only if nothing but their
seed differs, whatever is set free.
"""

import math
import pathlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pandas as pd

from scalelab.config.durations import CLOCKS
from scalelab.config.fields import differing, science
from scalelab.eval import score_names
from scalelab.eval.score_names import GLUE_TITLES, MAIN
from scalelab.lab.compare import comparability
from scalelab.lab.compare.comparability import PREFIX, SHAPE_FIELDS
from scalelab.lab.load import frame, run_table
from scalelab.lab.load.run_table import LoadedRun, Row

AXES = {"n_model": "N"} | {c.result: c.label for c in CLOCKS.values() if c.result != "steps"}
LOSS = "loss"
# Measure -> the scores of which it is the mean.
MEASURES = {
    LOSS: (), **{task: (name,) for task, name in MAIN.items()},
    **{name: (name,) for name in score_names.TASK_SCORES}, **score_names.MEANS,
    "glue_large": score_names.LARGE, "glue": tuple(MAIN[task] for task in GLUE_TITLES),
}  # fmt: skip
# AxHxL does not give the feed-forward width: runs of one shape must agree in it.
SHAPE = frozenset(SHAPE_FIELDS) - {"model.ffn_width"}
TOTALS, WARMUPS = (
    tuple(f"optim.{part}_{clock}" for clock in ("epochs", "flops", "secs", "steps", "tokens"))
    for part in ("total", "warmup")
)
BUDGET = frozenset(TOTALS + WARMUPS)


Pools = dict[str, pd.DataFrame]


def load(folders: Sequence[pathlib.Path], where: str = "") -> list[LoadedRun]:
    """Loads the runs below some folders, those that satisfy `where` (`run_table.where`; "": all).

    Raises:
      ValueError: a folder does not exist, or there are no such runs.
    """
    runs = run_table.load_runs(folders)
    asked = {*run_table.where(run_table.as_frame(runs), where).index}
    if not asked:
        condition = f" where {where}" if where else ""
        raise ValueError(f"no runs in {', '.join(map(str, folders))}{condition}")
    return [run for place, run in enumerate(runs) if place in asked]


def make(runs: Sequence[LoadedRun], measure: str) -> tuple[pd.DataFrame, list[str]]:
    """Makes the points of loaded runs, and notes on them.

    Raises:
      ValueError: an unknown measure, no finished run has it, or losses are of different lengths.
    """
    if measure not in MEASURES:
        raise ValueError(f"unknown measure {measure!r}; there are {', '.join(MEASURES)}")
    keys = [score_names.TASK_SCORES[name] for name in MEASURES[measure]]
    broken = [f"{r.row['run']}: {r.row['note']}" for r in runs if r.row["status"] == "damaged"]
    notes = [f"{len(broken)} runs are damaged and left out: {'; '.join(broken)}"] if broken else []
    ended = [r for r in runs if r.row["status"] == "completed" and r.row["task"] is None]
    values = [
        frame.mean_score(run.tuned.get("tasks", {}), keys) if keys else run.row["loss"]
        for run in ended
    ]
    found = [(r, float(x)) for r, x in zip(ended, values, strict=True) if x is not None]
    if not found:
        raise ValueError(
            f"no finished run with {measure} among {len(runs)} runs: wait for them,"
            f" fine-tune them, or choose another measure{'; '.join(['', *notes])}"
        )
    if measure == LOSS:
        _check_lengths([run.row for run, _ in found])
    if unfinished := sum(r.row["status"] not in ("completed", "damaged") for r in runs):
        notes.append(f"{unfinished} runs are unfinished and left out")
    if missing := len(ended) - len(found):
        notes.append(f"{missing} runs have no {measure} and are left out")
    tasks = {task for task, *_ in keys}
    points = pd.DataFrame([_make_point(run, value, tasks) for run, value in found])
    if measure == LOSS and len({own.get("objective") for own in points["fields"]}) > 1:
        notes.append("losses of different objectives do not compare")
    return points, notes


def group(points: pd.DataFrame, free: Collection[str] = ()) -> list[pd.DataFrame]:
    """Groups points that agree in all fields that are not free; seeds always are."""
    keys = [_key({k: x for k, x in own.items() if k not in free}) for own in points["fields"]]
    return [own for _, own in points.groupby(keys, sort=False)]


def _key(fields: Mapping[str, Any]) -> str:
    return repr(sorted(fields.items()))


def pool(points: pd.DataFrame, free: Collection[str]) -> tuple[Pools, list[str]]:
    """Sorts the points of one system into pools, within which the free fields may differ.

    Runs of one budget and different warm-ups are not pooled, even where the budget is free.

    Returns:
      The points of each pool by its name, "bert" or "bert, optim.total_steps=400"; and notes.
    """
    by_total = (same for own in group(points, free) for same in group(own, {*free} - {*TOTALS}))
    if any(differing(same["fields"], {*free} - {*WARMUPS}) for same in by_total):
        free = {*free} - {*WARMUPS}
    groups, system = group(points, free), points["system"].iloc[0]
    firsts = [own["fields"].iloc[0] for own in groups]
    fields = sorted(differing(firsts, free))
    labels = [(system,)] * len(groups)
    for field in fields:  # the fields that distinguish pools
        texts = (f"{field}={own.get(field, 'none')}" for own in firsts)
        longer = [(*label, text) for label, text in zip(labels, texts, strict=True)]
        labels = longer if len(set(longer)) > len(set(labels)) else labels
    names = [", ".join(label) for label in labels]
    note = (
        f"{system}: runs differ in {', '.join(fields)}, which must be equal, and are not"
        f" pooled ({'; '.join(names)}): --where=FIELD=VALUE selects runs"
    )
    return dict(zip(names, groups, strict=True)), [note] * (len(groups) > 1)


def _make_point(run: LoadedRun, value: float, tasks: Collection[str]) -> dict[str, Any]:
    """Makes the line of a pre-training with its fine-tunings on the measured tasks."""
    row, record = run.row, run.record
    assert record is not None
    fields = science(record.config) | {"task": None, "seed": None}
    fields |= {"data": record.data_hash, "numerics": record.environment.numerics_versions}
    adapted = []
    for task in (own for own in run.tuned.get("tasks", {}).values() if own.name in tasks):
        for seed in task.finished:
            chosen = (seed.result.chosen if seed.result else None) or {}
            own = comparability.describe_tuning(seed)
            adapted.append((task.name, {k: v for k, v in own.items() if k not in chosen}))
    for name in sorted({name for _, own in adapted for name in own}):
        values = {(task, repr(own.get(name))): own.get(name) for task, own in adapted}
        alike = len({text for _, text in values}) == 1  # else the values by task, as text
        fields[PREFIX + name] = next(iter(values.values())) if alike else repr(sorted(values))
    fields = {name: x for name, x in fields.items() if x is not None}
    totals = {name.removeprefix("optim.total_"): fields.get(name) for name in TOTALS}
    budget = ", ".join(f"{x:g} {name}" for name, x in totals.items() if x is not None)
    known = {name: x if isinstance(x := row[name], int | float) else math.nan for name in AXES}
    return known | {
        "system": str(row["system"]), "shape": str(row["shape"]), "budget": budget,
        "seed": record.config.get("seed"), "value": value, "fields": fields, "key": _key(fields),
        "run": run,
    }  # fmt: skip


def _check_lengths(rows: Sequence[Row]) -> None:
    """Refuses losses at different lengths, which do not compare."""
    lengths = set()
    for row in rows:
        one_phase = not row.get("long.example_rate") or row.get("long.epoch_rate") == 0
        lengths.add(str(row.get("short.max_len" if one_phase else "long.max_len")))
    if len(lengths) > 1:
        field = "epoch" if any(row.get("long.epoch_rate") == 0 for row in rows) else "example"
        raise ValueError(
            f"the losses are at different lengths, {', '.join(sorted(lengths))} tokens, and do"
            f" not compare: --where=long.{field}_rate=0 selects the runs with short inputs only"
        )
