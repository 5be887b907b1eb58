"""Records of a labelled task from tab-separated files: GLUE's layout and a user's own.

A line ends at a line feed and a field at a tab, nowhere else: GLUE's files know no quoting, and its
sentences hold quotation marks and characters that other readers take for the end of a line.
"""

import codecs
import dataclasses
import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from scalelab.helpers.names import nearest
from scalelab.tasks.records import SHOWN, Labels, Records, num_empty

NO_ROWS = "there are no rows after the line with the column names"


class WrongHeader(ValueError):
    """A file whose first lines are not those of the task: other columns, or another label.

    Attributes:
      found: the fields of its first line.
      label: the first row's, if that is what is wrong.
    """

    def __init__(self, message: str, found: tuple[str, ...], label: str | None = None) -> None:
        super().__init__(message)
        self.found, self.label = found, label


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
    lines. Lines with too few fields are therefore left out, and counted, of a file whose other
    rows number exactly `count_of_whole_lines`; in any other they are an error.

    Args:
      path: the file.
      columns: the places of texts and label in a row.
      labels: the valid labels; ignored if `columns` names no label.
      count_of_whole_lines: rows of a published set that also has broken lines.

    Raises:
      WrongHeader: the first line does not name the columns, or names columns where none are
        named in this file.
      ValueError: the file cannot be read, is empty, is not UTF-8, has Windows line endings, a row
        with a wrong number of fields, or a label that is none; file and place are named.
    """
    table = _Table(path, columns)
    texts: tuple[list[str], ...] = tuple([] for _ in columns.texts)
    spelt = []
    short = []
    for number, fields in table.rows():
        if len(fields) < table.num_fields:
            short.append((number, fields))
            continue
        for column, place in zip(texts, table.texts, strict=True):
            column.append(fields[place])
        if table.label is not None:
            label = fields[table.label]
            if not spelt and labels.classes is not None and label not in labels.classes:
                message = f"{path}, line {number}: {labels.wrong(label)}"
                raise WrongHeader(message, table.first, label if number > 1 else None)
            spelt.append((number, label))
    if short and len(texts[0]) != count_of_whole_lines:
        raise ValueError(table.wrong_length(*short[0]))
    if not texts[0]:
        raise ValueError(f"{path}: {NO_ROWS}")
    return Records(
        texts=texts,
        labels=(
            None
            if table.label is None
            else labels.array((f"{path}, line {n}", label) for n, label in spelt)
        ),
        source=str(path),
        digest=table.digest,
        num_empty=num_empty(texts),
        num_left_out=len(short),
    )


def label_counts(path: Path, columns: Columns) -> Mapping[str, int]:
    """Counts the labels in a file, sorted by label.

    Raises:
      ValueError: as `read`.
    """
    table = _Table(path, columns)
    assert table.label is not None, "columns without a label"
    counts: dict[str, int] = {}
    for number, fields in table.rows():
        if len(fields) != table.num_fields:
            raise ValueError(table.wrong_length(number, fields))
        label = fields[table.label]
        if not label or label != label.strip():
            fault = f"blanks around the label {label[:SHOWN]!r}" if label else "an empty label"
            raise ValueError(f"{path}, line {number}: {fault}; expected the name of a class")
        counts[label] = counts.get(label, 0) + 1
    if not counts:
        raise ValueError(f"{path}: {NO_ROWS}")
    return dict(sorted(counts.items()))


def listing(folder: Path) -> str:
    """Lists what a folder holds, for a message."""
    if not folder.is_dir():
        return f"there is no folder {folder}"
    names = sorted(p.name + "/" * p.is_dir() for p in folder.iterdir())
    more = f" and {len(names) - 20} more" if len(names) > 20 else ""
    return f"{folder} holds: {', '.join(names[:20]) or 'nothing'}{more}"


class _Table:
    """A file's lines, and the places of its columns in them.

    Attributes:
      digest: SHA-256 of the file.
      first: the fields of the first line.
      num_fields: fields of a row.
      texts: places of the text columns.
      label: place of the label.
    """

    def __init__(self, path: Path, columns: Columns) -> None:
        content = _content(path)
        self._path = path
        self._lines = _decoded(path, content).split("\n")
        if not self._lines[-1]:
            self._lines.pop()
        self.digest = hashlib.sha256(content).hexdigest()
        self.first = first = tuple(self._lines[0].split("\t"))
        self._has_header = bool(columns.names)
        if self._has_header:
            _check_header(path, columns.names, first)
            self.num_fields = len(first)
        else:
            assert columns.num_fields is not None, "columns by position need num_fields"
            self.num_fields = columns.num_fields
            if len(first) != self.num_fields:
                raise WrongHeader(self.wrong_length(1, list(first)), first)
        places = [c if isinstance(c, int) else first.index(c) for c in columns.texts]
        self.texts = tuple(places)
        label = columns.label
        self.label = first.index(label) if isinstance(label, str) else label

    def rows(self) -> Iterator[tuple[int, list[str]]]:
        """Yields each row's line number, from 1, and fields; refuses too many fields."""
        for number, line in enumerate(self._lines, 1):
            if number == 1 and self._has_header:
                continue
            fields = line.split("\t")
            if len(fields) > self.num_fields:
                raise ValueError(self.wrong_length(number, fields))
            yield number, fields

    def wrong_length(self, number: int, fields: list[str]) -> str:
        """Returns the message about a row with too few or too many fields."""
        text = "\t".join(fields)
        return (
            f"{self._path}, line {number}: expected {self.num_fields} fields separated by tabs,"
            f" found {len(fields)}: {text[:SHOWN]!r}{'...' * (len(text) > SHOWN)}"
        )


def _content(path: Path) -> bytes:
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise ValueError(f"expected the file {path}; {listing(path.parent)}") from error
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror or error})") from error
    if not content.removeprefix(codecs.BOM_UTF8):
        raise ValueError(f"{path}: the file is empty")
    return content


def _decoded(path: Path, content: bytes) -> str:
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path}: invalid UTF-8 at byte {error.start} ({error.reason}); save the file as UTF-8"
        ) from error
    windows = (content + b"\n").find(b"\r\n")  # the last line may have no line feed
    if windows >= 0:
        line = content.count(b"\n", 0, windows) + 1
        raise ValueError(
            f"{path}, line {line}: ends with a Windows line ending (\\r\\n);"
            " convert the file first, for instance with dos2unix"
        )
    return text.removeprefix("\ufeff")


def _check_header(path: Path, names: tuple[str, ...], first: tuple[str, ...]) -> None:
    """Refuses a first line that lacks a column, or names one twice."""
    shown = ", ".join(repr(n if len(n) <= SHOWN else n[:SHOWN] + "...") for n in first[:20])
    missing = [name for name in names if name not in first]
    if missing:
        near = nearest(missing[0], first) if len(first) > 1 else ""
        raise WrongHeader(
            f"{path}: expected the columns {', '.join(map(repr, names))}, but the first line is"
            f" {shown}: no {missing[0]!r}" + (f", {near}" if near.startswith("did") else ""),
            first,
        )
    twice = [name for name in names if first.count(name) > 1]
    if twice:
        raise WrongHeader(f"{path}: the first line names {twice[0]!r} twice: {shown}", first)
