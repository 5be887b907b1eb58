"""One class or score for a text or a pair: Devlin et al. 2019, figure 4 (a) and (b)."""

import jax
import jax.numpy as jnp
import numpy as np

from scalelab.finetuning.kinds import Decoded
from scalelab.nets.classifier import Batch, one_vector
from scalelab.tasks import examples, metrics
from scalelab.tasks.examples import Reading, TaskExamples
from scalelab.tasks.records import Records
from scalelab.tasks.task import Task

HEAD = "double"
NUM_OUTPUTS = None
vectors = one_vector


def num_rows(task: Task, both_orders: bool) -> int:
    """Returns 2 if a pair without an order is read in both, else 1."""
    return 2 if both_orders and task.relation == "similarity" else 1


def loss(scores: jax.Array, batch: Batch) -> tuple[jax.Array, jax.Array]:
    """Sums the cross-entropy in nats of scores [B, C], or the squared error of float labels."""
    labels = batch["labels"]
    if jnp.issubdtype(labels.dtype, jnp.floating):
        losses = jnp.square(scores[:, 0] - labels)
    else:
        log_probs = jax.nn.log_softmax(scores)
        losses = -jnp.take_along_axis(log_probs, labels[:, None], axis=1)[:, 0]
    return jnp.sum(losses * batch["weights"]), jnp.sum(batch["weights"])


def encode(task: Task, records: Records, reading: Reading, both_orders: bool) -> TaskExamples:
    """Makes the token rows of texts or pairs."""
    both = num_rows(task, both_orders) == 2
    return examples.encode(records.texts, records.labels, reading, both_orders=both)


def decode(
    task: Task, records: Records, made: TaskExamples, outputs: np.ndarray, reading: Reading
) -> Decoded:
    """Returns the best classes, or the scores, of outputs [n, C]."""
    if task.regression:
        return Decoded(outputs[:, 0])
    return Decoded(outputs.argmax(axis=-1), outputs)


def chance_loss(train: TaskExamples) -> float:
    """Returns the entropy of the classes, or the variance of the scores."""
    labels = train.labels
    assert labels is not None
    return metrics.chance_loss(labels, regression=labels.dtype.kind == "f")
