"""Which score tells systems apart, and how early? Signal and noise; ranks during training.

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

A second table compares rankings of at least three systems by bits per byte (of a masked net a
pseudo-likelihood, of ELECTRA the generator's) during training and at the end:

  validations      those that all runs have at one share of their tokens, to 1%, and at one length
  25%, 50%, 75%    Kendall's tau between the ranking at the last of them up to this share of the
                   tokens and the ranking at the end; systems are ranked by means over seeds
  final from       smallest share of the tokens from which on the ranking is the final one

Systems share a line if loss of tokens, mask rate, texts and final length are the same.
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
from scalelab.lab.load.run_table import LoadedRun
from scalelab.lab.load.task_runs import ALL_TITLES, MAIN, TASK_SCORES
from scalelab.runs.records import Line

HEADER = {
    "score": "score", "shape": "shape", "budget": "budget", "systems": "systems", "runs": "runs",
    "between": "between systems", "within": "between seeds", "ratio": "signal / noise", "p": "p",
    "agreement": "seeds agree", "items": "items",
}  # fmt: skip
SHARES = ("accuracy", "hits")  # metrics that are means over items
BITS = "eval/bits_per_byte"
PARTS = (0.25, 0.5, 0.75)  # of the tokens
NEAR = 0.01  # difference of equal shares of the tokens
TEXTS = ("data", "data.valid_rate", "eval.num_examples", "mask_rate")


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


def make_table(runs: Sequence[LoadedRun]) -> tuple[pd.DataFrame, list[str]]:
    """Returns a line for each score, shape and budget, and the notes on what was left out."""
    rows, notes = [], list[str]()
    finished = [run.row for run in runs if run.row["task"] is None]
    there = {task for row in finished for task in MAIN if row.get(task) is not None}
    for task in (task for task in MAIN if task in there):
        points, own_notes = run_points.make(runs, task)
        notes += [f"{ALL_TITLES.get(task, task)}: {note}" for note in own_notes]
        for (shape, budget), own in _by_budget(points).items():
            row = {"score": ALL_TITLES.get(task, task), "shape": shape, "budget": budget}
            rows.append(row | measure(own) | {"items": _item_error(own, task)})
    return pd.DataFrame(rows, columns=list(HEADER)), notes


def early_ranks(runs: Sequence[LoadedRun]) -> pd.DataFrame:
    """Returns a line for each group of three systems or more that predict the same tokens."""
    points, curves = list[RunPoint](), dict[pathlib.Path | None, list[Line]]()
    for run in runs:
        lines = run.record.validations if run.record else []
        if lines and run.row["status"] == "completed" and run.row["task"] is None:
            points += run_points.make([run], run_points.LOSS)[0]
            curves[points[-1].folder] = lines
    rows = []
    for (shape, budget), own in _by_budget(points).items():
        kinds: dict[str, list[RunPoint]] = {}
        for p in own:
            kinds.setdefault(_kind(p, curves[p.folder][-1]), []).append(p)
        for same in kinds.values():
            found = _compare_ranks(same, [curves[p.folder] for p in same])
            rows += [{"shape": shape, "budget": budget} | found] if found else []
    return pd.DataFrame(rows)


def _kind(point: RunPoint, last: Line) -> str:
    """Returns a key that is equal for bits of the same thing; `last` is the last validation."""
    nats = math.log(last.get("eval/perplexity", math.nan))  # of the loss of tokens
    tokens = [k for k, x in last.items() if k.endswith("_loss") and math.isclose(x, nats)]
    same = [tokens or point.system, last["eval/max_len"]]
    return repr([*same, *(point.fields.get(name) for name in TEXTS)])


def _compare_ranks(
    points: Sequence[RunPoint], curves: Sequence[Sequence[Line]]
) -> dict[str, float]:
    """Compares each ranking by bits per byte with the last; {} if there are too few."""
    shared, at = pd.DataFrame(), ["share", "length"]
    for k, lines in enumerate(curves):
        total = lines[-1]["tokens"]
        rows = [(x["tokens"] / total, x["eval/max_len"], x.get(BITS)) for x in lines]
        own = pd.DataFrame(rows, columns=[*at, k], dtype=float).sort_values("share")
        shared = own if not k else pd.merge_asof(
            shared, own, on="share", by="length", direction="nearest",
            tolerance=NEAR,  # pyright: ignore[reportArgumentType]
        )  # fmt: skip
    shared, names = shared.dropna(), np.array([p.setting for p in points])
    values = shared.drop(columns=at).to_numpy()
    by_system = np.stack([values[:, names == x].mean(axis=1) for x in np.unique(names)], axis=1)
    if len(values) < 2 or by_system.shape[1] < 3:
        return {}
    taus = [float(np.asarray(stats.kendalltau(row, by_system[-1]))[0]) for row in by_system]
    shares = [*shared["share"], math.nan]
    early = {part: sum(share <= part + NEAR for share in shares) for part in PARTS}
    others = [k for k, tau in enumerate(taus) if not tau > 1 - 1e-9]
    return {
        "systems": by_system.shape[1], "validations": len(taus),
        **{f"{part:.0%}": taus[num - 1] if num else math.nan for part, num in early.items()},
        "final from": shares[max(others, default=-1) + 1],
    }  # fmt: skip


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


def describe_ranks(ranks: pd.DataFrame) -> str:
    """Formats the table of `early_ranks` for a terminal."""
    rows = [
        [_number(x, 2) if isinstance(x, float) else str(x) for x in row]
        for row in ranks.itertuples(index=False)
    ]
    return tables.plain(list(ranks), rows)


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
        runs = run_points.load(given.folders, given.where)
        (table, notes), ranks = make_table(runs), early_ranks(runs)
        if table.empty and ranks.empty:
            raise ValueError(f"no finished run in {', '.join(map(str, given.folders))} has scores")
        if given.csv:
            table.to_csv(given.csv, index=False)
        shown = [(table, describe), (ranks, describe_ranks)]
        texts = [show(found) for found, show in shown if not found.empty]
        print(*texts, *(f"* {note}" for note in dict.fromkeys(notes)), sep="\n")


if __name__ == "__main__":
    main()
