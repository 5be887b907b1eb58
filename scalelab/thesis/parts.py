"""What the statements of hypotheses.py are made of: contrasts, with words for what is missing."""

from collections.abc import Mapping, Sequence

from scalelab.lab.compare import claims
from scalelab.lab.compare.claims import ALL, Case, Claim, Finding, Region
from scalelab.lab.evidence.evidence import LARGE, Evidence
from scalelab.thesis.select import Row

MARGIN = 0.02  # of a score: about what a doubling of N brings at the upper end of Table 7.3
SIMILAR = Region(-MARGIN, MARGIN)
DIMENSIONS = {"width": "width", "depth": "num_layers"}  # of a shape, in words and as fields
TITLES = {"large": "GLUE-Large", "loss": "validation loss", "seconds": "seconds of pre-training"}

Blocks = Sequence[Mapping[Row, float]]


def value(evidence: Evidence, row: Row, score: str) -> float | None:
    """A score, without its interval."""
    found = evidence.value(row, score)
    return None if found is None else found.value


def all_values(evidence: Evidence, block: Mapping[Row, float], score: str) -> float | None:
    """The weighted sum of a block's scores; None if one is missing."""
    found = [(weight, value(evidence, row, score)) for row, weight in block.items()]
    values = [weight * x for weight, x in found if x is not None]
    return sum(values) if len(values) == len(found) else None


def compare(
    evidence: Evidence, what: str, region: Region, blocks: Blocks, score: str, missing: str
) -> Claim:
    """The claim that the mean over blocks lies in a region.

    Args:
      evidence: whose scores.
      what: what is compared, in words.
      region: of the claim.
      blocks: weights of rows; those that lack a score are left out, and counted.
      score: of what.
      missing: why there may be no block.
    """
    title = TITLES.get(score, score)
    usable = [b for b in blocks if all_values(evidence, b, score) is not None]
    label = f"{what}, {title}, mean of {len(usable)}" if len(usable) > 1 else f"{what}, {title}"
    if len(usable) < len(blocks):
        label += f" ({len(blocks) - len(usable)} without)"
    if not blocks:
        return claims.claim(label, region, f"{missing} in this study")
    if not usable:
        return claims.claim(label, region, _missing_score(evidence, score))
    found = evidence.contrast(usable, score)
    reason = f"{title} of these rows does not compare, see the notes"
    return claims.claim(label, region, reason if found is None else found)


def block_cases(
    evidence: Evidence, blocks: Blocks, region: Region, score: str, name: str = ""
) -> list[Case]:
    """One case a block that has its scores: whether its value lies in the region."""
    cases = []
    for block in blocks:
        found = all_values(evidence, block, score)
        rows = list(block)
        label = f"{rows[0].system} {name}" if name else " against ".join(r.label for r in rows)
        if found is not None:
            cases.append(Case(label, region.holds(found)))
    return cases


def make_finding(
    evidence: Evidence,
    name: str,
    statement: str,
    rule: str,
    made: Sequence[Claim],
    cases: Sequence[Case],
    score: str,
    *,
    needs: str = ALL,
) -> Finding:
    """A finding without verdict, with what must be said of its score."""
    remarks = tuple(evidence.remarks(score))
    return Finding(name, statement, rule, tuple(made), tuple(cases), needs=needs, remarks=remarks)


def _missing_score(evidence: Evidence, score: str) -> str:
    """Which score a study lacks; of GLUE-Large, which of its parts."""
    if score == "large":
        absent = [
            part for part in LARGE
            if not any(value(evidence, row, part) is not None for row in evidence.rows)
        ]  # fmt: skip
        if absent:
            return f"no {', '.join(absent)} in this study"
    return f"no {TITLES.get(score, score)} of these rows in this study"
