"""Departures: the fields in which a system declares that it differs from the control."""

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class Departure:
    """One declared difference between a system and `configs/base.py`.

    Attributes:
      field: dotted name of the config field, such as "tokenizer.kind".
      value: the system's own value.
      source: where the value comes from: paper and section.
    """

    field: str
    value: Any
    source: str
