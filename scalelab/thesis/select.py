"""Selects rows that belong together: ladders of one dimension, equal sizes, one shape."""

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any

from scalelab.lab.compare import shape_rules
from scalelab.lab.compare.evidence import Evidence
from scalelab.lab.load.study_runs import BASELINE

NEAR = shape_rules.EQUAL  # sizes N whose ratio is at most this are equal
WIDEST_HEAD = 128  # where heads are wider than this, A has not followed H; the usual size is 64

Row = Any  # evidence.Row, of one Evidence


def baselines(evidence: Evidence) -> dict[str, list[Row]]:
    """Returns the rows of the baseline variant by system, small to large."""
    rows = [row for row in evidence.rows if row.variant == BASELINE]
    return _grouped(sorted(rows, key=lambda row: row.shape.n_model), lambda row: row.system)


def by_variant(evidence: Evidence) -> dict[tuple[str, str], list[Row]]:
    """Returns rows by system and variant: each group differs in shape alone."""
    return _grouped(evidence.rows, lambda row: (row.system, row.variant))


def by_shape(evidence: Evidence, systems: Sequence[str]) -> list[dict[str, Row]]:
    """Returns, for each shape that all the systems have, their baseline rows by system."""
    rows = [row for row in evidence.rows if row.variant == BASELINE and row.system in systems]
    found = ({row.system: row for row in of} for of in _grouped(rows, lambda r: r.shape).values())
    return [of for of in found if len(of) == len(systems)]


def by_variants(evidence: Evidence, one: str, two: str) -> list[tuple[Row, Row]]:
    """Returns pairs of rows that differ in their variant alone, one of each of two variants."""
    rows = _grouped(evidence.rows, lambda row: (row.system, row.shape)).values()
    named = [{row.variant: row for row in of} for of in rows]
    return [(of[one], of[two]) for of in named if one in of and two in of]


def ladder(rows: Sequence[Row], dimension: str) -> list[Row]:
    """Returns the most rows of one system that differ in one dimension alone, small to large.

    Args:
      rows: baseline rows of one system.
      dimension: "width" or "num_layers".

    Returns:
      Empty if no two rows do so.
    """
    others = [name for name in ("num_heads", "width", "num_layers") if name != dimension]
    groups = _grouped(rows, lambda row: tuple(getattr(row.shape, name) for name in others))
    best = max(groups.values(), key=len, default=[])
    return sorted(best, key=lambda row: getattr(row.shape, dimension)) if len(best) > 1 else []


def balanced(rows: Sequence[Row], dimension: str) -> list[tuple[Row, Row]]:
    """Returns pairs of equal N and A: a row of the ladder and one less extreme in its dimension.

    The second is, against a wide row, narrower and deeper; against a deep row, shallower and wider;
    and it stands in neither ladder, so that it has grown in both dimensions.
    """
    ladders = {name: ladder(rows, name) for name in ("width", "num_layers")}
    free = [row for row in rows if row not in ladders["width"] and row not in ladders["num_layers"]]
    found = []
    for single in ladders[dimension]:
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
    """Returns groups of equal N whose A has followed H and whose L differ, deepest to widest.

    Rows that differ in their heads alone are one shape: the one of the most heads is taken.

    Args:
      rows: of one system and variant.
    """
    groups: list[list[Row]] = []
    rows = list({(r.shape.width, r.shape.num_layers): r
                 for r in sorted(rows, key=lambda row: row.shape.num_heads)}.values())  # fmt: skip
    for row in sorted(rows, key=lambda row: row.shape.n_model):
        if row.shape.width / row.shape.num_heads > WIDEST_HEAD:
            continue
        if groups and near(groups[-1][0], row):
            groups[-1].append(row)
        else:
            groups.append([row])
    apart = [of for of in groups if len({row.shape.num_layers for row in of}) > 1]
    return [sorted(of, key=lambda row: row.shape.width) for of in apart]


def more_heads(rows: Sequence[Row]) -> list[tuple[Row, Row]]:
    """Returns pairs of equal H and L: a row with too wide heads, and the one with most heads."""
    groups = _grouped(rows, lambda row: (row.shape.width, row.shape.num_layers)).values()
    ordered = [sorted(of, key=lambda row: row.shape.num_heads) for of in groups]
    return [
        (of[0], of[-1]) for of in ordered
        if of[0].shape.width / of[0].shape.num_heads > WIDEST_HEAD
        >= of[-1].shape.width / of[-1].shape.num_heads
    ]  # fmt: skip


def near(a: Row, b: Row) -> bool:
    """Returns whether two rows have equal N."""
    one, two = sorted((a.shape.n_model, b.shape.n_model))
    return two <= NEAR * one


def doublings(a: Row, b: Row) -> float:
    """Returns how often N doubles from A to B."""
    return math.log2(b.shape.n_model / a.shape.n_model)


def growing(rows: Sequence[Row], least: float) -> list[tuple[Row, Row]]:
    """Returns pairs of a smaller and a larger row, N at least `least` times as large."""
    pairs = itertools.combinations(sorted(rows, key=lambda row: row.shape.n_model), 2)
    return [(a, b) for a, b in pairs if b.shape.n_model >= least * a.shape.n_model]


def _grouped(rows: Iterable[Row], key: Any) -> dict[Any, list[Row]]:
    found: dict[Any, list[Row]] = {}
    for row in rows:
        found.setdefault(key(row), []).append(row)
    return found
