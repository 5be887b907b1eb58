"""Records of a labelled task from tab-separated files: GLUE's layout and a user's own.

GLUE's files have no quoting: a quotation mark is part of a sentence. Sentences also contain
characters that other readers take for the end of a line. `scalelab.helpers.data_files` defines
where a line ends.
"""

import dataclasses
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from scalelab.helpers import data_files
from scalelab.helpers.names import brief
from scalelab.tasks.records import Labels, Records

JSON_LINES = "*.*.jsonl"  # files of the BabyLM Challenge, such as mnli-mm.valid.jsonl


@dataclasses.dataclass(frozen=True)
class Columns:
    """The places of texts and label in a row.

    Names are looked up in the file's first line, wherever in it they stand; positions, from 0, say
    that the file has no such line.

    Attributes:
      texts: the one or two text columns, all by name or all by position.
      label: the column of the label; None where the set has none or it is not to be read.
      num_fields: fields of a row; needed where columns are given by position.
    """

    texts: tuple[str | int, ...]
    label: str | int | None = None
    num_fields: int | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that the first line must name; none if there is no such line."""
        return tuple(c for c in (*self.texts, self.label) if isinstance(c, str))


def read(
    path: Path, columns: Columns, labels: Labels, *, count_of_whole_lines: int | None = None
) -> Records:
    """Reads one file.

    The official training file of QQP has questions with a line break in them, which leaves short
    lines. Lines with too few fields are therefore left out of a file whose other rows number
    exactly `count_of_whole_lines`; in any other they are an error.

    Args:
      path: the file.
      columns: the places of texts and label in a row.
      labels: the valid labels; ignored if `columns` names no label.
      count_of_whole_lines: rows of a published set that also has broken lines.

    Raises:
      ValueError: the file cannot be read, is not UTF-8, lacks a column, or has a row with a wrong
        number of fields or an unknown label; the message names file and line.
    """
    rows, left_out = _rows(path, columns, count_of_whole_lines)
    texts = tuple([row[place] for _, row in rows] for place in range(len(columns.texts)))
    spelt = ((f"{path}, line {number}", row[-1]) for number, row in rows)
    found = None if columns.label is None else labels.array(spelt)
    return Records(texts, found, str(path), digest(path), left_out)


def digest(path: Path, split: str = "") -> str:
    """Returns the SHA-256 of a file's unpacked bytes followed by the name of a split of it."""
    return hashlib.sha256(data_files.read_bytes(path) + split.encode()).hexdigest()


def read_labels(path: Path, columns: Columns) -> Iterator[str]:
    """Yields the labels of a file with unknown classes.

    Raises:
      ValueError: as `read`, or a label is empty or has blanks around it.
    """
    for number, row in _rows(path, columns)[0]:
        if not row[-1] or row[-1] != row[-1].strip():
            raise ValueError(
                f"{path}, line {number}: the label {brief(row[-1])} is empty or has blanks"
                " around it; expected the name of a class"
            )
        yield row[-1]


def folder(data_dir: str | os.PathLike[str]) -> Path:
    """Returns the folder that --data names; raises ValueError if it is a file."""
    path = Path(data_dir).expanduser()
    if path.is_file():
        raise ValueError(f"--data={path} is a file; give its folder, --data={path.parent}")
    return path


def _rows(
    path: Path, columns: Columns, count_of_whole_lines: int | None = None
) -> tuple[list[tuple[int, list[str]]], int]:
    """Returns the rows, each with line number and its texts and label, and how many were left out.

    Arguments and errors are those of `read`.
    """
    wanted = columns.texts if columns.label is None else (*columns.texts, columns.label)
    lines, num_fields = data_files.read_fields(path), columns.num_fields
    named: dict[str, int] = {}
    if columns.names:
        _, header = next(lines, (1, []))
        num_fields = len(header)
        named = data_files.find_columns(path, header, columns.names)
    places = [named[column] if isinstance(column, str) else column for column in wanted]
    rows: list[tuple[int, list[str]]] = []
    short: list[tuple[int, list[str]]] = []
    for number, fields in lines:
        num_fields = num_fields or len(fields)
        if len(fields) == num_fields:
            rows.append((number, [fields[place] for place in places]))
        elif len(fields) < num_fields and count_of_whole_lines is not None:
            short.append((number, fields))
        else:
            raise data_files.field_count_error(path, number, fields, num_fields)
    if short and len(rows) != count_of_whole_lines:
        number, fields = short[0]
        raise data_files.field_count_error(path, number, fields, num_fields or 0)
    if not rows:
        raise ValueError(f"{path}: there are no rows of data")
    return rows, len(short)
