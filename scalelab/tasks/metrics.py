"""The metrics of tasks, and the test for a fine-tuning that has learned nothing.

`Metric` has the arguments of all metrics. Scores are fractions in [0, 1], correlations are in
[-1, 1].

Answers that are texts, such as the tags of a sentence, are scored by ratios of sums of counts.

If all gold labels are equal, correlations are undefined. If no gold label is positive, F1 is
undefined, because recall is 0 / 0. `undefined` returns the reason. If only the predictions are
constant, or have no positive, the score is 0, as in scikit-learn.
"""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from scalelab.tasks import text_counts

FLAT = 0.01  # predicted scores with less than this share of gold's spread are constant


class Metric(Protocol):
    """A function that scores the predictions of S runs, on R resamples of n examples."""

    def __call__(
        self, gold: np.ndarray, predicted: np.ndarray, weights: np.ndarray | None = None
    ) -> Any:
        """Scores predictions.

        Args:
          gold: [n] classes or scores; tags, or JSON of accepted texts, for answers that are texts.
          predicted: [n] or [S, n], the same kind of values.
          weights: [n] or [R, n] multiplicities: an example of weight 2 counts twice; None: 1 each.

        Returns:
          [R, S] float64 without the axes that were not given: a float for [n] alone.

        Raises:
          ValueError: shapes do not fit, a number is not finite, or there is no example.
        """
        ...


def accuracy(gold: np.ndarray, predicted: np.ndarray, weights: np.ndarray | None = None) -> Any:
    """Returns the share of correctly classified examples."""
    gold, many, w, shape = _prepare(gold, predicted, weights)
    return _shaped(w @ (many == gold).T / w.sum(axis=1)[:, None], shape)


def hits(gold: np.ndarray, predicted: np.ndarray, weights: np.ndarray | None = None) -> Any:
    """Returns the share of examples with predicted class 1: found answers to open questions.

    Gold is not used, so the trivial score is 0.
    """
    return accuracy(np.ones(np.shape(gold)), predicted, weights)


def f1(gold: np.ndarray, predicted: np.ndarray, weights: np.ndarray | None = None) -> Any:
    """Returns the F1 of class 1, 2 PR / (P + R) of precision P and recall R.

    It is 0 if class 1 is neither in gold nor predicted (van Rijsbergen 1979, chapter 7).

    >>> f1(np.array([1, 1, 0, 0]), np.array([1, 0, 1, 0]))
    0.5
    """
    gold, many, w, shape = _prepare(gold, predicted, weights)
    hits = w @ ((many == 1) & (gold == 1)).T
    marked = (w @ (gold == 1))[:, None] + w @ (many == 1).T
    return _shaped(_ratio(2.0 * hits, marked), shape)


def macro_f1(gold: np.ndarray, predicted: np.ndarray, weights: np.ndarray | None = None) -> Any:
    """Returns the mean F1 over the classes that occur in gold or predicted.

    It is the F1 of several classes in SuperGLUE (Wang et al. 2019, 3.2, CB).
    """
    gold, many, w, shape = _prepare(gold, predicted, weights)
    classes = np.unique(np.concatenate([gold, many.ravel()]))
    hits = np.stack([w @ ((many == c) & (gold == c)).T for c in classes])  # [C, R, S]
    marked = np.stack([(w @ (gold == c))[:, None] + w @ (many == c).T for c in classes])
    return _shaped(_ratio(2.0 * hits, marked).sum(axis=0) / (marked > 0).sum(axis=0), shape)


def matthews(gold: np.ndarray, predicted: np.ndarray, weights: np.ndarray | None = None) -> Any:
    """Returns Matthews' correlation coefficient, in [-1, 1] (Matthews 1975).

    It is 0 if all gold, or all predicted, are of one class. For more than two classes it is
    R_K (Gorodkin 2004, equation 8). For two classes its absolute value is sqrt(chi2 / n).

    >>> matthews(np.array([1, 1, 0, 0]), np.array([1, 1, 0, 0]))
    1.0
    """
    gold, many, w, shape = _prepare(gold, predicted, weights)
    classes = np.unique(np.concatenate([gold, many.ravel()]))
    total = w.sum(axis=1)[:, None]
    true = np.stack([w @ (gold == c) for c in classes])[:, :, None]  # [C, R, 1]
    votes = np.stack([w @ (many == c).T for c in classes])  # [C, R, S]
    covariance = w @ (many == gold).T * total - (true * votes).sum(axis=0)
    spread = (total**2 - (true**2).sum(axis=0)) * (total**2 - (votes**2).sum(axis=0))
    empty = ((true > 0).sum(axis=0) < 2) | ((votes > 0).sum(axis=0) < 2)
    return _shaped(_ratio(covariance, np.sqrt(np.where(empty, 0.0, spread))), shape)


def pearson(gold: np.ndarray, predicted: np.ndarray, weights: np.ndarray | None = None) -> Any:
    """Returns Pearson's correlation (Pearson 1895); 0 if all gold, or all predicted, are equal."""
    gold, many, w, shape = _prepare(gold, predicted, weights)
    return _shaped(_correlation(gold[None, None], many[None], w), shape)


def spearman(gold: np.ndarray, predicted: np.ndarray, weights: np.ndarray | None = None) -> Any:
    """Returns Spearman's correlation: Pearson's of the ranks; equal values get their mean rank.

    Spearman 1904. It is 0 if all gold, or all predicted, are equal.

    >>> round(spearman(np.array([1.0, 2.0, 3.0]), np.array([0.1, 0.5, 9.0])), 6)
    1.0
    """
    gold, many, w, shape = _prepare(gold, predicted, weights)
    ranks = np.stack([_ranks(row, w) for row in many], axis=1)
    return _shaped(_correlation(_ranks(gold, w)[:, None], ranks, w), shape)


def ratio_of_counts(count: Callable[[str, str], tuple[float, float]]) -> Metric:
    """Makes a metric of answers that are texts: the ratio of two sums over the examples.

    `count` maps gold and predicted of an example to its summands (numerator, denominator).
    """

    def metric(gold: np.ndarray, predicted: np.ndarray, weights: np.ndarray | None = None) -> Any:
        many, w = np.atleast_2d(predicted), np.ones(len(gold)) if weights is None else weights
        counts = np.array([[count(*pair) for pair in zip(gold, row, strict=True)] for row in many])
        above, below = np.moveaxis(np.atleast_2d(w).astype(np.float64) @ counts, -1, 0)  # [S, R]
        return _shaped(_ratio(above.T, below.T), np.shape(w)[:-1] + predicted.shape[:-1])

    return metric


def bleu(gold: np.ndarray, predicted: np.ndarray, weights: np.ndarray | None = None) -> Any:
    """Returns the BLEU of a corpus by sacrebleu, in [0, 1] (Papineni et al. 2002; Post 2018).

    Gold entries are labels as in `text_counts.accepted`.
    """
    many, w = np.atleast_2d(predicted), np.ones(len(gold)) if weights is None else weights
    counts = np.array(
        [[text_counts.count_ngrams(*pair) for pair in zip(gold, row, strict=True)] for row in many]
    )
    import sacrebleu

    smoothing = sacrebleu.BLEU().smooth_method  # as `text_counts.signature` says

    def score(sums: np.ndarray) -> float:
        whole = sums.tolist()
        found = sacrebleu.BLEU.compute_bleu(whole[:4], whole[4:8], *whole[8:], smoothing)
        return found.score / 100

    sums = np.moveaxis(np.rint(np.atleast_2d(w)).astype(np.int64) @ counts, 0, 1)  # [R, S, 10]
    return _shaped(np.apply_along_axis(score, -1, sums), np.shape(w)[:-1] + predicted.shape[:-1])


METRICS: dict[str, Metric] = {
    "matthews": matthews,
    "accuracy": accuracy,
    "hits": hits,
    "f1": f1,
    "macro_f1": macro_f1,
    "pearson": pearson,
    "spearman": spearman,
    "word_accuracy": ratio_of_counts(text_counts.count_words),
    "entity_f1": ratio_of_counts(text_counts.count_entities),
    "exact_match": ratio_of_counts(text_counts.count_exact),
    "answer_f1": ratio_of_counts(text_counts.count_overlap),
    # F1 over all answers (Khashabi et al. 2018, F1a), and the share of questions without an error.
    "f1a": ratio_of_counts(text_counts.count_right),
    "bleu": bleu,
    **{
        own: ratio_of_counts(
            lambda gold, text, name=name: (text_counts.count_rouge(gold, text)[name], 1.0)
        )
        for own, name in (("rouge1", "rouge1"), ("rouge2", "rouge2"), ("rouge_l", "rougeL"))
    },
    "question_match": ratio_of_counts(lambda gold, predicted: (float(gold == predicted), 1.0)),
}
PROPORTIONS = ("accuracy", "hits", "exact_match", "question_match")  # shares of examples
CORRELATIONS = ("matthews", "pearson", "spearman")
OF_POSITIVES = ("f1", "entity_f1", "f1a")  # F1 of the marked items
# Metric -> smallest and largest value.
RANGES = dict.fromkeys(METRICS, (0.0, 1.0)) | dict.fromkeys(CORRELATIONS, (-1.0, 1.0))


def undefined(metric: str, gold: np.ndarray | None) -> str | None:
    """Returns the reason why a metric is undefined; None if it is defined.

    Args:
      metric: a name in METRICS.
      gold: [n]; None: unknown.
    """
    if gold is None:
        return None
    if metric in CORRELATIONS and np.unique(gold).size < 2:
        return "all gold labels are equal"
    if metric in OF_POSITIVES and METRICS[metric](gold, gold) == 0:  # gold itself finds nothing
        return "no gold label is positive"
    return None


def chance_loss(gold: np.ndarray, *, regression: bool) -> float:
    """Returns the loss of the best constant prediction.

    That is the entropy of the class frequencies in nats (Shannon 1948, 6), or the variance of
    scores.

    Args:
      gold: [n] classes or scores.
      regression: True for scores, False for classes.
    """
    if regression:
        return float(np.var(np.asarray(gold, np.float64)))
    _, counts = np.unique(gold, return_counts=True)
    shares = counts / counts.sum()
    return float(-(shares * np.log(shares)).sum())


def degenerate(
    gold: np.ndarray,
    predicted: np.ndarray,
    *,
    train_loss: float | None,
    chance: float | None,
    regression: bool,
) -> str | None:
    """Returns the reason why a run counts as degenerate, or None.

    It predicts a constant, or its loss does not beat the best constant prediction.

    Args:
      gold: [n], of the dev set.
      predicted: [n], on the dev set.
      train_loss: mean training loss at the end: nats, or mean squared error; None if unknown.
      chance: loss of the best constant prediction of the training set; None if unknown.
      regression: True for scores, False for classes.
    """
    if predicted.dtype.kind == "U":
        words = {word for text in predicted for word in text.split()}
        if len(words) < 2:
            return f"constant prediction: {' '.join(words) or 'nothing'}"
    elif not np.isfinite(predicted).all():
        return "a prediction is not finite"
    elif regression:
        spread, whole = float(np.std(predicted)), float(np.std(gold))
        if spread <= FLAT * whole:
            return f"constant prediction: {np.mean(predicted):.3g}, sd {spread:.2g} of {whole:.2g}"
    elif np.unique(predicted).size == 1:
        return f"constant prediction: class {predicted[0]}"
    if train_loss is None or chance is None:
        return None
    if not train_loss < chance:  # also if it is NaN
        return f"training loss at chance: {train_loss:.4g}, a constant has {chance:.4g}"
    return None


def _prepare(
    gold: np.ndarray, predicted: np.ndarray, weights: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray, tuple[int, ...]]:
    """Checks and widens to gold [n], predicted [S, n], weights [R, n] and the result's shape."""
    gold = np.asarray(gold, np.float64)
    predicted = np.asarray(predicted, np.float64)
    w = np.ones_like(gold) if weights is None else np.asarray(weights, np.float64)
    shapes = gold.shape, predicted.shape[-1:], w.shape[-1:]
    if len({*shapes}) > 1 or predicted.ndim > 2 or w.ndim > 2:
        raise ValueError(
            "expected gold [n], predicted [n] or [S, n] and weights [n] or [R, n]; found"
            f" {gold.shape}, {predicted.shape}, {w.shape}"
        )
    if not np.isfinite(gold).all() or not np.isfinite(predicted).all():
        raise ValueError("gold and predicted must be finite numbers")
    if not (w >= 0).all() or not (w.sum(axis=-1) > 0).all():
        raise ValueError("no example to score: weights must be 0 or more and not all 0")
    return gold, np.atleast_2d(predicted), np.atleast_2d(w), w.shape[:-1] + predicted.shape[:-1]


def _shaped(values: np.ndarray, shape: tuple[int, ...]) -> Any:
    return values.reshape(shape) if shape else float(values[0, 0])


def _ratio(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """Returns the quotient; 0 if the denominator is 0."""
    return np.divide(above, below, out=np.zeros_like(above), where=below > 0)


def _ranks(values: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Returns the mean ranks [R, n] of values [n] with multiplicities w [R, n]."""
    _, group, sizes = np.unique(values, return_inverse=True, return_counts=True)
    order = np.argsort(group, kind="stable")
    weight = np.add.reduceat(w[:, order], np.cumsum(sizes) - sizes, axis=1)
    return (np.cumsum(weight, axis=1) - (weight - 1) / 2)[:, group]


def _correlation(x: np.ndarray, y: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Returns weighted Pearson correlations of x [R or 1, 1, n] and y [R or 1, S, n]: [R, S].

    It is 0 if x or y is constant where w [R, n] > 0. This compares the values: the computed
    variance of a constant is a rounding error, seldom 0.
    """
    w, varies = w[:, None], True
    for z in (x, y):
        high, low = np.where(w > 0, z, -np.inf).max(-1), np.where(w > 0, z, np.inf).min(-1)
        varies = varies & (high > low)
    total = w.sum(axis=-1, keepdims=True)
    x = x - (w * x).sum(axis=-1, keepdims=True) / total
    y = y - (w * y).sum(axis=-1, keepdims=True) / total
    scale = np.sqrt((w * x * x).sum(axis=-1)) * np.sqrt((w * y * y).sum(axis=-1))
    values = np.clip(_ratio((w * x * y).sum(axis=-1), scale), -1.0, 1.0)
    return np.where(varies, values, 0.0)
