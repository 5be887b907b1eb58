"""Reads the JSON files of a run, also damaged ones: gives values of known types or a reason."""

import contextlib
import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any, TypeVar

from scalelab.config import fields
from scalelab.config.pretraining import Shape
from scalelab.helpers.files import leaves, parse_json, reading

T = TypeVar("T")


def read_text(path: pathlib.Path) -> str | None:
    """Returns the text of a file; None if there is no such file.

    Raises:
      Unreadable: it cannot be read, or is not UTF-8.
    """
    with reading(path), contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return path.read_text(encoding="utf-8")


def read_object(path: pathlib.Path) -> dict[str, Any] | None:
    """Returns the fields of a JSON object; None if there is no such file.

    Raises:
      Unreadable: the file holds no JSON object.
    """
    text = read_text(path)
    with reading(path):
        return None if text is None else parse_object(text)


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
    value = parse_json(text)
    if not isinstance(value, dict):
        raise ValueError(f"holds {type(value).__name__}, expected fields")
    whole = (x for x in leaves(value) if isinstance(x, int))
    if wrong := [x for x in whole if not -fields.LARGEST < x < fields.LARGEST]:
        raise ValueError(f"holds a number out of range: {str(wrong[0])[:20]}")
    return value


def fill(cls: type[T], values: Mapping[str, Any], path: pathlib.Path) -> T:
    """Builds a record from the JSON fields of the file at `path`, see `fields.fill`.

    Raises:
      Unreadable: a field without a default is missing, or one is of another type.
    """
    with reading(path):
        return fields.fill(cls, values, strict=False)


def dump(value: Any) -> Any:
    """Returns a record, or a value of one, as JSON holds it: the inverse of `fill`."""
    if dataclasses.is_dataclass(value):
        return {field.name: dump(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Shape):
        return dict(zip("AHL", value, strict=True))
    return [dump(item) for item in value] if isinstance(value, tuple) else value
