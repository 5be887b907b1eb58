"""One of several choices: each is a pair with the text, scored by itself (Devlin et al. 2019, 4.4).

The scores of an example's pairs go through one softmax. A record's first text is what all choices
share; the others are the choices.
"""

import jax
import numpy as np

from scalelab.finetuning.kinds import Decoded, classify
from scalelab.nets.classifier import Batch, one_vector
from scalelab.tasks.examples import Reading, TaskExamples, assemble, store_of
from scalelab.tasks.records import Records
from scalelab.tasks.task import Task

HEAD = "double"
NUM_OUTPUTS = 1


def num_rows(task: Task, both_orders: bool) -> int:
    """Returns one row a choice."""
    return len(task.labels or ())


def vectors(hidden: jax.Array, batch: Batch, reads: str, num_rows: int) -> jax.Array:
    """Returns a vector of each choice: [B, R, E]."""
    made = one_vector(hidden, batch, reads, 1)
    return made.reshape(-1, num_rows, made.shape[-1])


def loss(scores: jax.Array, batch: Batch) -> tuple[jax.Array, jax.Array]:
    """Sums the cross-entropy in nats of scores [B, R, 1] over examples."""
    return classify.loss(scores[..., 0], batch)


def encode(task: Task, records: Records, reading: Reading, both_orders: bool) -> TaskExamples:
    """Makes a row of the first text with each choice; the longer of both is cut to fit."""
    count = num_rows(task, False)
    assert len(records.texts) == 1 + count, (len(records.texts), count)

    def make() -> dict[str, np.ndarray]:
        first, *others = [reading.tokenizer.encode_batch(column) for column in records.texts]
        second = [ids for choices in zip(*others, strict=True) for ids in choices]
        first = [ids for ids in first for _ in range(count)]
        return assemble(first, second, reading.frame, reading.max_len)

    made = reading.cached(records.texts, {"kind": "choices"}, make)
    truncated = made.pop("truncated").reshape(-1, count).any(axis=1)
    return TaskExamples(store_of(made), records.labels, count, truncated)


def decode(
    task: Task, records: Records, made: TaskExamples, outputs: np.ndarray, reading: Reading
) -> Decoded:
    """Returns the best choices of outputs [n, R, 1]."""
    return Decoded(outputs[..., 0].argmax(axis=-1), outputs[..., 0])


def chance_loss(train: TaskExamples) -> float:
    """Returns the loss of equal scores."""
    return float(np.log(train.num_rows))
