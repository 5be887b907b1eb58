"""Claims about true values, and findings that rest on them.

A claim says that a number, such as a difference of scores, lies in a region: above 0, or within 2
points. Its test is two-sided at 5%, from the resamples of an estimate: for the claim, that the
number is not outside the region; against it, that it is not inside. Within a margin this is the two
one-sided tests of Schuirmann 1987 (J. Pharmacokinet. Biopharm. 15:657), at 2.5% each, so that the
95% interval must lie inside the margin. Holm's correction is over all claims of a report.

A verdict first asks whether the rows have learned what the claim rests on (learned.py). A
claim on rows that have not is neither tested nor counted in the correction. A finding that such
claims leave open is NOT_TESTABLE, whatever the numbers are.

The interval of a claim (`Claim.ends`) has the level of its corrected test, so that it agrees with
the verdict. Where the corrected p is 1, the level is Bonferroni's. Claims that are not tested have
the 95% interval.

R resamples give no p below 2 / (R + 1): with the lab's 2,000 that is 0.001, which Holm's correction
for more than 50 claims takes above 5%. Where that leaves a claim undecided, the finding says so.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from scalelab.lab.compare import estimates
from scalelab.lab.compare.estimates import LEVEL, ROUNDING, Estimate

CONFIRMED, REFUTED, UNDECIDED = "confirmed", "refuted", "undecided"
DECIDED = (CONFIRMED, REFUTED)
NOT_TESTABLE = "not testable at this scale"
ALL, ANY = "all", "any"  # how many claims of a hypothesis must hold


@dataclasses.dataclass(frozen=True)
class Region:
    """An interval in which a number is claimed to lie."""

    low: float  # its lower end, which is outside
    high: float  # its upper end, likewise
    outside: bool = False  # whether the number is claimed to lie outside of [low, high] instead

    def holds(self, value: float) -> bool:
        """Whether a value lies there."""
        return (self.low < value < self.high) != self.outside

    def p_values(self, resamples: np.ndarray) -> tuple[float, float]:
        """Two-sided p-values for and against the claim, from resamples [R].

        Twice the share of resamples on the other side (Sellam et al. 2022 have the one-sided
        share), with the value at hand as one of them, so it is never 0.
        A resample on the border, within rounding, counts against both, so that a difference of
        exactly 0 decides nothing.
        """
        total = len(resamples) + 1
        low, high = self.low, self.high
        beyond = [(resamples <= low + ROUNDING).sum(), (resamples >= high - ROUNDING).sum()]
        out = min(1.0, 2 * float(max(beyond) + 1) / total)
        within = [(resamples >= low - ROUNDING).sum(), (resamples <= high + ROUNDING).sum()]
        off = min(1.0, 2 * float(min(within) + 1) / total)
        return (off, out) if self.outside else (out, off)

    def describe(self, scale: float) -> str:
        """Describes the region in another unit: both ends times `scale`."""
        low, high = scale * self.low + 0.0, scale * self.high + 0.0  # -0.0 would print a sign
        if math.isinf(high):
            return f"above {low:g}"
        if math.isinf(low):
            return f"below {high:g}"
        return f"{'outside' if self.outside else 'within'} {low:g} to {high:g}"


DIRECTIONS = ABOVE, BELOW = Region(0.0, math.inf), Region(-math.inf, 0.0)
# Title of a score -> the unit of its differences, where these are no points.
UNITS = {
    "validation loss": "nats", "bits per byte": "bits per byte",
    "seconds of pre-training": "seconds",
}  # fmt: skip


class Treatment(NamedTuple):
    """What the checks of the rows of a claim found; see learned.py."""

    untestable: str = ""  # why the rows can test nothing; "": they can
    unchecked: str = ""  # the checks that lacked a number; "": none
    remark: str = ""  # an objective that failed, on which the claim does not rest; "": none


PASSED = Treatment()


def with_unit(value: float, unit: str) -> str:
    """Returns a number with its unit: "5.3 points", "1 point"."""
    return f"{value:.3g} {unit.removesuffix('s') if value == 1 else unit}".rstrip()


@dataclasses.dataclass(frozen=True, eq=False)
class Claim:
    """A comparison, and the region in which it is claimed to lie."""

    what: str  # the comparison, in words
    region: Region  # where its true value is claimed to lie
    effect: float | None  # its value at hand; None if it cannot be compared
    estimate: Estimate | None  # with its interval; None if it has none
    why: str  # the reason why there is no interval
    p_for: float | None = None  # uncorrected p-value for the claim; None without interval
    p_against: float | None = None  # likewise against it
    # The smaller of the two after Holm's correction; None before `decide`.
    corrected: float | None = None
    checks: Treatment = PASSED
    num_tested: int = 1  # claims that were corrected together
    scale: float = 1.0  # from its numbers to those of tables: 100 for scores
    compared: str = ""  # the comparison without its score: "bert minus gpt2"
    score: str = ""  # the title of its score
    chosen: str = ""  # the values that best() chose, in words
    weights: Mapping[Any, float] = dataclasses.field(default_factory=dict)  # rows that it compares

    @property
    def p_value(self) -> float | None:
        """The smaller of the two p-values; None without interval, or if nothing can be tested."""
        if self.p_for is None or self.p_against is None or self.checks.untestable:
            return None
        return min(self.p_for, self.p_against)

    @property
    def verdict(self) -> str:
        """CONFIRMED, REFUTED, UNDECIDED or NOT_TESTABLE."""
        if self.checks.untestable:
            return NOT_TESTABLE
        if self.corrected is None or self.corrected >= 1 - LEVEL:
            return UNDECIDED
        return CONFIRMED if self.p_for == self.p_value else REFUTED

    @property
    def words(self) -> str:
        """The verdict in words: "equivalent within 1 point" for a confirmed equivalence.

        An interval as wide as the scale of a score excludes nothing, and the words say so.
        """
        if self.verdict == UNDECIDED and self._is_wide:
            return f"{UNDECIDED} (tells nothing)"
        margin, alike = self.scale * self.region.high, self.region.low == -self.region.high
        if self.verdict != CONFIRMED or not alike or math.isinf(margin):
            return self.verdict
        return f"equivalent within {self._measure(margin)}"

    @property
    def _is_wide(self) -> bool:
        """Whether the interval is as wide as the scale of a score, 100 points."""
        low, high = (self.scale * end for end in self.ends)
        return high - low >= self.scale == 100

    def _measure(self, value: float) -> str:
        """Returns a number in the unit of tables with the unit: "5.3 points", "0.02 nats"."""
        return with_unit(value, UNITS.get(self.score, "points" if self.scale == 100 else ""))

    @property
    def statement(self) -> str:
        """The verdict with its numbers, what is excluded if it is undecided, or the reason."""
        if self.checks.untestable or self.effect is None or self.estimate is None:
            return f"{self.verdict}: {self.checks.untestable or self.why}"
        low, high = (self.scale * end for end in self.ends)
        text = f"{self.words}: {self._measure(self.scale * self.effect)}"
        text += f" {estimates.show_interval(low, high, '.3g')}" * (not math.isnan(low))
        if self.corrected is not None:
            num = f", adjusted for {self.num_tested} tests" * (self.num_tested > 1)
            text += f" (p = {self.corrected:.2g}{num})"
        if self.verdict != UNDECIDED:
            return text
        if not (math.isnan(low) or self._is_wide):
            most = self._measure(max(abs(low), abs(high)))
            text += f"; differences above {most} are excluded"
            if self.region in DIRECTIONS:
                text += f"; a difference above {self._measure((high - low) / 2)} is decided"
        return text + f"; {self.open}" * bool(self.open)

    @property
    def open(self) -> str:
        """The reason why no test could decide the claim; "" if one could, or if a check failed."""
        if self.p_value is None or self.estimate is None:
            return "" if self.checks.untestable else self.why
        num = len(self.estimate.resamples)
        if self.verdict != UNDECIDED or self.p_value > 2 / (num + 1):
            return ""
        return (
            f"{num:,} resamples give no p below {2 / (num + 1):.2g}, too large where"
            f" {self.num_tested} tests are corrected together: a study of fewer can decide this"
        )

    @property
    def ends(self) -> tuple[float, float]:
        """The interval at the level of the corrected test; NaN without one. See the module.

        It holds a border of the region where the claim is undecided, and only there. The p-value
        counts one resample more than the quantiles do, so that they may end just short of it.
        """
        found = self.estimate
        if found is None or math.isnan(found.low):
            return math.nan, math.nan
        if self.p_value is None or self.corrected is None:
            return found.low, found.high
        if self.num_tested == 1 and (self.verdict == UNDECIDED) == self._borders(
            found.low, found.high
        ):
            return found.low, found.high
        # Holm's factor. It cannot be read off a p-value that it took to 1: then Bonferroni's.
        factor = self.corrected / self.p_value if self.corrected < 1 else self.num_tested
        tail = (1 - LEVEL) / 2 / factor
        low, high = np.quantile(found.resamples, [tail, 1 - tail])
        if self.verdict == UNDECIDED and not self._borders(low, high):
            ordered = np.sort(found.resamples)
            place = max(0, math.ceil(tail * (len(ordered) + 1) - ROUNDING) - 2)
            low, high = ordered[place], ordered[-1 - place]
        low, high = np.clip([low, high], *found.bounds)
        return float(low), float(high)

    def _borders(self, low: float, high: float) -> bool:
        """Whether an interval holds a border of the region."""
        return any(low <= border <= high for border in (self.region.low, self.region.high))


@dataclasses.dataclass(frozen=True, eq=False)
class Finding:
    """A hypothesis, and the verdict of a study on it."""

    id: str  # such as "1a"
    text: str  # the hypothesis in words
    rule: str  # what makes it confirmed and what refuted, in words
    claims: tuple[Claim, ...]  # they decide the verdict
    needs: str = ALL  # ALL or ANY of its claims
    verdict: str = UNDECIDED  # CONFIRMED, REFUTED, UNDECIDED or NOT_TESTABLE
    why: str = ""  # the claims that it rests on, or why it is open
    remarks: tuple[str, ...] = ()  # further sentences


def claim(
    what: str, region: Region, found: Estimate | str, checks: Treatment = PASSED, **more: Any
) -> Claim:
    """Makes a claim.

    Args:
      what: the comparison in words.
      region: values for which the claim holds.
      found: the estimate, or the reason why there is none.
      checks: whether the treatment took place.
      **more: further fields of `Claim`.
    """
    if isinstance(found, str):
        return Claim(what, region, None, None, found, checks=checks, **more)
    if not len(found.resamples):
        return Claim(what, region, found.value, None, estimates.SINGLE_SEED, checks=checks, **more)
    p_values = region.p_values(found.resamples)
    return Claim(what, region, found.value, found, "", *p_values, checks=checks, **more)


def decide(findings: Sequence[Finding]) -> list[Finding]:
    """Corrects all claims of a report together; returns its findings with verdicts and reasons.

    A claim that two findings share (the same words and region) counts once.
    """
    tested = {(c.what, c.region): c.p_value for f in findings for c in f.claims}
    p_values = {key: p for key, p in tested.items() if p is not None}
    corrected = dict(zip(p_values, estimates.holm(list(p_values.values())), strict=True))
    decided = []
    for finding in findings:
        made = [(c, corrected.get((c.what, c.region))) for c in finding.claims]
        num = len(p_values)
        claims = tuple(dataclasses.replace(c, corrected=p, num_tested=num) for c, p in made)
        unchecked = (f"Not checked: {c.checks.unchecked}." for c in claims if c.checks.unchecked)
        remarks = tuple(dict.fromkeys((*finding.remarks, *unchecked)))
        finding = dataclasses.replace(finding, claims=claims, remarks=remarks)
        verdict, why = _by_claims(finding)
        decided.append(dataclasses.replace(finding, verdict=verdict, why=why))
    return decided


def _by_claims(finding: Finding) -> tuple[str, str]:
    """Returns the verdict that a finding's claims give, and why."""
    if_any, if_all = (CONFIRMED, REFUTED) if finding.needs == ANY else (REFUTED, CONFIRMED)
    by_any, by_all = ([c.what for c in finding.claims if c.verdict == v] for v in (if_any, if_all))
    if by_any:
        return if_any, "; ".join(by_any)
    if not finding.claims:
        return UNDECIDED, "nothing to compare"
    if len(by_all) == len(finding.claims):
        return if_all, "; ".join(by_all)
    reasons = (reason for c in finding.claims for reason in c.checks.untestable.split("; "))
    if untestable := list(filter(None, dict.fromkeys(reasons))):
        return NOT_TESTABLE, "; ".join(untestable)
    return UNDECIDED, "; ".join(
        f"{c.what}, {c.statement}" for c in finding.claims if c.verdict == UNDECIDED
    )
