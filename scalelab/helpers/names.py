"""Finds modules by name, and the nearest valid name for a misspelt one."""

import difflib
import importlib
import pkgutil
import types
from collections.abc import Iterable


def nearest(word: str, valid: Iterable[str]) -> str:
    """Says which valid names come closest to `word`.

    Args:
      word: the name that was not found.
      valid: every name that would have been found.

    Returns:
      A phrase to end an error message with: the close names first, or all of them if none is close.
    """
    names = sorted(valid)
    close = difflib.get_close_matches(word, names, n=3, cutoff=0.5)
    if close:
        return "did you mean " + " or ".join(repr(name) for name in close) + "?"
    return "valid names: " + ", ".join(names)


def brief(value: object) -> str:
    """What a message quotes of something that may be of any length."""
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:80]}... ({len(text):,} characters)"


# Modules of a room that its choices share; none of them is a choice.
SHARED = {"formats": ("assembly", "draws", "pairs"), "objectives": ("xent",)}


def module_names(room: str) -> list[str]:
    """Lists the public modules of the package `scalelab.<room>`, without those that are SHARED."""
    package = importlib.import_module(f"scalelab.{room}")
    found = sorted(m.name for m in pkgutil.iter_modules(package.__path__) if m.name[0] != "_")
    return [name for name in found if name not in SHARED.get(room, ())]


def load_module(room: str, name: str) -> types.ModuleType:
    """Imports `scalelab.<room>.<name>`.

    Args:
      room: a package below scalelab, such as "systems".
      name: a module in it.

    Raises:
      ValueError: no such module; the message names the nearest ones.
    """
    valid = module_names(room)
    if name not in valid:
        raise ValueError(f"unknown {room.removesuffix('s')} {name!r}: {nearest(name, valid)}")
    return importlib.import_module(f"scalelab.{room}.{name}")
