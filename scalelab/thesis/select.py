"""Selects rows to compare: shapes that grow in one dimension, shapes of equal size.

N is the number of parameters, A heads, H width, L layers.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

from scalelab.lab.compare.scores import Row, Scores
from scalelab.records.study_file import DEFAULT

EQUAL = 1.1  # sizes N count as equal up to this ratio: the thesis pairs 3.50 M and 3.54 M
WIDEST_HEAD = 128  # wider heads mean that A did not grow with H; 64 is usual

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


def group(rows: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Groups rows by a key, in their order."""
    found: dict[K, list[T]] = {}
    for row in rows:
        found.setdefault(key(row), []).append(row)
    return found


def defaults(scores: Scores) -> dict[str, list[Row]]:
    """Returns the rows of the default variant by system, small to large."""
    rows = [row for row in scores.rows if row.variant == DEFAULT]
    return group(sorted(rows, key=lambda row: row.shape.n_model), lambda row: row.system)


def by_variant(scores: Scores) -> dict[tuple[str, str], list[Row]]:
    """Groups rows by system and variant; rows of a group differ only in shape."""
    return group(scores.rows, lambda row: (row.system, row.variant))


def by_shape(scores: Scores, systems: Sequence[str]) -> list[dict[str, Row]]:
    """Returns {system: default row} for each shape that all the systems have."""
    rows = [row for row in scores.rows if row.variant == DEFAULT and row.system in systems]
    found = ({row.system: row for row in own} for own in group(rows, lambda r: r.shape).values())
    return [own for own in found if len(own) == len(systems)]


def shape_group(rows: Sequence[Row], dimension: str) -> list[Row]:
    """Returns the longest list of rows that differ only in one dimension, or [] if there is none.

    Args:
      rows: the rows.
      dimension: "width" or "num_layers"; the result is in its ascending order.
    """
    fixed = [name for name in ("num_heads", "width", "num_layers") if name != dimension]
    groups = group(rows, lambda row: tuple(getattr(row.shape, name) for name in fixed))
    best = max(groups.values(), key=len, default=[])
    return sorted(best, key=lambda row: getattr(row.shape, dimension)) if len(best) > 1 else []


def balanced(rows: Sequence[Row], dimension: str) -> list[tuple[Row, Row]]:
    """Returns pairs of equal N and A: a row of the shape group, and a row grown in both dimensions.

    The second row is narrower and deeper than a wide row, or wider and shallower than a deep row.
    It is in neither shape group.
    """
    groups = {name: shape_group(rows, name) for name in ("width", "num_layers")}
    free = [row for row in rows if row not in groups["width"] and row not in groups["num_layers"]]
    found = []
    for single in groups[dimension]:
        fits = [
            row for row in free
            if row.shape.num_heads == single.shape.num_heads and near(row, single)
            and getattr(row.shape, dimension) < getattr(single.shape, dimension)
        ]  # fmt: skip
        if fits:
            free.remove(fits[0])
            found.append((single, fits[0]))
    return found


def equal_sizes(rows: Sequence[Row]) -> list[list[Row]]:
    """Returns groups of equal size N and different depth, each from deepest to widest.

    Rows with heads wider than WIDEST_HEAD are left out. The rows must be of one system and variant.
    Of rows that differ only in the number of heads, the one with most heads is used.
    """
    shapes = {(r.shape.width, r.shape.num_layers): r
              for r in sorted(rows, key=lambda row: row.shape.num_heads)}  # fmt: skip
    groups: list[list[Row]] = []
    for row in sorted(shapes.values(), key=lambda row: row.shape.n_model):
        if _head(row) <= WIDEST_HEAD:
            if not groups or not near(groups[-1][0], row):
                groups.append([])
            groups[-1].append(row)
    apart = [own for own in groups if len({row.shape.num_layers for row in own}) > 1]
    return [sorted(own, key=lambda row: row.shape.width) for own in apart]


def more_heads(rows: Sequence[Row]) -> list[tuple[Row, Row]]:
    """Returns pairs of equal H and L: a row with heads wider than WIDEST_HEAD, and one without.

    The second row has the most heads.
    """
    groups = group(rows, lambda row: (row.shape.width, row.shape.num_layers)).values()
    ordered = [sorted(own, key=lambda row: row.shape.num_heads) for own in groups]
    return [(own[0], own[-1]) for own in ordered if _head(own[0]) > WIDEST_HEAD >= _head(own[-1])]


def near(a: Row, b: Row) -> bool:
    """Returns True if the sizes N of two rows are equal up to the ratio EQUAL."""
    small, large = sorted((a.shape.n_model, b.shape.n_model))
    return large <= EQUAL * small


def _head(row: Row) -> float:
    return row.shape.width / row.shape.num_heads
