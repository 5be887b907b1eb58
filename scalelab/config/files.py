"""Config files, which are in no package: run by their paths; and what is said after the colon."""

import importlib.util
import pathlib
import types
from collections.abc import Collection

from scalelab.helpers.names import nearest

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "configs"


def load(path: pathlib.Path) -> types.ModuleType:
    """Runs a config file, such as FOLDER / "pretrain.py", for its `get_config`.

    Raises:
      ValueError: there is no such file.
    """
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ValueError(f"no {path}: start this from a checkout, where configs/ is")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def arguments(text: str, names: Collection[str], example: str) -> dict[str, str]:
    """Reads "name=value,name=value", what stands after a config file's colon; the last one counts.

    A part without "name=" in front belongs to the path before it, if that has a slash: "data=/a,b".
    A comma that two commas stand for is never a border: "data=/a,,b=1" is the folder "/a,b=1".

    Args:
      text: the arguments.
      names: that there are.
      example: of an argument, for messages.

    Raises:
      ValueError: an unknown name, or a part without one that continues no path.
    """
    given: dict[str, str] = {}
    last = ""
    for part in filter(None, text.replace(",,", "\0").split(",")):
        part = part.replace("\0", ",")
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
