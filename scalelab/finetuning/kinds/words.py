"""Labels as words: the task as text to text (Raffel et al. 2020, T5, 2.4), without a new head.

The prompt is `rte sentence1: TEXT sentence2: TEXT`, the target the name of the class and the end
token. A model with a source reads the prompt there and the target behind `START`; a left-to-right
model reads `label:` and the target behind the prompt. The loss is the mean cross-entropy of the
target's tokens under the model's token head. An answer is the label that greedy decoding over the
labels' tokens reaches; it is invalid if greedy decoding over all tokens leaves them, which is
counted. Departs from T5: the longer text is cut where both do not fit, and an invalid answer is
replaced.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from scalelab.finetuning.kinds import WORDS, Decoded
from scalelab.formats import Frame
from scalelab.nets.classifier import States
from scalelab.tasks import examples
from scalelab.tasks.examples import Reading, TaskExamples
from scalelab.tasks.records import Records
from scalelab.tasks.task import Task, column_names

HEAD, NUM_OUTPUTS = WORDS, None
Batch = dict[str, jax.Array]
Targets = tuple[tuple[int, ...], ...]  # the tokens of each class, its end and then -1: [C][M]


class WordNet(nn.Module):
    """Model -> scores of all tokens where the target's tokens are predicted.

    Attributes:
      body: a system's model.
      targets: the tokens of each class.
      start: `START`, with which a target behind a source begins; None: it is behind the prompt.
      num_rows: 1, as of a Classifier.
    """

    body: nn.Module
    targets: Targets
    start: int | None = None
    num_rows: int = 1

    def __call__(self, batch: Batch, ctx: States, *, train: bool) -> jax.Array:
        """Returns scores [B, M, V], given batch["labels"], the targets [B, M]."""
        del train  # `ctx` knows
        longest = len(self.targets[0])
        labels = batch.get("labels", jnp.zeros((len(batch["lengths"]), longest), jnp.int32))
        inputs, counts = jnp.maximum(labels[:, :-1], 0), jnp.sum(labels >= 0, axis=1) - 1
        prompt = self._prompt(batch)
        places = prompt["lengths"][:, None] - 1 + jnp.arange(longest)
        rows = jnp.arange(len(places))[:, None]
        room = 0 if self.start is None else longest - 1
        tokens = jnp.pad(prompt["tokens"], ((0, 0), (0, room)))
        tokens = tokens.at[rows, places[:, 1:]].set(inputs)
        read = prompt | {"tokens": tokens, "lengths": prompt["lengths"] + counts}
        return self.body.token_logits(ctx.hidden(self.body, read)[rows, places])

    def _prompt(self, batch: Batch) -> Batch:
        """Returns what stands before the target, for which rows without a source have room."""
        lengths, ones = batch["lengths"], jnp.ones_like(batch["lengths"])
        read = {"examples": batch["examples"]}
        if self.start is None:
            own = jnp.maximum(lengths - len(self.targets[0]) + 1, 1)
            return read | {"tokens": batch["tokens"], "lengths": own}
        read |= {"source": batch["tokens"], "source_lengths": lengths}
        return read | {"tokens": ones[:, None] * self.start, "lengths": ones}

    def predict(self, batch: Batch) -> jax.Array:
        """Decodes greedily: [B, 2] float32, the class, and 1 if the answer is valid, else 0."""
        read, targets = self._prompt(batch), jnp.array(self.targets)
        size, longest = len(read["lengths"]), targets.shape[1]
        if "source" in read:
            source = {name: read.pop(name) for name in ("source", "source_lengths")}
            cache = self.body.encode(source | {"examples": read["examples"]}, longest)
        else:
            cache = self.body.init_cache(size, read["tokens"].shape[1])
        rows, reached = jnp.arange(size), jnp.ones((size, len(targets)), bool)
        valid = jnp.ones((size,), bool)
        for own in targets.T:  # [C], the tokens of all classes at one place
            hidden, cache = self.body(read, train=False, cache=cache)
            scores = self.body.token_logits(hidden[rows, read["lengths"] - 1])
            allowed = reached & (own >= 0)
            best = own[jnp.argmax(jnp.where(allowed, scores[:, own], -jnp.inf), axis=1)]
            ended = ~allowed.any(axis=1)
            valid &= ended | (scores.argmax(axis=1) == best)
            reached &= ended[:, None] | (own == best[:, None])
            read |= {"tokens": best[:, None], "lengths": jnp.ones_like(read["lengths"])}
        return jnp.stack([reached.argmax(axis=1), valid], axis=1).astype(jnp.float32)


def make_net(body: nn.Module, task: Task, reading: Reading) -> WordNet:
    """Makes the model of a task."""
    return WordNet(body, tuple(map(tuple, find_targets(task, reading).tolist())), reading.start)


def find_targets(task: Task, reading: Reading) -> np.ndarray:
    """Returns the tokens of each class and the end token behind them, then -1: [C, M] int32.

    Raises:
      ValueError: the tokenizer has no token that ends a text, or reads two labels alike.
    """
    tokenizer, names = reading.tokenizer, task.class_names
    end = [tokenizer.special_ids[r] for r in ("eos", "sep") if r in tokenizer.special_ids][:1]
    if not end:
        raise ValueError(f"{task.title}: --as=text needs a token that ends a text: eos or sep")
    blank = " " if reading.start is None else ""
    made = [[*tokenizer.encode(f"{blank}{name}").tolist(), *end] for name in names]
    for i, tokens in enumerate(made):
        if len(tokens) == 1 or tokens in made[:i]:
            other = names[made.index(tokens)]
            raise ValueError(
                f"{task.title}: the tokenizer reads the label words {other!r} and {names[i]!r}"
                " alike, or as nothing: --as=text cannot tell them apart"
            )
    longest = max(map(len, made))
    return np.array([tokens + [-1] * (longest - len(tokens)) for tokens in made], np.int32)


def num_rows(task: Task, both_orders: bool) -> int:
    """Returns 1."""
    return 1


def loss(scores: jax.Array, batch: Batch) -> tuple[jax.Array, jax.Array]:
    """Sums the cross-entropy in nats of scores [B, M, V] over the tokens of targets."""
    labels = batch["labels"]
    counts = (labels >= 0) * batch["weights"][:, None]
    own = jnp.take_along_axis(scores, jnp.maximum(labels, 0)[..., None], axis=-1)[..., 0]
    return jnp.sum((jax.nn.logsumexp(scores, axis=-1) - own) * counts), jnp.sum(counts)


def encode(task: Task, records: Records, reading: Reading, both_orders: bool) -> TaskExamples:
    """Makes the rows of prompts; those of a model without a source end with room for the target."""
    targets, read = find_targets(task, reading), reading.tokenizer.encode
    first, *second = column_names(task)
    longest = targets.shape[1]
    tail = reading.frame.end
    if reading.start is None:
        tail = (*read(" label:"), *(longest - 1) * [targets.max()])
    begin = (*reading.frame.begin, *read(f"{task.name} {first}:"))
    frame = Frame(begin, (*(read(f" {second[0]}:") if second else ()),), tail)
    frame = Frame(*(tuple(map(int, part)) for part in dataclasses.astuple(frame)))
    texts = [[f" {text}" for text in column] for column in records.texts]
    labels = None if records.labels is None else targets[records.labels]
    framed = dataclasses.replace(reading, frame=frame)
    made = examples.encode(texts, labels, framed, both_orders=False)
    if labels is None:
        return made
    beside = (labels >= 0).sum(axis=1) - (longest if reading.start is None else 0)
    return dataclasses.replace(made, beside=beside)


def decode(task: Task, records: Records, made: TaskExamples, outputs: np.ndarray) -> Decoded:
    """Returns the classes of outputs [n, 2], each with probability 1, and how many are invalid."""
    classes, valid = np.nan_to_num(outputs).astype(np.int32).T
    table = np.where(np.arange(len(task.class_names)) == classes[:, None], 0.0, -np.inf)
    return Decoded(classes, table, int((valid == 0).sum()))


def chance_loss(train: TaskExamples) -> float:
    """Returns the entropy of the classes for each token of a target."""
    assert train.labels is not None
    _, counts = np.unique(train.labels, axis=0, return_counts=True)
    entropy = -np.sum(counts * np.log(counts / counts.sum()))
    return float(entropy / (train.labels >= 0).sum())
