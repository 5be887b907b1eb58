"""Are two systems different? Task by task, with intervals and corrected p-values.

  python -m scalelab.eval.compare RUN_A RUN_B [--allow] [--csv=FILE]

RUN_A and RUN_B are folders of fine-tunings, on many tasks (<task>/seed<k>) or on one (seed<k>), or
pre-trainings of a study, whose fine-tunings are in their folder tasks. A variant with several
pre-trainings is a pattern, 'runs/bert-2x128x2-seed*', or folders joined by commas. The
Multi-Bootstrap then resamples the pre-trainings too; only then does the answer hold for the system
and not just for these weights.

Differences are B minus A. A task's claim is about its main metric on its main dev set. Holm's
correction is over these claims; the task's other metrics are shown without it. Runs are paired if A
and B began with the same weights and the same seeds; otherwise their seeds are drawn independently.
A degenerate run counts like any other.
"""

import pathlib
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from scalelab.config import cli
from scalelab.eval import glue_table
from scalelab.lab import tables
from scalelab.lab.compare import bootstrap, estimates
from scalelab.lab.load import task_runs
from scalelab.lab.load.task_runs import ALL_TITLES, SHORT, SeedRun, TaskRuns
from scalelab.lab.scores.predictions import stack_runs
from scalelab.runs import archive

NUM_RESAMPLES = 2000  # so that the least p-value, 2 / 2001, survives the correction for nine tasks
HEADER = ("task", "metric", "A", "B", "B - A", "95% interval", "p", "p (Holm)", "B is")
HEADER += ("detectable",)
NOTES = (
    "Scores x 100, means over all finished seeds; 95% intervals and p-values by the Multi-Bootstrap"
    " over seeds and dev examples together.",
    "Detectable: the smallest true difference that these seeds find (two-sided 5%, power 80%,"
    " before Holm's correction; none: not even 100 points). Where B is undecided, a smaller"
    " difference may exist.",
)

System = list[dict[str, TaskRuns]]  # one a pre-training


def open_system(folders: str) -> System:
    """Reads the folders of one system: joined by commas, or a pattern.

    Raises:
      ValueError: one is no folder or holds no fine-tuning.
    """
    paths = archive.find_runs(folders)
    return [task_runs.read(path / "tasks" if (path / "tasks").is_dir() else path) for path in paths]


def compare(a: System, b: System, *, allow_recipe: bool = False) -> tuple[pd.DataFrame, list[str]]:
    """Compares two systems on every task that both have.

    Returns:
      A line for each metric, and for the mean over several tasks, with the columns of the CSV
      except the last; and notes.

    Raises:
      ValueError: dev sets, gold labels or (unless `allow_recipe`) recipes differ, or there is no
        task that both have.
    """
    done = [
        {name: None for runs in side for name, task in runs.items() if task.finished}
        for side in (a, b)
    ]
    shared = [name for name in done[0] if name in done[1]]
    if not shared:
        names_a, names_b = (", ".join(map(_title, names)) or "none" for names in done)
        raise ValueError(f"no task that both have finished: A has {names_a}, B has {names_b}")
    lines = [line for name in shared for line in _compare_task(name, a, b, allow_recipe)]
    frame = pd.DataFrame(lines)
    main = ~frame["task"].duplicated()
    frame["holm"] = pd.Series(estimates.holm(list(frame["p"][main])), frame.index[main])
    few = frame[["seeds_a", "seeds_b"]].min(axis=1) < 2
    certain = ~few & (frame["holm"] < 1 - estimates.LEVEL)
    better = np.where(frame["difference"] > 0, "better", "worse")
    frame["verdict"] = np.where(main, np.where(certain, better, "undecided"), "")
    if len(shared) > 1:
        means = frame.groupby("task", sort=False)[["a", "b"]].mean().mean()
        by_task = [bootstrap.mean(list(own), same_runs=True)
                   for _, own in frame.groupby("task", sort=False)["estimate"]]  # fmt: skip
        least = frame[["seeds_a", "seeds_b"]].min()
        mean = {"name": f"mean of {len(shared)} tasks", "split": "", "metric": "", "verdict": ""}
        mean |= {"a": means["a"], "b": means["b"], "paired": frame["paired"].all()}
        mean |= _describe(bootstrap.mean(by_task), least["seeds_a"], least["seeds_b"])
        frame = pd.concat([frame, pd.DataFrame([mean])], ignore_index=True)
    order = ["name", "task", "split", "metric", "a", "b", "difference", "low", "high", "p", "holm",
             "verdict", "standard_error", "detectable", "paired", "seeds_a", "seeds_b"]  # fmt: skip
    return frame[order], _describe_sides(a, b, shared, frame)


def _compare_task(name: str, a: System, b: System, allow_recipe: bool) -> list[dict[str, Any]]:
    """Returns the differences on one task, its main metric first."""
    title, sides = _title(name), []
    for letter, system in (("A", a), ("B", b)):
        side = [runs[name] for runs in system if name in runs and runs[name].finished]
        counts = {len(task.finished) for task in side}
        if len(side) < len(system):
            raise ValueError(f"{title}: a folder of {letter} has no finished run of this task")
        if len(counts) > 1:
            numbers = ", ".join(str(len(task.finished)) for task in side)
            raise ValueError(f"{title}: folders of {letter} differ in number of seeds: {numbers}")
        sides.append(side)
    recipes = [{str(r.result.recipe) for r in _finished(x, name) if r.result} for x in (a, b)]
    if recipes[0] != recipes[1] and not allow_recipe:
        by_a, by_b = (" and ".join(sorted(found)) for found in recipes)
        raise ValueError(
            f"{title}: A was fine-tuned by recipe {by_a}, B by {by_b}, so the difference would"
            " include the recipes; --allow compares anyway"
        )
    keys = sides[0][0].keys
    for task in sides[0] + sides[1]:
        if set(task.keys) != set(keys):
            raise ValueError(f"{title}: dev splits or metrics differ: {keys} and {task.keys}")
    pairs = zip(_finished(a, name), _finished(b, name), strict=False)
    paired = len(_finished(a, name)) == len(_finished(b, name)) and all(
        x.seed == y.seed and x.weights is not None and x.weights == y.weights for x, y in pairs
    )
    lines = []
    for split, metric in keys:
        runs_a, runs_b = (stack_runs(side, split) for side in sides)
        if different := task_runs.differ(runs_a.examples, runs_b.examples):
            raise ValueError(f"{title} {split}: A and B were scored on different data: {different}")
        found = bootstrap.compare(
            runs_a.examples.gold, runs_a.predicted, runs_b.predicted, metric, paired=paired,
            num_resamples=NUM_RESAMPLES, seed=zlib.crc32(name.encode()),
        )  # fmt: skip
        scores = [np.mean([x for task in side for x in task.values((split, metric))])
                  for side in sides]  # fmt: skip
        lines.append({
            "name": SHORT.get(split, title) if name == "mnli" else title, "task": name,
            "split": split, "metric": metric, "a": scores[0], "b": scores[1], "paired": paired,
            **_describe(found, runs_a.predicted[..., 0].size, runs_b.predicted[..., 0].size),
        })  # fmt: skip
    return lines


def _describe(found: estimates.Estimate, seeds_a: int, seeds_b: int) -> dict[str, Any]:
    """Returns the columns of an estimate and its numbers of seeds."""
    return {
        "estimate": found, "difference": found.value, "low": found.low, "high": found.high,
        "p": found.p_value, "standard_error": found.standard_error,
        "detectable": found.detectable if min(seeds_a, seeds_b) > 1 else None,
        "seeds_a": int(seeds_a), "seeds_b": int(seeds_b),
    }  # fmt: skip


def _describe_sides(a: System, b: System, shared: list[str], frame: pd.DataFrame) -> list[str]:
    """Returns the notes below the table."""
    pairs = {_title(name): (_finished(a, name), _finished(b, name)) for name in shared}
    apart = glue_table.differing_settings(pairs, ("in A", "in B"))
    paired = frame[frame["paired"] & frame["task"].notna()]["task"].unique()
    found = [
        *NOTES,
        "Seeds are independent: the runs did not begin with the same weights and seeds.",
    ]
    if len(paired):
        where = "" if len(paired) == len(shared) else f" in {', '.join(map(_title, paired))} alone"
        found[-1] = f"Seeds are paired{where}: both began with the same weights and the same seeds."
    for titles, fields in apart:
        found.append(
            f"Fine-tuned with different settings in {titles}: {fields}. There B - A includes the"
            " effect of the settings."
        )
    if frame[["seeds_a", "seeds_b"]].min(axis=None) < 2:
        found.append("With a single seed, p holds for these runs only, not for the systems.")
    if len(a) == 1 or len(b) == 1:
        found.append("One pre-training: the result holds for these weights, not for the system.")
    letters: dict[str, list[str]] = {}  # note -> the sides that have it
    for letter, side in (("A", a), ("B", b)):
        unshared = {name: None for runs in side for name in runs if name not in shared}
        if unshared:
            names = ", ".join(map(_title, unshared))
            found.append(f"Not compared, because A or B has not finished it; in {letter}: {names}.")
        every = {name: [seed for runs in side for seed in runs[name].runs] for name in shared}
        merged = {name: TaskRuns(name, tuple(seeds)) for name, seeds in every.items()}
        for note in glue_table.describe_runs(merged):
            letters.setdefault(note, []).append(letter)
    return [*found, *(f"{' and '.join(own)}: {note}" for note, own in letters.items())]


def _title(name: str) -> str:
    return ALL_TITLES.get(name, name)


def _finished(system: System, name: str) -> list[SeedRun]:
    return [run for runs in system if name in runs for run in runs[name].finished]


def cells(frame: pd.DataFrame) -> list[list[str]]:
    """Returns the lines of the table for a terminal, in points."""
    lines = []
    for row in frame.itertuples():
        known = None if pd.isna(row.detectable) else row.detectable
        detectable = "-" if known is None else f"{100 * known:.1f}" if known < 1 else "none"
        lines.append([
            row.name, row.metric, f"{100 * row.a:.1f}", f"{100 * row.b:.1f}",
            f"{100 * row.difference:+.1f}", f"[{100 * row.low:+.1f}, {100 * row.high:+.1f}]",
            f"{row.p:.4f}", "" if pd.isna(row.holm) else f"{row.holm:.4f}", row.verdict, detectable,
        ])  # fmt: skip
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the program; a mistake in its arguments or folders is one message and exit code 2."""
    parser = cli.Parser("python -m scalelab.eval.compare", __doc__)
    parser.add_argument("a", metavar="RUN_A", help="folder of system A, or several with commas")
    parser.add_argument("b", metavar="RUN_B", help="folder of system B, likewise")
    parser.add_argument("--allow", action="store_true", help="compare even if recipes differ")
    parser.add_argument("--csv", metavar="FILE", type=pathlib.Path, help="write the table there")
    given = parser.parse_args(arguments)
    with cli.one_message("nothing was written"):
        a, b = open_system(given.a), open_system(given.b)
        frame, notes = compare(a, b, allow_recipe=given.allow)
        if given.csv:
            frame.assign(footnotes=" ".join(notes)).to_csv(given.csv, index=False)
        print(f"A: {given.a}\nB: {given.b}\n")
        print(tables.plain(HEADER, cells(frame), 2), end="")
        print("".join(f"* {note}\n" for note in notes), end="")


if __name__ == "__main__":
    main()
