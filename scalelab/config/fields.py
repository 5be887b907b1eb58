"""Nested fields: dataclasses filled strictly from mappings, and dotted names: "net.width"."""

import dataclasses
import typing
from collections.abc import Mapping
from typing import Any

from scalelab.helpers.names import nearest


def fill(cls: type, values: Mapping[str, Any], prefix: str = "") -> Any:
    """Builds dataclass `cls` from `values`, with no field too many and none missing.

    One that may be None, which is off, may be missing: folders from before it was there have none.
    """
    hints = typing.get_type_hints(cls)
    for key in values:
        if key not in hints:
            raise ValueError(f"unknown config field {prefix + key!r}: {nearest(key, hints)}")
    missing = [key for key in hints if key not in values and not _may_be_none(hints[key])]
    if missing:
        raise ValueError(f"missing config fields: {', '.join(prefix + key for key in missing)}")
    return cls(**{key: _convert(values.get(key), hints[key], prefix + key) for key in hints})


def _convert(value: Any, annotation: Any, path: str) -> Any:
    """Returns `value` as the annotated type, or raises ValueError naming the field."""
    if dataclasses.is_dataclass(annotation):
        if not isinstance(value, Mapping):
            raise ValueError(f"config.{path}: expected a group of fields, got {value!r}")
        return fill(annotation, value, path + ".")
    allowed = typing.get_args(annotation) or (annotation,)
    if value is None and type(None) in allowed:
        return None
    if float in allowed and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    for kind in allowed:
        if type(value) is kind:
            return value
    names = " or ".join("None" if k is type(None) else k.__name__ for k in allowed)
    raise ValueError(f"config.{path}: expected {names}, got {type(value).__name__} {value!r}")


def _may_be_none(annotation: Any) -> bool:
    return type(None) in typing.get_args(annotation)


def field_names(cls: type, prefix: str = "") -> list[str]:
    """Dotted names of every config field, such as "net.width"."""
    names: list[str] = []
    for key, kind in typing.get_type_hints(cls).items():
        names += (
            field_names(kind, f"{prefix}{key}.")
            if dataclasses.is_dataclass(kind)
            else [prefix + key]
        )
    return names


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flattens nested values to dotted names: {"net": {"width": 2}} -> {"net.width": 2}."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= (
            flatten(value, f"{prefix}{key}.")
            if isinstance(value, Mapping)
            else {prefix + key: value}
        )
    return flat
