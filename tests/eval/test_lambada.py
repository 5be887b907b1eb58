"""LAMBADA: against greedy guesses a row at a time, transformers, and planted guesses."""

import functools
import itertools
import json
import math
import pathlib
import tempfile
from typing import Any

import numpy as np
import pytest
from task_folders import read_seed
from test_sentence_scores import log_softmax, logits, opened_run, token_logits

from scalelab.eval import evaluation, lambada, lm
from scalelab.lab.compare import study_scores

CONTEXTS = ["Bada gedu dodo", "Gedu bada dodo , bada gedu", "dodo"]
WORDS = ["gedu", "unbada", "bada", "dodogedu"]


def passages(length: int = 1) -> list[lambada.Passage]:
    texts = [f"{' '.join([context] * length)} {word}" for context in CONTEXTS for word in WORDS]
    return [lambada.Passage("test", text, text.rfind(" ")) for text in texts]


def ask(opened: Any, asked: list[lambada.Passage]) -> lambada.Guesses:
    with tempfile.TemporaryDirectory() as folder:  # a slow machine saves what is done
        path = pathlib.Path(folder, "partial.npz")
        return lambada.guess(opened, asked, evaluation.Asked(path, path, {}, batch_tokens=128))


def naive(opened: Any, passage: lambada.Passage) -> tuple[bool, float]:
    """One row for each piece; the model's scores of all tokens."""
    tokenizer, reading = opened.tokenizer, lm.make_reading(opened, None, None)
    before = tokenizer.encode(passage.text[: passage.begin]).tolist()
    word = tokenizer.encode(passage.text).tolist()[len(before) :]
    right, nats = True, 0.0
    for k, piece in enumerate(word):
        masks = [] if reading.mask_id is None else [reading.mask_id] * (len(word) - k)
        stop = tokenizer.encode(".").tolist() if masks else []
        seen = [*before, *word[:k], *masks, *stop]
        cut = max(0, len(before) + len(word) + len(stop) - reading.context)
        row = [*reading.begin, *seen[cut:], *reading.end]
        place = len(row) - len(reading.end) - len(stop) - (len(masks) or 1)
        chances = log_softmax(logits(opened, row, token_logits)[place])
        right &= int(chances.argmax()) == piece
        nats -= float(chances[piece])
    return right, nats


@pytest.mark.parametrize("system", ["gpt2", "bert"])
@pytest.mark.parametrize("length", [1, 12])
def test_guesses_are_those_of_rows_one_by_one(pretrained_runs, system: str, length: int) -> None:
    opened, asked = opened_run(pretrained_runs(system)), passages(length)
    made = ask(opened, asked)
    assert made.is_cut.any() == (length > 1) and (made.pieces > 1).any(), made
    expected = [naive(opened, own) for own in asked]
    assert made.right.tolist() == [right for right, _ in expected]
    np.testing.assert_allclose(made.nats, [nats for _, nats in expected], rtol=1e-4)


@pytest.mark.parametrize("system", ["gpt2", "bert"])
def test_the_right_words_are_counted(pretrained_runs, system: str) -> None:
    """Each passage ends with the model's own guess: all are right; with another piece none is."""
    opened = opened_run(pretrained_runs(system))
    tokenizer, found = opened.tokenizer, []
    reading = lm.make_reading(opened, None, None)
    words = [w for w in (tokenizer.decode([i]).strip() for i in range(300)) if w.isalpha()]
    whole = [w for w in words if len(tokenizer.encode(f"a {w}")) == len(tokenizer.encode("a")) + 1]
    ids = np.array([tokenizer.encode(f"a {w}")[-1] for w in whole])
    for context in CONTEXTS:
        stop = [] if reading.mask_id is None else tokenizer.encode(".").tolist()
        mask = [] if reading.mask_id is None else [reading.mask_id]
        row = [*reading.begin, *tokenizer.encode(context), *mask, *stop, *reading.end]
        place = len(row) - len(reading.end) - len(stop) - 1
        chances = log_softmax(logits(opened, row, token_logits)[place])
        best = int(chances.argmax())
        found.append((context, whole[int(chances[ids].argmax())], best in ids))
        found.append((context, whole[int(chances[ids].argmin())], False))
    asked = [lambada.Passage("t", f"{c} {w}", len(c)) for c, w, _ in found]
    assert ask(opened, asked).right.tolist() == [right for *_, right in found]


def test_perplexity_and_accuracy_by_hand() -> None:
    nats = np.array([1.0, 3.0, np.nan, 2.0])
    made = lambada.Guesses(np.array([1, 0, 0, 1], bool), nats, np.array([1, 1, 1, 2]), nats > 9)
    table = lambada.tabulate(made, "test").set_index("group")
    assert table["passages"].to_dict() == {"test": 4, "1 piece": 3, "more": 1}
    assert table["accuracy"].to_dict() == pytest.approx({"test": 0.5, "1 piece": 1 / 3, "more": 1})
    assert table.loc["test", "perplexity"] == pytest.approx(math.exp(2.0))
    ends = table[["perplexity_low", "perplexity_high"]].to_numpy()
    low, high = ends[0]  # no resample of three words leaves the range of the words
    assert math.exp(1.0) <= low < math.exp(2.0) < high <= math.exp(3.0)
    assert np.isnan(ends[2]).all()  # one word


def test_the_interval_holds_the_perplexity() -> None:
    """Also beyond the largest float, where it is infinite."""
    for seed, scale in itertools.product(range(5), (1.0, 300.0)):
        nats = scale * np.random.default_rng(seed).lognormal(0.5, 1.5, 20)
        made = lambada.Guesses(nats < 1, nats, np.ones(20, int), nats < 0)
        row = lambada.tabulate(made, "test").iloc[0]
        assert row["perplexity_low"] <= row["perplexity"] <= row["perplexity_high"]
        assert math.isinf(row["perplexity"]) == (nats.mean() > 710)


def test_a_net_that_answers_nothing_is_on_the_floor() -> None:
    """A constant answer has no hits, though gold is constant too."""
    assert study_scores._constant("hits", np.ones(7)) == 0.0
    assert study_scores._constant("accuracy", np.ones(7)) == 1.0


@pytest.mark.parametrize("system", [pytest.param("gpt2", marks=pytest.mark.slow), "bert"])
def test_the_program(pretrained_runs, tmp_path, start, refused, system: str) -> None:
    program = functools.partial(start, "lambada")
    data, work = tmp_path / "data", tmp_path / "work"
    data.mkdir()
    given = f"--run={pretrained_runs(system)}", f"--data={data}", f"--workdir={work}"
    lines = [json.dumps({"text": own.text}) for own in passages(12)]
    (data / lambada.FILE).write_text("\n".join(lines) + "\n")
    code, out, errors = program(*given)
    assert code == 0, errors
    assert "first tokens are left out" in out
    result, made = read_seed(work)
    assert made.labels == ("miss", "hit")
    assert result.eval["dev"] == {"hits": made.predicted.mean()} and made.gold.all()
    (data / lambada.FILE).write_text(json.dumps({"text": "word"}) + "\n")
    assert "two words" in refused("lambada", *given)
    (data / "empty.txt").write_text("")
    assert "two words" in refused("lambada", given[0], f"--data={data / 'empty.txt'}", given[2])
    (data / lambada.FILE).write_text(json.dumps({"text": "a \u4e00\u4e01"}) + "\n")
    if system == "bert":  # bytes are always known
        assert "cannot write 1 of the 1" in refused(
            "lambada", *given[:2], f"--workdir={tmp_path / 'other'}"
        )


@pytest.mark.parity
@pytest.mark.parametrize("system", ["gpt2", "bert"])
def test_transformers_guesses_the_same(pretrained_runs, exported, system: str) -> None:
    torch = pytest.importorskip("torch")
    theirs, model = exported(system)
    opened = opened_run(pretrained_runs(system))
    asked = passages()
    made = ask(opened, asked)
    for k, own in enumerate(asked):
        ids = theirs(own.text + "." * (system == "bert"), return_offsets_mapping=True)
        stops = [stop for _, stop in ids["offset_mapping"]]
        places = [i for i, stop in enumerate(stops) if own.begin < stop <= len(own.text)]
        row, right, nats = torch.tensor([ids["input_ids"]]), True, 0.0
        for place in places:
            seen = row.clone()
            if system == "bert":
                seen[0, place : places[-1] + 1] = theirs.mask_token_id
            with torch.no_grad():
                scores = model(input_ids=seen).logits[0, place - (system == "gpt2")]
            right &= bool(scores.argmax() == row[0, place])
            nats -= float(scores.log_softmax(-1)[row[0, place]])
        assert (bool(made.right[k]), made.nats[k]) == (right, pytest.approx(nats, abs=1e-4))
        assert made.pieces[k] == len(places)
