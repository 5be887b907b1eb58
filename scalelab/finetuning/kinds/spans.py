"""An answer as a span of a text: start and end scores of every token (Devlin et al. 2019, 4.2).

A row is question and context. A context that does not fit makes several rows, windows that overlap
by half; each is a training example. A window without the answer has the first token as start and
end, as in run_squad.py of google-research/bert. The answer is the best span over all windows.
Departs from it: padding takes no part in the softmax, a token counts in every window, not in that
with most context around it, and an answer is the text between its tokens as it stands.
"""

import json

import jax
import jax.numpy as jnp
import numpy as np

from scalelab.finetuning.kinds import Decoded, tags
from scalelab.formats import Frame
from scalelab.tasks.examples import Reading, TaskExamples, assemble, store_of
from scalelab.tasks.records import Records
from scalelab.tasks.task import Task

HEAD, PER_TOKEN = "single", True
NUM_OUTPUTS = 2
LONGEST_QUESTION, LONGEST_ANSWER = 64, 30  # tokens, as in run_squad.py
Batch = dict[str, jax.Array]
vectors = tags.vectors


def loss(scores: jax.Array, batch: Batch) -> tuple[jax.Array, jax.Array]:
    """Sums the mean cross-entropy in nats of start and end over the rows of scores [B, T, 2].

    Rows with labels -1 count nothing.
    """
    labels = batch["labels"]  # [B, 2]
    valid = jnp.arange(scores.shape[1]) < batch["lengths"][:, None]
    log_probs = jax.nn.log_softmax(jnp.where(valid[..., None], scores, -1e9), axis=1)
    chosen = jnp.take_along_axis(log_probs, jnp.maximum(labels, 0)[:, None], axis=1)[:, 0]
    weights = batch["weights"] * (labels[:, 0] >= 0)
    return -jnp.sum(chosen.mean(axis=-1) * weights), jnp.sum(weights)


def encode(task: Task, records: Records, reading: Reading, both_orders: bool) -> TaskExamples:
    """Makes the windows of questions.

    `facts` has the question of each window, `owners`, and for each token its first character in the
    context, `begins`, and the one after its last, `ends`; 0 for tokens outside the context.
    """
    made = reading.cached(records.texts, {"kind": "spans"}, lambda: _windows(records, reading))
    truncated = made.pop("truncated")
    facts = {name: made.pop(name) for name in ("owners", "begins", "ends")}
    labels = None
    if records.labels is not None:
        labels = _places(records.labels, facts, made["tokens_starts"])
    return TaskExamples(store_of(made), labels, 1, truncated, facts=facts)


def _windows(records: Records, reading: Reading) -> dict[str, np.ndarray]:
    """Cuts contexts into windows; returns the arrays of `assemble` and the facts of `encode`."""
    questions = reading.tokenizer.encode_batch(records.texts[0])
    contexts = list(dict.fromkeys(records.texts[1]))
    index = {context: i for i, context in enumerate(contexts)}
    starts, ids, places = reading.tokenizer.encode_aligned(contexts)
    frame, max_len = reading.frame, reading.max_len
    special = len(frame.begin) + len(frame.between) + len(frame.end)
    longest = min(LONGEST_QUESTION, (max_len - special) // 2)
    first, second, owners = [], [], []
    for owner, (question, context) in enumerate(zip(questions, records.texts[1], strict=True)):
        begin, end = starts[index[context] : index[context] + 2]
        own = question[:longest]
        room = max_len - special - len(own)
        step = max(room // 2, 1)
        for at in range(begin, max(end - room + step, begin + 1), step):
            first.append(own)
            second.append(np.arange(at, min(at + room, end)))
            owners.append(owner)
    none = Frame(*((0,) * len(part) for part in (frame.begin, frame.between, frame.end)))
    blank = [np.zeros_like(row) for row in first]
    facts = {
        name: assemble(blank, [column[row] for row in second], none, max_len)["tokens"]
        for name, column in (("begins", places[0]), ("ends", places[1]))
    }
    made = assemble(first, [ids[row] for row in second], frame, max_len)
    lengths = np.array([len(question) for question in questions])
    made["truncated"] = lengths[owners] > longest
    return made | facts | {"owners": np.array(owners, np.int64)}


def _places(labels: np.ndarray, facts: dict[str, np.ndarray], starts: np.ndarray) -> np.ndarray:
    """Returns first and last token [n, 2] int32 of each window's answer.

    0 and 0 where the window does not have all of it; -1 where the context does not.
    """
    answers = [json.loads(label)[0] for label in labels]
    found = np.zeros((len(facts["owners"]), 2), np.int32)
    for i, owner in enumerate(facts["owners"]):
        text, begin = answers[owner]
        row = slice(starts[i], starts[i + 1])
        begins, ends = facts["begins"][row], facts["ends"][row]
        (inside,) = np.nonzero((begins < begin + len(text)) & (ends > max(begin, 0)))
        if begin < 0:
            found[i] = -1
        elif len(inside) and begins[inside[0]] <= begin and ends[inside[-1]] >= begin + len(text):
            found[i] = inside[0], inside[-1]
    return found


def decode(
    task: Task, records: Records, made: TaskExamples, outputs: np.ndarray, reading: Reading
) -> Decoded:
    """Returns the text of each question's best span, given outputs [n, T, 2]."""
    starts = made.rows.arrays["tokens_starts"]
    best = np.full(len(records), -np.inf)
    answers = [""] * len(records)
    for i, owner in enumerate(made.facts["owners"]):
        row = slice(starts[i], starts[i + 1])
        begins, ends = made.facts["begins"][row], made.facts["ends"][row]
        scores = np.where((ends > 0)[:, None], outputs[i, : len(ends)], -np.inf)
        gaps = np.arange(len(ends)) - np.arange(len(ends))[:, None]
        allowed = (gaps >= 0) & (gaps < LONGEST_ANSWER)
        sums = np.where(allowed, scores[:, None, 0] + scores[None, :, 1], -np.inf)  # [start, end]
        first, last = np.unravel_index(np.argmax(sums), sums.shape)
        if sums[first, last] > best[owner]:
            best[owner] = sums[first, last]
            answers[owner] = records.texts[1][owner][begins[first] : ends[last]].strip()
    return Decoded(np.array(answers, np.str_))
