"""Shared parts of the probes: data, command line, and the task of the classifier probes.

A classifier probe (pos, dep, spans) reads the frozen states of an example's words at one layer,
each feature standardized on train. It is a multinomial logistic regression, or has one hidden layer
(--probe=mlp). Probes are fitted on train. The layer is chosen on dev. All other scores are on test.
predictions.tsv has the test examples at the chosen layer.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from scalelab.eval.evaluation import Evaluation, Measured
from scalelab.helpers.names import load_module
from scalelab.tasks import treebank
from scalelab.tasks.treebank import Sentence

OPTIONS = {
    "probe": ("linear", "the classifier: linear or mlp; default: linear"),
    "pooling": ("mean", "a word's vector: mean, first or last of its pieces; default: mean"),
    "max_words": (20_000, "approximate number of words of train, evenly spread; default: 20000"),
}
DATA = "folder of a UD treebank: one *-ud-SPLIT.conllu[.xz] for each of train, dev and test"
Labelled = tuple[tuple[int, ...], str]  # indices of words in the sentence, from 0; label


@dataclasses.dataclass(frozen=True)
class Probing:
    """The task of a classifier probe."""

    # Finds the examples of a sentence. The last word of an example gives its word type.
    find: Callable[[Sentence], Sequence[Labelled]]
    # Joins the vectors [n, L + 1, D] of an example's words to features [n, L + 1, F].
    join: Callable[[Sequence[np.ndarray]], np.ndarray]
    # A further column: its name, and (test features [n, F], labels [n]) -> value at a layer.
    column: tuple[str, Callable[[np.ndarray, Sequence[str]], float]] | None = None


def read(folder: pathlib.Path, splits: Sequence[str] = treebank.SPLITS) -> list[list[Sentence]]:
    """Reads the sentences of each split."""
    return [treebank.read(folder, split) for split in splits]


def evaluation(
    name: str,
    module: str,
    *first: Any,
    options: Mapping[str, tuple[Any, str]] = OPTIONS,
    splits: Sequence[str] = treebank.SPLITS,
) -> Evaluation:
    """Makes the evaluation of a probe on the splits of a treebank.

    Args:
      name: name of the probe.
      module: the module of this package that has `measure`, as in `Evaluation`.
      *first: its first arguments, before those of `Evaluation`.
      options: as in `Evaluation`.
      splits: splits to read, in this order.
    """

    def measure(*given: Any) -> Measured:  # the module needs JAX, --help does not
        return load_module("eval.probes", module).measure(*first, *given)

    given = functools.partial(read, splits=splits), measure, DATA, "ud-english-ewt", options
    return Evaluation(f"probes.{name}", *given, scratch=True)


def thin(sentences: Sequence[Sentence], most: int) -> Sequence[Sentence]:
    """Returns evenly spaced sentences; treebanks are sorted by genre.

    Args:
      sentences: the sentences.
      most: words to keep, about.
    """
    step = max(1.0, num_words(sentences) / most)
    return [sentences[int(k * step)] for k in range(max(1, int(len(sentences) / step)))]


def num_words(sentences: Sequence[Sentence]) -> int:
    """Counts the words of sentences."""
    return sum(len(sentence.words) for sentence in sentences)
