"""Two runs side by side: their configs, losses on every clock, and scores.

Differences are B minus A. A training loss is the mean since the line before, as it was logged.
Nothing here is tested for significance: `scalelab.eval.compare` does that.
"""

import pathlib
from collections.abc import Sequence

import numpy as np

from scalelab.config.durations import CLOCKS
from scalelab.lab import tables
from scalelab.lab.compare import comparability
from scalelab.lab.load import task_runs
from scalelab.lab.load.run_table import natural
from scalelab.lab.show import plots
from scalelab.lab.show.plots import TRAINING
from scalelab.runs.records import RunRecord, TaskResult

BITS = "bits/byte"


def describe(a: RunRecord, b: RunRecord, differing: Sequence[str], num_points: int = 10) -> str:
    """Describes two runs side by side.

    Args:
      a: a run.
      b: another.
      differing: lines of the science fields in which B's config differs from A's.
      num_points: rows of each table of losses.

    Raises:
      ValueError: fine-tunings below one of them do not go together.
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
    if apart := _apart(a, b):
        parts.append(f"Losses of different kinds do not compare: {', '.join(apart)} differ.\n")
    for clock, _, label in CLOCKS.values():
        header, rows = losses(a, b, clock, num_points)
        if rows:
            parts.append(f"Losses by {label}\n" + tables.plain(header, rows))
    sides, rows = [_scores(run) for run in (a, b)], []
    for key, (x, num_x) in sides[0].items():
        if key in sides[1]:
            y, num_y = sides[1][key]
            numbers = [f"{100 * x:.1f}", f"{100 * y:.1f}", f"{100 * (y - x):+.1f}"]
            rows.append([*key, *numbers, f"{num_x}, {num_y}"])
    if rows:
        header = ["task", "metric", "A", "B", "B - A", "seeds"]
        parts.append("Scores x 100, means over finished seeds\n" + tables.plain(header, rows, 2))
    return "\n".join(parts)


def _apart(a: RunRecord, b: RunRecord) -> list[str]:
    """Returns the fields that make the losses of two runs losses of different things."""
    x, y = (comparability.loss_fields(run.config) for run in (a, b))
    return [name for name in dict.fromkeys([*x, *y]) if x.get(name) != y.get(name)]


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
    apart = _apart(a, b)
    header, points = [clock], np.linspace(low, high, num_points + 1)[1:]
    rows = [[f"{point:,.0f}" if point < 1e12 else f"{point:.4g}"] for point in points]
    for kind in curves[0]:
        if kind not in curves[1] or (same_tokenizer and kind.startswith(BITS)):
            continue
        compare = kind.startswith(BITS) or not apart
        header += [f"{kind} A", "B", *["B - A"] * compare]
        sides = (np.interp(points, *curve[kind], np.nan, np.nan) for curve in curves)
        for row, x, y in zip(rows, *sides, strict=True):
            numbers = (f"{x:.4f}", f"{y:.4f}", *[f"{y - x:+.4f}"] * compare)
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


def _scores(run: RunRecord) -> dict[tuple[str, str], tuple[float, int]]:
    """Returns (task, metric and split) -> mean score and number of seeds.

    Raises:
      ValueError: a folder mixes fine-tunings that do not go together.
    """
    if run.config.get("task") is not None:
        evals = run.result.eval if isinstance(run.result, TaskResult) else {}
        return {
            (str(run.config["task"]), f"{metric} {split}"): (value, 1)
            for split, values in evals.items()
            for metric, value in values.items()
            if value is not None
        }
    folder = run.folder / "tasks"
    return {
        (task.title, f"{metric} {split}"): (float(np.mean(task.values((split, metric)))), num)
        for task in (task_runs.read(folder) if any(folder.glob("*/seed*")) else {}).values()
        for split, metric in task.keys
        if (num := len(task.finished))
    }


def draw(path: pathlib.Path, a: RunRecord, b: RunRecord) -> None:
    """Draws the losses of both against each clock.

    Args:
      path: the PNG.
      a: a run.
      b: another.
    """
    figure = plots.canvas(13, 3.6)
    curves = sorted({kind for run in (a, b) for kind in loss_curves(run, "step")}, key=natural)
    lengths = [kind for kind in curves if kind != TRAINING and not kind.startswith(BITS)]
    panels = figure.subplots(1, len(CLOCKS), sharey=True)
    for axis, (clock, _, label) in zip(panels, CLOCKS.values(), strict=True):
        for k, (run, letter) in enumerate(((a, "A"), (b, "B"))):  # a colour and a dash for each run
            for kind, (x, y) in loss_curves(run, clock).items():
                if kind.startswith(BITS):
                    continue
                look = plots.style(k, marker=None, lw=1, ms=4)
                if kind != TRAINING:  # and a marker for each length, hollow for B
                    marker = plots.style(lengths.index(kind))["marker"]
                    look |= {"marker": marker, "markerfacecolor": "white" if k else look["color"]}
                axis.plot(x, y, label=f"{letter} {kind}", **look)
        plots.label_clock(axis, label)
    panels[0].set_ylabel("loss (nats)")
    panels[0].legend(frameon=False, fontsize="small", handlelength=3)
    figure.suptitle(f"A: {a.folder.name} ({a.name});  B: {b.folder.name} ({b.name})")
    plots.save(figure, path, dpi=110)
