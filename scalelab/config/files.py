"""Config files: loading them, their arguments after the colon, their ConfigDicts."""

import dataclasses
import importlib.machinery
import pathlib
import sys
import types
import typing
from collections.abc import Collection

import ml_collections
from ml_collections import config_dict

from scalelab.helpers.names import CONFIGS as FOLDER
from scalelab.helpers.names import nearest

__all__ = ["FOLDER", "arguments", "defaults", "load"]


def load(path: pathlib.Path) -> types.ModuleType:
    """Runs a config file, such as FOLDER / "pretrain.py", for its `get_config`."""
    if path.suffix != ".py":
        raise ValueError(f"expected a config file, *.py; got {path}")
    loader = importlib.machinery.SourceFileLoader(path.stem, str(path))
    module = types.ModuleType(loader.name)
    module.__file__ = str(path)
    loader.exec_module(module)
    return module


def defaults(cls: type) -> ml_collections.ConfigDict:
    """Returns the ConfigDict of a config's dataclass; a field that is None keeps its type."""
    hints = typing.get_type_hints(cls)
    config = ml_collections.ConfigDict()
    for field in dataclasses.fields(cls):
        if field.default_factory is not dataclasses.MISSING:
            config[field.name] = ml_collections.ConfigDict(field.default_factory())
        elif dataclasses.is_dataclass(field.default):
            config[field.name] = defaults(type(field.default))
        elif field.default is None:
            kind = next(k for k in typing.get_args(hints[field.name]) if k is not type(None))
            config[field.name] = config_dict.placeholder(typing.get_origin(kind) or kind)
        else:
            config[field.name] = field.default
    return config


# Arguments of the release before -> of today: a name, or a name with its value.
RENAMED = {"yardsticks=": "evaluations=", "scale=world": "scale=synthetic"}


def arguments(text: str, names: Collection[str], example: str) -> dict[str, str]:
    """Parses "name=value,name=value", the arguments after a config file's colon; the last counts.

    A part without "name=" continues the path before it, if that has a slash: "data=/a,b".
    Two commas stand for a comma inside a value: "data=/a,,b=1" is the folder "/a,b=1".

    Raises:
      ValueError: an unknown name, or a part without a name that continues no path.
    """
    given: dict[str, str] = {}
    last = ""
    for part in filter(None, text.replace(",,", "\0").split(",")):
        part = part.replace("\0", ",")
        for old, new in RENAMED.items():
            if part == old or (old.endswith("=") and part.startswith(old)):
                print(f"warning: {old} is now {new}", file=sys.stderr)
                part = part.replace(old, new, 1)
        name, equals, value = part.partition("=")
        in_path = "/" in given.get(last, "")
        if equals and name in names:
            given[name], last = value, name
        elif in_path and not (equals and name.isidentifier()):
            given[last] += "," + part
        elif equals:
            other = f" (a comma inside the path of {last} is written twice here)" if in_path else ""
            raise ValueError(f"unknown config argument {name!r}: {nearest(name, names)}{other}")
        else:
            raise ValueError(f"config argument {part!r}: expected name=value, such as {example}")
    return given
