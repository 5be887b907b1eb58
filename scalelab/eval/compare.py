"""Are two systems different? Task by task, with intervals and corrected p-values.

  python -m scalelab.eval.compare RUN_A RUN_B [--allow] [--csv=FILE]

RUN_A and RUN_B are folders of fine-tuning runs, on many tasks (<task>/seed<k>) or on one (seed<k>),
or pre-training runs of a study with fine-tuning runs in their folder tasks. For a variant with
several pre-training runs give a pattern, 'runs/bert-2x128x2-seed*', or folders joined by commas.
The Multi-Bootstrap then also resamples the pre-training runs. Only then does the answer hold for
the system and not just for these weights.

Differences are B minus A. A task's claim is about its main metric on its main dev set. Holm's
correction is over these claims; the task's other metrics are shown without correction. Runs are
paired if A and B began with the same weights and the same seeds; otherwise their seeds are drawn
independently. A degenerate run counts like any other.
"""

import argparse
import pathlib
import zlib
from typing import Any

import numpy as np
import pandas as pd

from scalelab.config import cli
from scalelab.config.fields import differing
from scalelab.eval import glue_table
from scalelab.eval.score_names import title_of
from scalelab.helpers.names import prefix_errors
from scalelab.lab import tables
from scalelab.lab.compare import bootstrap, estimates
from scalelab.lab.compare.claims import ABOVE
from scalelab.lab.load import frame, task_runs
from scalelab.lab.load.task_runs import TaskRuns
from scalelab.records import archive

NUM_RESAMPLES = 2000  # the smallest p-value, 2 / 2001, survives the correction for nine tasks
HEADER = ("task", "metric", "A", "B", "B - A", "95% interval", "p", "p (Holm)", "B is")
HEADER += ("detectable",)
COLUMNS = ("name", "task", "split", "metric", "a", "b", "difference", "low", "high", "p", "holm",
           "verdict", "standard_error", "detectable", "paired", "seeds_a", "seeds_b")  # fmt: skip
NOTES = (
    "Scores x 100, means over all finished seeds; 95% intervals and p-values by the Multi-Bootstrap"
    " over seeds and dev examples together.",
    "Detectable: the smallest true difference that these seeds find (two-sided 5%, power 80%,"
    " before Holm's correction; none: not even 100 points). Where B is undecided, a smaller"
    " difference may exist.",
)

System = list[dict[str, TaskRuns]]  # one entry per pre-training run


def open_system(folders: str) -> System:
    """Reads the folders of one system: joined by commas, or a pattern.

    Raises:
      ValueError: one is not a folder or has no fine-tuning.
    """
    paths = archive.find_runs(folders)
    return [task_runs.read(path / "tasks" if (path / "tasks").is_dir() else path) for path in paths]


def compare(a: System, b: System, *, allow_recipe: bool = False) -> tuple[pd.DataFrame, list[str]]:
    """Compares two systems on every task that both have.

    Returns:
      A table with a row for each metric, and for the mean over several tasks, with all columns of
      the CSV except the last; and notes.

    Raises:
      ValueError: dev sets, gold labels or (unless `allow_recipe`) recipes differ, or no task is in
        both.
    """
    sides = {"A": a, "B": b}
    runs = frame.make((x, str(k), k, own) for x in sides for k, own in enumerate(sides[x]))
    done = [list(runs.loc[runs["row"] == letter, "task"].unique()) for letter in sides]
    shared = [name for name in done[0] if name in done[1]]
    if not shared:
        names_a, names_b = (", ".join(map(title_of, names)) or "none" for names in done)
        raise ValueError(f"no task that both have finished: A has {names_a}, B has {names_b}")
    rows = [row for name in shared
            for row in _compare_task(runs[runs["task"] == name], sides, allow_recipe)]  # fmt: skip
    table = pd.DataFrame(rows)
    main = ~table["task"].duplicated()
    table["holm"] = pd.Series(estimates.holm(list(table["p"][main])), table.index[main])
    several = table[["seeds_a", "seeds_b"]].min(axis=1) > 1
    certain = several & (table["holm"] < 1 - estimates.LEVEL)
    better = np.where(table["difference"] > 0, "better", "worse")
    table["verdict"] = np.where(main, np.where(certain, better, "undecided"), "")
    if len(shared) > 1:
        by_task = table.groupby("task", sort=False)
        found = [bootstrap.mean(list(own), same_runs=True) for _, own in by_task["estimate"]]
        mean = {"name": f"mean of {len(shared)} tasks", "split": "", "metric": "", "verdict": ""}
        mean |= by_task[["a", "b"]].mean().mean().to_dict() | {"paired": table["paired"].all()}
        mean |= _describe(bootstrap.mean(found), *table[["seeds_a", "seeds_b"]].min())
        table = pd.concat([table, pd.DataFrame([mean])], ignore_index=True)
    return table[list(COLUMNS)], _describe_sides(sides, shared, runs, table)


def _compare_task(
    runs: pd.DataFrame, sides: dict[str, System], allow_recipe: bool
) -> list[dict[str, Any]]:
    """Returns the differences on one task, its main metric first."""
    name = runs["task"].iloc[0]
    title, tunings = title_of(name), runs.groupby("row")["tuning"].unique()
    recipes = runs.groupby("row")["recipe"].agg(lambda x: " and ".join(sorted(set(map(str, x)))))
    if differing([{"recipe": recipes[x]} for x in sides]) and not allow_recipe:
        by_a, by_b = recipes
        raise ValueError(
            f"{title}: A was fine-tuned by recipe {by_a}, B by {by_b}, so the difference would"
            " include the recipes; --allow compares anyway"
        )
    starts_a, starts_b = ([(run.seed, run.weights) for run in tunings[x]] for x in sides)
    paired = starts_a == starts_b and all(weights for _, weights in starts_a)
    rows = []
    for (split, metric), own in runs.groupby(["split", "metric"], sort=False):
        lines = [own[own["row"] == letter] for letter in sides]
        for letter, side in zip(sides, lines, strict=True):
            if side["run"].nunique() < len(sides[letter]):
                raise ValueError(
                    f"{title}: a folder of {letter} has no finished run: {split} {metric}"
                )
        with prefix_errors(f"{title} {split}"):
            in_a, in_b = map(frame.stack, lines)
            if different := task_runs.differ(in_a.examples, in_b.examples):
                raise ValueError(f"A and B were scored on different data: {different}")
        dev_set = in_a.examples.gold, [(-1.0, in_a.predicted), (1.0, in_b.predicted)], metric
        found = bootstrap.mean_score(
            [dev_set], paired=paired, num_resamples=NUM_RESAMPLES, seed=zlib.crc32(name.encode())
        )
        a, b = (np.mean(side["score"].to_numpy()) for side in lines)
        rows.append({
            "name": glue_table.SHORT.get(split, title) if name == "mnli" else title, "task": name,
            "split": split, "metric": metric, "a": a, "b": b, "paired": paired,
            **_describe(found, *map(len, lines)),
        })  # fmt: skip
    return rows


def _describe(found: estimates.Estimate, seeds_a: int, seeds_b: int) -> dict[str, Any]:
    """Returns the columns of an estimate and its numbers of seeds."""
    return {
        "estimate": found, "difference": found.value, "low": found.low, "high": found.high,
        "p": min(ABOVE.p_values(found.resamples)), "standard_error": found.standard_error,
        "detectable": found.detectable if min(seeds_a, seeds_b) > 1 else None,
        "seeds_a": int(seeds_a), "seeds_b": int(seeds_b),
    }  # fmt: skip


def _describe_sides(
    sides: dict[str, System], shared: list[str], runs: pd.DataFrame, table: pd.DataFrame
) -> list[str]:
    """Returns the notes below the table."""
    paired = table[table["paired"] & table["task"].notna()]["task"].unique()
    where = "" if len(paired) == len(shared) else f" in {', '.join(map(title_of, paired))} alone"
    how = f"paired{where}: both began with the same weights and the same seeds."
    if not len(paired):
        how = "independent: the runs did not begin with the same weights and seeds."
    found = [*NOTES, f"Seeds are {how}"]
    runs = runs[runs["task"].isin(shared)]
    for titles, fields in glue_table.differing_settings(runs, {"A": "in A", "B": "in B"}):
        found.append(
            f"Fine-tuned with different settings in {titles}: {fields}. There B - A includes the"
            " effect of the settings."
        )
    if table[["seeds_a", "seeds_b"]].min(axis=None) < 2:
        found.append("With a single seed, p holds for these runs only, not for the systems.")
    if any(len(side) == 1 for side in sides.values()):
        found.append("One pre-training: the result holds for these weights, not for the system.")
    letters: dict[str, list[str]] = {}  # note -> the sides that have it
    for letter, side in sides.items():
        unshared = {name: None for own in side for name in own if name not in shared}
        if unshared:
            names = ", ".join(map(title_of, unshared))
            found.append(f"Not compared, because A or B has no score of it; in {letter}: {names}.")
        merged = {
            name: TaskRuns(name, tuple(run for own in side for run in own[name].runs))
            for name in shared
        }
        for note in glue_table.describe_runs(merged):
            letters.setdefault(note, []).append(letter)
    return [*found, *(f"{' and '.join(own)}: {note}" for note, own in letters.items())]


def cells(table: pd.DataFrame) -> list[list[str]]:
    """Returns the lines of the table for a terminal, in percentage points."""
    lines = []
    for row in table.itertuples():
        least = np.inf if pd.isna(row.detectable) else row.detectable
        detectable = f"{100 * least:.1f}" if least < 1 else "none" if np.isfinite(least) else "-"
        ends = estimates.show_interval(100 * row.low, 100 * row.high, "+.1f")
        lines.append([
            row.name, row.metric, f"{100 * row.a:.1f}", f"{100 * row.b:.1f}",
            f"{100 * row.difference:+.1f}", ends,
            f"{row.p:.4f}", "" if pd.isna(row.holm) else f"{row.holm:.4f}", row.verdict,
            detectable,
        ])  # fmt: skip
    return lines


def parser() -> cli.Parser:
    """Returns the command line."""
    made = cli.Parser("python -m scalelab.eval.compare", __doc__)
    made.add_argument("a", metavar="RUN_A", help="folder of system A, or several with commas")
    made.add_argument("b", metavar="RUN_B", help="folder of system B, likewise")
    made.add_argument("--allow", action="store_true", help="compare even if recipes differ")
    made.add_argument("--csv", metavar="FILE", type=pathlib.Path, help="write the table there")
    return made


def main(given: argparse.Namespace) -> None:
    """Prints the comparison."""
    a, b = open_system(given.a), open_system(given.b)
    table, notes = compare(a, b, allow_recipe=given.allow)
    if given.csv:
        table.assign(footnotes=" ".join(notes)).to_csv(given.csv, index=False)
    print(f"A: {given.a}\nB: {given.b}\n")
    print(tables.plain(HEADER, cells(table), 2), end="")
    print("".join(f"* {note}\n" for note in notes), end="")


if __name__ == "__main__":
    cli.run(main, parser())
