"""Two runs side by side: their configs, and losses on every clock.

Differences are B minus A. A training loss is the mean since the line before, as it was logged.
`scalelab.eval.compare` compares the scores of their fine-tunings, with intervals.
"""

from collections.abc import Sequence

import numpy as np

from scalelab.config.durations import CLOCKS
from scalelab.config.fields import flatten
from scalelab.lab import tables
from scalelab.lab.show.notes import LOSS_FIELDS
from scalelab.lab.show.plots import TRAINING
from scalelab.runs.records import RunRecord

BITS = "bits/byte"


def describe(a: RunRecord, b: RunRecord, differing: Sequence[str], num_points: int = 10) -> str:
    """Describes two runs side by side.

    Args:
      a: a run.
      b: another.
      differing: lines of the science fields in which B's config differs from A's.
      num_points: rows of each table of losses.
    """
    heads = []
    for letter, run in (("A", a), ("B", b)):
        step = run.lines[-1]["step"] if run.lines else 0
        state = "" if run.result else f" (no result yet; at step {step})"
        heads.append(f"{letter}: {run.folder}: {run.name}{state}\n")
    facts_b, lines = _facts(b), list(differing)
    lines += [
        f"{name}: {x} -> {facts_b[name]}" for name, x in _facts(a).items() if x != facts_b[name]
    ]
    parts = [
        "".join(heads),
        "Config, A -> B\n" + "".join(f"  {x}\n" for x in lines or ["the same"]),
    ]
    settings = [[flatten(run.config).get(field) for field in LOSS_FIELDS] for run in (a, b)]
    if settings[0] != settings[1]:
        parts.append("Losses of different objectives, tokenizers or formats do not compare.\n")
    for clock, _, label in CLOCKS.values():
        header, rows = losses(a, b, clock, num_points)
        if rows:
            parts.append(f"Losses by {label}\n" + tables.plain(header, rows))
    return "\n".join(parts)


def _facts(run: RunRecord) -> dict[str, str]:
    """Returns the facts outside the config that may make a difference."""
    environment = run.environment
    return {
        "data": (run.data_hash or "not recorded")[:12],
        "numerics version": environment.numerics_versions,
        "code": "uncommitted changes" if environment.git_dirty else "committed",
    }


def losses(
    a: RunRecord, b: RunRecord, clock: str, num_points: int
) -> tuple[list[str], list[list[str]]]:
    """Returns the losses of both at the same readings of a clock, linear between logged ones.

    Args:
      a: a run.
      b: another.
      clock: "step", "tokens", "flops" or "seconds".
      num_points: equal steps from where both have begun to log to where the first of them ends.

    Returns:
      A table's header and rows: training and, at each length that both have, validation; where
      their tokens differ, in bits per byte too; "-" where one of them was not validated yet, or no
      longer.
    """
    curves = [loss_curves(run, clock) for run in (a, b)]
    if not all(TRAINING in curve for curve in curves):
        return [], []
    low = max(curve[TRAINING][0][0] for curve in curves)
    high = min(curve[TRAINING][0][-1] for curve in curves)
    if not low <= high:
        return [], []
    same_tokenizer = a.config.get("tokenizer") == b.config.get("tokenizer")
    header, points = [clock], np.linspace(low, high, num_points + 1)[1:]
    rows = [[f"{point:,.0f}" if point < 1e12 else f"{point:.4g}"] for point in points]
    for kind in curves[0]:
        if kind not in curves[1] or (same_tokenizer and kind.startswith(BITS)):
            continue
        header += [f"{kind} A", "B", "B - A"]
        sides = (np.interp(points, *curve[kind], np.nan, np.nan) for curve in curves)
        for row, x, y in zip(rows, *sides, strict=True):
            numbers = (f"{x:.4f}", f"{y:.4f}", f"{y - x:+.4f}")
            row += ["-" if number.endswith("nan") else number for number in numbers]
    return header, rows


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
