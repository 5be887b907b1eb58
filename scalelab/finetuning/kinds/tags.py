"""A tag for each word: every token's last state -> scores (Devlin et al. 2019, 5.3).

The first piece of a word carries its tag; the loss ignores other pieces and special tokens. A word
without a piece, because the text was cut or the tokenizer drops it, is answered with the task's
first tag.
"""

import jax
import jax.numpy as jnp
import numpy as np

from scalelab.finetuning.kinds import Decoded
from scalelab.formats import Frame
from scalelab.tasks import metrics
from scalelab.tasks.examples import Reading, TaskExamples, assemble, store_of
from scalelab.tasks.records import Records
from scalelab.tasks.task import Task

HEAD, PER_TOKEN = "single", True
NUM_OUTPUTS = None
Batch = dict[str, jax.Array]


def vectors(hidden: jax.Array, batch: Batch, reads: str, num_rows: int) -> jax.Array:
    """Returns the states of all tokens: [B, T, E]."""
    return hidden


def loss(scores: jax.Array, batch: Batch) -> tuple[jax.Array, jax.Array]:
    """Sums the cross-entropy in nats of scores [B, T, C] over the first pieces of words."""
    labels = batch["labels"]  # [B, T], 0: none
    log_probs = jax.nn.log_softmax(scores)
    chosen = jnp.take_along_axis(log_probs, jnp.maximum(labels - 1, 0)[..., None], axis=-1)
    counts = (labels > 0).astype(jnp.float32)
    return -jnp.sum(chosen[..., 0] * counts), jnp.sum(counts)


def encode(task: Task, records: Records, reading: Reading, both_orders: bool) -> TaskExamples:
    """Makes the token rows of sentences; `facts` has the word, from 1, that a piece begins."""
    (texts,) = records.texts

    def make() -> dict[str, np.ndarray]:
        starts, ids, places = reading.tokenizer.encode_aligned(texts)
        begun = [
            first_pieces(text, stops)
            for text, stops in zip(texts, np.split(places[1], starts[1:-1]), strict=True)
        ]
        made = assemble(np.split(ids, starts[1:-1]), None, reading.frame, reading.max_len)
        none = Frame((0,) * len(reading.frame.begin), (), (0,) * len(reading.frame.end))
        return made | {"words": assemble(begun, None, none, reading.max_len)["tokens"]}

    made = reading.cached([texts], {"kind": "tags"}, make)
    words, truncated = made.pop("words"), made.pop("truncated")
    labels = None
    if records.labels is not None:
        index = {tag: i for i, tag in enumerate(task.labels or (), 1)}
        classes = [np.array([0, *(index[tag] for tag in tags.split())]) for tags in records.labels]
        rows = np.split(words, made["tokens_starts"][1:-1])
        labels = np.concatenate([own[row] for own, row in zip(classes, rows, strict=True)])
        labels = labels.astype(np.int32)
    return TaskExamples(store_of(made), None, 1, truncated, labels, {"words": words})


def first_pieces(text: str, stops: np.ndarray) -> np.ndarray:
    """Marks the pieces that begin a word of a text.

    Args:
      text: words, separated by single blanks.
      stops: [n] int, the character after each piece's end.

    Returns:
      The number of the word, from 1, for its first piece, which may hold the blank before it; 0 for
      others.
    """
    in_word = np.cumsum([1, *(letter == " " for letter in text)])[stops]
    _, first = np.unique(in_word, return_index=True)
    found = np.zeros(len(stops), np.int64)
    found[first] = in_word[first]
    return found


def decode(
    task: Task, records: Records, made: TaskExamples, outputs: np.ndarray, reading: Reading
) -> Decoded:
    """Returns the tags of each sentence, joined by blanks, of outputs [n, T, C]."""
    best, tags = outputs.argmax(axis=-1), np.array(task.labels)
    rows = np.split(made.facts["words"], made.rows.arrays["tokens_starts"][1:-1])
    answers = []
    for text, row, own in zip(records.texts[0], rows, best, strict=True):
        classes = np.zeros(text.count(" ") + 1, np.int64)
        (places,) = np.nonzero(row)
        classes[row[places] - 1] = own[places]
        answers.append(" ".join(tags[classes]))
    return Decoded(np.array(answers))


def chance_loss(train: TaskExamples) -> float:
    """Returns the entropy of the tags."""
    labels = train.piece_labels
    assert labels is not None
    return metrics.chance_loss(labels[labels > 0], regression=False)
