"""Means of (sum, weight) pairs: losses, bits per byte, trivial baselines."""

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

# Name -> (sum, weight), numbers or arrays.
Pairs = Mapping[str, tuple[Any, Any]]
UNIGRAM = "unigram_nats"  # result.json: entropy of the unigram distribution of the training text
# `objectives.Baseline` for config.objective_options: the metric, its trivial value (None means the
# unigram entropy; a function gets the metrics of a validation), the margin, and the predicted array
# (None means the text).
Trivial = float | Callable[[Mapping[str, float]], float | None] | None
Baseline = Callable[[Mapping[str, object]], tuple[str, Trivial, float, str | None]]


def unigram_name(array: str | None) -> str:
    """Returns the metric name of an array's unigram entropy; None stands for the text."""
    return f"{array}_{UNIGRAM}" if array else UNIGRAM


def add(total: dict[str, tuple[float, float]], pairs: Pairs) -> None:
    """Adds (sum, weight) pairs to running totals, in place."""
    for name, (value, weight) in pairs.items():
        a, b = total.get(name, (0.0, 0.0))
        total[name] = (a + float(value), b + float(weight))


def divide(total: Pairs) -> dict[str, float]:
    """Turns (sum, weight) totals into means; leaves out those of weight 0."""
    return {name: float(s) / float(w) for name, (s, w) in total.items() if float(w) > 0}


def sum_pairs(many: Iterable[Pairs]) -> dict[str, tuple[float, float]]:
    """Sums the pairs of many steps or batches."""
    total: dict[str, tuple[float, float]] = {}
    for pairs in many:
        add(total, pairs)
    return total


def bits_per_byte(nats_per_token: float, num_text_tokens: float, num_bytes: float) -> float:
    """Returns the loss per UTF-8 byte of the source text, which compares across tokenizers.

    For CLM it is exact except for the first token of each example. For MLM the mean loss of a
    masked token, at the mask rate of the run, stands for every token. That is not a likelihood, nor
    a pseudo-likelihood, for which one token at a time is masked. Special tokens do not count as
    text.
    """
    return nats_per_token * num_text_tokens / (num_bytes * math.log(2))


def summarise_eval(
    total: Pairs, loss_weights: Mapping[str, float], token_losses: Mapping[str, bool]
) -> dict[str, float]:
    """Returns the means of an evaluation, with perplexity and bits per byte of the token losses.

    Bits per byte exist only for a loss that covers the text.

    Args:
      total: sums over the evaluation, from step.make_eval_step.
      loss_weights: the weight of each loss in their sum, by names such as "mlm_loss".
      token_losses: name of each token loss, such as "mlm_loss" -> whether it covers the text.

    Raises:
      ValueError: no example has a loss of the sum.
    """
    text_tokens, num_bytes = float(total["num_text_tokens"][0]), float(total["num_bytes"][0])
    means = divide({k: v for k, v in total.items() if k not in ("num_text_tokens", "num_bytes")})
    if missing := [name for name in loss_weights if name not in means]:
        raise ValueError(
            f"the validation has no example for {missing[0]}: use more text, or leave the objective"
            f" out; scalelab/objectives/{missing[0].removesuffix('_loss')}.py says what it needs"
        )
    means["loss"] = sum(weight * means[name] for name, weight in loss_weights.items())
    for name, covers_text in token_losses.items():
        if name in means:
            means["perplexity"] = math.exp(min(means[name], 700.0))
            if covers_text:
                means["bits_per_byte"] = bits_per_byte(means[name], text_tokens, num_bytes)
    return means


def check_baselines(
    objectives: Iterable[str],
    options: Mapping[str, object],
    metrics: Mapping[str, float],
    baselines: Mapping[str, Baseline],
    *,
    with_margin: bool = True,
) -> Iterator[tuple[str, str, str]]:
    """Yields each objective, how it misses its baseline or "", and the missing number or "".

    Args:
      objectives: names in the sum, such as "mlm".
      options: config.objective_options.
      metrics: metrics of a validation, such as "mlm_loss", and the unigram entropies.
      baselines: by objective.
      with_margin: whether to ask for the margin that an objective declares.
    """
    for objective in objectives:
        if objective not in baselines:
            yield objective, "", f"the trivial baseline of the objective {objective!r}"
            continue
        metric, trivial, margin, array = baselines[objective](options)
        metric, margin = f"{objective}_{metric}", margin if with_margin else 0.0
        name, lacking = "chance", f"the trivial {metric}"
        if trivial is None:
            name, lacking = "the unigram entropy", unigram_name(array)
            trivial = metrics.get(lacking)
        elif callable(trivial):
            trivial = trivial(metrics)
        value = metrics.get(metric)
        if value is None or trivial is None:
            yield objective, "", metric if value is None else lacking
            continue
        gain = trivial - value if metric.endswith("_loss") else value - trivial
        asked = f", margin {margin:g}" if margin else ""
        text = f"{metric} {value:.3g} against {trivial:.3g} of {name}{asked}"
        yield objective, "" if gain >= margin else text, ""


@contextlib.contextmanager
def timed(timers: dict[str, float], name: str) -> Iterator[None]:
    """Adds the time spent inside to `timers[name]`, in seconds."""
    begun = time.perf_counter()
    try:
        yield
    finally:
        timers[name] = timers.get(name, 0.0) + time.perf_counter() - begun
