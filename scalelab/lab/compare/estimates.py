"""Estimates with intervals, Student's interval over seeds, and the correction of several claims.

A contrast is a weighted sum of rows, such as the mean over shapes of one system minus another. It
is computed within each pre-training seed first, and varies over seeds. Rows of one format and
tokenizer share what a seed draws (docs/statistics.md): the effect of the draws on all rows stays in
the interval, and their effect on both sides of a difference cancels. If the sides of a difference
share nothing, both effects stay in the difference and vary over seeds.

Two seeds of one row say little about how much seeds vary, so all rows of a study estimate it
together (`pooled_variances`).
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import scipy.special
import scipy.stats

LEVEL = 0.95  # level of intervals; a test's is 1 - LEVEL
UPPER = 1 - (1 - LEVEL) / 2
POWER = 0.8  # with which the smallest detectable difference is found
ROUNDING = 1e-12  # equal resamples may differ by this much
NUM_QUANTILES = 2000  # resamples of Student's distribution
GRID = 20_000  # quantiles of each term of a sum of Student's
SINGLE_SEED = "a single pre-training seed: how much another would differ is unknown"


@dataclasses.dataclass(frozen=True, eq=False)
class Estimate:
    """A score, or a weighted sum of scores, with its uncertainty."""

    value: float  # estimate from the runs and examples at hand
    low: float  # lower end of the 95% interval; NaN if there is none, such as if nothing varies
    high: float  # its upper end
    standard_error: float  # standard error of `value`
    # Satterthwaite's degrees of freedom of the standard error; infinite if that is 0.
    degrees: float
    # [R] resampled values, which widening may move out of the metric's range.
    resamples: np.ndarray
    # Least and greatest possible value, to which the interval is cut.
    bounds: tuple[float, float] = (-math.inf, math.inf)

    @property
    def detectable(self) -> float | None:
        """The smallest true value that a two-sided test at 5% tells from 0 with power 80%.

        (t_0.975 + t_0.8) standard errors (Cohen 1988, "Statistical Power Analysis"). None if the
        resamples do not vary, as when every run predicts one class: that says nothing about
        runs that have learned something.
        """
        if self.standard_error < ROUNDING:
            return None
        return detectable(self.standard_error, self.degrees)


def detectable(standard_error: float, degrees: float) -> float:
    """Returns the smallest true value that a test at 5% finds with power 80% (Bloom 1995)."""
    quantiles = scipy.stats.t.ppf([UPPER, POWER], degrees)
    return float(quantiles.sum() * standard_error)


def without_interval(value: float) -> Estimate:
    """An estimate with only a value: the other fields are NaN, without resamples."""
    return Estimate(value, math.nan, math.nan, math.nan, math.nan, np.empty(0))


def show_interval(low: float, high: float, spec: str) -> str:
    """Formats an interval, such as "[0.94, 1.00]"; "-" if an end is NaN."""
    return "-" if math.isnan(low) or math.isnan(high) else f"[{low:{spec}}, {high:{spec}}]"


def with_bars(scores: Sequence[Estimate], scale: int = 100) -> tuple[list[float], np.ndarray]:
    """Returns values, and [2, n] lengths of their error bars (NaN: no interval), times `scale`."""
    ends = [[e.value - e.low for e in scores], [e.high - e.value for e in scores]]
    return [scale * e.value for e in scores], scale * np.array(ends).clip(0)


def wilson(groups: Sequence[tuple[float, int]]) -> tuple[float, float]:
    """Returns the 95% interval of a mean of proportions, each with its number of items.

    For one group it is Wilson's interval (Wilson 1927). For several it is a normal interval around
    their mean, with equal weights. The variance of each group comes from its Wilson interval, so
    that a group with all answers right still has a variance.
    """
    z = float(scipy.special.ndtri(UPPER))
    centers, squares = [], []
    for share, num in groups:
        scale = 1 + z**2 / num
        centers.append((share + z**2 / (2 * num)) / scale)
        squares.append((share * (1 - share) / num + z**2 / (4 * num**2)) / scale**2)
    many = len(groups) > 1
    center = sum(share for share, _ in groups) / len(groups) if many else centers[0]
    half = z * math.sqrt(sum(squares)) / len(groups)
    share = sum(share for share, _ in groups) / len(groups)  # at a border, rounding may miss it
    return max(0.0, min(share, center - half)), min(1.0, max(share, center + half))


def student(numbers: Sequence[float], order: np.ndarray | None = None) -> Estimate:
    """Estimates the mean of independent numbers with Student's interval (Student 1908).

    The resamples are quantiles of Student's distribution about the mean. A single number has no
    interval.

    Args:
      numbers: [P].
      order: [R], whose order the resamples get; None: a random one.
    """
    value, num = float(np.mean(numbers)), len(numbers)
    if num < 2:
        return without_interval(value)
    if order is None:
        order = np.random.default_rng(0).permutation(NUM_QUANTILES)
    error = float(np.std(numbers, ddof=1)) / math.sqrt(num)
    return student_resamples(order, value, [(error, num - 1.0)])


def with_choice(plain: Estimate, resamples: np.ndarray) -> Estimate:
    """Returns an estimate of rows that a score has chosen, with the choice in its uncertainty.

    Resamples of the best of several rows lean to the better side, by as much again as the value at
    hand does (the bias of a bootstrapped minimum), so they alone confirm too often. At each level
    the wider of the two distributions counts.

    Args:
      plain: the estimate of the rows that all seeds choose.
      resamples: [R] values of the rows that each resample chooses.
    """
    alone, mixed = np.sort(plain.resamples), np.sort(resamples)
    is_low = np.arange(len(mixed)) < len(mixed) / 2
    ends = np.where(is_low, np.minimum(alone, mixed), np.maximum(alone, mixed))
    order = np.argsort(np.argsort(resamples, kind="stable"), kind="stable")
    low, high = np.clip(np.quantile(ends, [1 - UPPER, UPPER]), *plain.bounds)
    error = plain.standard_error
    if plain.high > plain.low:
        low, high = min(low, plain.low), max(high, plain.high)
        error *= float((high - low) / (plain.high - plain.low))
    return dataclasses.replace(
        plain, low=float(low), high=float(high), standard_error=error, resamples=ends[order]
    )


def student_resamples(
    resamples: np.ndarray,
    value: float,
    terms: Sequence[tuple[float, float]],
    limits: tuple[float, float] = (-math.inf, math.inf),
) -> Estimate:
    """Makes an estimate that keeps the order of resamples [R] and takes Student's distributions.

    The error of the value is a sum of independent terms, each Student's t times its standard error
    (the fiducial distribution of Behrens and Fisher). This holds with very few seeds, where one
    Student's distribution with Satterthwaite's degrees of freedom is too narrow.

    Args:
      resamples: only their order is used.
      value: the center.
      terms: standard errors, and their degrees of freedom.
      limits: least and greatest possible value.
    """
    terms = [(error, degrees) for error, degrees in terms if error > ROUNDING]
    num = len(resamples)
    if not terms or np.ptp(resamples) < ROUNDING:
        none = math.nan, math.nan
        return Estimate(value, *none, 0.0, math.inf, np.full(num, value), limits)
    order = np.argsort(np.argsort(resamples, kind="stable"), kind="stable")
    levels = np.append((np.arange(num) + 0.5) / num, UPPER)
    if len(terms) == 1:  # exact
        error, degrees = terms[0]
        quantiles = error * scipy.special.stdtrit(min(degrees, 1e9), levels)
    else:
        rng = np.random.default_rng(0)
        shares = (np.arange(GRID) + 0.5) / GRID
        total = sum(
            error * rng.permutation(scipy.special.stdtrit(min(degrees, 1e9), shares))
            for error, degrees in terms
        )
        quantiles = np.quantile(np.concatenate([total, -total]), levels)
        error, degrees = satterthwaite([(error**2, degrees) for error, degrees in terms])
    moved, reach = value + quantiles[:-1][order], float(quantiles[-1])
    low, high = np.clip((value - reach, value + reach), *limits)
    return Estimate(value, float(low), float(high), error, degrees, moved, limits)


def pooled_variances(
    table: Iterable[tuple[str, npt.ArrayLike]], parts: Sequence[tuple[str, float]]
) -> list[tuple[float, float]]:
    """Returns the variance from seeds of a row or a difference, estimated on all rows of a study.

    Analysis of variance (Fisher 1935, "The Design of Experiments", randomized blocks; Yates 1934,
    JASA 29, unweighted means of groups): number = row + seed + seed in the row's group + rest. The
    rest has one variance for all rows. A group is a system in all its shapes. The effect of a seed
    on all rows cancels in a difference; its effect on a group cancels within the group. Rows with
    equal numbers for all seeds, such as constant answers, are left out. Each row is a group if the
    rest would have fewer degrees than the groups, as where most systems have one shape.

    Sums of more than two rows, such as a mean over the shapes of one system, are not pooled.

    Args:
      table: group and numbers [S] of each row of a study, of S pre-training seeds.
      parts: group and weight of the one or two rows in the sum.

    Returns:
      Independent terms (variance, degrees of freedom) for the three effects of seeds; [] if there
      are no more rows than parts, or more than two parts.
    """
    varying = [(group, row) for group, row in table if np.ptp(row) > ROUNDING]
    if len(parts) > 2 or len(varying) <= len(parts):
        return []
    rows = np.array([row for _, row in varying], np.float64)
    names = [group for group, _ in varying]
    if len(rows) < 2 * len(set(names)) - 1:
        names = [str(place) for place in range(len(rows))]
        parts = [(str(place), weight) for place, (_, weight) in enumerate(parts)]
    groups = [[own == name for own in names] for name in dict.fromkeys(names)]
    means = np.array([rows[own].mean(axis=0) for own in groups])  # [groups, S]
    num_groups, num_seeds = means.shape
    size = num_groups / sum(1 / sum(own) for own in groups)  # harmonic mean
    weights = {group: sum(w for own, w in parts if own == group) for group, _ in parts}
    # Factors of the variance of one row, summed down to each effect.
    of_all = sum(weights.values()) ** 2 / (size * num_groups)
    of_groups = sum(w * w for w in weights.values()) / size if num_groups > 1 else of_all
    of_rows = sum(w * w for _, w in parts)
    by_group = size * (interaction(means) ** 2).sum()
    rest = sum((interaction(rows[own]) ** 2).sum() for own in groups)
    terms = [(of_all, size * num_groups * means.mean(axis=0).var(ddof=1), num_seeds - 1)]
    for factor, squares, spare in (
        (of_groups - of_all, by_group, num_groups - 1),
        (max(0.0, of_rows - of_groups), rest, len(rows) - num_groups),
    ):
        if spare:
            degrees = spare * (num_seeds - 1)
            terms.append((factor, squares / degrees, degrees))
    return [(float(factor * square / num_seeds), float(n)) for factor, square, n in terms]


def interaction(table: np.ndarray) -> np.ndarray:
    """Returns a table [R, S] without the effects of its rows and its columns."""
    by_row, by_column = table.mean(axis=1, keepdims=True), table.mean(axis=0)
    return table - by_row - by_column + table.mean()


def contrast_numbers(
    weights: Sequence[float],
    table: Sequence[tuple[str, Mapping[int, float]]],
    seeds: Sequence[int],
    *,
    seed: int = 0,
    draws: np.ndarray | None = None,
) -> Estimate:
    """Estimates a weighted sum of rows, each with one number a pre-training seed, such as a loss.

    Args:
      weights: of the first rows of the table.
      table: group, and seed -> number, of these and of further rows; for `pooled_variances`.
      seeds: the P seeds to use, which the first rows have.
      seed: of the order of the resamples.
      draws: weights [R, P] of the seeds in each resample, which give the order instead.

    Returns:
      Student's interval, at least as wide as the interval of the weighted rows alone.
    """
    first = list(zip(weights, table, strict=False))
    sums = [sum(weight * numbers[s] for weight, (_, numbers) in first) for s in seeds]
    order = np.random.default_rng(seed).permutation(NUM_QUANTILES)
    order = order if draws is None else draws @ np.array(sums)
    own = student(sums, order)
    whole = [(name, [x[s] for s in seeds]) for name, x in table if set(seeds) <= set(x)]
    variances = pooled_variances(whole, [(name, weight) for weight, (name, _) in first])
    if len(seeds) < 2 or not variances:
        return own
    error, _ = satterthwaite(variances)
    scale = max(1.0, own.standard_error / error) if error > 0 else 1.0
    terms = [(scale * math.sqrt(v), freedom) for v, freedom in variances]
    return student_resamples(order, own.value, terms)


def satterthwaite(variances: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Returns standard error and degrees of a sum of terms (variance, degrees of freedom).

    Satterthwaite 1946 (Biometrics Bull. 2).
    """
    total = sum(v for v, _ in variances)
    if total == 0:
        return 0.0, math.inf
    return math.sqrt(total), total**2 / sum(v**2 / d for v, d in variances if v > 0)


def holm(p_values: Sequence[float]) -> list[float]:
    """Corrects the p-values of several claims (Holm 1979, Scand. J. Stat. 6), in the same order.

    A claim whose corrected p is below 5% stands; the chance that any standing claim is wrong is
    then at most 5%.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    p = np.asarray(p_values, np.float64)
    order = np.argsort(p, kind="stable")
    grown = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    corrected = np.empty_like(p)
    corrected[order] = np.minimum(grown, 1.0)
    return corrected.tolist()
