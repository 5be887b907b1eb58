"""Which score tells systems apart, and how early? Signal and noise; ranks during training.

  python -m scalelab.lab.signal_to_noise DIR... [--where=...] [--csv=FILE]

Reads all finished pre-trainings below the folders and prints a line for each score, shape and
budget:

  between systems  standard deviation of the systems' mean scores, x 100
  between seeds    standard deviation within a system, pooled over systems, x 100
  signal / noise   the ratio of the two; below 1, a single run of each system ranks them by luck
  +-               standard error of the ratio (jackknife over systems); empty for two systems
  p                one-way analysis of variance; null hypothesis: all systems have one mean
  seeds agree      Kendall's tau between two seeds' rankings of systems, mean over pairs of seeds
  items            binomial standard error of a share of right answers, x 100

Runs that differ only in their seed are one system, so variants count as systems. If no system has
two seeds, the columns from `between seeds` to `seeds agree` are empty.

A second table compares rankings of at least three systems during training and at the end. Its
scores are bits per byte (of masked models at their mask rate), minimal pairs (`eval.pairs`), and
the evaluations that a study measures at shares of the budget (`config.evaluation_shares`):

  evaluations      number of evaluations that all runs have at one share (to 1%) and one length; a
                   share is of the tokens for scores of training, of the budget for evaluations
  25%, 50%, 75%    Kendall's tau between the ranking at the last evaluation up to this share and the
                   ranking at the end; systems are ranked by means over seeds
  final from       smallest share from which on the ranking is the final one

Systems are ranked in one line by bits per byte if loss of tokens, mask rate, texts, final length
and options of objective and format are equal, as in reports; another objective beside the loss of
tokens, such as NSP, may differ. They are ranked by minimal pairs if texts and pairs are equal, by a
evaluation if its items are equal.
"""

# The stubs of pandas are narrower than what it accepts.
# pyright: reportGeneralTypeIssues=false

import argparse
import math
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from scalelab.config import cli
from scalelab.eval.names import EVALUATIONS
from scalelab.eval.score_names import MAIN, TASK_SCORES, TASK_TITLES
from scalelab.lab import tables
from scalelab.lab.compare import run_points
from scalelab.lab.compare.comparability import PREFIX, loss_apart
from scalelab.lab.load import frame, task_runs
from scalelab.lab.load.run_table import LoadedRun
from scalelab.records.run_files import Line, Unreadable

COLUMNS = {  # title, factor and number of digits; of other columns the name, 1 and 2
    "between": ("between systems", 100, 1), "within": ("between seeds", 100, 1),
    "ratio": ("signal / noise", 1, 1), "error": ("+-", 1, 1), "p": ("p", 1, 3),
    "agreement": ("seeds agree", 1, 2), "items": ("items", 100, 1),
}  # fmt: skip
SHARES = ("accuracy", "hits")  # metrics that are means over items
BITS = "eval/bits_per_byte"
RANKED = {  # score of metrics.jsonl -> its name, and the fields that systems of a line share
    BITS: ("bits per byte", ("eval.num_examples",)),  # and those of `loss_apart`
    "eval/pairs_accuracy": ("pairs", ("data", "eval.pairs", "eval.pairs_per_group")),
}
PARTS = (0.25, 0.5, 0.75)  # columns: shares of the training
NEAR = 0.01  # largest difference of shares that count as equal
Point = dict[Any, Any]  # a line of run_points.make
Curve = list[tuple[float, float, float]]  # share of the training, length, score


def measure(points: pd.DataFrame) -> dict[str, float]:
    """Computes the signal and the noise of one score from runs of one shape and budget.

    Returns:
      systems, runs, between, within, ratio, error, p and agreement, not times 100; NaN if unknown.
      The agreement is unknown if no two seeds rank the same three systems.
    """
    groups = [own.to_numpy() for _, own in points.groupby("key", sort=False)["value"]]
    parts = np.array([(np.mean(own), len(own) * np.var(own), len(own) - 1) for own in groups])
    between, within, ratio = _spreads(parts)
    others = [_spreads(np.delete(parts, k, axis=0))[2] for k in range(len(groups))]
    wide = points.pivot_table(index="key", columns="seed", values="value")
    taus = wide.corr("kendall", min_periods=3).to_numpy()[np.triu_indices(wide.shape[1], 1)]
    return {
        "systems": len(groups), "runs": len(points), "between": between, "within": within,
        "ratio": ratio, "error": math.sqrt((len(groups) - 1) * np.var(others)),
        "p": math.nan if math.isnan(ratio) else float(stats.f_oneway(*groups).pvalue),
        "agreement": float(np.nanmean(taus)) if np.isfinite(taus).any() else math.nan,
    }  # fmt: skip


def _spreads(parts: np.ndarray) -> tuple[float, float, float]:
    """Returns the spread between systems, within them, and the ratio.

    `parts` has the mean, the sum of squares and the degrees of freedom of each system.
    """
    means, squares, freedom = parts.T
    between = float(np.std(means, ddof=1)) if len(means) > 1 else math.nan
    within = math.sqrt(squares.sum() / freedom.sum()) if freedom.any() else math.nan
    return between, within, between / within if within > 0 else math.nan


def _item_error(points: pd.DataFrame, task: str) -> float:
    """Returns the binomial standard error of a share of right answers; NaN: unknown."""
    _, split, metric = TASK_SCORES[MAIN[task]]
    if metric not in SHARES:
        return math.nan
    tuned = points["run"].iloc[0].tuned["tasks"][task].finished[0]
    share = float(np.mean(points["value"].to_numpy()))
    try:
        return math.sqrt(share * (1 - share) / len(tuned.predictions(split).gold))
    except Unreadable:
        return math.nan


def make_table(runs: Sequence[LoadedRun]) -> tuple[pd.DataFrame, list[str]]:
    """Returns a line for each score, shape and budget, and the notes on what was left out."""
    rows, notes = [], list[str]()
    finished = [run.row for run in runs if run.row["task"] is None]
    for task in (name for name in MAIN if any(row.get(name) is not None for row in finished)):
        points, own_notes = run_points.make(runs, task)
        title = TASK_TITLES.get(task, task)
        notes += [f"{title}: {note}" for note in own_notes]
        for (shape, budget), own in points.groupby(["shape", "budget"], sort=False):
            row = {"score": title, "shape": shape, "budget": budget}
            rows.append(row | measure(own) | {"items": _item_error(own, task)})
    return pd.DataFrame(rows), notes


def early_ranks(runs: Sequence[LoadedRun]) -> pd.DataFrame:
    """Returns a line for each score and each group of three systems or more that it compares."""
    found = pd.DataFrame([
        {"score": score, "shape": point["shape"], "budget": point["budget"], "kind": kind,
         "key": point["key"], "curve": curve}
        for score, kind, point, curve in (*_logged(runs), *_measured(runs))
    ], columns=["score", "shape", "budget", "kind", "key", "curve"])  # fmt: skip
    rows = []
    for (score, shape, budget, _), own in found.groupby([*found][:4], sort=False):
        ranks = _compare_ranks(own["key"].to_numpy(), list(own["curve"]))
        rows += [{"score": score, "shape": shape, "budget": budget} | ranks] if ranks else []
    return pd.DataFrame(rows)


def _logged(runs: Sequence[LoadedRun]) -> Iterator[tuple[str, str, Point, Curve]]:
    """Yields (title, kind, run, curve) of scores in metrics.jsonl; scores of one kind compare."""
    alike: list[list[dict[str, Any]]] = []  # fields of runs whose bits per byte compare
    for run in runs:
        lines = run.record.lines if run.record else ()
        lines = [line for line in lines if any(name in line for name in RANKED)]
        if not lines or run.row["status"] != "completed" or run.row["task"] is not None:
            continue
        (point,) = run_points.make([run], run_points.LOSS)[0].to_dict("records")
        for name, (title, _) in RANKED.items():
            if found := [line for line in lines if name in line]:
                total = lines[-1]["tokens"]  # length 0: evaluations of pairs have none
                curve = [(x["tokens"] / total, x.get("eval/max_len", 0), x[name]) for x in found]
                same = [point["fields"].get(field) for field in RANKED[name][1]]
                same += [_place(_loss_fields(point, found[-1]), alike)] if name == BITS else []
                yield title, repr(same), point, curve


def _measured(runs: Sequence[LoadedRun]) -> Iterator[tuple[str, str, Point, Curve]]:
    """Yields the same as `_logged`, of evaluations at shares of the budget and at the end."""
    shares = [own for run in runs for own in task_runs.by_share(run.tuned).values()]
    for task in EVALUATIONS:
        early = any(task in own for own in shares)
        final = any(run.row["task"] is None and run.row.get(task) is not None for run in runs)
        points = run_points.make(runs, task)[0] if early and final else pd.DataFrame()
        for point in points.to_dict("records"):
            items, curve = point["fields"].get(f"{PREFIX}texts"), Curve()
            for share, tuned in task_runs.by_share(point["run"].tuned).items():
                seeds = tuned[task].finished if task in tuned else []
                if any(seed.config.get("texts") == items for seed in seeds):
                    value = frame.mean_score(tuned, [TASK_SCORES[MAIN[task]]])
                    curve += [(share, 0, value)] if value is not None else []
            if curve:
                yield TASK_TITLES[task], str(items), point, [*curve, (1.0, 0, point["value"])]


def _loss_fields(point: Point, last: Line) -> dict[str, Any]:
    """Returns the fields of a run, with the loss of tokens of its last evaluation as objective."""
    nats = math.log(last.get("eval/perplexity", math.nan))
    tokens = [k for k, x in last.items() if k.endswith("_loss") and math.isclose(x, nats)]
    own = {"objective": str(tokens or point["system"]), "length": last.get("eval/max_len")}
    return {**point["fields"], **own}


def _place(fields: dict[str, Any], alike: list[list[dict[str, Any]]]) -> int:
    """Adds a run to the first group whose bits per byte compare with its own; returns its index."""
    for place, own in enumerate(alike):
        if not any(loss_apart(fields, other, "bits_per_byte") for other in own):
            own.append(fields)
            return place
    alike.append([fields])
    return len(alike) - 1


def _compare_ranks(keys: np.ndarray, curves: Sequence[Curve]) -> dict[str, float]:
    """Compares each ranking of runs by a score with the last; {} if there are too few."""
    shared, at = pd.DataFrame(), ["share", "length"]
    for k, curve in enumerate(curves):
        own = pd.DataFrame(curve, columns=[*at, k], dtype=float).sort_values("share")
        shared = own if not k else pd.merge_asof(
            shared, own, on="share", by="length", direction="nearest",
            tolerance=NEAR,  # pyright: ignore[reportArgumentType]
        )  # fmt: skip
    shared = shared.dropna()
    values = shared.drop(columns=at).to_numpy()
    by_system = np.stack([values[:, keys == x].mean(axis=1) for x in np.unique(keys)], axis=1)
    if len(values) < 2 or by_system.shape[1] < 3:
        return {}
    taus = [float(np.asarray(stats.kendalltau(row, by_system[-1]))[0]) for row in by_system]
    shares = [*shared["share"], math.nan]
    early = {part: sum(share <= part + NEAR for share in shares) for part in PARTS}
    others = [k for k, tau in enumerate(taus) if not tau > 1 - 1e-9]
    return {
        "systems": by_system.shape[1], "evaluations": len(taus),
        **{f"{part:.0%}": taus[num - 1] if num else math.nan for part, num in early.items()},
        "final from": shares[max(others, default=-1) + 1],
    }  # fmt: skip


def describe(table: pd.DataFrame) -> str:
    """Formats a table for a terminal, the best ratio first."""
    if "ratio" in table:
        table = table.sort_values(["ratio", "between"], ascending=False)
    rows = [[_format(str(name), x) for name, x in row.items()] for row in table.to_dict("records")]
    return tables.plain([COLUMNS.get(name, (name,))[0] for name in table], rows)


def _format(name: str, value: object) -> str:
    if not isinstance(value, float):
        return str(value)
    _, scale, digits = COLUMNS.get(name, (name, 1, 2))
    return "" if math.isnan(value) else f"{scale * value:.{digits}f}"


def parser() -> cli.Parser:
    """Returns the command line."""
    made = cli.Parser("python -m scalelab.lab.signal_to_noise", __doc__)
    made.add_argument("folders", nargs="+", type=pathlib.Path, metavar="DIR")
    made.add_argument("--where", default="", help="conditions on runs, as in scalelab.lab.runs")
    made.add_argument("--csv", type=pathlib.Path, metavar="FILE", help="write the table there")
    return made


def main(given: argparse.Namespace) -> None:
    """Prints the tables; raises ValueError if no finished run has scores."""
    runs = run_points.load(given.folders, given.where)
    (table, notes), ranks = make_table(runs), early_ranks(runs)
    if table.empty and ranks.empty:
        raise ValueError(f"no finished run in {', '.join(map(str, given.folders))} has scores")
    if given.csv:
        table.to_csv(given.csv, index=False)
    texts = [describe(found) for found in (table, ranks) if not found.empty]
    print(*texts, *(f"* {note}" for note in dict.fromkeys(notes)), sep="\n")


if __name__ == "__main__":
    cli.run(main, parser())
