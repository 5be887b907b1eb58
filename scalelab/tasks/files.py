"""Records of a labeled task from tab-separated files: GLUE's layout or a user's own.

GLUE's files have no quoting: a quotation mark is part of a sentence. Sentences also contain
characters that other readers treat as line ends. `scalelab.tasks.data_files` defines line ends.
"""

import dataclasses
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from scalelab.helpers.names import brief
from scalelab.tasks import data_files
from scalelab.tasks.records import Labels, Records

JSON_LINES = "*.*.jsonl"  # files of the BabyLM Challenge, such as mnli-mm.valid.jsonl


@dataclasses.dataclass(frozen=True)
class Columns:
    """The places of texts and label in a row.

    Columns are names in the file's first line, or positions from 0 in a file without a line of
    names.

    Attributes:
      texts: the one or two text columns, all by name or all by position.
      label: the column of the label; None if there is none or it is not read.
      num_fields: number of fields of a row; needed with positions.
    """

    texts: tuple[str | int, ...]
    label: str | int | None = None
    num_fields: int | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that the first line must name; empty if columns are positions."""
        return tuple(c for c in (*self.texts, self.label) if isinstance(c, str))


def read(
    path: Path, columns: Columns, labels: Labels, *, count_of_whole_lines: int | None = None
) -> Records:
    """Reads one file.

    The official training file of QQP has questions with a line break inside, which makes short
    lines. So lines with too few fields are left out if the other lines number exactly
    `count_of_whole_lines`; otherwise they are an error.

    Args:
      path: the file.
      columns: the places of texts and label in a row.
      labels: the valid labels; ignored if `columns` names no label.
      count_of_whole_lines: number of whole lines of a published file that also has broken lines.

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
    """Returns the SHA-256 of a file's unpacked bytes followed by the name of a split."""
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
    """Returns the path of the folder --data; raises ValueError if it is a file."""
    path = Path(data_dir).expanduser()
    if path.is_file():
        raise ValueError(f"--data={path} is a file; give its folder, --data={path.parent}")
    return path


def _rows(
    path: Path, columns: Columns, count_of_whole_lines: int | None = None
) -> tuple[list[tuple[int, list[str]]], int]:
    """Returns rows of line number and fields (texts, label), and the number of lines left out.

    Arguments and errors are as in `read`.
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
