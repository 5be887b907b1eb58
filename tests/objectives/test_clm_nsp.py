"""CLM by the chain rule, losses of pairs by hand, and which objectives go with what."""

import dataclasses
import math
import types
from typing import Any

import jax
import numpy as np
import pytest
import scratch
from fake import FakeNet

from scalelab import formats, objectives
from scalelab.objectives import clm

B, T, D, V = 4, 6, 5, 9
RNG = np.random.default_rng(0)
LENGTHS = np.array([6, 3, 1, 0], np.int32)
TOKENS = np.where(np.arange(T) < LENGTHS[:, None], RNG.integers(0, V, (B, T)), 0).astype(np.int32)
BATCH = {"tokens": TOKENS, "lengths": LENGTHS}
HIDDEN = RNG.normal(size=(B, T, D)).astype(np.float32)
NET = FakeNet(RNG.normal(size=(V, D)).astype(np.float32), hidden=HIDDEN)
SETTING = objectives.Setting(V, {}, 0.15)


def test_clm_is_the_chain_rule() -> None:
    """Minus the log of the product of p(x_i | x_<i), the first token left out."""
    objective = clm.make(SETTING)
    terms = NET.losses(objective, BATCH, accuracy=True)
    loss = hits = count = 0
    for b in range(B):
        probability = 1.0
        for i in range(1, LENGTHS[b]):
            scores = np.exp((NET.table @ HIDDEN[b, i - 1]).astype(np.float64))
            probability *= scores[TOKENS[b, i]] / scores.sum()
            hits += scores.argmax() == TOKENS[b, i]
            count += 1
        loss -= math.log(probability)
    assert count == 5 + 2
    assert terms["loss"][1] == terms["accuracy"][1] == count
    assert terms["loss"][0] == pytest.approx(loss, rel=1e-5)
    assert terms["accuracy"][0] == hits


def test_clm_takes_nothing_from_the_padding() -> None:
    objective = clm.make(SETTING)
    assert objectives.prepare(BATCH, [objectives.Term(objective)], jax.random.key(0)) is BATCH
    noise = np.where(np.arange(T) < LENGTHS[:, None], TOKENS, 5)
    hidden = np.where((np.arange(T) < LENGTHS[:, None] - 1)[..., None], HIDDEN, 1e3)
    found = NET.losses(objective, BATCH)
    assert found.keys() == {"loss"}  # no accuracy unless asked
    clean = found["loss"]
    net = dataclasses.replace(NET, hidden=hidden.astype(np.float32))
    noisy = net.losses(objective, BATCH | {"tokens": noise})["loss"]
    np.testing.assert_allclose(clean, noisy, rtol=1e-6)


@pytest.mark.parametrize(("name", "array"), [("nsp", "random_second"), ("sop", "swapped")])
def test_losses_of_pairs_by_hand(name: str, array: str) -> None:
    objective = objectives.load(name).make(SETTING)
    labels = np.array([1, 0, 0, 0], np.int32)
    terms = NET.losses(objective, BATCH | {array: labels}, accuracy=True)
    loss = hits = 0.0
    for b in range(3):  # the fourth is padding
        scores = HIDDEN[b, 0].sum(), HIDDEN[b, 0, 0]
        loss += math.log(math.exp(scores[0]) + math.exp(scores[1])) - scores[labels[b]]
        hits += (scores[1] > scores[0]) == labels[b]
    assert terms["loss"][1] == 3
    assert terms["loss"][0] == pytest.approx(loss, rel=1e-5)
    assert terms["accuracy"] == (hits, 3) and 0 < hits < 3


BOTH, TOKEN, PAIRS, DOCS = ("token", "pair"), ("token",), "segment_pair", "doc_sentences"


@pytest.mark.parametrize(("names", "heads", "sees", "format"), [
    (("mlm", "nsp"), BOTH, "both", PAIRS), (("mlm",), BOTH, "both", PAIRS),
    (("mlm",), TOKEN, "both", DOCS), (("clm",), TOKEN, "left", "full_sentences"),
    (("clm",), TOKEN, "left", PAIRS),
])  # fmt: skip
def test_possible_pairs(names: Any, heads: Any, sees: str, format: str) -> None:
    objectives.check(names, heads=heads, sees=sees, format=format)
    for wrong in {"left", "both", "source"} - {sees}:
        with pytest.raises(ValueError, match=f"{sees!r}, and those of this system see {wrong!r}"):
            objectives.check(names, heads=heads, sees=wrong, format=format)


@pytest.mark.parametrize(("names", "heads", "format", "message"), [
    (("mlm", "nsp"), BOTH, DOCS, f"'random_second'.*'{DOCS}'.*segment_pair"),
    (("mlm", "nsp"), TOKEN, PAIRS, "'nsp' needs a head 'pair'.* token"),
    (("mlm",), ("tokens",), DOCS, "head 'token'.*did you mean 'tokens'"),
    (("",), TOKEN, DOCS, "unknown objective ''"),
])  # fmt: skip
def test_impossible_pairs(names: Any, heads: Any, format: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        objectives.check(names, heads=heads, sees="both", format=format)


def test_a_program_is_traced_with_the_lengths_of_its_own_format(monkeypatch) -> None:
    """Two formats declare one array, with other lengths; a third one has it not."""
    for name, length in (("one", lambda n, _: n), ("two", lambda n, _: 2 * n)):
        array = formats.Array("answer", "ragged", length=length)
        scratch.add(monkeypatch, "formats", name, ARRAYS=(*formats.COMMON, array))
    facts = {"NEEDS": ("answer",), "HEADS": (), "SEES": None, "make": lambda *_: object()}
    scratch.add(monkeypatch, "objectives", "asks", **facts)
    for name, length in (("one", 8), ("two", 16)):
        setting = objectives.Setting(9, {}, 0.15, format=name)
        terms = objectives.make({"asks": 1.0}, setting)
        batch = objectives.example_batch(8, objectives.needed_arrays(terms), 3)
        assert batch["answer"].shape == (3, length) and batch["answer_lengths"].shape == (3,)
        objectives.check(["asks"], heads=(), sees="both", format=name)
    with pytest.raises(ValueError, match=rf"'asks' needs the array 'answer'.*'{DOCS}'.*\(one, two"):
        objectives.check(["asks"], heads=(), sees="both", format=DOCS)


def test_an_objective_may_need_another_one_in_the_same_sum(monkeypatch) -> None:
    needy = types.SimpleNamespace(beside=("clm",))
    scratch.add(monkeypatch, "objectives", "needy", NEEDS=(), make=lambda *_: needy)
    assert len(objectives.make({"clm": 1.0, "needy": 1.0}, SETTING)) == 2
    with pytest.raises(ValueError, match=r"'needy' needs 'clm' in the same sum.*clm\+needy"):
        objectives.make({"needy": 1.0}, SETTING)
