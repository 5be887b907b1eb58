"""Verdicts from counts alone."""

import pytest

from scalelab.lab.compare.claims import ALL, ANY
from scalelab.thesis import counts
from scalelab.thesis.counts import MOST, Case


@pytest.mark.parametrize(("needs", "cases", "verdict"), [
    (ALL, [1, 1], "confirmed"), (ALL, [0, 0, 0], "refuted"), (ALL, [1, 0, 1], "undecided"),
    (ALL, [1], "undecided"),
    (MOST, [1, 0, 1], "confirmed"), (MOST, [1, 0], "undecided"), (MOST, [0, 0, 1], "refuted"),
    (MOST, [1], "undecided"),
    (ANY, [1, 0, 1, 0, 0], "confirmed"), (ANY, [1, 0, 0], "undecided"),
    (ANY, [0, 0], "refuted"),
])  # fmt: skip
def test_counts(needs: str, cases, verdict: str) -> None:
    own = tuple(Case("c", bool(x)) for x in cases)
    made = counts.Counted("1a", "s", "r", (), needs, cases=own)
    found, why = counts.decide(made)
    assert found == verdict
    assert made.counted == f"holds in {sum(cases)} of {len(cases)}" and made.counted in why
