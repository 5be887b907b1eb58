"""Settings of one system, objective or format: a frozen dataclass `Options` in its own file.

The config has one strict group for each: system_options, objective_options (those of all objectives
of the sum) and format_options.
"""

import dataclasses
import types
from collections.abc import Mapping, Sequence
from typing import Any

from scalelab.config.fields import fill
from scalelab.helpers.names import load_module, nearest


def make_options(module: Any, values: Mapping[str, object]) -> Any:
    """Returns the module's Options with these values, its defaults elsewhere; None if it has none.

    Values that belong to other modules of the group are left out.
    """
    kind = getattr(module, "Options", None)
    if kind is None:
        return None
    names = {field.name for field in dataclasses.fields(kind)}
    own = dataclasses.asdict(kind()) | {k: v for k, v in values.items() if k in names}
    return fill(kind, own)


def complete(
    group: str, room: str, names: Sequence[str], values: Mapping[str, object]
) -> dict[str, object]:
    """Returns every option of some modules: the values, or else the defaults.

    Args:
      group: of the config, for messages.
      room: "systems", "objectives" or "formats".
      names: of the modules.
      values: those that are given.

    Raises:
      ValueError: an unknown module, an option that none of them has, or a wrong type.
    """
    modules: list[types.ModuleType] = [load_module(room, name) for name in names]
    found = {}
    for module in modules:
        if hasattr(module, "Options"):
            found |= dataclasses.asdict(module.Options())
    for name in values:
        if name not in found:
            has = nearest(name, found) if found else "it has no options"
            raise ValueError(f"unknown option config.{group}.{name} of {'+'.join(names)}: {has}")
    for module in modules:
        try:
            made = make_options(module, values)
        except ValueError as error:
            raise ValueError(str(error).replace("config.", f"config.{group}.", 1)) from None
        found |= dataclasses.asdict(made) if made is not None else {}
    return found
