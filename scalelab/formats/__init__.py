"""Formats: how documents become examples. One module each, found by name."""

from collections.abc import Iterator
from typing import Protocol, cast

import numpy as np

from scalelab.formats.documents import Documents, Examples, Frame
from scalelab.helpers import names

_PARTS = ("assembly", "documents", "draws")


class Format(Protocol):
    """A module of this room.

    Attributes:
      VERSION: part of the cache's key; to be raised when the output changes.
      HAS_PAIRS: whether examples have two segments and a label.
    """

    VERSION: int
    HAS_PAIRS: bool

    def build(
        self,
        documents: Documents,
        *,
        frame: Frame,
        max_len: int,
        seed: int,
        document_ids: np.ndarray | None = None,
        short_rate: float = 0.1,
    ) -> Iterator[Examples]:
        """Yields chunks of finished examples, a pure function of its arguments."""
        ...


def format_names() -> list[str]:
    """Lists the formats that `load` finds."""
    return [name for name in names.module_names("formats") if name not in _PARTS]


def load(name: str) -> Format:
    """Imports the format module `name`.

    Raises:
      ValueError: there is no such format; the message names the nearest ones.
    """
    return cast(Format, names.load_module("formats", name, but=_PARTS))
