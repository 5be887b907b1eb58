"""Hypotheses that a study states as data: ("electra > bert", "blimp", 2).

  ("mask_rate=0.4 > mask_rate=0.15", "sst2")  the first side scores higher
  ("electra > bert", "blimp", 2)              higher by more than 2 points
  ("half_steps < default", "loss", 0.05)      lower by more than 0.05 nats
  ("gpt ~ gpt2", "blimp", 1)                  the two differ by less than 1 point
  ("electra best(learning_rate) > bert", "blimp")  each at its best rate, chosen on validation

A margin has the unit of the tables: points (scores x 100), nats, bits or seconds.

A side selects rows by words: at most one system, one shape (such as 2x128x2 or 2x*x2), one variant
(`default` changes nothing), and values of config fields. A field is named by its last part if that
is unique; its value is the resolved one, whether the base config or a variant sets it. The rows of
both sides pair where they agree in all that is not named, and the hypothesis is about the mean
difference over these pairs. A system, a shape or a field that one side names holds for the other
side too. If one side alone names a variant, and the other no field, the other has the default.

best(FIELD), of one or more fields, holds for both sides: instead of the mean over the values of the
field, each arm has the value of the lowest validation loss (scalelab/lab/compare/study_scores.py).
"""

import dataclasses
import fnmatch
import itertools
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from scalelab.config.fields import parse_value
from scalelab.eval.score_names import PRETRAINING_SCORES, find_score
from scalelab.helpers.names import nearest
from scalelab.lab.compare import comparability
from scalelab.lab.compare.claims import Region
from scalelab.lab.compare.scores import Row
from scalelab.lab.load.study_runs import show_value, varied_fields
from scalelab.records.study_file import DEFAULT, OLD_DEFAULT

FORM = "expected ('A > B', score) or ('A > B', score, margin), with > < or ~ between the sides"
SHAPE = re.compile(r"[\d*?]+x[\d*?]+x[\d*?]+")
BEST = re.compile(r"best\(([^()]*)\)")
ABSENT = object()  # an option that another objective brings

Arm = tuple[Row, ...]  # rows that differ in the fields of best() alone; else one row


@dataclasses.dataclass(frozen=True)
class Side:
    """The rows on one side of a claim; None: any, but the same on both sides."""

    system: str | None = None
    shape: str | None = None  # may have * and ?
    variant: str | None = None
    values: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # by dotted field
    given: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # by the other side alone

    def selects(self, row: Row) -> bool:
        """Whether the side names this row."""
        return (
            self.system in (None, row.system)
            and self.variant in (None, row.variant)
            and (self.shape is None or fnmatch.fnmatchcase(str(row.shape), self.shape))
            and all(f in row.fields and _equal(row.fields[f], x) for f, x in self.values.items())
            and all(_equal(row.fields.get(f, ABSENT), x) for f, x in self.given.items())
        )


@dataclasses.dataclass(frozen=True)
class ClaimLine:
    """A claim of a study's config."""

    text: str  # "electra > bert"
    pairs: tuple[tuple[Arm, Arm], ...]  # the arms that it compares
    matched: tuple[str, ...]  # factors and fields in which the rows of a pair agree
    best: tuple[str, ...]  # fields of which each arm has its best value
    score: str  # a name in score_names.SCORES
    region: Region  # left minus right, scores as fractions


def parse(line: Sequence[Any], rows: Iterable[Row], tasks: Collection[str]) -> ClaimLine:
    """Reads a claim: its text, its score, and perhaps its margin; `tasks` has evaluations too.

    Raises:
      ValueError: another form, a word or score that the study does not have, or a best value that
        losses cannot choose.
    """
    texts = isinstance(line, tuple) and all(isinstance(part, str) for part in line[:2])
    if not texts or len(line) not in (2, 3):
        raise ValueError(FORM)
    margin = line[2] if len(line) == 3 else 0.0
    parts = re.split(r"\s*([><~])\s*", re.sub(r"\s*=\s*", "=", line[0].strip()))
    if len(parts) != 3 or not parts[0] or not parts[2] or parts[2][0] == "=":
        raise ValueError(FORM)
    if type(margin) not in (int, float) or not 0 <= margin < math.inf:
        raise ValueError(f"margin {margin!r}: expected a number from 0 on")
    if parts[1] == "~" and not margin:
        raise ValueError("~ needs a margin: the largest difference that counts as none")
    score, rows = find_score(line[1], tasks), list(rows)
    best = tuple(
        dict.fromkeys(
            find_field(name.strip(), rows)
            for text in (parts[0], parts[2]) for found in BEST.findall(text)
            for name in found.split(",")
        )
    )  # fmt: skip
    sides = [_read_side(BEST.sub(" ", part), rows) for part in (parts[0], parts[2])]
    left, right = _fill(*sides), _fill(*reversed(sides))
    if left == right:
        raise ValueError(f"{line[0]!r} has the same rows on both sides")
    size = float(margin) / (1 if score in PRETRAINING_SCORES else 100)
    regions = {
        ">": Region(size, math.inf), "<": Region(-math.inf, -size), "~": Region(-size, size)
    }  # fmt: skip
    matched = _match(left, right, best, rows)
    pairs = tuple(
        (a, b) for a, b in itertools.product(*(_make_arms(x, best, rows) for x in (left, right)))
        if a != b and _agree(a[0], b[0], matched)
    )  # fmt: skip
    if best:
        _check_best(best, [arm for pair in pairs for arm in pair])
    shown = [_show(part, side, rows) for part, side in zip(parts[::2], (left, right), strict=True)]
    return ClaimLine(f" {parts[1]} ".join(shown), pairs, matched, best, score, regions[parts[1]])


def find_field(name: str, rows: Sequence[Row]) -> str:
    """Returns the dotted name of a config field of some rows; `name` may be its last part.

    Raises:
      ValueError: no field, or several, of this name.
    """
    varied = varied_fields(rows)
    known = dict.fromkeys(field for row in rows for field in row.fields)
    found = [field for field in known if name in (field, field.rpartition(".")[2])]
    found = [field for field in found if field in varied] or found
    if name in found or len(found) == 1:
        return name if name in found else found[0]
    if found:
        raise ValueError(f"{name!r} may be {' or '.join(found)}: write the whole name")
    shorts = [field.rpartition(".")[2] for field in varied]
    values = "; ".join(f"{x.rpartition('.')[2]}: {_show_values(x, rows)}" for x in varied)
    raise ValueError(
        f"no field {name!r}: {nearest(name, shorts)}" + f". The study has {values}" * bool(varied)
    )


def _show_values(field: str, rows: Iterable[Row]) -> str:
    found = [row.fields[field] for row in rows if field in row.fields]
    return ", ".join(dict.fromkeys(map(show_value, found)))


def _equal(a: object, b: object) -> bool:
    """Whether two values of a field are equal, numbers by value; an absent one is equal to all."""
    if ABSENT in (a, b):
        return True
    numbers = [x for x in (a, b) if isinstance(x, int | float) and not isinstance(x, bool)]
    return numbers[0] == numbers[1] if len(numbers) == 2 else str(a) == str(b)


def _read_side(text: str, rows: Sequence[Row]) -> Side:
    """Reads the words of a side."""
    systems = dict.fromkeys(row.system for row in rows)
    variants = dict.fromkeys((DEFAULT, *(row.variant for row in rows)))
    found: dict[str, Any] = {}
    values: dict[str, Any] = {}
    for word in text.split():
        name, equals, value = word.partition("=")
        if equals:
            field = find_field(name, rows)
            if not any(_equal(row.fields.get(field), parse_value(value)) for row in rows):
                raise ValueError(f"{word!r}: the study has {name}: {_show_values(field, rows)}")
            if field in values:
                raise ValueError(f"{text!r} names two values of {name}")
            values[field] = parse_value(value)
            continue
        word = DEFAULT if word == OLD_DEFAULT else word
        if SHAPE.fullmatch(word):
            factor = "shape"
        elif word in systems:
            factor = "system"
        elif word in variants:
            factor = "variant"
        else:
            raise ValueError(
                f"{word!r} is no system, shape, variant or field=value of this study:"
                f" {nearest(word, [*systems, *variants])}"
            )
        if factor in found:
            raise ValueError(f"{text!r} names two {factor}s: {found[factor]} and {word}")
        found[factor] = word
    return Side(**found, values=values)


def _fill(side: Side, other: Side) -> Side:
    """Returns a side with what the other side alone names."""
    given = {} if side.variant else {k: x for k, x in other.values.items() if k not in side.values}
    variant = side.variant or (DEFAULT if other.variant and not side.values else None)
    return Side(side.system or other.system, side.shape or other.shape, variant, side.values, given)


def _match(left: Side, right: Side, best: Sequence[str], rows: Iterable[Row]) -> tuple[str, ...]:
    """Returns the factors and fields in which the rows of a pair must agree."""
    found = [f for f in ("system", "shape") if (x := getattr(left, f)) is None
             or x == getattr(right, f)]  # fmt: skip
    if left.variant and right.variant:
        return tuple(found)
    fields = {*left.values, *right.values, *best}
    named = [row for row in rows if row.variant in (left.variant, right.variant)]
    if not fields:
        return (*found, "variant")
    fields |= {*varied_fields(named)}
    return (*found, *(field for field in varied_fields(rows) if field not in fields))


def _agree(a: Row, b: Row, matched: Sequence[str]) -> bool:
    """Whether two rows agree in some factors and fields.

    Rows of two systems, whose base configs may differ, agree if their variants set these alike.
    """
    fields = [name for name in matched if name not in ("system", "shape", "variant")]
    if any(getattr(a, name) != getattr(b, name) for name in matched if name not in fields):
        return False
    if a.system != b.system:
        own = [{x for x in varied_fields([row]) if x in fields} for row in (a, b)]
        if own[0] != own[1]:
            return False
        fields = list(own[0])
    return all(_equal(a.fields.get(x, ABSENT), b.fields.get(x, ABSENT)) for x in fields)


def _make_arms(side: Side, best: Sequence[str], rows: Iterable[Row]) -> list[Arm]:
    """Returns the arms of a side: rows that differ in the fields of `best` alone."""
    chosen = [row for row in rows if side.selects(row)]
    if not best:
        return [(row,) for row in chosen]
    same = ["system", "shape", *(f for f in varied_fields(rows) if f not in best)]
    return [*map(tuple, comparability.group_alike(chosen, lambda a, b: _agree(a, b, same)))]


def _check_best(best: Sequence[str], arms: Sequence[Arm]) -> None:
    """Raises ValueError unless the losses of some arm can choose between values of its fields."""
    shown = f"best({', '.join(field.rpartition('.')[2] for field in best)})"
    for a, b in (pair for arm in arms for pair in itertools.combinations(arm, 2)):
        if apart := comparability.loss_apart(a.fields, b.fields):
            raise ValueError(
                f"{shown}: losses of {a.label} and {b.label} do not compare"
                f" ({', '.join(apart)}), so validation cannot choose between them"
            )
    if arms and all(len(arm) == 1 for arm in arms):
        raise ValueError(f"{shown}: every arm has one value, so there is nothing to choose")


def _show(text: str, side: Side, rows: Iterable[Row]) -> str:
    """Returns the words of a side, a variant of a grid by its values."""
    row = next((row for row in rows if side.selects(row)), None)
    names = {side.variant, OLD_DEFAULT if side.variant == DEFAULT else side.variant}
    words = BEST.sub(lambda found: found[0].replace(" ", ""), text).split()
    return " ".join(row.arm if row and word in names else word for word in words)
