"""Which rows stand in a table of a study: "large:width" has the large tasks of its rows `width`.

Rows are named by stages, shapes and variants of the study, and every row that fits stands in the
table, in the study's order; several tables may have the same row, as Tables 7.2 and 7.3 of the
protocol do. "large" alone has all rows.
"""

import dataclasses
import fnmatch
from collections.abc import Mapping, Sequence
from typing import Any

from scalelab.helpers.names import nearest
from scalelab.lab.reading.study_runs import Point


@dataclasses.dataclass(frozen=True)
class Rows:
    """Rows of a study that stand in one table.

    Attributes:
      title: what they are, the beginning of the table's caption.
      stages: names; (): any.
      shapes: AxHxL, where "*" is any number: "2x*x2"; (): any.
      variants: names; (): any.
    """

    title: str
    stages: tuple = ()
    shapes: tuple = ()
    variants: tuple = ()

    def hold(self, stage: str, shape: str, variant: str) -> bool:
        """Whether a run is of these rows."""
        return (
            (not self.stages or stage in self.stages)
            and (not self.shapes or any(fnmatch.fnmatchcase(shape, one) for one in self.shapes))
            and (not self.variants or variant in self.variants)
        )

    def of(self, points: Sequence[Point]) -> list[Point]:
        """Those of some points that are of these rows."""
        return [p for p in points if self.hold(p.runs[0].stage, str(p.shape), p.variant)]


def parse(table: str, kinds: Sequence[str], rows: Mapping[str, Any], where: str) -> tuple[str, str]:
    """Reads "large:width": the kind of a table, and the name of its rows, "" for all.

    Args:
      table: as a study has it.
      kinds: of tables.
      rows: the study's, by name.
      where: the beginning of the message.

    Raises:
      ValueError: there is no such kind, or there are no such rows.
    """
    kind, colon, name = table.partition(":")
    if kind not in kinds:
        raise ValueError(f"{where} {kind!r}: {nearest(kind, kinds)}")
    if colon and name not in rows:
        known = nearest(name, rows) if rows else "the study names no rows"
        raise ValueError(f"{where} rows {name!r} in {table!r}: {known}")
    return kind, name
