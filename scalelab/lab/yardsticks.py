"""Signal and noise of every task and yardstick: which scores tell systems apart.

  python -m scalelab.lab.yardsticks DIR... [--where=...] [--csv=FILE]

Reads all finished pre-trainings below the folders and prints a line for each score, shape and
budget:

  between systems  standard deviation of the systems' mean scores, x 100
  between seeds    standard deviation within a system, pooled over systems, x 100
  signal / noise   the ratio of the two; below 1, a single run of each system ranks them by luck
  p                one-way analysis of variance; null hypothesis: all systems have one mean
  seeds agree      Kendall's tau between two seeds' rankings of systems, mean over pairs of seeds
  items            binomial standard error of a share of right answers, x 100

Runs that differ only in their seed are one system, so variants count as systems. If no system has
two seeds, the columns from `between seeds` to `seeds agree` are empty.
"""

import itertools
import math
import pathlib
from collections.abc import Sequence

import numpy as np
import pandas as pd
from scipy import stats

from scalelab.config import cli
from scalelab.lab import tables
from scalelab.lab.compare import run_points
from scalelab.lab.compare.run_points import RunPoint
from scalelab.lab.load import task_runs
from scalelab.lab.load.task_runs import ALL_TITLES, MAIN, TASK_SCORES

HEADER = {
    "score": "score", "shape": "shape", "budget": "budget", "systems": "systems", "runs": "runs",
    "between": "between systems", "within": "between seeds", "ratio": "signal / noise", "p": "p",
    "agreement": "seeds agree", "items": "items",
}  # fmt: skip
SHARES = ("accuracy", "hits")  # metrics that are means over items


def measure(points: Sequence[RunPoint]) -> dict[str, float]:
    """Computes the signal and the noise of one score from runs of one shape and budget.

    Returns:
      systems, runs, between, within, ratio, p and agreement, not times 100; NaN if unknown.
    """
    groups = [[p.value for p in own] for own in run_points.settings(points)]
    means = [float(np.mean(own)) for own in groups]
    freedom = sum(len(own) - 1 for own in groups)
    squares = sum(len(own) * float(np.var(own)) for own in groups)
    between = float(np.std(means, ddof=1)) if len(groups) > 1 else math.nan
    within = math.sqrt(squares / freedom) if freedom else math.nan
    known = within > 0 and len(groups) > 1
    return {
        "systems": len(groups), "runs": len(points), "between": between, "within": within,
        "ratio": between / within if known else math.nan,
        "p": float(stats.f_oneway(*groups).pvalue) if known else math.nan,
        "agreement": _seed_agreement(points),
    }  # fmt: skip


def _seed_agreement(points: Sequence[RunPoint]) -> float:
    """Returns the mean of Kendall's tau over pairs of seeds; NaN if no pair ranks 3 systems."""
    frame = pd.DataFrame([(p.setting, p.seed, p.value) for p in points], columns=list("abc"))
    wide = frame.pivot_table(index="a", columns="b", values="c")
    taus = []
    for a, b in itertools.combinations(wide, 2):
        pair = wide[[a, b]].dropna().to_numpy()
        tau, _ = np.asarray(stats.kendalltau(*pair.T)) if len(pair) > 2 else (math.nan, None)
        taus.append(float(tau))
    return float(np.nanmean(taus)) if np.isfinite(taus).any() else math.nan


def _item_error(points: Sequence[RunPoint], task: str) -> float:
    """Returns the binomial standard error of a share of right answers; NaN for other metrics."""
    _, split, metric = TASK_SCORES[MAIN[task]]
    if metric not in SHARES or points[0].folder is None:
        return math.nan
    tuned = task_runs.read(points[0].folder / "tasks")[task].finished[0]
    share = float(np.mean([p.value for p in points]))
    return math.sqrt(share * (1 - share) / len(tuned.predictions(split).gold))


def make_table(folders: Sequence[pathlib.Path], where: str = "") -> tuple[pd.DataFrame, list[str]]:
    """Returns a row for each score, shape and budget, and notes on the runs left out.

    Raises:
      ValueError: no finished run has scores.
    """
    rows, notes, runs = [], list[str](), run_points.load(folders, where)
    finished = [run.row for run in runs if run.row["task"] is None]
    there = {task for row in finished for task in MAIN if row.get(task) is not None}
    for task in (task for task in MAIN if task in there):
        points, own_notes = run_points.make(runs, task)
        notes += [f"{ALL_TITLES.get(task, task)}: {note}" for note in own_notes]
        for (shape, budget), own in _by_budget(points).items():
            row = {"score": ALL_TITLES.get(task, task), "shape": shape, "budget": budget}
            rows.append(row | measure(own) | {"items": _item_error(own, task)})
    if not rows:
        raise ValueError(f"no finished run in {', '.join(map(str, folders))} has scores")
    return pd.DataFrame(rows, columns=list(HEADER)), notes


def _by_budget(points: Sequence[RunPoint]) -> dict[tuple[str, str], list[RunPoint]]:
    """Groups points by shape and by the budget in their config."""
    found: dict[tuple[str, str], list[RunPoint]] = {}
    for p in points:
        totals = {name.removeprefix("optim.total_"): p.fields.get(name) for name in
                  run_points.TOTALS}  # fmt: skip
        budget = ", ".join(f"{x:g} {name}" for name, x in totals.items() if x is not None)
        found.setdefault((p.shape, budget), []).append(p)
    return found


def describe(table: pd.DataFrame) -> str:
    """Formats the table for a terminal, the best ratio first."""
    rows = []
    best_first = table.sort_values(["ratio", "between"], ascending=False)
    for row in best_first.to_dict("records"):
        cells = [str(row[name]) for name in ("score", "shape", "budget", "systems", "runs")]
        cells += [_number(100 * row[name], 1) for name in ("between", "within")]
        cells += [_number(row["ratio"], 1), _number(row["p"], 3), _number(row["agreement"], 2)]
        rows.append([*cells, _number(100 * row["items"], 1)])
    return tables.plain(list(HEADER.values()), rows)


def _number(value: float, digits: int) -> str:
    return "" if math.isnan(value) else f"{value:.{digits}f}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the program; a mistake of the user ends in one message and exit code 2."""
    parser = cli.Parser("python -m scalelab.lab.yardsticks", __doc__)
    parser.add_argument("folders", nargs="+", type=pathlib.Path, metavar="DIR")
    parser.add_argument("--where", default="", help="conditions on runs, as in scalelab.lab.runs")
    parser.add_argument("--csv", type=pathlib.Path, metavar="FILE", help="write the table there")
    given = parser.parse_args(arguments)
    with cli.one_message("nothing was written"):
        table, notes = make_table(given.folders, given.where)
        if given.csv:
            table.to_csv(given.csv, index=False)
        print(describe(table), *(f"* {note}" for note in dict.fromkeys(notes)), sep="\n")


if __name__ == "__main__":
    main()
