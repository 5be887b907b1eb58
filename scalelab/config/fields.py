"""Config fields: filling frozen dataclasses strictly, checking, describing; dotted names."""

import dataclasses
import functools
import inspect
import math
import operator
import re
import typing
from collections.abc import Callable, Mapping
from typing import Any

from scalelab.helpers.names import nearest

T = typing.TypeVar("T")
Rule = tuple[str, Callable[[Any], bool]]  # what is expected, and whether a value is that

AT_LEAST_1: Rule = "at least 1", lambda value: value >= 1
POSITIVE: Rule = "a positive, finite number", lambda value: 0 < value < math.inf
NOT_NEGATIVE: Rule = "0 or more", lambda value: 0 <= value < math.inf
PROBABILITY: Rule = "a number in [0, 1)", lambda value: 0 <= value < 1


def fill(cls: type[T], values: Mapping[str, Any], prefix: str = "") -> T:
    """Builds dataclass `cls` from `values`, with no field too many and none missing.

    Only a field that may be None may be missing, and is None then: older run folders lack it.

    Raises:
      ValueError: an unknown or missing field, or a wrong type.
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
        return fill(typing.cast(type, annotation), value, path + ".")
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is tuple:
        if not isinstance(value, list | tuple) or not all(type(x) is parts[0] for x in value):
            raise ValueError(f"config.{path}: expected words such as ('a', 'b'), got {value!r}")
        return tuple(value)
    if origin is dict and isinstance(value, Mapping):
        return {key: _convert(x, parts[1], f"{path}.{key}") for key, x in value.items()}
    allowed = parts or (annotation,)
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
    """Returns the dotted names of all config fields, such as "net.width"."""
    names: list[str] = []
    for key, kind in typing.get_type_hints(cls).items():
        group = dataclasses.is_dataclass(kind)
        names += field_names(kind, f"{prefix}{key}.") if group else [prefix + key]
    return names


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flattens nested values to dotted names: {"net": {"width": 2}} -> {"net.width": 2}."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        group = isinstance(value, Mapping)
        flat |= flatten(value, f"{prefix}{key}.") if group else {prefix + key: value}
    return flat


def require(config: Any, rule: Rule, *fields: str) -> None:
    """Checks dotted fields of a config against a rule; None passes.

    Raises:
      ValueError: a value breaks the rule.
    """
    expected, holds = rule
    for field in fields:
        value = functools.reduce(getattr, field.split("."), config)
        if value is not None and not holds(value):
            raise ValueError(f"config.{field} = {value!r}: expected {expected}")


def choice(*choices: str | None) -> Rule:
    """Returns the rule that a value is one of some words."""
    return " or ".join(map(repr, choices)), lambda value: operator.contains(choices, value)


def describe(cls: type, prefix: str = "") -> str:
    """Returns one line for each config field: its name, its default and the comment beside it."""
    comments, hints = _comments(cls), typing.get_type_hints(cls)
    lines = []
    for field in dataclasses.fields(cls):
        name, kind = prefix + field.name, hints[field.name]
        if dataclasses.is_dataclass(kind):
            lines.append(describe(typing.cast(type, kind), name + "."))
        else:
            default = "..." if field.default is dataclasses.MISSING else field.default
            left = f"  --config.{name}={default}"
            comment = comments.get(field.name, "")
            lines.append(f"{left:<44}{'  ' if len(left) > 44 else ''}{comment}".rstrip())
    return "\n".join(lines)


def _comments(cls: type) -> dict[str, str]:
    """Reads the comment beside, or in the lines above, each field of a dataclass."""
    found: dict[str, str] = {}
    for part in cls.__mro__:
        above: list[str] = []
        if not dataclasses.is_dataclass(part):
            continue
        for line in inspect.getsource(part).splitlines():
            field = re.match(r"    (\w+): [^#]*(?:# (.*))?$", line)
            if field:
                found.setdefault(field[1], " ".join([*above, field[2] or ""]).strip())
            comment = re.match(r"    # (.*)", line)
            above = [*above, comment[1]] if comment else []
    return found


def science(config: object) -> dict[str, Any]:
    """Returns the fields that may change a result, by dotted name."""
    values = (
        dataclasses.asdict(typing.cast(Any, config)) if dataclasses.is_dataclass(config) else config
    )
    flat = flatten(values)  # pyright: ignore[reportArgumentType]
    return {k: v for k, v in flat.items() if not k.startswith("machine.")}


def science_diff(ours: object, theirs: object) -> list[str]:
    """Returns lines "field: theirs -> ours" for the science fields that differ.

    A missing field counts as None, as in `fill`.
    """
    a, b = science(ours), science(theirs)
    absent = "absent"
    return [
        f"{k}: {b.get(k, absent)!r} -> {a.get(k, absent)!r}"
        for k in sorted(a.keys() | b.keys())
        if a.get(k) != b.get(k)
    ]
