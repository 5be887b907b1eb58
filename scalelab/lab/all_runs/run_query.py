"""Filters, sorts and shows rows of the run table."""

import fnmatch
import math
import operator
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from scalelab.helpers.names import nearest
from scalelab.lab import tables
from scalelab.lab.all_runs.run_table import COLUMNS, Row, Value, natural

SHOWN = ("run", "system", "shape", "task", "status", "seed", "steps", "tokens", "flops", "seconds",
         "loss", "scores", "note")  # fmt: skip
NUM_TEXTS = 5  # of these, which come first
CONDITION = re.compile(r"\s*([\w.]+)\s*(<=|>=|!=|==|=|<|>)\s*(.*?)\s*")
COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
FORMATS = {"flops": ".3g", "seconds": ",.0f", "loss": ".4f", "score": ".4f"}


def columns_of(rows: Iterable[Row]) -> list[str]:
    """Names of all columns: those of every row, then tasks, then config fields."""
    others = dict.fromkeys(name for row in rows for name in row)
    tasks = [name for name in others if name not in COLUMNS and "." not in name]
    return [*COLUMNS, *sorted(tasks), *sorted(name for name in others if "." in name)]


def where(rows: Sequence[Row], conditions: str) -> list[Row]:
    """The rows that satisfy all conditions.

    Args:
      rows: the table.
      conditions: such as "system=bert,width>=128,corpus=*wiki*,loss!=none". A column of numbers is
        compared as numbers; a text equals a pattern with * and ?; "none" is what is not known.

    Raises:
      ValueError: a condition is not written so, or names no column.
    """
    known, kept = columns_of(rows), list(rows)
    for text in filter(str.strip, conditions.split(",")):
        found = CONDITION.fullmatch(text)
        if found is None:
            raise ValueError(
                f"condition {text!r}: expected column, one of = != < <= > >=, and a value"
            )
        column, compare, wanted = found.groups()
        check_columns([column], known)
        test = _test([row.get(column) for row in rows], column, compare, wanted)
        kept = [row for row in kept if test(row.get(column))]
    return kept


def sort(rows: Sequence[Row], by: str) -> list[Row]:
    """Sorts rows; what is not known comes last.

    Args:
      rows: the table.
      by: columns with commas between, the first decides; "-tokens": the largest first. Texts are
        sorted with the numbers in them as numbers: seed2 before seed10.

    Raises:
      ValueError: there is no such column.
    """
    keys = [key.strip() for key in by.split(",") if key.strip()]
    check_columns([key.removeprefix("-") for key in keys], columns_of(rows))
    ordered = list(rows)
    for key in reversed(keys):
        column = key.removeprefix("-")
        there = [row for row in ordered if not _unknown(row.get(column))]
        gone = [row for row in ordered if _unknown(row.get(column))]
        there.sort(key=lambda row, c=column: _key(row[c]), reverse=key.startswith("-"))
        ordered = there + gone
    return ordered


def check_columns(names: Iterable[str], known: Sequence[str]) -> None:
    """Refuses columns that the table has not.

    Raises:
      ValueError: with the nearest names.
    """
    for name in names:
        if name not in known:
            raise ValueError(f"unknown column {name!r}: {nearest(name, known)}")


def plain(rows: Sequence[Row], columns: Sequence[str] | None = None) -> str:
    """The table for a terminal.

    Args:
      rows: the table.
      columns: to show; None: the usual ones in which any row has something.
    """
    num_texts = 1
    if columns is None:
        columns = [name for name in SHOWN if any(row.get(name) is not None for row in rows)]
        num_texts = sum(name in SHOWN[:NUM_TEXTS] for name in columns)
    cells = [[_cell(name, row.get(name)) for name in columns] for row in rows]
    return tables.plain(columns, cells, num_texts)


def csv(rows: Sequence[Row], columns: Sequence[str] | None = None) -> str:
    """The table for programs: all digits, an empty field for what is not known.

    Args:
      rows: the table.
      columns: to write; None: all but config fields.
    """
    columns = columns or [name for name in columns_of(rows) if "." not in name]
    return tables.comma_separated(columns, [[row.get(name) for name in columns] for row in rows])


def _test(
    values: Sequence[Value], column: str, compare: str, wanted: str
) -> Callable[[Value], bool]:
    """What a cell of the column is asked; `values` are all that the column has."""
    if wanted.lower() == "none":
        if compare not in ("=", "==", "!="):
            raise ValueError(f"condition {column}{compare}{wanted}: none is neither more nor less")
        return lambda value: _unknown(value) == (compare != "!=")
    number: float | None = None
    if any(isinstance(v, int | float) for v in values) and not any(
        isinstance(v, str) for v in values
    ):
        try:
            number = float(wanted.replace("_", ""))
        except ValueError:
            raise ValueError(
                f"condition {column}{compare}{wanted}: the column holds numbers"
            ) from None

    def test(value: Value) -> bool:
        if _unknown(value):
            return False
        if compare in ("=", "==", "!="):
            same = (
                value == number if number is not None else fnmatch.fnmatchcase(str(value), wanted)
            )
            return same == (compare != "!=")
        if number is not None:
            return COMPARE[compare](value, number)
        return COMPARE[compare](natural(str(value)), natural(wanted))

    return test


def _unknown(value: Value) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def _key(value: Value) -> tuple[int, float, Any]:
    """Numbers before texts, should a column hold both."""
    return (1, 0.0, natural(value)) if isinstance(value, str) else (0, value or 0, ())


def _cell(name: str, value: Value) -> str:
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    if isinstance(value, int):
        return str(value) if name in ("seed", "numerics") else f"{value:,}"
    return format(value, FORMATS.get(name, ",.6g" if abs(value) < 1e6 else ".4g"))
