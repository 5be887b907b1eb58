"""A table of a study: its cells, and how they are written in Markdown, LaTeX and CSV."""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

from scalelab.lab import tables

# How a number of each kind is printed.
FORMATS: dict[str, Callable[[float], str]] = {
    "percent": lambda x: f"{100 * x:.1f}",
    "loss": lambda x: f"{x:.3f}",
    "seconds": lambda x: f"{x:,.0f}" if x >= 100 else f"{x:.1f}",
    "scientific": lambda x: f"{x:.3g}",
    "gib": lambda x: f"{x:.2f}",
    "count": lambda x: f"{x:,.0f}",
    "effect": lambda x: f"{x:.3g}",
    "number": lambda x: f"{x:.4g}",
    "fixed": lambda x: f"{x:.2f}",
    "text": str,
}
COUNTED = ("count", "number", "fixed")  # kinds of numbers that no chance is in


class Value(NamedTuple):
    """A number with its 95% interval, and the published one; None where there is none."""

    value: float
    low: float | None = None
    high: float | None = None
    published: float | None = None


Cell = str | int | float | Value | None


@dataclasses.dataclass(frozen=True)
class Column:
    """A column.

    Attributes:
      key: its name in CSV; for scores that in evidence.SCORES.
      title: for people.
      kind: a key of FORMATS.
      tasks: those that it needs; empty for what comes from pre-training.
      exact: whether its cells are Values that were counted, and have no interval.
    """

    key: str
    title: str
    kind: str
    tasks: tuple[str, ...] = ()
    exact: bool = False

    @property
    def scored(self) -> bool:
        """Whether its cells are Values."""
        return bool(self.tasks) or self.key in ("loss", "seconds", "effect")


@dataclasses.dataclass(frozen=True)
class Table:
    """A table, and what has to be said below it.

    Attributes:
      name: as in the list above.
      title: its caption.
      columns: with titles.
      rows: a cell a column.
      footer: the smallest detectable difference of every column; None where nothing is compared.
      notes: sentences.
      footnotes: those of them that the CSV has too, in a column: of the comparability contract.
    """

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    footer: tuple[Cell, ...] | None
    notes: tuple[str, ...]
    footnotes: tuple[str, ...] = ()

    @property
    def num_names(self) -> int:
        """Columns at the left that hold words."""
        kinds = [column.kind for column in self.columns]
        return next((i for i, kind in enumerate(kinds) if kind != "text"), len(kinds))


def text(cell: Cell, kind: str) -> str:
    """A cell for people: "65.4 [63.0, 67.8] (66.1)", the published number in round brackets."""
    if cell is None:
        return "-"
    if not isinstance(cell, Value):
        return FORMATS[kind](cell) if not isinstance(cell, str) else cell
    said = f"{FORMATS[kind](cell.value)} {interval(cell, kind)}".rstrip()
    return said if cell.published is None else f"{said} ({FORMATS[kind](cell.published)})"


def interval(cell: Value, kind: str) -> str:
    """The interval of a cell: "[63.0, 67.8]", "[-]" if it has none, "" of what was counted."""
    if kind in COUNTED:
        return ""
    ends = [FORMATS[kind](x) for x in (cell.low, cell.high) if x is not None]
    return f"[{', '.join(ends) or '-'}]"


def words(table: Table) -> tuple[list[str], list[list[str]], list[str] | None]:
    """Header, rows and footer in words."""
    kinds = [column.kind for column in table.columns]
    rows = [[text(c, k) for c, k in zip(row, kinds, strict=True)] for row in table.rows]
    footer = None
    if table.footer:
        cells = zip(table.footer, kinds, strict=True)
        footer = ["" if c is None else text(c, k) for c, k in cells]
    return [column.title for column in table.columns], rows, footer


def markdown(table: Table) -> str:
    """The table in Markdown, its notes below."""
    header, rows, footer = words(table)
    said = "".join(f"- {note}\n" for note in table.notes)
    lines = rows + ([footer] if footer else [])
    return tables.markdown(header, lines, table.num_names) + "\n" + said


def latex(table: Table, label: str) -> str:
    """The table in LaTeX (booktabs), its notes in small print below."""
    header, rows, footer = words(table)
    return tables.latex(
        header, rows, table.num_names,
        caption=table.title, label=label, footer=footer, notes=table.notes,
    )  # fmt: skip


def csv(table: Table) -> str:
    """The table for programs: all digits, scores as fractions, columns *_low, *_high, *_published.

    Without the last line, which is of another kind; empty fields are unknown. Each row says in a
    last column what was allowed to differ, if anything was.
    """
    header: list[str] = []
    for column in table.columns:
        ends = ("", "_low", "_high", "_published") if column.scored else ("",)
        ends = ("", "_published") if column.exact else ends
        header += [column.key + end for end in ends]
    header += ["footnotes"] * bool(table.footnotes)
    lines = []
    for row in table.rows:
        line: list[object] = []
        for column, cell in zip(table.columns, row, strict=True):
            if column.exact:
                line += [cell.value, cell.published] if isinstance(cell, Value) else [None] * 2
            else:
                line += (cell or [None] * 4) if column.scored else [cell]  # type: ignore[operator]
        line += [" ".join(table.footnotes)] * bool(table.footnotes)
        lines.append(line)
    return tables.comma_separated(header, lines)
