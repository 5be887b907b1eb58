"""Filters, sorts and prints the run table."""

# The stubs of pandas and altair are narrower than what they accept.
# pyright: reportArgumentType=false
# pyright: reportAssignmentType=false
# pyright: reportGeneralTypeIssues=false

import fnmatch
import operator
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pandas as pd

from scalelab.helpers.names import nearest
from scalelab.lab import tables
from scalelab.lab.load.run_table import natural

SHOWN = ("run", "system", "shape", "task", "status", "seed", "steps", "tokens", "flops", "seconds",
         "loss", "scores", "note")  # fmt: skip
NUM_TEXTS = 5  # of these, which come first
CONDITION = re.compile(r"\s*([\w.]+)\s*(<=|>=|!=|==|=|<|>)\s*(.*?)\s*")
EXPRESSION = re.compile(r"""["'`()\[\]&|]|\b(and|or|not|in)\b""")  # what only pandas understands
COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
    "=": operator.eq, "==": operator.eq, "!=": operator.ne,
}  # fmt: skip
FORMATS = {"flops": ".3g", "seconds": ",.0f", "loss": ".4f", "score": ".4f"}


def where(frame: pd.DataFrame, conditions: str) -> pd.DataFrame:
    """Returns the rows that satisfy all conditions.

    Args:
      frame: the run table.
      conditions: "system=bert,width>=128,corpus=*wiki*,loss!=none", where a column of numbers is
        compared as numbers, a text equals a pattern with * and ?, and "none" is what is not known;
        or an expression of `DataFrame.query`: 'system == "bert" and width >= 128'. Backquotes
        enclose names with dots: '`optim.learning_rate` > 1e-3'.

    Raises:
      ValueError: a condition is not written so, or names no column.
    """
    if EXPRESSION.search(conditions):
        return _query(frame, conditions)
    for text in filter(str.strip, conditions.split(",")):
        found = CONDITION.fullmatch(text)
        if found is None:
            raise ValueError(
                f"condition {text!r}: expected column, one of = != < <= > >=, and a value"
            )
        column, compare, wanted = found.groups()
        check_columns([column], frame.columns)
        frame = frame[_matches(frame[column], column, compare, wanted)]
    return frame


def _query(frame: pd.DataFrame, expression: str) -> pd.DataFrame:
    try:
        return frame.query(expression, engine="python", local_dict={}, global_dict={})
    except pd.errors.UndefinedVariableError as error:
        name = re.findall(r"'(.+?)'", str(error))
        known = nearest(name[0], frame.columns) if name else ""
        raise ValueError(f"condition {expression!r}: {error}; {known}") from None
    except Exception as error:  # the expression is the user's: whatever is wrong with it
        raise ValueError(f"condition {expression!r}: {error}") from None


def _matches(values: pd.Series, column: str, compare: str, wanted: str) -> pd.Series:
    """Returns which cells satisfy a condition; unknown ones only "=none"."""
    test, there = COMPARE[compare], values.notna()
    equality = compare in ("=", "==", "!=")
    if wanted.lower() == "none":
        if not equality:
            raise ValueError(f"condition {column}{compare}{wanted}: none is neither more nor less")
        return there if compare == "!=" else ~there
    if pd.api.types.is_numeric_dtype(values):
        try:
            number = float(wanted.replace("_", ""))
        except ValueError:
            raise ValueError(
                f"condition {column}{compare}{wanted}: the column holds numbers"
            ) from None
        return there & test(values.astype(float), number)
    texts = values.astype(object).map(str)
    if equality:
        same = texts.map(lambda text: fnmatch.fnmatchcase(text, wanted))
        return there & same.eq(compare != "!=")
    return there & texts.map(lambda text: test(natural(text), natural(wanted)))


def sort(frame: pd.DataFrame, by: str) -> pd.DataFrame:
    """Sorts rows; what is not known comes last.

    Args:
      frame: the run table.
      by: columns with commas between, the first decides; "-tokens": the largest first. Texts are
        sorted with the numbers in them as numbers: seed2 before seed10.

    Raises:
      ValueError: there is no such column.
    """
    keys = [key.strip() for key in by.split(",") if key.strip()]
    check_columns([key.removeprefix("-") for key in keys], frame.columns)

    def key(values: pd.Series) -> pd.Series:
        if pd.api.types.is_numeric_dtype(values):
            return values
        return values.astype(object).map(lambda text: natural(str(text)), na_action="ignore")

    for name in reversed(keys):
        frame = frame.sort_values(
            name.removeprefix("-"), ascending=not name.startswith("-"), kind="stable",
            na_position="last", key=key,
        )  # fmt: skip
    return frame


def check_columns(names: Iterable[str], known: Iterable[str]) -> None:
    """Refuses columns that the table has not.

    Raises:
      ValueError: with the nearest names.
    """
    known = list(known)
    for name in names:
        if name not in known:
            raise ValueError(f"unknown column {name!r}: {nearest(name, known)}")


def plain(frame: pd.DataFrame, columns: Sequence[str] | None = None) -> str:
    """Returns the table for a terminal.

    Args:
      frame: the run table.
      columns: to show; None: the usual ones in which any row has something.
    """
    num_texts = 1
    if columns is None:
        columns = [name for name in SHOWN if frame[name].notna().any()]
        num_texts = sum(name in SHOWN[:NUM_TEXTS] for name in columns)
    cells = [
        [_cell(name, value) for name, value in zip(columns, row, strict=True)]
        for row in frame[list(columns)].astype(object).itertuples(index=False)
    ]
    return tables.plain(columns, cells, num_texts)


def csv(frame: pd.DataFrame, columns: Sequence[str] | None = None) -> str:
    """Returns the table for programs: all digits, an empty field for what is not known.

    Args:
      frame: the run table.
      columns: to write; None: all but config fields.
    """
    columns = columns or [name for name in frame.columns if "." not in name]
    return frame[list(columns)].to_csv(index=False)


def _cell(name: str, value: Any) -> str:
    if pd.isna(value):
        return "-"
    if isinstance(value, str):
        return value
    if isinstance(value, int):
        return str(value) if name in ("seed", "numerics") else f"{value:,}"
    return format(value, FORMATS.get(name, ",.6g" if abs(value) < 1e6 else ".4g"))
