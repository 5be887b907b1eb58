"""Reads the JSON files of a run, also damaged ones: gives values of known types or a reason."""

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any, TypeVar

from scalelab.config import fields
from scalelab.config.pretraining import Shape
from scalelab.helpers import data_files

T = TypeVar("T")


class Unreadable(ValueError):
    """A file of a run that cannot be used.

    Attributes:
      path: the file.
      reason: why, in words.
    """

    def __init__(self, path: pathlib.Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path, self.reason = path, reason


def read_text(path: pathlib.Path) -> str | None:
    """Returns the text of a file; None if there is no such file.

    Raises:
      Unreadable: it cannot be read, or is not UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise Unreadable(path, f"cannot be read: {error.strerror}") from None
    except ValueError:
        raise Unreadable(path, "is not UTF-8 text") from None


def read_object(path: pathlib.Path) -> dict[str, Any] | None:
    """Returns the fields of a JSON object; None if there is no such file.

    Raises:
      Unreadable: the file holds no JSON object.
    """
    text = read_text(path)
    if text is None:
        return None
    try:
        return parse_object(text)
    except ValueError as error:
        raise Unreadable(path, str(error)) from None


def parse_numbers(text: str) -> dict[str, float]:
    """Parses a line of metrics.jsonl: an object of numbers, with a whole number "step".

    Raises:
      ValueError: the text is something else; the message says what.
    """
    line = parse_object(text)
    if type(line.get("step")) is not int:
        raise ValueError("has no step")
    wrong = [name for name, x in line.items() if type(x) not in (int, float)]
    if wrong:
        raise ValueError(f"{wrong[0]} is no number")
    return line


def parse_object(text: str) -> dict[str, Any]:
    """Parses a JSON object strictly: no NaN, no huge numbers, no text that UTF-8 cannot hold.

    Raises:
      ValueError: the text is something else; the message says what.
    """
    value = data_files.parse_json(text)
    if not isinstance(value, dict):
        raise ValueError(f"holds {type(value).__name__}, expected fields")
    _check(value)
    return value


def fill(cls: type[T], values: Mapping[str, Any], path: pathlib.Path) -> T:
    """Builds a record from the JSON fields of the file at `path`, see `fields.fill`.

    Raises:
      Unreadable: a field without a default is missing, or one is of another type.
    """
    try:
        return fields.fill(cls, values, strict=False)
    except ValueError as error:
        raise Unreadable(path, str(error)) from None


def dump(value: Any) -> Any:
    """Returns a record, or a value of one, as JSON holds it: the inverse of `fill`."""
    if dataclasses.is_dataclass(value):
        return {field.name: dump(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Shape):
        return dict(zip("AHL", value, strict=True))
    return [dump(item) for item in value] if isinstance(value, tuple) else value


def _check(value: Any) -> None:
    """Raises ValueError for whole numbers beyond 64 bits."""
    if isinstance(value, int):
        if not -fields.LARGEST < value < fields.LARGEST:
            raise ValueError(f"holds a number out of range: {str(value)[:20]}")
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            _check(item)
