"""Kinds of head: which tokens carry labels, losses by hand, decoding, and planted tasks."""

import json
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from test_finetune import config
from test_finetune import one_bucket as one_bucket

from scalelab import finetune
from scalelab.finetuning import kinds, warm_start
from scalelab.finetuning.kinds import choices, spans, tags
from scalelab.finetuning.progress import Progress
from scalelab.finetuning.run import TaskRun
from scalelab.tasks.metrics import METRICS
from scalelab.tasks.records import Records
from scalelab.tasks.task import Splits, load_task

Prepare = Callable[..., TaskRun]
WORDS = (
    "at do go if me no up during side tree".split()
)  # most are several pieces, none begins alike


@pytest.fixture
def prepare(pretrained_runs, cache_dir, tmp_path) -> Prepare:
    """prepare(task, train, dev, ..., **fields of the config) -> TaskRun."""

    def make(
        name: str, train: Records, dev: Records, *, system: str = "bert", **fields: Any
    ) -> TaskRun:
        task = load_task(name)
        small = {
            "epochs": 60.0, "batch_size": 16, "dropout_rate": 0.0, "optim.learning_rate": 2e-2,
            "head.kind": kinds.load(task.kind).HEAD, "head.dropout_rate": 0.0,
            "eval_every_epochs": 200.0, "machine.tracker": None,
        }  # fmt: skip
        start = warm_start.open_start(str(pretrained_runs(system)))
        every = dict.fromkeys(split.name for split in task.dev_splits) | {"dev": dev}
        own = config(cache_dir, **(small | fields))
        return TaskRun(task, Splits(train, every, {}), start, own, tmp_path)

    return make


def tagged(n: int, seed: int) -> Records:
    """Sentences whose tags are functions of the words."""
    rng = np.random.default_rng(seed)
    sentences = [rng.choice(WORDS, rng.integers(2, 6)) for _ in range(n)]
    labels = load_task("pos").labels
    assert labels
    spelt = [" ".join(labels[WORDS.index(word)] for word in words) for words in sentences]
    return Records(([" ".join(words) for words in sentences],), np.array(spelt), "invented", "")


def outputs(run: TaskRun) -> np.ndarray:
    """Outputs of the first step's parameters on dev."""
    examples = run.dev["dev"]
    assert examples is not None
    return run.predict_with(run.first_params(0), examples)


@pytest.mark.parametrize("system", ["bert", "roberta"])
def test_the_first_piece_of_a_word_carries_its_tag(prepare: Prepare, system: str) -> None:
    """Words are read back from the pieces that begin them; BERT's as transformers numbers them."""
    from transformers import AutoTokenizer

    records = tagged(20, 0)
    run = prepare("pos", records, records, system=system)
    batch = run.train.gather(np.arange(20), 32)
    theirs = AutoTokenizer.from_pretrained(run.start.opened.tokenizer_dir)
    several = 0
    for i, text in enumerate(records.texts[0]):
        row = batch["labels"][i]
        words, spelt = text.split(), records.labels[i].split()
        (places,) = np.nonzero(row)
        assert [run.task.labels[row[place] - 1] for place in places] == spelt
        ends = [*places[1:], batch["lengths"][i] - 1]
        for word, begin, end in zip(words, places, ends, strict=True):
            pieces = map(run.tokenizer.token, batch["tokens"][i][begin:end])
            assert "".join(piece.strip("#Ġ") for piece in pieces) == word
            several += end - begin > 1
        if system == "bert":
            numbers = theirs(words, is_split_into_words=True).word_ids()
            first = [numbers.index(word) for word in range(len(words))]
            assert places.tolist() == first
    assert several > 10  # else the first piece is the last


def test_the_loss_of_tags_by_hand() -> None:
    scores = jnp.log(jnp.array([[[0.5, 0.5], [0.25, 0.75], [0.9, 0.1]]]))
    made = tags.loss(scores, {"labels": jnp.array([[0, 1, 2]])})
    np.testing.assert_allclose(made, [-np.log(0.25) - np.log(0.1), 2], rtol=1e-6)


def test_words_without_a_piece_have_the_first_tag(prepare: Prepare) -> None:
    records = tagged(3, 0)
    long = " ".join(["go"] * 50)
    cut = Records(([long],), np.array([" ".join(["NOUN"] * 50)]), "", "")
    run = prepare("pos", records, cut, batch_size=2)
    made = run.dev["dev"]
    perfect = np.zeros((1, 32, len(run.task.labels)), np.float32)
    perfect[0, :, run.task.labels.index("NOUN")] = 1
    answer = run.kind.decode(run.task, cut, made, perfect, run.reading).answers[0].split()
    assert len(answer) == 50 and made.num_truncated == 1
    assert {answer[0], answer[-1]} == {"NOUN", "X"} and answer.count("NOUN") <= 30


@pytest.mark.slow
def test_tags_are_learnt_where_the_first_piece_carries_them(prepare: Prepare, monkeypatch) -> None:
    """Training with the tag on the last piece fails on words of several pieces."""
    train, dev = tagged(96, 0), tagged(40, 1)
    run = prepare("pos", train, dev)
    finetune.train([run], 0, run.workdir)
    assert run.result(0)["eval"]["dev"]["word_accuracy"] > 0.99

    real = tags.first_pieces
    monkeypatch.setattr(tags, "first_pieces", lambda text, stops: _last(real(text, stops)))
    wrong = prepare("pos", train, dev, max_len=31)  # other rows in the cache
    wrong.dev, wrong.workdir = run.dev, wrong.workdir / "wrong"
    finetune.train([wrong], 0, wrong.workdir)
    assert wrong.result(0)["eval"]["dev"]["word_accuracy"] < 0.9


def _last(first: np.ndarray) -> np.ndarray:
    """Moves the marks of words from their first pieces to their last."""
    moved = np.zeros_like(first)
    (places,) = np.nonzero(first)
    moved[[*(places[1:] - 1), len(first) - 1]] = first[places]
    return moved


def chosen(n: int, seed: int) -> Records:
    """The right choice is "tree"."""
    rng = np.random.default_rng(seed)
    rows, labels = [], []
    for _ in range(n):
        labels.append(int(rng.integers(4)))
        text, *four = rng.choice(WORDS[:-1], 5, replace=False)
        four[labels[-1]] = "tree"
        rows.append((text, *four))
    return Records(tuple(map(list, zip(*rows, strict=True))), np.array(labels, np.int32), "", "")


def test_a_choice_is_a_pair_with_the_text_and_scored_by_itself(prepare: Prepare) -> None:
    records = chosen(8, 0)
    run = prepare("mctest", records, records, batch_size=8)
    batch = run.train.gather(np.array([2]), 32)
    for k in range(4):
        expected = [run.tokenizer.encode(records.texts[i][2]).tolist() for i in (0, k + 1)]
        cls, sep = (run.tokenizer.special_ids[role] for role in ("cls", "sep"))
        row = [cls, *expected[0], sep, *expected[1], sep]
        assert batch["tokens"][k][: batch["lengths"][k]].tolist() == row
    assert run.train.num_tokens[2] == batch["lengths"].sum()
    shuffled = (records.texts[0], *(records.texts[k] for k in (3, 1, 4, 2)))
    other = Records(shuffled, records.labels, "", "")
    found = outputs(prepare("mctest", records, other, batch_size=8))
    np.testing.assert_allclose(found, outputs(run)[:, [2, 0, 3, 1]], atol=1e-6)
    made = choices.decode(run.task, records, run.train, found, run.reading)
    np.testing.assert_array_equal(made.answers, found[..., 0].argmax(axis=1))


def test_the_loss_of_choices_by_hand() -> None:
    batch = {"labels": jnp.array([1, 0]), "weights": jnp.array([1.0, 0.0])}
    made = choices.loss(jnp.log(jnp.array([[[1.0], [3.0]], [[1.0], [1.0]]])), batch)
    np.testing.assert_allclose(made, [-np.log(0.75), 1], rtol=1e-6)


def asked(n: int, seed: int, length: int = 8) -> Records:
    """The answer is the pair "tree side", wherever it stands."""
    rng = np.random.default_rng(seed)
    contexts, labels = [], []
    for _ in range(n):
        words = rng.choice(WORDS[:-2], length).tolist()
        place = int(rng.integers(length - 1))
        words[place : place + 2] = "tree", "side"
        contexts.append(" ".join(words))
        labels.append(json.dumps([["tree side", contexts[-1].index("tree")]]))
    return Records((["if"] * n, contexts), np.array(labels), "", "")


@pytest.mark.parametrize("system", ["bert", "roberta"])
@pytest.mark.parametrize("length", [4, 60])
def test_windows_hold_the_context_and_the_answer(prepare, system, length) -> None:
    """Scores that name the labeled places give the gold answers."""
    records = asked(12, 0, length)
    run = prepare("squad", records, records, system=system, batch_size=4)
    made = run.dev["dev"]
    assert (len(made) > len(records)) == (length > 30)
    starts = made.rows.arrays["tokens_starts"]
    seen: list[set[int]] = [set() for _ in range(len(records))]
    perfect = np.zeros((len(made), 32, 2), np.float32)
    for i, owner in enumerate(made.facts["owners"]):
        row = slice(starts[i], starts[i + 1])
        for begin, end in zip(made.facts["begins"][row], made.facts["ends"][row], strict=True):
            seen[owner] |= set(range(begin, end))
        if made.labels[i, 0]:
            perfect[i, made.labels[i, 0], 0] = perfect[i, made.labels[i, 1], 1] = 9
    for context, found in zip(records.texts[1], seen, strict=True):
        assert {k for k, letter in enumerate(context) if letter != " "} <= found
    answers = run.kind.decode(run.task, records, made, perfect, run.reading).answers
    assert METRICS["exact_match"](records.labels, answers) == 1


def test_the_loss_of_spans_is_brute_force() -> None:
    rng = np.random.default_rng(0)
    scores, lengths = rng.normal(size=(3, 6, 2)), np.array([6, 4, 5])
    labels, weights = np.array([[1, 3], [0, 0], [-1, -1]]), np.ones(3)
    total = 0.0
    for row in (0, 1):
        for k in (0, 1):
            shares = np.exp(scores[row, : lengths[row], k])
            total -= np.log(shares[labels[row, k]] / shares.sum()) / 2
    batch = {"labels": labels, "lengths": lengths, "weights": weights}
    made = spans.loss(jnp.asarray(scores), {k: jnp.asarray(x) for k, x in batch.items()})
    np.testing.assert_allclose(made, [total, 2], rtol=1e-6)


def test_the_best_span_is_brute_force(prepare: Prepare) -> None:
    """Over all windows, of at most 30 tokens, in the context alone, and not backwards."""
    records = asked(3, 0, 50)
    run = prepare("squad", records, records, batch_size=2)
    made = run.dev["dev"]
    scores = np.random.default_rng(1).normal(size=(len(made), 32, 2)).astype(np.float32)
    starts, best = made.rows.arrays["tokens_starts"], {}
    for i, owner in enumerate(made.facts["owners"]):
        begins, ends = (made.facts[x][starts[i] : starts[i + 1]] for x in ("begins", "ends"))
        for a in range(len(ends)):
            for b in range(a, min(a + spans.LONGEST_ANSWER, len(ends))):
                if ends[a] and ends[b]:
                    text = records.texts[1][owner][begins[a] : ends[b]]
                    best[owner] = max(
                        best.get(owner, (-np.inf, "")), (scores[i, a, 0] + scores[i, b, 1], text)
                    )
    answers = run.kind.decode(run.task, records, made, scores, run.reading).answers
    assert answers.tolist() == [best[owner][1] for owner in range(3)]


def test_an_answer_that_is_not_there_is_not_trained_on(prepare: Prepare) -> None:
    records = asked(4, 0)
    absent = json.dumps([["nowhere", -1]])
    labels = np.array([absent, *records.labels[1:]])
    run = prepare("squad", Records(records.texts, labels, "", ""), records, batch_size=4)
    found = run.train.labels
    assert (found[0] == -1).all() and (found[1:] >= 0).all()


def test_steps_without_an_answer_have_no_loss() -> None:
    progress = Progress()
    progress.add({"loss": (0.0, 0.0)}, 4)
    assert progress.loss(4) is None


def test_each_answer_is_an_example_and_a_question_a_record(prepare: Prepare) -> None:
    texts = ["go up", "me"], ["if\ntree\nside", "at\nno\ndo\nup"]
    records = Records(texts, np.array(["1 0", "0 1 1"]), "", "")
    run = prepare("superglue_multirc", records, records, batch_size=2)
    assert len(run.train) == 5 and run.train.labels.tolist() == [1, 0, 0, 1, 1]
    batch = run.train.gather(np.array([3]), 32)
    cls, sep = (run.tokenizer.special_ids[role] for role in ("cls", "sep"))
    first, second = (run.tokenizer.encode(text).tolist() for text in ("me", "at do"))
    row = batch["tokens"][0][: batch["lengths"][0]].tolist()
    assert row == [cls, *first, sep, *second, sep]
    perfect = np.eye(2)[run.train.labels]
    found = run.kind.decode(run.task, records, run.dev["dev"], perfect, run.reading)
    assert found.answers.tolist() == ["1 0", "0 1 1"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "make", "system"),
    [("mctest", chosen, "bert"), ("squad", asked, "bert"), ("squad", asked, "bart")],
)
def test_planted_tasks_are_learnt(prepare: Prepare, task: str, make: Any, system: str) -> None:
    more = 3 if system == "bart" else 1  # examples: with a source it learns more slowly
    fields = {"epochs": 60.0 / more, "system": system}
    run = prepare(task, make(96 * more, 0), make(40, 1), **fields)
    finetune.train([run], 0, run.workdir)
    assert run.result(0)["eval"]["dev"][run.task.metrics[0]] > 0.99
