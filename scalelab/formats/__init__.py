"""Formats: how documents become examples. One module each, found by name.

A format module has `VERSION: int` (part of the cache key: raise it when the output changes),
`HAS_PAIRS: bool`, and

    build(documents, *, frame, max_len, seed, document_ids=None, short_rate=0.1) ->
    Iterator[Examples]

a pure function of its arguments that yields chunks of finished examples.
"""

import types

from scalelab.helpers import names

_PARTS = ("assembly", "documents", "draws")


def format_names() -> list[str]:
    """Lists the formats that `load` finds."""
    return [name for name in names.module_names("formats") if name not in _PARTS]


def load(name: str) -> types.ModuleType:
    """Imports the format module `name`.

    Raises:
      ValueError: there is no such format; the message names the nearest ones.
    """
    return names.load_module("formats", name, but=_PARTS)
