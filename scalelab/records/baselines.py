"""Trivial baselines of objectives: which a validation beats, and the budget that would do."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import scipy.stats

# Metric, its trivial value (None: the unigram entropy; or a function of the validation's metrics),
# the margin and the predicted array (None: the text), as an objective declares them for
# config.objective_options.
Trivial = float | Callable[[Mapping[str, float]], float | None] | None
Baseline = Callable[[Mapping[str, object]], tuple[str, Trivial, float, str | None]]
MOST_TIMES = 30  # a longer extrapolation says nothing
UNIGRAM = "unigram_nats"  # result.json: entropy of the unigram distribution of the training text


def unigram_name(array: str | None) -> str:
    """Returns the metric name of an array's unigram entropy; None stands for the text."""
    return f"{array}_{UNIGRAM}" if array else UNIGRAM


class BaselineCheck(NamedTuple):
    """Whether an objective beats its trivial baseline."""

    objective: str
    failure: str = ""  # how it misses the baseline; "": it does not
    lacking: str = ""  # the number that is missing; "": none
    metric: str = ""  # the number that is compared, such as "mlm_loss"
    value: float = math.nan
    wanted: float = math.nan  # the value that passes


def check_baselines(
    objectives: Iterable[str],
    options: Mapping[str, object],
    metrics: Mapping[str, float],
    baselines: Mapping[str, Baseline],
    *,
    with_margin: bool = True,
) -> Iterator[BaselineCheck]:
    """Yields the check of each objective.

    Args:
      objectives: names in the sum, such as "mlm".
      options: config.objective_options.
      metrics: of a validation, such as "mlm_loss", and the unigram entropies.
      baselines: by objective.
      with_margin: whether to ask for the margin that an objective declares.
    """
    for objective in objectives:
        if objective not in baselines:
            lacking = f"the trivial baseline of the objective {objective!r}"
            yield BaselineCheck(objective, lacking=lacking)
            continue
        metric, trivial, margin, array = baselines[objective](options)
        metric, margin = f"{objective}_{metric}", margin if with_margin else 0.0
        name, lacking = "chance", f"the trivial {metric}"
        if trivial is None:
            name = "the unigram entropy" + f" of {array}" * bool(array)
            lacking = unigram_name(array)
            trivial = metrics.get(lacking)
        elif callable(trivial):
            trivial = trivial(metrics)
        value = metrics.get(metric)
        if value is None or trivial is None:
            yield BaselineCheck(objective, lacking=metric if value is None else lacking)
            continue
        sign = -1 if metric.endswith("_loss") else 1
        asked = f", margin {margin:g}" if margin else ""
        text = f"{metric} {value:.3g} against {trivial:.3g} of {name}{asked}"
        failure = "" if sign * (value - trivial) >= margin else text
        yield BaselineCheck(objective, failure, "", metric, value, trivial + sign * margin)


def describe_budget(
    curves: Iterable[Sequence[tuple[float, float]]], tokens: float, value: float, wanted: float
) -> str:
    """Returns ", " and the budget at which a number would pass; "" if the curves are too short.

    A straight line against the logarithm of the tokens, fitted to the last half of each curve, with
    the mean of the slopes. Rough: neither the schedule nor the bend of the curve is known.

    Args:
      curves: (tokens, number) of the validations of each run at one length, in order.
      tokens: the budget so far.
      value: the number at the end, below `wanted` if it must rise, else above.
      wanted: the number that passes.
    """
    slopes, errors = list[float](), list[float]()
    for curve in curves:
        points = np.array([point for point in curve if point[0] > 0]).reshape(-1, 2)
        points = points[len(points) // 2 :]
        if len(np.unique(points[:, 0])) > 1:
            line = scipy.stats.linregress(np.log(points[:, 0]), points[:, 1])
            slopes.append(float(line.slope))
            errors.append(float(line.stderr) if len(points) > 2 else 0.0)
    if not slopes:
        return ""
    slope, rises = float(np.mean(slopes)), wanted > value
    error = math.hypot(*errors) / len(errors)
    if abs(slope) <= 2 * error or slope == 0 or (slope > 0) != rises:
        return f", the curve gives no budget: it does not clearly {'rise' if rises else 'fall'}"
    nats = (wanted - value) / slope
    if nats > math.log(MOST_TIMES):
        return f", at this slope it would need more than {MOST_TIMES} times the budget"
    times = max(1.1, math.exp(nats))  # a number at its bound needs a little more
    return (
        f", at this slope it would need about {_round(times)} times the budget"
        f" ({_round(times * tokens)} tokens), and more if the curve flattens"
    )


def _round(number: float) -> str:
    """Returns a number with two digits: "3.2", "12", "9.6 M"."""
    number = float(f"{number:.2g}")
    for size, name in ((1e9, " G"), (1e6, " M"), (1e3, " K")):
        if number >= size:
            return f"{number / size:g}{name}"
    return f"{number:g}"
