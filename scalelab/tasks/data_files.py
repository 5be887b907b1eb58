"""Readers of data files: lines, tab-separated fields, quoted CSV, JSON and JSON lines.

Every fault of a file raises a ValueError that names file and line. A line ends at a line feed, with
or without a carriage return before it. In a file without line feeds, lines end at carriage returns.
A byte order mark is dropped, and NUL is an error.
"""

import contextlib
import csv
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

from scalelab.helpers.files import PACKED, parse_json, read_byte_lines, reading
from scalelab.helpers.names import brief, nearest

FAULTS = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)


@contextlib.contextmanager
def place(
    path: pathlib.Path, line: int | None = None, expected: str = "a row of this data set"
) -> Iterator[None]:
    """Context: an error in the conversion of a row becomes a ValueError with file and line.

    Lines count from 1. The message says what was `expected`.
    """
    try:
        yield
    except FAULTS as error:
        why = str(error)
        if isinstance(error, ValueError) and why.startswith(str(path)):
            raise
        if isinstance(error, KeyError):
            why = f"has no {brief(error.args[0])}; expected {expected}"
        elif not isinstance(error, ValueError):
            why = f"expected {expected} ({brief(error)})"
        raise ValueError(f"{path}{f', line {line}' * bool(line)}: {why}") from None


def read_bytes(path: pathlib.Path) -> bytes:
    """Reads a file and unpacks `.gz` and `.xz`; raises ValueError if it is missing or damaged."""
    with reading(path):
        content, packed = path.read_bytes(), PACKED.get(path.suffix)
        return packed.decompress(content) if packed else content


def read_lines(
    path: pathlib.Path, encoding: str = "utf-8", errors: str = "strict"
) -> Iterator[str]:
    """Yields the lines of a text, plain, `.gz` or `.xz`, without their ends.

    Raises:
      ValueError: as `read_bytes`; or a line holds NUL or is not UTF-8.
    """
    for number, (offset, line) in enumerate(read_byte_lines(path), 1):
        try:
            text = line.decode(encoding, errors)
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{path}, line {number}: invalid UTF-8 at byte {offset + error.start}"
                f" ({error.reason}); save the file as UTF-8"
            ) from None
        if "\0" in text:
            raise ValueError(f"{path}, line {number}: holds NUL; save the file as UTF-8")
        yield text.removeprefix("\ufeff" * (number == 1))


def read_fields(
    path: pathlib.Path, delimiter: str = "\t", *, quoted: bool = False
) -> Iterator[tuple[int, list[str]]]:
    """Yields each row as the number of its first line, from 1, and its fields.

    If fields may be `quoted`, as in CSV, empty lines are skipped.

    Raises:
      ValueError: as `read_lines`; or a quoted field does not end, or is longer than `csv` allows.
    """
    if not quoted:
        yield from enumerate((line.split(delimiter) for line in read_lines(path)), 1)
        return
    lines = (line + "\n" for line in read_lines(path))
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    number = 1
    try:
        for row in reader:
            if row:
                yield number, row
            number = reader.line_num + 1
    except csv.Error as error:
        raise ValueError(f"{path}, line {number}: cannot be read: {error}; are quotes closed, and"
                         " those inside a field doubled?") from None  # fmt: skip


def read_table(
    path: pathlib.Path, names: Sequence[str], delimiter: str = "\t", *, quoted: bool = False
) -> Iterator[tuple[int, dict[str, str]]]:
    """Yields each row below the header as its line number and its fields by name.

    Args:
      path: the file, in UTF-8.
      names: columns that must be there.
      delimiter: character between fields.
      quoted: whether fields may be quoted as in CSV.

    Raises:
      ValueError: as `read_fields`; a name is missing or repeated in the header, a row has another
        number of fields, or there is no row.
    """
    rows, number = read_fields(path, delimiter, quoted=quoted), 0
    _, header = next(rows, (1, []))
    find_columns(path, header, names)
    for number, row in rows:
        if len(row) != len(header):
            raise field_count_error(path, number, row, len(header))
        yield number, dict(zip(header, row, strict=True))
    if not number:
        raise ValueError(f"{path}: there are no rows of data")


def find_columns(path: pathlib.Path, header: Sequence[str], names: Sequence[str]) -> dict[str, int]:
    """Returns name -> index in a header; raises ValueError unless each name occurs once."""
    for name in names:
        if (count := header.count(name)) != 1:
            near = nearest(name, [own[:60] for own in header[:100]])
            near = f"{name!r} occurs {count} times" if count else f"{name!r} {near}"
            raise ValueError(
                f"{path}, line 1: expected the columns {', '.join(map(repr, names))}, each once,"
                f" but the first line is {brief(header)}: {near}"
            )
    return {name: header.index(name) for name in names}


def field_count_error(
    path: pathlib.Path, line: int, row: Sequence[str], expected: int
) -> ValueError:
    """Makes the error for a row with a wrong number of fields.

    Args:
      path: the file.
      line: its line, from 1.
      row: the fields of the row.
      expected: number of fields that it should have.
    """
    found = f"expected {expected} fields, found {len(row)}"
    return ValueError(f"{path}, line {line}: {found}: {brief(row)}")


# --- JSON ----------------


def read_json(path: pathlib.Path) -> Any:
    """Reads a JSON document; raises ValueError as `read_lines` or `parse_json`."""
    text = "\n".join(read_lines(path))
    with place(path):
        return parse_json(text)


def read_objects(
    path: pathlib.Path, texts: Sequence[str] = (), others: Sequence[str] = ()
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields each line that is not blank as its number and its object.

    Every object must have the keys `texts`, with strings as values, and the keys `others`.

    Raises:
      ValueError: as `read_lines`; or a line is not such an object, or all lines are blank.
    """
    number, found = 0, False
    for number, line in enumerate(read_lines(path), 1):
        if not line or line.isspace():
            continue
        found = True
        with place(path, number):
            row = parse_json(line)
            if not isinstance(row, dict):
                raise ValueError(f"expected an object, found {brief(row)}")
            for name in (*texts, *others):
                value = row[name]  # raises KeyError if it is absent
                if name in texts and not isinstance(value, str):
                    raise ValueError(f"expected a text in {name!r}, found {brief(value)}")
        yield number, row
    if not found:
        raise ValueError(f"{path}: there are no rows of data")
