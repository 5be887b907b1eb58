"""Claims: regions by hand and against t-tests; verdicts; Holm's correction over a report."""

import dataclasses

import numpy as np
import pytest
import scipy.stats

from scalelab.lab.compare import bootstrap, claims, estimates
from scalelab.lab.compare.claims import ABOVE, ANY, BELOW, Finding, Region

WITHIN, OUTSIDE = Region(-2.0, 2.0), Region(-2.0, 2.0, outside=True)


def make(numbers, region=ABOVE, what="x", untestable="") -> claims.Claim:
    found = estimates.student(list(numbers))
    return claims.claim(what, region, found, claims.Treatment(untestable))


def finding(*made, name="1a", **fields) -> Finding:
    return Finding(name, "s", "r", tuple(made), **fields)


def test_where_regions_begin() -> None:
    assert [ABOVE.holds(x) for x in (-1, 0, 1)] == [False, False, True]
    assert [BELOW.holds(x) for x in (-1, 0, 1)] == [True, False, False]
    assert [WITHIN.holds(x) for x in (-3, -2, 0, 3)] == [False, False, True, False]
    assert [OUTSIDE.holds(x) for x in (-3, -2, 0, 3)] == [True, True, False, True]
    assert [r.describe(1) for r in (ABOVE, BELOW, WITHIN, OUTSIDE)] == [
        "above 0", "below 0", "within -2 to 2", "outside -2 to 2",
    ]  # fmt: skip


def test_p_values_are_those_of_t_tests() -> None:
    x = [0.2, 1.4, 0.9, 2.1, 0.4]
    two_sided = scipy.stats.ttest_1samp(x, 0).pvalue
    found = make(x)
    assert found.p_for == pytest.approx(two_sided, abs=0.002) == found.p_value
    assert found.p_against == 1.0
    assert make(x, BELOW).p_against == pytest.approx(two_sided, abs=0.002)
    least, most = (scipy.stats.ttest_1samp(x, m, alternative=side).pvalue
                   for m, side in ((-2, "greater"), (2, "less")))  # fmt: skip
    assert make(x, WITHIN).p_for == pytest.approx(2 * max(least, most), abs=0.002)
    far = np.array(x) + 3
    beyond = scipy.stats.ttest_1samp(far, 2, alternative="greater").pvalue
    assert make(far, WITHIN).p_against == pytest.approx(2 * beyond, abs=0.002)
    assert make(far, OUTSIDE).p_for == make(far, WITHIN).p_against


@pytest.mark.parametrize("shift", [-1.2, 0.0, 0.7, 1.1])
def test_equivalence_is_an_interval_inside_the_margin(shift: float) -> None:
    found = make(np.array([-0.8, 0.3, 0.1, 0.6, -0.2]) + shift, WITHIN)
    inside = -2 < found.estimate.low and found.estimate.high < 2
    assert (found.p_for < 0.05) == inside


def test_verdicts_and_the_correction() -> None:
    """Three claims of p 0.01 to 0.03: Holm's 0.03 to 0.04; a shared claim counts once."""
    good, weak, noisy = (
        make([1.0, 1.1, 0.9, 1.0]),
        make([0.4, 1.4, 1.2], what="y"),
        make([-2, 3.0], what="z"),
    )
    found = claims.decide([finding(good), finding(good, weak, name="1b"), finding(noisy, name="2")])
    p = [c.p_value for c in (good, weak, noisy)]
    corrected = estimates.holm(p)
    assert found[0].claims[0].corrected == found[1].claims[0].corrected == corrected[0]
    assert found[1].claims[1].corrected == corrected[1] > p[1]
    assert [f.verdict for f in found] == ["confirmed", "undecided", "undecided"]
    assert found[1].why.startswith("y, undecided: 1 [")
    single = claims.decide([finding(good)])[0]
    assert single.claims[0].corrected == good.p_value


def test_what_is_undecided_says_what_is_excluded() -> None:
    found = estimates.student([0.02, -0.07, -0.05, 0.01])
    made = dataclasses.replace(claims.claim("a > b, QNLI", ABOVE, found), scale=100.0, score="QNLI")
    (alone,) = claims.decide([finding(made)])
    low, high = (100 * x for x in (found.low, found.high))
    assert alone.why == (
        f"a > b, QNLI, undecided: -2.25 points [{low:.3g}, {high:.3g}]"
        f" (p = {made.p_value:.2g}); differences above {-low:.3g} points are excluded;"
        f" a difference above {(high - low) / 2:.3g} points is decided"
    )
    others = [dataclasses.replace(made, what=str(k)) for k in range(2)]
    (first, *_) = claims.decide([finding(made, *others)])[0].claims
    assert "p = 1, adjusted for 3 tests" in first.statement
    assert f"above {max(map(abs, first.ends)) * 100:.3g} points" in first.statement
    loss = dataclasses.replace(made, scale=1.0, score="validation loss")
    assert "-0.0225 nats [" in claims.decide([finding(loss)])[0].why
    wide = dataclasses.replace(made, estimate=estimates.student([0.6, -0.5]))
    assert wide.words == "undecided (tells nothing)" and "excluded" not in wide.statement


@pytest.mark.parametrize(("region", "words"), [
    (Region(-0.01, 0.01), "equivalent within 1 point"),
    (Region(-0.02, 0.02), "equivalent within 2 points"),
    (Region(-0.02, 0.03), "confirmed"), (ABOVE, "confirmed"),
])  # fmt: skip
def test_a_confirmed_equivalence_is_called_so(region: Region, words: str) -> None:
    made = make([0.001, 0.0012, 0.0011, 0.0009], region)
    made = dataclasses.replace(made, scale=100.0, score="QNLI")
    (found,) = claims.decide([finding(made)])
    assert found.verdict == "confirmed" and found.claims[0].words == words
    assert found.claims[0].statement.startswith(f"{words}: 0.105 points [")


def test_all_or_any() -> None:
    good, bad, open_ = (
        make([1.0, 1.1, 0.9, 1.0]),
        make([-1.0, -1.1, -0.9], what="y"),
        make([-2, 3.0], what="z"),
    )

    def verdict(*made, **fields) -> str:
        return claims.decide([finding(*made, **fields)])[0].verdict

    assert verdict(good) == "confirmed" and verdict(bad) == "refuted"
    assert verdict(good, bad) == "refuted" and verdict(good, open_) == "undecided"
    assert verdict(good, bad, needs=ANY) == "confirmed"
    assert verdict(bad, open_, needs=ANY) == "undecided"
    assert verdict(bad, needs=ANY) == "refuted"
    assert verdict() == "undecided"


def test_what_cannot_be_compared_says_so() -> None:
    missing = claims.claim("x", ABOVE, "no MNLI")
    single = claims.claim("y", ABOVE, estimates.student([2.0]))
    (found,) = claims.decide([finding(missing, single, make([1.0, 1.1, 0.9, 1.0], what="z"))])
    assert found.verdict == "undecided"
    assert found.why == f"x, undecided: no MNLI; y, undecided: {estimates.SINGLE_SEED}"
    assert found.claims[0].corrected is None


def test_an_interval_holds_the_border_if_its_claim_is_undecided() -> None:
    """Of twelve claims with effects from 0 to 5 errors: of some, the 95% interval would not."""
    made = [make(np.array([-0.5, 0.1, 0.4, 0.0, 0.3]) + k / 4, what=f"x{k}") for k in range(12)]
    found = claims.decide([finding(claim) for claim in made])
    decided = [f.verdict != "undecided" for f in found]
    assert [not c.ends[0] <= 0 <= c.ends[1] for f in found for c in f.claims] == decided
    before = [not c.estimate.low <= 0 <= c.estimate.high for c in made]
    assert 0 < sum(decided) < sum(before) < len(made)


def test_the_correction_widens_intervals() -> None:
    """Also where it takes p to 1: four claims near 0, by Bonferroni; one claim keeps its own."""
    numbers = np.array([-0.5, 0.1, 0.4, 0.0, 0.3])
    made = [make(numbers + k / 100, what=f"x{k}") for k in range(4)]
    (found,) = claims.decide([finding(*made)])
    assert {claim.corrected for claim in found.claims} == {1.0}
    four, one = scipy.stats.t.ppf([1 - 0.025 / 4, 1 - 0.025], 4)
    for claim, plain in zip(found.claims, made, strict=True):
        width = claim.ends[1] - claim.ends[0]
        wider = width / (plain.estimate.high - plain.estimate.low)
        assert wider == pytest.approx(four / one, rel=0.05)
    (alone,) = claims.decide([finding(made[3])])
    assert alone.claims[0].ends == (made[3].estimate.low, made[3].estimate.high)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("factor", [1, 3, 8, 10])
@pytest.mark.parametrize("region", [ABOVE, Region(-5e3, 0.0), Region(-5e3, 0.0, outside=True)])
def test_intervals_and_verdicts_agree_at_every_count(
    region: Region, factor: int, sign: int
) -> None:
    """2,000 resamples, of which 0 to 60 lie beyond 0; `factor` is Holm's."""
    made = make([1.0, 1.1, 0.9, 1.0])
    for beyond in range(60):
        resamples = sign * np.where(np.arange(2000) < beyond, -1.0, 1.0 + np.arange(2000))
        found = dataclasses.replace(made.estimate, resamples=resamples)
        one = claims.claim("x", region, found)
        corrected = min(1.0, factor * one.p_value)
        one = dataclasses.replace(one, corrected=corrected, num_tested=factor)
        low, high = one.ends
        assert (low <= 0 <= high) == (one.verdict == "undecided"), (beyond, one.ends)


@pytest.mark.parametrize(("num", "many"), [(50, False), (51, True)])
def test_of_many_claims_even_the_surest_is_undecided_and_says_why(num: int, many: bool) -> None:
    """The least p of 2,000 resamples is 2 / 2001; 51 times that is above 5%."""
    sure = [make([1.0, 1.0, 1.0], what=f"x{i}") for i in range(num)]
    assert sure[0].p_value == 2 / 2001
    found = claims.decide([finding(c) for c in sure])
    assert {f.verdict for f in found} == {"undecided" if many else "confirmed"}
    assert ("no p below 0.001" in found[0].why) == many
    assert (f"{num} tests" in found[0].why) == many
    unsure = claims.decide([*map(finding, sure), finding(make([-2, 3.0], what="z"))])[-1]
    assert "no p below" not in unsure.why


@pytest.mark.slow
def test_max_t_over_two_seeds_decides_too_much_and_holm_does_not(monkeypatch) -> None:
    """Five arms against a first one, all alike, as in docs/statistics.md."""
    monkeypatch.setattr(estimates, "GRID", 2000)
    rng, wrong = np.random.default_rng(0), []
    for _ in range(300):
        table = [dict(enumerate(row)) for row in rng.normal(size=(6, 2)) + rng.normal(size=2)]
        rows = [(str(k), row) for k, row in enumerate(table)]
        draws = bootstrap.draw_seeds(rng, 2000, 2, 1).sum(axis=2)
        made = [
            estimates.contrast_numbers(
                [1.0, -1.0], [rows[k], rows[0], *rows[1:k], *rows[k + 1 :]], (0, 1), draws=draws
            )
            for k in range(1, 6)
        ]
        found = claims.decide([finding(claims.claim(str(k), ABOVE, x)) for k, x in enumerate(made)])
        t = [np.abs(x.resamples - x.value) / x.standard_error for x in made]
        largest = max(abs(x.value) / x.standard_error for x in made)
        by_holm = any(f.verdict != claims.UNDECIDED for f in found)
        wrong.append((by_holm, largest > np.quantile(np.max(t, axis=0), 0.95)))
    holm, max_t = np.mean(wrong, axis=0)
    assert holm < 0.06 < max_t


def test_no_difference_at_all_is_no_difference() -> None:
    """Such as CoLA, where all small models predict one class: neither above 0 nor below."""
    found = make([0.0, 0.0, 0.0])
    assert (found.p_for, found.p_against) == (1.0, 1.0)
    assert make([0.0, 0.0, 0.0], WITHIN).p_for < 0.01


def test_a_claim_whose_treatment_did_not_take_is_no_test() -> None:
    """However sure the numbers: it is never refuted, and enters no correction."""
    sure, other = [-1.0, -1.1, -0.9, -1.0], make([1.0, 1.1, 0.9, 1.0], what="y")
    off = make(sure, untestable="NSP at chance")
    assert (off.p_value, off.verdict) == (None, claims.NOT_TESTABLE)
    (single,) = claims.decide([finding(off)])
    assert (single.verdict, single.why) == (claims.NOT_TESTABLE, "NSP at chance")
    (mixed,) = claims.decide([finding(off, other)])
    assert mixed.verdict == claims.NOT_TESTABLE
    assert mixed.claims[1].corrected == other.p_value
    (refuted,) = claims.decide([finding(off, make(sure, what="z"))])  # by a claim that is a test
    assert refuted.verdict == "refuted"
