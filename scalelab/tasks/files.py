"""Records of a labelled task from tab-separated files: GLUE's layout and a user's own.

A line ends at a line feed and a field at a tab, nowhere else: GLUE's files know no quoting, and its
sentences hold quotation marks and characters that other readers take for the end of a line.
"""

import dataclasses
import hashlib
import lzma
import os
from collections.abc import Iterator
from pathlib import Path

from scalelab.helpers.names import brief, nearest
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
      ValueError: the file cannot be read, is not UTF-8, lacks a column, has Windows line endings, a
        row with a wrong number of fields, or a label that is none; file and place are named.
    """
    content, rows, left_out = _rows(path, columns, count_of_whole_lines)
    texts = tuple([row[place] for _, row in rows] for place in range(len(columns.texts)))
    spelt = ((where, row[-1]) for where, row in rows)
    found = None if columns.label is None else labels.array(spelt)
    return Records(texts, found, str(path), hashlib.sha256(content).hexdigest(), left_out)


def read_labels(path: Path, columns: Columns) -> Iterator[str]:
    """Yields the labels of a file with unknown classes.

    Raises:
      ValueError: as `read`, or a label is empty or has blanks around it.
    """
    for where, row in _rows(path, columns)[1]:
        if not row[-1] or row[-1] != row[-1].strip():
            raise ValueError(
                f"{where}: the label {brief(row[-1])} is empty or has blanks around it; expected"
                " the name of a class"
            )
        yield row[-1]


def folder(data_dir: str | os.PathLike[str]) -> Path:
    """Returns the folder that --data names; raises ValueError if it is a file."""
    path = Path(data_dir).expanduser()
    if path.is_file():
        raise ValueError(f"--data={path} is a file; give its folder, --data={path.parent}")
    return path


def listing(folder: Path) -> str:
    """Lists the content of a folder for a message."""
    if not folder.is_dir():
        return f"there is no folder {folder}"
    names = sorted(p.name + "/" * p.is_dir() for p in folder.iterdir())
    more = f" and {len(names) - 20} more" if len(names) > 20 else ""
    return f"{folder} holds: {', '.join(names[:20]) or 'nothing'}{more}"


def read_text(path: Path) -> tuple[bytes, str]:
    """Reads a file, plain or .xz: its bytes, and its text without a byte order mark.

    Raises:
      ValueError: it is missing, cannot be read, or is not UTF-8.
    """
    try:
        content = path.read_bytes()
        content = lzma.decompress(content) if path.suffix == ".xz" else content
        return content, content.decode("utf-8").removeprefix("\ufeff")
    except FileNotFoundError as error:
        raise ValueError(f"expected the file {path}; {listing(path.parent)}") from error
    except (OSError, lzma.LZMAError) as error:
        why = getattr(error, "strerror", None) or error
        raise ValueError(f"{path}: cannot be read ({why})") from error
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path}: invalid UTF-8 at byte {error.start} ({error.reason}); save the file as UTF-8"
        ) from error


def _rows(
    path: Path, columns: Columns, count_of_whole_lines: int | None = None
) -> tuple[bytes, list[tuple[str, list[str]]], int]:
    """Returns a file's bytes, each row's place with its texts and label, and lines left out."""
    content, text = read_text(path)
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()
    wanted = columns.texts if columns.label is None else (*columns.texts, columns.label)
    names = columns.names
    first = lines[0].split("\t") if lines else []
    for name in names:
        if first.count(name) != 1:
            raise ValueError(
                f"{path}: expected the columns {', '.join(map(repr, names))}, each once, but the"
                f" first line is {brief(first)}: {name!r} {nearest(name, first)}"
            )
    places = [first.index(name) if isinstance(name, str) else name for name in wanted]
    num_fields = columns.num_fields or len(first)
    rows, short = [], []
    for number, line in enumerate(lines, 1):
        fields = line.split("\t")
        where = f"{path}, line {number}"
        if line.endswith("\r"):
            raise ValueError(
                f"{where}: ends with a Windows line ending (\\r\\n);"
                " convert the file first, for instance with dos2unix"
            )
        if number == 1 and names:
            continue
        wrong = f"{where}: expected {num_fields} fields separated by tabs, found {len(fields)}"
        if len(fields) > num_fields:
            raise ValueError(f"{wrong}: {brief(line)}")
        if len(fields) < num_fields:
            short.append(f"{wrong}: {brief(line)}")
        else:
            rows.append((where, [fields[place] for place in places]))
    if short and len(rows) != count_of_whole_lines:
        raise ValueError(short[0])
    if not rows:
        raise ValueError(f"{path}: there are no rows of data")
    return content, rows, len(short)
