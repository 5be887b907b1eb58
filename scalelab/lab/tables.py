"""Tables: cells with intervals, and their forms for a terminal, Markdown, LaTeX and CSV.

A study names a table by its kind, "large", or by kind and rows: "large:width" has the rows that the
study calls `width`.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import pandas as pd

from scalelab.helpers.names import check_names, nearest

# How numbers of each kind are printed.
FORMATS: dict[str, Callable[[float], str]] = {
    "percent": lambda x: f"{100 * x:.1f}",
    "loss": lambda x: f"{x:.3f}",
    "seconds": lambda x: f"{x:,.0f}" if x >= 100 else f"{x:.1f}",
    "count": lambda x: f"{x:,.0f}",
    "short": lambda x: f"{x:.3g}",
    "number": lambda x: f"{x:.4g}",
    "fixed": lambda x: f"{x:.2f}",
    "text": str,
}
INTERVAL = ("low", "high", "published")  # fields beside a score
# Characters that LaTeX reads as commands, with their printable form.
LATEX = str.maketrans(
    {c: f"\\{c}" for c in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"}
)


class Value(NamedTuple):
    """A number with its 95% interval and the published number; None or NaN where there is none."""

    value: float
    low: float | None = None
    high: float | None = None
    published: float | None = None


Cell = str | int | float | Value | None


@dataclasses.dataclass(frozen=True)
class Column:
    """A column; its key names it in CSV, and a score."""

    key: str
    title: str
    kind: str = "text"  # a key of FORMATS
    tasks: tuple[str, ...] = ()  # the tasks that it needs; empty for numbers from pre-training
    # Fields of Value that its cells have, INTERVAL for scores; empty for plain cells.
    beside: tuple[str, ...] = ()

    @property
    def scored(self) -> bool:
        """Whether its cells have an interval."""
        return "low" in self.beside

    def parts(self, cell: Cell) -> tuple[str, str, str]:
        """Returns a cell's number, interval ("[-]": unknown) and published number as text.

        An interval as wide as the whole scale of a score "tells nothing".
        """
        if not isinstance(cell, Value):
            known = "-" if cell is None else cell
            return known if isinstance(known, str) else FORMATS[self.kind](known), "", ""
        show = FORMATS[self.kind]
        ends = ", ".join(show(x) for x in (cell.low, cell.high) if x is not None and x == x) or "-"
        wide = self.kind == "percent" and (cell.high or 0) - (cell.low or 0) >= 1
        interval = f"[{ends}]{' tells nothing' * wide}" if self.scored else ""
        published = "" if cell.published is None else f"({show(cell.published)})"
        return show(cell.value), interval, published

    def text(self, cell: Cell) -> str:
        """Returns a cell as text: "65.4 [63.0, 67.8] (66.1)"."""
        return " ".join(filter(None, self.parts(cell)))


@dataclasses.dataclass(frozen=True)
class Table:
    """A table."""

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()  # what its columns mean, where titles do not say it
    # Notes on fields that were allowed to differ; the CSV repeats them in a column.
    footnotes: tuple[str, ...] = ()

    @property
    def num_names(self) -> int:
        """Number of text columns at the left."""
        column_kinds = [*(column.kind for column in self.columns), ""]
        return next(i for i, kind in enumerate(column_kinds) if kind != "text")

    def texts(self) -> pd.DataFrame:
        """Returns the cells as text."""
        rows = [[c.text(cell) for c, cell in zip(self.columns, r, strict=True)] for r in self.rows]
        return pd.DataFrame(rows, columns=[c.title for c in self.columns], dtype=object)


def parse_name(table: str, kinds: Iterable[str], rows: Mapping[str, object]) -> tuple[str, str]:
    """Reads "large:width": the kind of a table and the name of its rows, "" for all.

    Raises:
      ValueError: unknown kind or rows.
    """
    kind, colon, name = table.partition(":")
    check_names([kind], list(kinds), "unknown table")
    if colon and name not in rows:
        valid = nearest(name, rows) if rows else "the study names no rows"
        raise ValueError(f"unknown rows {name!r} in {table!r}: {valid}")
    return kind, name


def plain(header: Sequence[str], rows: Sequence[Sequence[str]], num_names: int = 1) -> str:
    """Aligns columns with spaces, the first `num_names` to the left, the others to the right."""
    widths = [max(map(len, cells)) for cells in zip(header, *rows, strict=True)]
    lines = [
        [c.ljust(w) if i < num_names else c.rjust(w)
         for i, (c, w) in enumerate(zip(line, widths, strict=True))]
        for line in (header, ["-" * width for width in widths], *rows)
    ]  # fmt: skip
    return "".join("  ".join(line).rstrip() + "\n" for line in lines)


def markdown(texts: pd.DataFrame, num_names: int) -> str:
    """Returns a frame of text as a Markdown table, the first `num_names` columns to the left."""
    escaped = texts.map(escape_markdown).rename(columns=escape_markdown)
    sides = ["left"] * num_names + ["right"] * (len(texts.columns) - num_names)
    return escaped.to_markdown(index=False, colalign=sides, disable_numparse=True) + "\n"


def bullets(notes: Sequence[str]) -> str:
    """Returns sentences as a Markdown list."""
    return "".join(f"- {escape_markdown(note)}\n" for note in notes)


def escape_markdown(text: str) -> str:
    """Returns text that Markdown shows as it is: no HTML, no links, no cells of a table."""
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace("](", "]\\(")
    return text.replace("|", "\\|").replace("\n", " ")


def latex(table: Table, label: str) -> str:
    """Returns the table in LaTeX, with its footnotes in the caption; it needs booktabs."""
    escape = lambda text: text.translate(LATEX)  # noqa: E731
    texts = table.texts().map(escape).rename(columns=escape)
    sides = "l" * table.num_names + "r" * (len(texts.columns) - table.num_names)
    return texts.to_latex(
        index=False, escape=False, column_format=sides, position="tb",
        caption=escape(". ".join([table.title, *table.footnotes])), label=f"tab:{label}",
    )  # fmt: skip


def csv(table: Table) -> str:
    """Returns the table for programs: all digits, scores as fractions.

    Scores have columns *_low, *_high and *_published beside them. A last column has the footnotes.
    """
    found: dict[str, list[object]] = {}
    for place, column in enumerate(table.columns):
        cells = [row[place] for row in table.rows]
        found[column.key] = [c.value if isinstance(c, Value) else c for c in cells]
        for field in column.beside:
            found[f"{column.key}_{field}"] = [getattr(cell, field, None) for cell in cells]
    if table.footnotes:
        found["footnotes"] = [" ".join(table.footnotes)] * len(table.rows)
    return pd.DataFrame(found, dtype=object).to_csv(index=False)
