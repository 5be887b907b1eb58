"""Fields of dataclasses: filling from nested values, rules, descriptions, dotted names.

A system, objective or format may have settings of its own: a frozen dataclass `Options` in its
file. The config has one strict group for each: system_options, objective_options (those of all
objectives of the sum) and format_options.
"""

import ast
import dataclasses
import functools
import inspect
import math
import re
import sys
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Annotated, Any

from scalelab.helpers.names import brief, load_module, module_names, nearest

T = typing.TypeVar("T")
# Group of options -> the field whose value brings them.
OWNERS = {
    "system_options": "system", "objective_options": "objective", "format_options": "data.format",
}  # fmt: skip
Rule = tuple[str, Callable[[Any], bool]]  # what is expected, and whether a value is that

LARGEST = 2**63  # whole numbers beyond fit no array


@dataclasses.dataclass(frozen=True)
class Departure:
    """One declared difference between a system and `configs/base.py`."""

    field: str  # dotted name of the config field, such as "tokenizer.kind"
    value: Any  # the system's own value
    source: str  # paper and section of the value


def between(least: int, most: int) -> Rule:
    """Returns the rule that a number is in a range, ends included."""
    return f"a number from {least:,} to {most:,}", lambda value: least <= value <= most


# Types of fields: Annotated[type, Rule]. `fill` checks the rule; every number is finite.
Count = Annotated[int, ("at least 1, below 2^31", lambda value: 1 <= value < 2**31)]
Seed = Annotated[int, between(0, 2**32 - 1)]  # JAX reads 32 bits: 2^32 would be 0 again
Probability = Annotated[float, ("a number in [0, 1)", lambda value: 0 <= value < 1)]
Part = Annotated[float, ("a number in (0, 1)", lambda value: 0 < value < 1)]
Share = Annotated[float, ("a number in [0, 1]", lambda value: 0 <= value <= 1)]
# Both fit float32, in which training computes.
Positive = Annotated[float, ("a number from 1e-37 to 1e37", lambda value: 1e-37 <= value <= 1e37)]
NotNegative = Annotated[float, ("0 or more, up to 1e37", lambda value: 0 <= value <= 1e37)]
Budget = Annotated[float, ("a positive number up to 1e30", lambda value: 0 < value <= 1e30)]
Epochs = Annotated[float, ("a positive number up to 1e9", lambda value: 0 < value <= 1e9)]


def choice(*choices: str | None) -> Rule:
    """Returns the rule that a value is one of some words."""
    return " or ".join(map(repr, choices)), lambda value: value in choices


def fill(cls: type[T], values: Mapping[str, Any], prefix: str = "", *, strict: bool = True) -> T:
    """Builds a dataclass from nested values, such as a ConfigDict's or JSON.

    Args:
      cls: the dataclass; its annotations are the types that are accepted.
      values: by field.
      prefix: of the names in messages.
      strict: the rule for configs: no unknown field, and only one that may be None may be missing.
        Otherwise unknown fields are left out, and a missing one has its default.

    Raises:
      ValueError: an unknown or missing field, a wrong type, or a value against its field's rule.
    """
    hints = _hints(cls)
    if strict and (unknown := [key for key in values if key not in hints]):
        near = nearest(unknown[0], hints)
        raise ValueError(f"unknown config field {prefix + unknown[0]!r}: {near}")
    found, missing = {}, []
    for field in dataclasses.fields(typing.cast(Any, cls)):
        hint = hints[field.name]
        if field.name in values:
            name = prefix + field.name
            found[field.name] = _convert(values[field.name], hint, name, strict)
        elif strict and type(None) in typing.get_args(hint):
            found[field.name] = None  # older run folders lack it
        elif strict and field.default_factory is dict:
            found[field.name] = {}  # so do they options
        elif strict or field.default is field.default_factory:  # both MISSING
            missing.append(prefix + field.name)
    if missing:
        raise ValueError(f"missing {'config ' * strict}fields: {', '.join(missing)}")
    return cls(**found)


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls, include_extras=True)


def _convert(value: Any, hint: Any, name: str, strict: bool) -> Any:
    """Returns `value` as the annotated type, or raises ValueError with the field."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    label, none = "config." * strict + name, ""
    if hint is Any:
        return value
    if origin in (types.UnionType, typing.Union):
        if value is None:
            return None
        hint, none = parts[0], " or None"
        origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        value, (expected, holds) = _convert(value, parts[0], name, strict), parts[1]
        if not holds(value):
            raise ValueError(f"{label} = {value!r}: expected {expected}{none}")
        return value
    if dataclasses.is_dataclass(hint) and isinstance(value, Mapping):
        return fill(typing.cast(type, hint), value, name + ".", strict=strict)
    if origin is dict and isinstance(value, Mapping):
        return {k: _convert(x, parts[1], f"{name}.{k}", strict) for k, x in value.items()}
    if origin is tuple and isinstance(value, list | tuple):
        if parts[0] is not str or all(type(x) is str for x in value):
            items = enumerate(value)
            return tuple(_convert(x, parts[0], f"{name}[{i}]", strict) for i, x in items)
    if type(value) is int and hint in (int, float) and not -LARGEST < value < LARGEST:
        raise ValueError(f"{label} = {brief(value)}: expected a number of 64 bits{none}")
    if hint is float and type(value) is int:
        return float(value)
    if hint is int and type(value) is float and value.is_integer() and not strict:
        return int(value)
    if type(value) is hint:
        if hint is float and not math.isfinite(value):
            raise ValueError(f"{label} = {value}: expected a finite number{none}")
        return value
    if hasattr(hint, "from_json") and not strict:
        return hint.from_json(value)
    expected = {tuple: "words such as ('a', 'b')", dict: "fields"}.get(origin or hint)
    expected = expected or getattr(hint, "__name__", str(hint))
    raise ValueError(f"{label}: expected {expected}, got {type(value).__name__} {brief(value)}")


def field_names(cls: type, prefix: str = "") -> list[str]:
    """Returns the dotted names of all config fields, such as "model.width"."""
    names: list[str] = []
    for key, kind in typing.get_type_hints(cls).items():
        group = dataclasses.is_dataclass(kind)
        names += field_names(kind, f"{prefix}{key}.") if group else [prefix + key]
    return names


RENAMED = {"net": "model"}  # group of the release before -> of today
RENAMED_FLAGS = RENAMED | {"claims": "hypotheses"}  # parts of --config.<field>


def warn(old: str, new: str) -> None:
    """Prints that a config field has a new name."""
    print(f"warning: config.{old} is now config.{new}", file=sys.stderr)


def parse_value(text: str) -> Any:
    """Reads a number, a tuple, None, true or True; anything else is a word."""
    try:
        return ast.literal_eval(text.capitalize() if text in ("true", "false") else text)
    except (ValueError, SyntaxError, TypeError):
        return text


def parse_fields(lines: Sequence[str]) -> dict[str, Any]:
    """Reads "optim.learning_rate=1e-3" lines: dotted field -> value; a word is a string.

    Raises:
      ValueError: there is no "=".

    >>> parse_fields(["optim.learning_rate=1e-3", "system=bert"])
    {'optim.learning_rate': 0.001, 'system': 'bert'}
    """
    found = {}
    for line in lines:
        field, equals, text = line.partition("=")
        if not equals:
            raise ValueError(f"{line!r}: expected field=value")
        found[field] = parse_value(text)
    return found


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flattens nested values to dotted names: {"model": {"width": 2}} -> {"model.width": 2}."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        group = isinstance(value, Mapping)
        flat |= flatten(value, f"{prefix}{key}.") if group else {prefix + key: value}
    return flat


# Field -> the package whose modules are its values.
CATALOG = {"system": "systems", "objective": "objectives", "data.format": "formats"}


def describe(cls: type, prefix: str = "") -> str:
    """Returns one line for each config field: its name, its default and the comment beside it."""
    meanings, hints = comments(cls), typing.get_type_hints(cls)
    lines = []
    for field in dataclasses.fields(cls):
        name, kind = prefix + field.name, hints[field.name]
        if dataclasses.is_dataclass(kind):
            lines.append(describe(typing.cast(type, kind), name + "."))
        else:
            default = "..." if field.default is dataclasses.MISSING else field.default
            left = f"  --config.{name}={default}"
            comment = meanings.get(field.name, "")
            if (prefix + field.name) in CATALOG:
                comment += ". One of: " + ", ".join(module_names(CATALOG[prefix + field.name]))
            lines.append(f"{left:<42}  {comment}".rstrip())
    return "\n".join(lines)


def comments(cls: type) -> dict[str, str]:
    """Reads the comment beside, or in the lines above, each field of a dataclass: by its name."""
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


# Corpora with a validation split of their own, which do not read data.valid_rate. All such configs
# have the one value that older run folders have, as has the built-in text without a value.
HAVE_VALIDATION, VALID_RATE = ("wikitext:", "parquet:"), 0.005


def science(config: object) -> dict[str, Any]:
    """Returns the fields of a dataclass or a mapping that may change a result, by dotted name."""
    is_filled = dataclasses.is_dataclass(config) and not isinstance(config, type)
    flat = flatten(dataclasses.asdict(config) if is_filled else typing.cast(Any, config))
    found = {k: v for k, v in flat.items() if not k.startswith("machine.")}
    corpus = str(found.get("data.corpus"))
    unset = corpus == "builtin" and found.get("data.valid_rate") is None
    if unset or corpus.startswith(HAVE_VALIDATION):
        found["data.valid_rate"] = VALID_RATE
    return found


def own_options(a: Mapping[str, Any], b: Mapping[str, Any]) -> set[str]:
    """Returns the options of two runs whose system, objective or format differs."""
    differ = {group for group, owner in OWNERS.items() if a.get(owner) != b.get(owner)}
    return {name for name in a.keys() | b.keys() if name.partition(".")[0] in differ}


def differing(
    sides: Iterable[Mapping[str, Any]], free: Collection[str] = ()
) -> dict[str, list[Any]]:
    """Returns the fields in which runs differ, with the value of each run: comparable if empty.

    Every comparison asks this function.

    Args:
      sides: the fields of each run, by dotted name; a missing one is off, as None is.
      free: names of fields that may differ.
    """
    sides = list(sides)
    names = dict.fromkeys(name for side in sides for name in side if name not in free)
    values = {name: [side.get(name) for side in sides] for name in names}
    return {name: own for name, own in values.items() if any(x != own[0] for x in own)}


def science_diff(new: object, old: object, free: Collection[str] = ()) -> list[str]:
    """Returns lines "field: old -> new" for the science fields that differ and are not `free`."""
    a, b = science(old), science(new)
    names = sorted(differing((a, b), free))
    return [f"{k}: {a.get(k, 'absent')!r} -> {b.get(k, 'absent')!r}" for k in names]


def make_options(module: Any, values: Mapping[str, object], prefix: str = "") -> Any:
    """Returns a module's Options; None if it has none.

    Args:
      module: a system, objective or format.
      values: option -> value; those of other modules of the group are left out, absent ones have
        their defaults.
      prefix: of the names in messages.
    """
    kind = getattr(module, "Options", None)
    if kind is None:
        return None
    names = {field.name for field in dataclasses.fields(kind)}
    own = dataclasses.asdict(kind()) | {k: v for k, v in values.items() if k in names}
    return fill(kind, own, prefix)


def frozen_names(module: Any) -> tuple[str, ...]:
    """Returns the names of the models of other runs that a system or an objective uses."""
    return getattr(module, "FROZEN", ())


def complete_options(
    group: str, package: str, names: Sequence[str], values: Mapping[str, object]
) -> dict[str, object]:
    """Returns every option of some modules: the values, or else the defaults.

    Args:
      group: of the config, for messages.
      package: "systems", "objectives" or "formats".
      names: of the modules.
      values: those that are given.

    Raises:
      ValueError: an unknown module, an option that none of them has, or a wrong type.
    """
    modules: list[types.ModuleType] = [load_module(package, name) for name in names]
    kinds = [module.Options for module in modules if hasattr(module, "Options")]
    known = [field.name for kind in kinds for field in dataclasses.fields(kind)]
    for name in values:
        if name not in known:
            has = nearest(name, set(known)) if known else "it has no options"
            raise ValueError(f"unknown option config.{group}.{name} of {'+'.join(names)}: {has}")
    made = [make_options(module, values, f"{group}.") for module in modules]
    return {k: x for own in made if own for k, x in dataclasses.asdict(own).items()}
