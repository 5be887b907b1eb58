"""Labels as words, without a new head (Raffel et al. 2020, T5, 2.4).

The target is the name of the class; a score is rounded to a multiple of 0.2, "2.6". An answer is
the label that greedy decoding over the labels' tokens reaches; it is invalid if greedy decoding
over all tokens leaves them, which is counted. Departs from T5: an invalid answer is replaced.
"""

import numpy as np
from flax import linen as nn

from scalelab.config.finetuning import FinetuneConfig
from scalelab.finetuning import prompts
from scalelab.finetuning.kinds import WORDS, Decoded
from scalelab.finetuning.text_to_text import TextToText
from scalelab.tasks.examples import Reading, TaskExamples
from scalelab.tasks.facts import SPACING
from scalelab.tasks.records import Records
from scalelab.tasks.task import Task

HEAD, NUM_OUTPUTS = WORDS, None
loss = prompts.loss


def make_net(body: nn.Module, task: Task, reading: Reading, config: FinetuneConfig) -> TextToText:
    """Makes the model of a task."""
    del config  # greedy alone
    targets, end = find_targets(task, reading), prompts.end_token(task, reading)
    own = tuple(map(tuple, targets.tolist()))
    return TextToText(body, targets.shape[1], end, own, reading.start)


def find_targets(task: Task, reading: Reading) -> np.ndarray:
    """Returns the tokens of each class and the end token behind them, then -1: [C, M] int32.

    Raises:
      ValueError: the tokenizer has no token that ends a text, or reads two labels alike.
    """
    names, end = task.class_names, prompts.end_token(task, reading)
    made = [[*own, end] for own in prompts.encode_targets(names, reading)]
    for i, tokens in enumerate(made):
        if len(tokens) == 1 or tokens in made[:i]:
            other = names[made.index(tokens)]
            raise ValueError(
                f"{task.title}: the tokenizer reads the label words {other!r} and {names[i]!r}"
                " alike, or as nothing: --as=text cannot tell them apart"
            )
    return prompts.pad(made, max(map(len, made)))


def encode(task: Task, records: Records, reading: Reading, both_orders: bool) -> TaskExamples:
    """Makes the rows of prompts, with the tokens of label words."""
    targets, labels = find_targets(task, reading), records.labels
    if labels is not None and task.labels is None:
        labels = np.rint((labels - float(task.class_names[0])) * (1 / SPACING)).astype(np.int32)
    own = None if labels is None else targets[labels]
    return prompts.encode(task, records, reading, own, targets.shape[1])


def decode(
    task: Task, records: Records, made: TaskExamples, outputs: np.ndarray, reading: Reading
) -> Decoded:
    """Returns the classes of outputs [n, 2 + M], each with probability 1, and invalid texts."""
    rows = np.nan_to_num(outputs).astype(np.int32)
    classes, written = rows[:, 0], rows[:, 2:]
    invalid = {
        int(i): prompts.text_of(written[i], task, reading) for i in np.flatnonzero(rows[:, 1] == 0)
    }
    if task.labels is None:
        return Decoded(np.array(task.class_names, np.float32)[classes], None, invalid)
    table = np.where(np.arange(len(task.class_names)) == classes[:, None], 0.0, -np.inf)
    return Decoded(classes, table, invalid)


def chance_loss(train: TaskExamples) -> float:
    """Returns the entropy of the classes for each token of a target."""
    assert train.labels is not None
    _, counts = np.unique(train.labels, axis=0, return_counts=True)
    entropy = -np.sum(counts * np.log(counts / counts.sum()))
    return float(entropy / (train.labels >= 0).sum())
