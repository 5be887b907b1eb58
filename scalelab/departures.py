"""Departures: the fields in which a system declares that it differs from the control."""

import dataclasses
from collections.abc import Iterable, Mapping
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


def held(departures: Iterable[Departure], fields: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The departures that a run holds to, for its result.json: what its user changed is none.

    Args:
      departures: those of its system.
      fields: of its config, by dotted name.
    """
    return [dataclasses.asdict(d) for d in departures if fields[d.field] == d.value]
