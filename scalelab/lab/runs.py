"""Lists all runs below some folders, compares two runs, and writes the card of a run.

  python -m scalelab.lab.runs DIR... [--where=...] [--sort=-tokens] [--columns=...] [--csv=FILE]
  python -m scalelab.lab.runs compare RUNS_A RUNS_B [--points=10]
  python -m scalelab.lab.runs card RUN [--to=FILE.md]
  python -m scalelab.lab.runs pack RUN --to=DIR

A line is a pre-training or a fine-tuning. A run in progress shows its state so far; an unreadable
run is listed with the reason. `compare` takes two runs, or all seeds of two variants: a pattern
such as 'runs/bert-2x128x2-seed*', or folders joined by commas. `pack` copies a finished run without
its large files, for git.
"""

import argparse
import pathlib
import shutil
import tempfile
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from scalelab.config import cli
from scalelab.config.durations import CLOCKS
from scalelab.config.fields import science_diff
from scalelab.helpers.files import write_text
from scalelab.helpers.names import check_names
from scalelab.lab import tables
from scalelab.lab.compare import comparability
from scalelab.lab.load import run_table
from scalelab.records import archive, run_files
from scalelab.records.plots import TRAINING
from scalelab.records.run_files import RunRecord

COMMANDS = ("list", "compare", "card", "pack")
SHOWN = ("run", "system", "shape", "task", "status", "seed", "steps", "tokens", "flops", "seconds",
         "loss", "scores", "note")  # fmt: skip
NUM_TEXTS = 5  # texts to show; the first ones
NUM_SCORES = 3  # shown of a run; --csv has all
SEEDS = ("seed", "data.order_seed")  # fields in which runs of a variant may differ
BITS = "bits/byte"
FORMATS = {"flops": ".3g", "seconds": ",.0f", "loss": ".4f", "score": ".4f"}

Side = Sequence[RunRecord]  # all seeds of a variant


def parser() -> cli.Parser:
    """Returns the parser of the command line."""
    made = cli.Parser("python -m scalelab.lab.runs", __doc__)
    commands = made.add_commands(default="list")
    listing = commands.add_parser("list", help="the table; also without this word")
    add = listing.add_argument
    add("folders", metavar="DIR", nargs="+", type=pathlib.Path)
    add("--where", default="", metavar="CONDITIONS",
        help="such as system=bert,width>=128,status=completed,corpus=*wiki*,loss!=none; any column,"
        " any config field (optim.learning_rate>1e-3)")  # fmt: skip
    add("--sort", default="", metavar="COLUMNS", help="such as system,-tokens: most tokens first")
    add("--columns", metavar="COLUMNS", help="to show, such as run,loss,optim.learning_rate")
    add("--csv", metavar="FILE", type=pathlib.Path, help="write all digits there")
    comparing = commands.add_parser("compare", help="config and losses of two variants")
    comparing.add_argument("a", metavar="RUNS_A", help="a run, or a pattern of all its seeds")
    comparing.add_argument("b", metavar="RUNS_B", help="likewise")
    comparing.add_argument(
        "--points", type=cli.positive, default=10, help="rows of each table; default: 10"
    )
    carding = commands.add_parser("card", help="a run in Markdown")
    carding.add_argument("run", metavar="RUN", type=pathlib.Path)
    carding.add_argument("--to", metavar="FILE", type=pathlib.Path, help="write it there")
    packing = commands.add_parser("pack", help="a finished run, small enough for git")
    packing.add_argument("run", metavar="RUN", type=pathlib.Path)
    packing.add_argument("--to", metavar="DIR", type=pathlib.Path, required=True)
    return made


def show(given: argparse.Namespace) -> str:
    """Returns the requested table.

    Raises:
      ValueError: a folder or a column does not exist, or a condition has another form.
    """
    frame = run_table.as_frame(run_table.load_runs(given.folders, COMMANDS))
    columns = given.columns.split(",") if given.columns else None
    check_names(columns or (), frame.columns, "unknown column")
    chosen = sort(run_table.where(frame, given.where), given.sort)
    if given.csv:
        names = columns or [name for name in frame.columns if "." not in name]
        chosen[names].to_csv(given.csv, index=False)
    if chosen.empty:
        return f"no run: 0 of {len(frame)}\n"
    total = f"{len(chosen)} of {len(frame)} runs"
    if columns is None and len(given.folders) == 1:  # paths in this folder are short
        below = f"{given.folders[0]}/"
        chosen = chosen.assign(run=chosen["run"].str.removeprefix(below))
        total += f" below {below}"
    return plain(chosen, columns) + f"{total}\n"


def sort(frame: pd.DataFrame, by: str) -> pd.DataFrame:
    """Sorts rows by columns such as "system,-tokens" (most tokens first); unknown cells come last.

    Raises:
      ValueError: there is no such column.
    """
    keys = [key.strip() for key in by.split(",") if key.strip()]
    check_names([key.removeprefix("-") for key in keys], frame.columns, "unknown column")

    def key(values: pd.Series) -> pd.Series:
        if pd.api.types.is_numeric_dtype(values):
            return values
        return values.astype(object).map(lambda x: run_table.natural(str(x)), na_action="ignore")

    names = [name.removeprefix("-") for name in keys]
    rising = [name[0] != "-" for name in keys]
    return frame.sort_values(names, ascending=rising, kind="stable", key=key) if keys else frame


def plain(frame: pd.DataFrame, columns: Sequence[str] | None = None) -> str:
    """Returns the table for a terminal, by default the usual columns that are not empty.

    Notes are then cut to 30 characters.
    """
    num_texts = 1
    if columns is None:
        notes = frame["note"].astype("string")
        frame = frame.assign(note=notes.str.replace(r"^(.{27}).{4,}", r"\1...", regex=True))
        columns = [name for name in SHOWN if pd.Series(frame[name]).notna().any()]
        num_texts = sum(name in SHOWN[:NUM_TEXTS] for name in columns)
    cells = [[_cell(name, x) for x in frame[name].astype(object)] for name in columns]
    return tables.plain(columns, list(zip(*cells, strict=True)), num_texts)


def _cell(name: str, value: Any) -> str:
    if isinstance(value, str):
        scores = value.split() if name == "scores" else []
        more = f" and {len(scores) // 2 - NUM_SCORES} more" * (len(scores) > 2 * NUM_SCORES)
        return " ".join(scores[: 2 * NUM_SCORES]) + more if more else value
    if value is None or value is pd.NA or value != value:
        return "-"
    if name in FORMATS or not float(value).is_integer():
        return format(float(value), FORMATS.get(name, ",.6g" if abs(value) < 1e6 else ".4g"))
    return str(value) if name in ("seed", "numerics") else f"{int(value):,}"


def _read_side(text: str) -> Side:
    """Reads all seeds of a variant.

    Raises:
      ValueError: a run cannot be read, or the runs differ in more than their seeds.
    """
    first, *others = side = [*map(run_files.read_run, archive.find_runs(text))]
    for run in others:
        if lines := science_diff(run.config, first.config, SEEDS):
            raise ValueError(
                f"{text}: runs of one side may differ in their seeds alone, but from {first.folder}"
                f" to {run.folder} differ:\n  " + "\n  ".join(lines)
            )
    return side


# --- Two variants side by side --------------------------------------------------------------------


def compare(a: Side, b: Side, num_points: int = 10) -> str:
    """Describes two variants side by side: config, and losses at `num_points` on every clock.

    Losses are means over the runs of a variant. Differences are B minus A, with Student's 95%
    interval where both have the same two seeds or more. A training loss is the mean since the line
    before, as it was logged. `scalelab.eval.compare` compares the scores of fine-tunings.
    """
    heads = ""
    for letter, run in [*(("A", run) for run in a), *(("B", run) for run in b)]:
        step = run.lines[-1]["step"] if run.lines else 0
        state = "" if run.result else f" (no result yet; at step {step})"
        heads += f"{letter}: {run.folder}: {run.name}{state}\n"
    free = SEEDS if max(len(a), len(b)) > 1 else ()
    facts = zip(_facts(a).items(), _facts(b).values(), strict=True)
    lines = science_diff(b[0].config, a[0].config, free)
    lines += [f"{name}: {x} -> {y}" for (name, x), y in facts if x != y]
    parts = [heads, "Config, A -> B\n" + "".join(f"  {x}\n" for x in lines or ["the same"])]
    if apart := comparability.loss_apart(a[0].config, b[0].config):
        parts.append(comparability.LOSSES.format(", ".join(apart)) + "\n")
    for clock, _, label in CLOCKS.values():
        header, rows = losses(a, b, clock, num_points)
        if rows:
            parts.append(f"Losses by {label}\n" + tables.plain(header, rows))
    return "\n".join(parts)


def _facts(side: Side) -> dict[str, str]:
    """Returns the facts outside the config that may make a difference."""
    facts = pd.DataFrame({
        "data": [(run.data_hash or "not recorded")[:12] for run in side],
        "numerics version": [run.environment.numerics_versions for run in side],
        "code": ["uncommitted changes" if run.environment.git_dirty else "committed"
                 for run in side],
    })  # fmt: skip
    return {str(name): ", ".join(own.unique()) for name, own in facts.items()}


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
    low = max(curve[TRAINING].index[0] for curve in every)
    high = min(curve[TRAINING].index[-1] for curve in every)
    if not low <= high:
        return [], []
    seeds = [[run.config.get("seed") for run in side] for side in (a, b)]
    paired = seeds[0] == seeds[1] and len(a) > 1
    apart, bits_apart = (
        bool(comparability.loss_apart(a[0].config, b[0].config, score))
        for score in ("loss", "bits_per_byte")
    )
    points = np.linspace(low, high, num_points + 1)[1:]
    digits = 2 if clock == "seconds" and high - low < 10 * num_points else 0
    header = [clock]
    columns = [[f"{point:,.{digits}f}" if point < 1e12 else f"{point:.4g}" for point in points]]
    for kind in every[0]:
        bits = kind.startswith(BITS)
        if not all(kind in curve for curve in every) or (bits and (bits_apart or not apart)):
            continue
        compared = bits or not apart
        header += [f"{kind} A", "B", *["B - A"] * compared]
        x, y = (
            np.array([np.interp(points, c[kind].index, c[kind], np.nan, np.nan) for c in side])
            for side in curves
        )  # [seeds, points]
        for means in (x.mean(axis=0), y.mean(axis=0)):
            columns.append(["-" if np.isnan(mean) else f"{mean:.4f}" for mean in means])
        if compared:
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
    from scalelab.lab.compare.estimates import show_interval, student  # late: imports scipy

    found = student(list(y - x))
    return f"{value:+.4f} {show_interval(found.low, found.high, '+.4f')}"


def loss_curves(run: RunRecord, clock: str) -> dict[str, pd.Series]:
    """Returns a run's losses by the clock, of each kind: "training", "valid 128", ..."""
    found: dict[str, dict[float, float]] = {}
    for line in run.lines:
        length = line.get("eval/max_len", "")
        for name, kind in (("train/loss", TRAINING), ("eval/loss", f"valid {length}"),
                           ("eval/bits_per_byte", f"{BITS} {length}")):  # fmt: skip
            if name in line and clock in line:
                found.setdefault(kind, {})[line[clock]] = line[name]
    return {kind: pd.Series(curve, dtype=float) for kind, curve in found.items()}


def main(given: argparse.Namespace) -> None:
    """Does what the command asks, and prints."""
    if given.command == "list":
        text = show(given)
    elif given.command == "compare":
        text = compare(_read_side(given.a), _read_side(given.b), given.points)
    elif given.command == "pack":
        if given.to.exists():
            raise ValueError(f"--to={given.to} exists; name a new folder")
        with tempfile.TemporaryDirectory() as folder:  # an error leaves nothing in --to
            archive.copy_run(given.run, pathlib.Path(folder, "run"))
            shutil.copytree(pathlib.Path(folder, "run"), given.to)
        text = f"wrote {given.to}\n"
    else:
        from scalelab.lab.show import card

        text = card.write(given.run)
        if given.to:
            write_text(given.to, text)
            text = f"wrote {given.to}\n"
    print(text, end="", flush=True)


if __name__ == "__main__":
    cli.run(main, parser())
