"""Two variants side by side: their configs, and losses on every clock.

A variant is one run or several seeds; losses are means over them. Differences are B minus A, with
Student's 95% interval where both have the same two seeds or more. A training loss is the mean since
the line before, as it was logged. `scalelab.eval.compare` compares the scores of fine-tunings.
"""

from collections.abc import Sequence

import numpy as np

from scalelab.config.durations import CLOCKS
from scalelab.lab import tables
from scalelab.lab.compare import comparability
from scalelab.lab.compare.estimates import show_interval, student
from scalelab.lab.show.notes import LOSSES
from scalelab.records.plots import TRAINING
from scalelab.records.run_files import RunRecord

BITS = "bits/byte"


Side = Sequence[RunRecord]  # all seeds of a variant


def describe(a: Side, b: Side, differing: Sequence[str], num_points: int = 10) -> str:
    """Describes two variants side by side.

    Args:
      a: the runs of a variant.
      b: those of another.
      differing: lines of the science fields in which B's config differs from A's.
      num_points: rows of each table of losses.
    """
    heads = []
    for letter, side in (("A", a), ("B", b)):
        for run in side:
            step = run.lines[-1]["step"] if run.lines else 0
            state = "" if run.result else f" (no result yet; at step {step})"
            heads.append(f"{letter}: {run.folder}: {run.name}{state}\n")
    facts_a, facts_b, lines = _facts(a), _facts(b), list(differing)
    lines += [
        f"{name}: {x} -> {facts_b[name]}" for name, x in facts_a.items() if x != facts_b[name]
    ]
    parts = [
        "".join(heads),
        "Config, A -> B\n" + "".join(f"  {x}\n" for x in lines or ["the same"]),
    ]
    if apart := comparability.loss_apart(a[0].config, b[0].config):
        parts.append(LOSSES.format(", ".join(apart)) + "\n")
    for clock, _, label in CLOCKS.values():
        header, rows = losses(a, b, clock, num_points)
        if rows:
            parts.append(f"Losses by {label}\n" + tables.plain(header, rows))
    return "\n".join(parts)


def _facts(side: Side) -> dict[str, str]:
    """Returns the facts outside the config that may make a difference."""
    facts = [
        {
            "data": (run.data_hash or "not recorded")[:12],
            "numerics version": run.environment.numerics_versions,
            "code": "uncommitted changes" if run.environment.git_dirty else "committed",
        }
        for run in side
    ]
    return {name: ", ".join(dict.fromkeys(own[name] for own in facts)) for name in facts[0]}


def losses(a: Side, b: Side, clock: str, num_points: int) -> tuple[list[str], list[list[str]]]:
    """Returns the losses of both at the same readings of a clock, linear between logged ones.

    Args:
      a: the runs of a variant.
      b: those of another.
      clock: "step", "tokens", "flops" or "seconds".
      num_points: equal steps from where all have begun to log to where the first of them ends.

    Returns:
      A table's header and rows: training and, at each length that all have, validation; "-" where
      one of them was not validated yet, or no longer. Losses of different kinds have no difference;
      they are in bits per byte too if these compare.
    """
    curves = [[loss_curves(run, clock) for run in side] for side in (a, b)]
    every = [*curves[0], *curves[1]]
    if not all(TRAINING in curve for curve in every):
        return [], []
    low = max(curve[TRAINING][0][0] for curve in every)
    high = min(curve[TRAINING][0][-1] for curve in every)
    if not low <= high:
        return [], []
    seeds = [[run.config.get("seed") for run in side] for side in (a, b)]
    paired = seeds[0] == seeds[1] and len(a) > 1
    apart, bits_apart = (
        comparability.loss_apart(a[0].config, b[0].config, score)
        for score in ("loss", "bits_per_byte")
    )
    header, points = [clock], np.linspace(low, high, num_points + 1)[1:]
    digits = 2 if clock == "seconds" and high - low < 10 * num_points else 0
    columns = [[f"{point:,.{digits}f}" if point < 1e12 else f"{point:.4g}" for point in points]]
    for kind in every[0]:
        bits = kind.startswith(BITS)
        if not all(kind in curve for curve in every) or (bits and (bits_apart or not apart)):
            continue
        compare = bits or not apart
        header += [f"{kind} A", "B", *["B - A"] * compare]
        x, y = (
            np.array([np.interp(points, *curve[kind], np.nan, np.nan) for curve in side])
            for side in curves
        )  # [seeds, points]
        for means in (x.mean(axis=0), y.mean(axis=0)):
            columns.append(["-" if np.isnan(mean) else f"{mean:.4f}" for mean in means])
        if compare:
            both = zip(x.T, y.T, strict=True)
            columns.append([_difference(*numbers, paired) for numbers in both])
    return header, [list(row) for row in zip(*columns, strict=True)]


def _difference(x: np.ndarray, y: np.ndarray, paired: bool) -> str:
    """Returns B minus A, with its interval if seeds are paired; "-" if one is missing."""
    value = float(y.mean() - x.mean())
    if np.isnan(value):
        return "-"
    if not paired:
        return f"{value:+.4f}"
    found = student(list(y - x))
    return f"{value:+.4f} {show_interval(found.low, found.high, '+.4f')}"


def loss_curves(run: RunRecord, clock: str) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Returns a run's losses by kind: "training", "valid 128", ...: readings [n] and losses [n]."""
    found: dict[str, list[tuple[float, float]]] = {}
    for line in run.lines:
        for name, kind in (
            ("train/loss", TRAINING),
            ("eval/loss", f"valid {line.get('eval/max_len', '')}"),
            ("eval/bits_per_byte", f"{BITS} {line.get('eval/max_len', '')}"),
        ):
            if name in line and clock in line:
                found.setdefault(kind, []).append((line[clock], line[name]))
    return {kind: tuple(np.array(points, np.float64).T) for kind, points in found.items()}  # pyright: ignore[reportReturnType]
