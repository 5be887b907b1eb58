"""Power of a study that has not run: the differences that its seeds will probably show.

seed_spread.csv beside this file has, for each scale and score, the standard deviation over
pre-training seeds of a difference of two rows, as the packed studies of `results/` measured it;
tests/support/seed_spread.py makes it anew. Chance on dev examples is part of it as far as seeds
differ on the same examples.
"""

import collections
import functools
import math
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import pandas as pd

from scalelab.eval.score_names import PRETRAINING_SCORES, title_of
from scalelab.lab.compare import estimates
from scalelab.lab.compare.claims import UNITS, Region, with_unit
from scalelab.studies.spec import StudySpec

FILE = pathlib.Path(__file__).with_name("seed_spread.csv")
MOST_SEEDS = 1000
TOKENS = {  # scale of configs/ -> tokens of a pre-training
    "tiny": 1e5, "micro": 1e5, "quickstart": 6e5, "small": 1e6, "synthetic": 3e6, "medium": 1.6e7,
    "encoders": 2e7, "nano": 3e7, "full": 1.3e9,
}  # fmt: skip


class Spread(NamedTuple):
    """How a difference of two rows varies over pre-training seeds."""

    scale: str
    score: str  # a name in score_names.SCORES
    deviation: float  # standard deviation: scores as fractions, losses in nats
    rows: int
    seeds: int
    study: str  # the study that measured it


@functools.cache
def load() -> Mapping[tuple[str, str], Spread]:
    """Returns (scale, score) -> spread, of the file."""
    spreads = map(Spread._make, pd.read_csv(FILE).itertuples(index=False))
    return {(own.scale, own.score): own for own in spreads}


def find_detectable(spread: Spread, num_seeds: int, num_rows: int, num_pairs: int) -> float:
    """Returns the difference that a test at 5% of a planned study shows with power 80%.

    Bloom 1995, as `Estimate.detectable`, before the correction for several claims. A difference of
    two rows has the variance of all rows of the study; a mean over pairs has that of its own seeds.

    Args:
      spread: of a difference of two rows.
      num_seeds: pre-training seeds, 2 or more.
      num_rows: rows of the study.
      num_pairs: pairs of rows over which the claim averages.
    """
    degrees = (num_seeds - 1) * (max(1, num_rows - 1) if num_pairs == 1 else 1)
    error = spread.deviation / math.sqrt(num_seeds * num_pairs)
    return estimates.detectable(error, degrees)


def _show(value: float, score: str) -> str:
    """Returns a difference in the unit of tables: "5.3 points", "0.02 nats"."""
    scale = 1 if score in PRETRAINING_SCORES else 100
    return with_unit(scale * value, UNITS.get(title_of(score), "points"))


def _find_nearest(scale: str, packed: Sequence[str]) -> str | None:
    """Returns the packed scale nearest to a scale by tokens; None: there is none that is known."""
    if scale in packed or scale not in TOKENS:
        return scale if scale in packed else None
    apart = {own: abs(math.log(TOKENS[own] / TOKENS[scale])) for own in packed if own in TOKENS}
    return min(apart, key=apart.__getitem__, default=None)


class PlannedClaim(NamedTuple):
    """What a claim will compare."""

    score: str
    num_pairs: int
    region: Region | None = None


def describe(claims: Iterable[PlannedClaim], spec: StudySpec, num_rows: int) -> list[str]:
    """Returns for each kind of claim what its seeds will probably show, one line each.

    Another scale than a packed one has the numbers of the nearest, named so.
    """
    lines, scale, num_seeds = [], spec.scale, spec.seeds
    for claim, count in collections.Counter(claims).items():
        name = f"{title_of(claim.score)}" + (f" ({count} tests)" if count > 1 else "")
        there = sorted({at for at, score in load() if score == claim.score})
        near = _find_nearest(scale, there)
        if near is None:
            lines.append(
                f"power, {name}: not known at scale {scale}"
                + ("; measured at " + ", ".join(there) if there else "; no packed study has it")
            )
            continue
        spread = load()[near, claim.score]
        at = "" if near == scale else f"at scale {near}, the nearest to {scale} that is packed: "
        find = functools.partial(
            find_detectable, spread, num_rows=num_rows, num_pairs=claim.num_pairs
        )
        least = find(max(2, num_seeds))
        target = least / 2
        wanted = "half of that"
        if claim.region is not None and 0 < claim.region.high < math.inf:
            target = claim.region.high
            wanted = f"the margin of {_show(target, claim.score)}"
        needed = next((k for k in range(2, MOST_SEEDS) if find(k) <= target), None)
        wanted += f" needs {needed or f'more than {MOST_SEEDS}'} seeds"
        shown = f"{max(2, num_seeds)} seeds will probably show {_show(least, claim.score)}"
        lines.append(
            f"power, {name}: {'one seed gives no interval, ' * (num_seeds < 2)}{shown}; {wanted}"
            f" ({at}spread of {spread.rows} rows x {spread.seeds} seeds of {spread.study})"
        )
    if lines:
        lines.append("Power: 80%, two-sided test at 5%, before the correction for several tests.")
    return lines
