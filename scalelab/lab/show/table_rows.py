"""Choice of a table's rows: "large:width" is a table of kind `large` with the rows named `width`.

A study names rows by stages, shapes and variants. Every matching row stands in the table, in the
study's order, and several tables may share rows. "large" without a name has all rows.
"""

import dataclasses
import fnmatch
from collections.abc import Iterable, Mapping, Sequence

from scalelab.helpers.names import nearest
from scalelab.lab.load.study_runs import Point


@dataclasses.dataclass(frozen=True)
class Rows:
    """Rows of a study that stand in one table.

    Attributes:
      title: the beginning of the table's caption.
      stages: names; (): any.
      shapes: AxHxL, where "*" is any number: "2x*x2"; (): any.
      variants: names; (): any.
    """

    title: str
    stages: tuple = ()
    shapes: tuple = ()
    variants: tuple = ()

    def hold(self, stage: str, shape: str, variant: str) -> bool:
        """Returns whether a run belongs to these rows."""
        return (
            (not self.stages or stage in self.stages)
            and (not self.shapes or any(fnmatch.fnmatchcase(shape, s) for s in self.shapes))
            and (not self.variants or variant in self.variants)
        )

    def choose(self, points: Sequence[Point]) -> list[Point]:
        """Returns the points that belong to these rows."""
        return [p for p in points if self.hold(p.runs[0].stage, str(p.shape), p.variant)]


def parse(
    table: str, kinds: Iterable[str], rows: Mapping[str, object], where: str
) -> tuple[str, str]:
    """Reads "large:width": the kind of a table and the name of its rows, "" for all.

    Args:
      table: as a study names it.
      kinds: known kinds of tables.
      rows: the study's rows by name.
      where: the beginning of the message.

    Raises:
      ValueError: unknown kind or rows.
    """
    kind, colon, name = table.partition(":")
    if kind not in (known := list(kinds)):
        raise ValueError(f"{where} {kind!r}: {nearest(kind, known)}")
    if colon and name not in rows:
        valid = nearest(name, rows) if rows else "the study names no rows"
        raise ValueError(f"{where} rows {name!r} in {table!r}: {valid}")
    return kind, name
