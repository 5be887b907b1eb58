"""The table of a benchmark: every task's scores over seeds, and how far they can be trusted.

`write(WORKDIR)` reads WORKDIR/<task>/seed<k> and, as the baseline, WORKDIR/scratch/<task>/seed<k>,
leaves WORKDIR/glue.md and glue.csv, and returns the same for a terminal. Scores are of dev sets, in
percent; in glue.csv they are fractions with all digits.
"""

import dataclasses
import pathlib

from scalelab.lab import tables
from scalelab.lab.compare.estimates import Estimate
from scalelab.lab.load import task_runs
from scalelab.lab.scores import glue_rows, notes
from scalelab.lab.scores.glue_rows import Row, Score

NO_BASELINE = "no baseline run"


@dataclasses.dataclass(frozen=True)
class Table:
    """Rows, and what has to be said below them."""

    rows: list[Row]
    notes: list[str]


def write(workdir: pathlib.Path, *, best: bool = False) -> str:
    """Writes glue.md and glue.csv and returns the table for a terminal.

    Args:
      workdir: the folder of all tasks.
      best: whether to show the best-on-dev score too, labelled.

    Raises:
      ValueError: the folder holds no fine-tuning, or files that do not go together.
      OSError: a file cannot be read or written.
    """
    table = read(workdir)
    for name, text in (("glue.md", markdown(table, best=best)), ("glue.csv", csv(table))):
        part = workdir / f"{name}.tmp"
        part.write_text(text, encoding="utf-8")
        part.replace(workdir / name)
    return plain(table, best=best)


def of_task(workdir: pathlib.Path, task: str, *, best: bool = False) -> str:
    """The table of one task for a terminal; arguments and errors as for `write`.

    Args:
      workdir: holds seed0, seed1, ... or the folder of all tasks.
      task: its name.
      best: as for `write`.
    """
    return plain(read(workdir, only=task), best=best)


def read(workdir: pathlib.Path, *, only: str | None = None) -> Table:
    """Makes the table of the fine-tunings in a folder.

    Args:
      workdir: see above.
      only: leave out all other tasks, and the averages.

    Raises:
      ValueError: the folder holds no fine-tuning, or files that do not go together.
      OSError: a file cannot be read.
    """
    runs = task_runs.read(workdir)
    scratch = workdir / "scratch"
    begun = any(scratch.glob("seed*")) or any(scratch.glob("*/seed*"))
    baselines = task_runs.read(scratch) if begun else {}
    if only is not None:
        if only not in runs:
            raise ValueError(f"{workdir} holds no fine-tuning on {only}; on {', '.join(runs)}")
        runs = {only: runs[only]}
    missing: list[str] = []
    rows = []
    for name, task in runs.items():
        rows += glue_rows.of_task(task, baselines.get(name), missing)
    absent, others = glue_rows.not_of_glue(rows)
    averages = [] if only is not None else glue_rows.averages(rows, whole=not absent + others)
    said = notes.of_table(runs, baselines, [row.label for row in averages])
    said += (notes.of_averages(absent, others) if averages else []) + missing
    if only is not None and only not in baselines:
        said += notes.without_baseline(runs[only], scratch)
    return Table(rows + averages, said)


def plain(table: Table, *, best: bool = False) -> str:
    """The table for a terminal, notes below."""
    header, rows = _cells(table, best)
    return tables.plain(header, rows, 2) + "".join(
        f"* {note}\n" for note in _table_notes(table, best)
    )


def markdown(table: Table, *, best: bool = False) -> str:
    """The table in Markdown, notes below."""
    header, rows = _cells(table, best)
    said = "".join(f"- {note}\n" for note in _table_notes(table, best))
    return tables.markdown(header, rows, 2) + "\n" + said


def csv(table: Table) -> str:
    """The table for programs: fractions with all digits, an empty field for what is unknown.

    Each row repeats in its last column what is said below the table.
    """
    numbers = ("median", "mean", "sd", "low", "high", "seeds", "failed", "unfinished", "degenerate")
    header = ["name", "task", "split", "metric", *numbers]
    header += [f"scratch_{name}" for name in numbers] + ["best_on_dev", "footnotes"]
    lines = []
    for row in table.rows:
        line: list[object] = [row.label, row.task, row.split, row.metric]
        for score in (row.score, row.baseline):
            line += [None] * len(numbers) if score is None else _numbers(score)
        line = [None if x != x else x for x in [*line, row.best]]  # NaN is unknown too
        lines.append([*line, " ".join(table.notes)])
    return tables.comma_separated(header, lines)


# --- Words ----------------------------------------------------------------------------------------


def _table_notes(table: Table, best: bool) -> list[str]:
    return table.notes + ([notes.BEST] if best else [])


def _numbers(score: Score) -> list[object]:
    s, e = score.summary, score.estimate
    ends = [None, None] if e is None else [e.low, e.high]
    counts = [s.num, s.num_failed, score.num_unfinished, s.num_degenerate]
    return [s.median, s.mean, s.sd, *ends, *counts]


def _cells(table: Table, best: bool) -> tuple[list[str], list[list[str]]]:
    header = ["task", "metric", "median", "mean", "sd", "95% interval", "seeds"]
    header += ["failed", "unfinished", "degenerate", "from scratch"]
    rows = []
    for row in table.rows:
        s = row.score.summary
        line = [row.label, row.metric, *map(percent, (s.median, s.mean, s.sd))]
        line += [interval(row.score.estimate), str(s.num), str(s.num_failed)]
        line += [str(row.score.num_unfinished), str(s.num_degenerate)]
        if row.baseline is None:
            line.append(NO_BASELINE if row.task else "-")
        else:
            mean = percent(row.baseline.summary.mean)
            line.append(f"{mean} {interval(row.baseline.estimate)}")
        rows.append(line + ([percent(row.best)] if best else []))
    return header + (["best on dev"] if best else []), rows


def percent(value: float | None) -> str:
    """A fraction as percent with one decimal; "-" for what is unknown."""
    return "-" if value is None or value != value else f"{100 * value:.1f}"


def interval(estimate: Estimate | None) -> str:
    """The interval of an estimate in percent."""
    return "-" if estimate is None else f"[{percent(estimate.low)}, {percent(estimate.high)}]"
