"""Claims that a study states as data: ("electra > bert", "blimp", 2).

  ("mask_40 > baseline", "sst2")          the first side scores higher
  ("electra > bert", "blimp", 2)          higher by more than 2 points
  ("half_rate < baseline", "loss", 0.05)  lower by more than 0.05 nats
  ("gpt ~ gpt2", "blimp", 1)              the two differ by less than 1 point

A margin has the unit of the tables: points (scores x 100), nats, bits or seconds.

A side selects rows by words: at most one system, one shape (such as 2x128x2 or 2x*x2) and one
variant. The rows of both sides pair where they agree in all that is not named, and the claim is
about the mean difference over these pairs. A system or a shape that one side names holds for the
other side too. If one side alone names a variant, the other side has the baseline.
"""

import dataclasses
import fnmatch
import itertools
import math
import re
from collections.abc import Collection, Iterable, Sequence
from typing import Any, TypeVar

from scalelab.helpers.names import nearest
from scalelab.lab.compare.claims import Region
from scalelab.lab.compare.scores import PRETRAINING_SCORES, SCORES, Row, score_parts
from scalelab.lab.load.study_runs import BASELINE
from scalelab.lab.load.task_runs import MAIN, TASK_SCORES

FORM = "expected ('A > B', score) or ('A > B', score, margin), with > < or ~ between the sides"
SHAPE = re.compile(r"[\d*?]+x[\d*?]+x[\d*?]+")


AnyRow = TypeVar("AnyRow", bound=Row)


@dataclasses.dataclass(frozen=True)
class Side:
    """The rows on one side of a claim; None: any, but the same on both sides."""

    system: str | None = None
    shape: str | None = None  # may have * and ?
    variant: str | None = None

    def selects(self, row: Row) -> bool:
        """Whether the side names this row."""
        return (
            self.system in (None, row.system)
            and self.variant in (None, row.variant)
            and (self.shape is None or fnmatch.fnmatchcase(str(row.shape), self.shape))
        )


@dataclasses.dataclass(frozen=True)
class ClaimLine:
    """A claim of a study's config."""

    text: str  # "electra > bert"
    left: Side
    right: Side
    matched: tuple[str, ...]  # factors in which the rows of a pair agree
    score: str  # a name in scores.SCORES
    region: Region  # left minus right, scores as fractions

    def pair(self, rows: Iterable[AnyRow]) -> list[tuple[AnyRow, AnyRow]]:
        """Returns the pairs of rows that the claim compares."""
        rows = list(rows)
        lefts, rights = (list(filter(side.selects, rows)) for side in (self.left, self.right))
        return [
            (a, b) for a, b in itertools.product(lefts, rights)
            if a is not b and all(getattr(a, f) == getattr(b, f) for f in self.matched)
        ]  # fmt: skip


def parse(
    line: Sequence[Any], systems: Collection[str], variants: Collection[str], tasks: Collection[str]
) -> ClaimLine:
    """Reads a claim.

    Args:
      line: its text, its score, and perhaps its margin.
      systems: of the study.
      variants: of the study.
      tasks: tasks and yardsticks that the study measures.

    Raises:
      ValueError: another form, or a word or score that the study does not have.
    """
    if len(line) not in (2, 3) or not all(isinstance(part, str) for part in line[:2]):
        raise ValueError(FORM)
    text, named, margin = line[0], line[1], line[2] if len(line) == 3 else 0.0
    parts = re.split(r"\s*([><~])\s*", text.strip())
    if len(parts) != 3 or not parts[0] or not parts[2]:
        raise ValueError(FORM)
    if type(margin) not in (int, float) or not 0 <= margin < math.inf:
        raise ValueError(f"margin {margin!r}: expected a number from 0 on")
    if parts[1] == "~" and not margin:
        raise ValueError("~ needs a margin: the largest difference that counts as none")
    measured = [
        name for name in SCORES
        if name in PRETRAINING_SCORES
        or all(TASK_SCORES[part][0] in tasks for part in score_parts(name))
    ]  # fmt: skip
    score = MAIN[named] if named in MAIN else str(named)
    if score not in measured:
        raise ValueError(f"score {score!r} is not measured: {nearest(score, measured)}")
    sides = [_read_side(part, systems, variants) for part in (parts[0], parts[2])]
    left, right = _fill(*sides), _fill(*reversed(sides))
    named = [{factor for factor, word in vars(side).items() if word} for side in sides]
    both, either = named[0] & named[1], named[0] | named[1]
    matched = tuple(f for f in ("system", "shape") if f not in both)
    matched += () if "variant" in either else ("variant",)
    if left == right:
        raise ValueError(f"{text!r} has the same rows on both sides")
    size = float(margin) / (1 if score in PRETRAINING_SCORES else 100)
    regions = {
        ">": Region(size, math.inf), "<": Region(-math.inf, -size), "~": Region(-size, size)
    }  # fmt: skip
    return ClaimLine(text, left, right, matched, score, regions[parts[1]])


def _read_side(text: str, systems: Collection[str], variants: Collection[str]) -> Side:
    """Reads the words of a side."""
    found: dict[str, str] = {}
    for word in text.split():
        if SHAPE.fullmatch(word):
            factor = "shape"
        elif word in systems:
            factor = "system"
        elif word in variants:
            factor = "variant"
        else:
            raise ValueError(
                f"{word!r} is no system, shape or variant of this study:"
                f" {nearest(word, [*systems, *variants])}"
            )
        if factor in found:
            raise ValueError(f"{text!r} names two of one kind: {found[factor]} and {word}")
        found[factor] = word
    return Side(**found)


def _fill(side: Side, other: Side) -> Side:
    """Returns a side with what the other side alone names."""
    variant = side.variant or (other.variant and BASELINE)
    return Side(side.system or other.system, side.shape or other.shape, variant)
