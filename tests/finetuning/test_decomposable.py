"""Decomposable attention as a head: a loop over tokens, order, padding, training, refusals."""

import json
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from flax import linen as nn
from test_finetune import one_bucket as one_bucket
from test_finetune import prepare as prepare

from scalelab import finetune
from scalelab.finetuning import reopen
from scalelab.interop import exporting
from scalelab.nets.classifier import Classifier
from scalelab.nn.decomposable import DecomposableHead
from scalelab.training.pretrained import load_trained

B, T, E, W = 3, 7, 5, 8
LENGTHS, SECONDS = np.array([7, 5, 4]), np.array([3, 2, 3])
BATCH = {"lengths": LENGTHS, "second_starts": SECONDS, "examples": np.arange(B)}


@pytest.fixture
def in_double() -> Iterator[None]:
    with tiny.in_double():
        yield


def draw() -> tuple[Any, Any, np.ndarray]:
    """A classifier that reads states, its parameters and the states."""
    rng = np.random.default_rng(0)
    hidden = rng.normal(size=(B, T, E))
    net: Any = Classifier(nn.Dense(1), DecomposableHead(3, W, 0.5), "pair")
    make = lambda key: net.init(key, hidden, BATCH, train=False, method="classify")  # noqa: E731
    made = nn.unbox(jax.eval_shape(make, jax.random.key(0)))["params"]
    return net, jax.tree.map(lambda x: jnp.asarray(rng.normal(0, 0.5, x.shape)), made), hidden


def score(net: Any, params: Any, hidden: Any, batch: Any = BATCH) -> np.ndarray:
    return np.asarray(net.apply({"params": params}, hidden, batch, train=False, method="classify"))


def by_hand(head: Any, hidden: np.ndarray, *, padding: bool = False, over: int = 1) -> np.ndarray:
    """Equations 1 to 6, a pair of tokens at a time.

    Two wrong variants: `padding` belongs to the second text; `over` = 0 divides the weights of a
    token by their sum over the tokens that attend to it.
    """

    def affine(x: np.ndarray, own: Any) -> np.ndarray:
        return x @ np.asarray(own["kernel"]) + np.asarray(own.get("bias", 0))

    def layers(x: np.ndarray, own: Any) -> np.ndarray:
        return np.maximum(affine(np.maximum(affine(x, own["first"]), 0), own["second"]), 0)

    found = []
    for row, length, second in zip(hidden, LENGTHS, SECONDS, strict=True):
        row = row if padding else row[:length]
        x = affine(row / np.linalg.norm(row, axis=1, keepdims=True), head["project"])
        texts, sums = (x[:second], x[second:]), []
        for own, other in (texts, texts[::-1]):
            e = np.array([[layers(a, head["attend"]) @ layers(b, head["attend"]) for b in other]
                          for a in own])  # fmt: skip
            shares = np.exp(e) / np.exp(e).sum(axis=over, keepdims=True)
            sums.append(np.zeros(W))
            for a, share in zip(own, shares, strict=True):
                soft = sum(s * b for s, b in zip(share, other, strict=True))
                sums[-1] = sums[-1] + layers(np.concatenate([a, soft]), head["compare"])
        found.append(affine(layers(np.concatenate(sums), head["aggregate"]), head["out"]))
    return np.array(found)


@pytest.mark.usefixtures("in_double")
def test_it_is_the_papers_equations() -> None:
    net, params, hidden = draw()
    found = score(net, params, hidden)
    np.testing.assert_allclose(found, by_hand(params["head"], hidden), atol=1e-10, rtol=1e-10)
    for wrong in ({"padding": True}, {"over": 0}):
        assert np.abs(found - by_hand(params["head"], hidden, **wrong)).max() > 1e-3


@pytest.mark.usefixtures("in_double")
def test_the_order_within_a_text_and_padding_do_not_matter() -> None:
    """A token that changes its text does."""
    net, params, hidden = draw()
    found = score(net, params, hidden)
    order = np.array([[2, 0, 1, 6, 4, 3, 5], [1, 0, 4, 2, 3, 5, 6], [2, 1, 0, 3, 4, 5, 6]])
    turned = np.take_along_axis(hidden, order[..., None], axis=1)
    np.testing.assert_allclose(score(net, params, turned), found, atol=1e-10)
    padded = np.where(np.arange(T)[:, None] < LENGTHS[:, None, None], hidden, 9.0)
    np.testing.assert_array_equal(score(net, params, padded), found)
    long = np.concatenate([hidden, np.full((B, 3, E), 9.0)], axis=1)
    np.testing.assert_allclose(score(net, params, long), found, atol=1e-12)
    order[:, [1, 3]] = order[:, [3, 1]]
    moved = score(net, params, np.take_along_axis(hidden, order[..., None], axis=1))
    assert (np.abs(moved - found).max(axis=1) > 1e-3).all()


def test_it_learns_from_frozen_vectors_and_is_opened_again(prepare, tmp_path) -> None:
    """Whether a word is in the first text decides: the vectors of the last tokens say nothing."""
    head = {"head__kind": "decomposable", "head__dropout_rate": 0.0}
    run = prepare("word2vec", "rte", feature_layers=1, epochs=40.0, **head)
    before = run.first_params(0)
    finetune.train([run], 0, run.workdir)
    after = load_trained(run.folder(0))
    jax.tree.map(np.testing.assert_array_equal, before["body"], after["body"])
    for name in ("project", "attend", "compare", "aggregate", "out"):
        parts = [jax.tree.leaves(params["head"][name]) for params in (before, after)]
        assert all(np.abs(a - b).max() > 1e-4 for a, b in zip(*parts, strict=True)), name
    lines = (run.folder(0) / "metrics.jsonl").read_text().splitlines()
    loss = [json.loads(line) for line in lines]
    assert min(x["train/loss"] for x in loss if "train/loss" in x) < 0.4
    assert finetune.results.evaluate_again(run, 0) == run.result(0)["eval"]
    opened = reopen.load(run.folder(0))
    again = opened.prepare(run.splits.train, str(tmp_path / "cache"))
    assert again.predict_with(opened.params, again.train).shape == (36, 2)
    with pytest.raises(ValueError, match=r"word2vec|decomposable"):
        exporting.run(run.folder(0), tmp_path / "out")


@pytest.mark.parametrize(("system", "task", "fields"), [
    ("bert", "sst2", {}), ("bart", "rte", {}), ("bert", "rte", {"head__lstm_width": 4}),
    ("bert", "rte", {"feature_layers": 1, "feature_mix": "weighted"}),
])  # fmt: skip
def test_what_has_no_two_texts_is_refused(prepare, system: str, task: str, fields: Any) -> None:
    with pytest.raises(ValueError, match=r"head\.kind = 'decomposable'"):
        prepare(system, task, head__kind="decomposable", **fields)
