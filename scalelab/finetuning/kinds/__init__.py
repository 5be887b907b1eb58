"""Kinds of head for labeled tasks: one module each, found by the name in `Task.kind`."""

from collections.abc import Sequence
from types import ModuleType
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np
from flax import linen as nn

from scalelab.helpers.names import load_module
from scalelab.tasks.examples import Reading, TaskExamples
from scalelab.tasks.records import Records
from scalelab.tasks.task import Task

WORDS = "words"  # the kind that generates label words; and config.head.kind of GENERATED
GENERATED = (WORDS, "answer_words", "texts")  # kinds whose answers the model writes


class Decoded(NamedTuple):
    """The answers of a model."""

    answers: np.ndarray  # [n] classes, scores or texts, as in predictions.tsv
    outputs: np.ndarray | None = None  # [n, C] before the softmax, where answers are classes
    # Row of a prompt -> the generated text that is no label's; None: nothing is generated.
    invalid: dict[int, str] | None = None


class Kind(Protocol):
    """The exports of a module of this package.

    In shapes n is the number of examples, R `num_rows`, E the width of the states, C the classes. A
    kind whose head scores every token of the text has PER_TOKEN = True, too.
    """

    HEAD: str  # "double" or "single", the layers where the config leaves them open; or "words"
    # Outputs of the head; None: one for each label of the task, or one for a score.
    NUM_OUTPUTS: int | None

    def encode(
        self, task: Task, records: Records, reading: Reading, both_orders: bool
    ) -> TaskExamples:
        """Makes the token rows of records.

        Args:
          task: the task.
          records: n texts or tuples of texts, with labels if they are known.
          reading: tokenizer, frame and longest row.
          both_orders: whether the model reads the texts of a similarity task in both orders.
        """

    def decode(
        self,
        task: Task,
        records: Records,
        made: TaskExamples,
        outputs: np.ndarray,
        reading: Reading,
    ) -> Decoded:
        """Turns outputs into answers, one for each record.

        Args:
          task: the task.
          records: as given to `encode`.
          made: the result of `encode`.
          outputs: [n, ..., C] float32, of the head or of the model's `predict`.
          reading: as given to `encode`.
        """

    def loss(self, scores: jax.Array, batch: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
        """Returns the sum of the losses in nats, or of squared errors, and of their weights.

        Args:
          scores: [B, ..., C] float32; a kind that generates has [B, M, V] at the M target tokens.
          batch: labels [B, ...], weights [B] (0 for padding examples) and lengths [B R].
        """

    def vectors(
        self, hidden: jax.Array, batch: dict[str, jax.Array], reads: str, num_rows: int
    ) -> jax.Array:
        """Returns the vectors [B, ..., E] that the head maps to scores.

        Args:
          hidden: [B R, T, E]; [B R, T, 2 E] if `reads` is "ends".
          batch: with lengths [B R].
          reads: "first", "last" or "ends", as in `nets.classifier.Classifier`.
          num_rows: R.
        """

    def num_rows(self, task: Task, both_orders: bool) -> int:
        """Returns R, the rows of tokens of an example; absent: 1."""

    def chance_loss(self, train: TaskExamples) -> float:
        """Returns the loss of the best constant prediction; absent: unknown."""

    def make_net(self, body: nn.Module, task: Task, reading: Reading, config: Any) -> nn.Module:
        """Makes the model, whose `predict` makes the outputs; absent: a `Classifier`.

        Args:
          body: the pre-trained system's model, unbound.
          task: the task.
          reading: tokenizer and frame.
          config: the `FinetuneConfig`; beams and length penalty are read.
        """


def load(name: str) -> ModuleType:
    """Returns the module of a kind; raises ValueError if there is none."""
    return load_module("finetuning.kinds", name)


def num_outputs(name: str, labels: Sequence[str] | None) -> int:
    """Returns the outputs of a head of a kind; `labels` is None for scores."""
    return load(name).NUM_OUTPUTS or len(labels or "1")
