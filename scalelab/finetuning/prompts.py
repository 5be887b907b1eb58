"""Tasks as text to text: prompts, and targets behind them (Raffel et al. 2020, T5, 2.4).

The prompt is `rte sentence1: TEXT sentence2: TEXT`, or begins with the task's own words. Further
columns, such as choices, follow in the same way and are part of the second text. A model with a
source reads the prompt there and the target behind `START`; a left-to-right model reads `label:`
and the target behind the prompt. The loss is the mean cross-entropy of the target's tokens under
the model's token head. Departs from T5: the longer text is cut where both do not fit.
"""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from scalelab.formats import Frame
from scalelab.nets.classifier import Batch
from scalelab.tasks import examples
from scalelab.tasks.examples import Reading, TaskExamples
from scalelab.tasks.records import Records
from scalelab.tasks.task import Task, column_names


def end_token(task: Task, reading: Reading) -> int:
    """Returns the id that ends a target; raises ValueError if the tokenizer has none."""
    ids = reading.tokenizer.special_ids
    for role in ("eos", "sep"):
        if role in ids:
            return ids[role]
    raise ValueError(f"{task.title}: generating text needs a token that ends one: eos or sep")


def encode_targets(texts: Sequence[str], reading: Reading) -> list[list[int]]:
    """Returns the tokens of targets, without their end."""
    blank = " " if reading.start is None else ""
    return [ids.tolist() for ids in reading.tokenizer.encode_batch([blank + x for x in texts])]


def text_of(row: np.ndarray, task: Task, reading: Reading) -> str:
    """Returns the text of generated tokens.

    Args:
      row: [M] tokens, -1 behind their end.
      task: the task.
      reading: the tokenizer.
    """
    ids = row.astype(np.int64)
    return reading.tokenizer.decode(ids[(ids >= 0) & (ids != end_token(task, reading))]).strip()


def pad(targets: Sequence[Sequence[int]], longest: int) -> np.ndarray:
    """Returns the ids of n targets as rows [n, longest] int32, -1 behind their ends."""
    return np.array([[*own, *[-1] * (longest - len(own))] for own in targets], np.int32)


def encode(
    task: Task, records: Records, reading: Reading, targets: np.ndarray | None, longest: int
) -> TaskExamples:
    """Makes the rows of prompts; those of a model without a source end with room for the target.

    Args:
      task: the task.
      records: its texts, a column for each part of the prompt.
      reading: the tokenizer and frame.
      targets: [n, longest] from `pad`; None: they are not known.
      longest: tokens of the longest target, its end included.
    """
    read, (first, *second) = reading.tokenizer.encode, column_names(task)
    tail = reading.frame.end
    if reading.start is None:
        tail = (*read(" label:"), *(longest - 1) * [end_token(task, reading)])
    begin = (*reading.frame.begin, *read(task.prompt or f"{task.name} {first}:"))
    frame = Frame(begin, (*(read(f" {second[0]}:") if second else ()),), tail)
    frame = Frame(*(tuple(map(int, part)) for part in dataclasses.astuple(frame)))
    texts = [[f" {text}" for text in column] for column in records.texts]
    for name, column in zip(second[1:], texts[2:], strict=True):
        texts[1] = [f"{a} {name}:{b}" for a, b in zip(texts[1], column, strict=True)]
    framed = dataclasses.replace(reading, frame=frame)
    made = examples.encode(texts[:2], targets, framed, both_orders=False)
    if targets is None:
        return made
    beside = (targets >= 0).sum(axis=1) - (longest if reading.start is None else 0)
    return dataclasses.replace(made, beside=beside)


def loss(scores: jax.Array, batch: Batch) -> tuple[jax.Array, jax.Array]:
    """Sums the cross-entropy in nats of scores [B, M, V] over the tokens of targets."""
    labels = batch["labels"]
    counts = (labels >= 0) * batch["weights"][:, None]
    own = jnp.take_along_axis(scores, jnp.maximum(labels, 0)[..., None], axis=-1)[..., 0]
    return jnp.sum((jax.nn.logsumexp(scores, axis=-1) - own) * counts), jnp.sum(counts)
