"""The manipulation check: whether pre-training took before a verdict says anything about it.

A study whose nets have learnt nothing beyond a trivial baseline cannot test what pre-training does.
Three things are asked of the rows that a claim compares:

1. Every objective beats its trivial baseline, in the mean over seeds, by a stated margin: a loss
   over tokens lies below the entropy of the unigram distribution, an accuracy above chance.
2. The best row's score is off the floor: above that of the best constant answer by FLOOR_MARGIN.
3. Where the same nets were fine-tuned from random weights, the pre-trained ones are ahead of them.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping

import numpy as np

FLOOR_MARGIN = 0.05  # of a score: scores of nets that differ lie within it where nothing is learnt
UNIGRAM = "unigram_nats"  # result.json: entropy of the unigram distribution of the training text


@dataclasses.dataclass(frozen=True)
class Treatment:
    """An objective's validation metric and the trivial baseline that it must beat.

    Attributes:
      metric: a name in a run's validation, such as "nsp_accuracy".
      baseline: the trivial value; None: the unigram entropy of the run's corpus.
      margin: by which the metric must be better.
      higher_is_better: whether it must lie above the baseline.
    """

    metric: str
    baseline: float | None
    margin: float
    higher_is_better: bool = False

    def failure(self, metrics: Mapping[str, float]) -> str:
        """Returns how the metric misses its baseline; "": it beats it, or cannot be checked."""
        value = metrics.get(self.metric)
        trivial = metrics.get(UNIGRAM) if self.baseline is None else self.baseline
        if value is None or trivial is None:
            return ""
        gain = value - trivial if self.higher_is_better else trivial - value
        if gain >= self.margin:
            return ""
        name = "chance" if self.baseline is not None else "the unigram entropy"
        return f"{self.metric} {value:.3g} against {trivial:.3g} of {name}, margin {self.margin:g}"


def untrained(
    metrics: Mapping[str, Mapping[str, float]], treatments: Iterable[Treatment]
) -> list[str]:
    """Returns one reason for each objective that did not beat its trivial baseline in some row.

    Args:
      metrics: label of a row -> its validation metrics, with `unigram_nats`.
      treatments: the objectives' checks.
    """
    found = []
    for treatment in treatments:
        failed = {label: said for label, of in metrics.items() if (said := treatment.failure(of))}
        if failed:
            label, said = next(iter(failed.items()))
            more = f", and in {len(failed) - 1} more rows" if len(failed) > 1 else ""
            found.append(f"the objective of {label} did not take ({said}{more})")
    return found


def on_floor(best: float | None, floor: float | None, title: str) -> list[str]:
    """Returns a reason if the best row's score is not above that of a constant answer.

    Args:
      best: the best row's score; None: there is none.
      floor: score of the best constant answer; None: unknown.
      title: of the score.
    """
    if best is None or floor is None or best - floor >= FLOOR_MARGIN:
        return []
    return [
        f"{title} is on its floor: at most {best:.3f} against {floor:.3f} of the best constant"
        f" answer, margin {FLOOR_MARGIN:g}"
    ]


def behind_scratch(gains: Iterable[float], title: str) -> list[str]:
    """Returns a reason if pre-trained nets are not ahead of the same nets from scratch.

    Args:
      gains: score of each row minus that of its nets from random weights, where these exist.
      title: of the score.
    """
    gains = list(gains)
    if not gains or np.mean(gains) > 0:
        return []
    return [f"{title} is not ahead of the same nets from scratch ({np.mean(gains):+.3f})"]


def _f1_of_positives(gold: np.ndarray) -> float:
    share = float(np.mean(gold == 1))
    return 2 * share / (1 + share)


# Metric -> score of the best constant answer on a dev set's gold.
CONSTANT: dict[str, Callable[[np.ndarray], float]] = {
    "accuracy": lambda gold: float(np.unique(gold, return_counts=True)[1].max() / len(gold)),
    "f1": _f1_of_positives,
    "matthews": lambda gold: 0.0,
    "pearson": lambda gold: 0.0,
    "spearman": lambda gold: 0.0,
}
