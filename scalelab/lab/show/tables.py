"""A table of a study: its cells, and its forms in Markdown, LaTeX and CSV."""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import pandas as pd

# How numbers of each kind are printed.
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
EXACT = ("count", "number", "fixed")  # kinds of numbers without an interval
# Characters that LaTeX reads as commands, with their printable form.
LATEX = {c: f"\\{c}" for c in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
}


class Value(NamedTuple):
    """A number with its 95% interval and the published number; None where there is none."""

    value: float
    low: float | None = None
    high: float | None = None
    published: float | None = None


Cell = str | int | float | Value | None


@dataclasses.dataclass(frozen=True)
class Column:
    """A column.

    Attributes:
      key: its name in CSV; for scores, the name of the score.
      title: its heading.
      kind: a key of FORMATS.
      tasks: the tasks that it needs; empty for what comes from pre-training.
      exact: whether its cells are Values without an interval.
    """

    key: str
    title: str
    kind: str
    tasks: tuple[str, ...] = ()
    exact: bool = False

    @property
    def scored(self) -> bool:
        """Whether its cells are Values with an interval."""
        return bool(self.tasks) or self.key in ("loss", "seconds", "effect")

    @property
    def parts(self) -> tuple[str, ...]:
        """Suffixes of its columns in CSV."""
        if self.exact:
            return ("", "_published")
        return ("", "_low", "_high", "_published") if self.scored else ("",)


@dataclasses.dataclass(frozen=True)
class Table:
    """A table with its notes.

    Attributes:
      name: of its files.
      title: its caption.
      columns: with titles.
      rows: a cell a column.
      footer: the smallest detectable difference of every column; None where nothing is compared.
      notes: sentences below the table.
      footnotes: those notes that the CSV repeats in a column: fields that were allowed to differ.
    """

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    footer: tuple[Cell, ...] | None = None
    notes: tuple[str, ...] = ()
    footnotes: tuple[str, ...] = ()

    @property
    def num_names(self) -> int:
        """Number of text columns at the left."""
        kinds = [column.kind for column in self.columns]
        return next((i for i, kind in enumerate(kinds) if kind != "text"), len(kinds))

    def texts(self) -> pd.DataFrame:
        """Returns the cells as text, the footer as the last row."""
        kinds = [column.kind for column in self.columns]
        rows = [[format_cell(c, k) for c, k in zip(row, kinds, strict=True)] for row in self.rows]
        if self.footer:
            cells = zip(self.footer, kinds, strict=True)
            rows.append(["" if c is None else format_cell(c, k) for c, k in cells])
        return pd.DataFrame(rows, columns=[column.title for column in self.columns], dtype=object)


def format_cell(cell: Cell, kind: str) -> str:
    """Formats a cell: "65.4 [63.0, 67.8] (66.1)", the published number in round brackets."""
    if cell is None:
        return "-"
    if isinstance(cell, str):
        return cell
    if not isinstance(cell, Value):
        return FORMATS[kind](cell)
    text = f"{FORMATS[kind](cell.value)} {format_interval(cell, kind)}".rstrip()
    return text if cell.published is None else f"{text} ({FORMATS[kind](cell.published)})"


def format_interval(cell: Value, kind: str) -> str:
    """Formats an interval: "[63.0, 67.8]"; "[-]" if it is unknown, "" for exact numbers."""
    if kind in EXACT:
        return ""
    ends = [FORMATS[kind](x) for x in (cell.low, cell.high) if x is not None]
    return f"[{', '.join(ends) or '-'}]"


def sort_key(cell: Cell) -> str:
    """Returns what report.html sorts a cell by; empty for what is unknown."""
    if cell is None:
        return ""
    return repr(cell.value) if isinstance(cell, Value) else str(cell)


def markdown(table: Table, *, skip: Sequence[str] = ()) -> str:
    """Returns the table in Markdown with its notes below, but for those in `skip`."""
    notes = [note for note in table.notes if note not in skip]
    return frame_markdown(table.texts(), table.num_names) + "\n" * bool(notes) + bullets(notes)


def frame_markdown(
    texts: pd.DataFrame, num_names: int, links: Mapping[str, str] | None = None
) -> str:
    """Returns a frame of text as a Markdown table: names to the left, numbers to the right.

    Args:
      texts: the cells.
      num_names: number of columns of names.
      links: cell of the first column -> address that it links to.
    """
    escaped = texts.map(escape_markdown)
    for place, text in enumerate(texts.iloc[:, 0]):
        if links and text in links:
            escaped.iloc[place, 0] = f"[{escaped.iloc[place, 0]}]({links[text]})"
    escaped.columns = [escape_markdown(str(title)) for title in texts.columns]
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
    r"""Returns the table in LaTeX, with its notes in small print; needs booktabs and graphicx.

    A rule stands between rows whose first cells differ, and one above the footer.

    Args:
      table: everything in it is escaped.
      label: for \ref, without "tab:".
    """
    texts = table.texts()
    escaped = texts.map(escape_latex)
    escaped.columns = [escape_latex(title) for title in texts.columns]
    sides = "l" * table.num_names + "r" * (len(texts.columns) - table.num_names)
    lines = escaped.to_latex(index=False, escape=False, column_format=sides).splitlines()
    head = lines.index(r"\midrule") + 1
    body = []
    for place, line in enumerate(lines[head : head + len(texts)]):
        first, before = texts.iloc[place, 0], texts.iloc[max(place - 1, 0), 0]
        body += [r"\midrule"] * (first != before)
        body.append("{}" * line.startswith("[") + line)  # \\ would take [ as its argument
    found = [
        r"\begin{table}[tb]",
        r"\centering\small",
        r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
        *lines[:head], *body, *lines[head + len(texts) : -1], r"\end{tabular}}",
        rf"\caption{{{escape_latex(table.title)}}}",
        rf"\label{{tab:{label}}}",
    ]  # fmt: skip
    if table.notes:
        found.append(r"\par\raggedright\footnotesize")
        found += [rf"{escape_latex(note)}\par" for note in table.notes]
    return "\n".join([*found, r"\end{table}", ""])


def escape_latex(text: str) -> str:
    """Returns text that LaTeX prints as it is."""
    return re.sub(r"[&%$#_{}\\~^<>|]", lambda found: LATEX[found[0]], text)


def csv(table: Table) -> str:
    """Returns the table for programs: all digits, scores as fractions, empty for unknown.

    Scores have columns *_low, *_high and *_published beside them. The footer is left out. A last
    column repeats what was allowed to differ, if anything was.
    """
    found: dict[str, list[object]] = {}
    for place, column in enumerate(table.columns):
        for suffix in column.parts:
            field = suffix[1:] or "value"
            cells = [row[place] for row in table.rows]
            found[column.key + suffix] = [
                getattr(cell, field) if isinstance(cell, Value) else None if suffix else cell
                for cell in cells
            ]
    if table.footnotes:
        found["footnotes"] = [" ".join(table.footnotes)] * len(table.rows)
    return pd.DataFrame(found, dtype=object).to_csv(index=False)
