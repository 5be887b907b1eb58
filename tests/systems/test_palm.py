"""PALM: the mixture of generating and copying, and its encoder from a run of the first stage."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from flax import linen as nn
from flax.traverse_util import flatten_dict

from scalelab import objectives, systems
from scalelab.eval import token_scores
from scalelab.nn.heads import tied_logits
from scalelab.nn.masks import Mask
from scalelab.objectives import copy
from scalelab.systems import palm, roberta
from scalelab.training import beginning

VOCAB, D, T, S = 31, 24, 6, 9
SIZES = systems.Sizes(3, D, 2, ffn_width=40, max_len=16, dropout_rate=0.1)
NET = palm.build(SIZES, palm.Options(), VOCAB)
TERMS = tiny.terms(palm, "copy", size=VOCAB)
PARAMS = tiny.draw(NET, TERMS)
GATE = D  # place of the gate's score in a state


def make_batch() -> dict[str, np.ndarray]:
    """Sources with repeated tokens, all below 20."""
    rng = np.random.default_rng(0)
    given = {"source": rng.integers(5, 20, (3, S)), "source_lengths": [S, 4, 7]}
    given |= {"tokens": rng.integers(5, VOCAB, (3, T)), "lengths": [T, 3, T]}
    given["source"][:, 2] = given["source"][:, 0]
    return {n: np.asarray(x, np.int32) for n, x in given.items()} | {"examples": np.arange(3)}


BATCH = make_batch()


def states(gate: float | None = None) -> jax.Array:
    """States of the batch; `gate` replaces the scores of the gate."""
    found = jax.jit(lambda batch: NET.apply({"params": PARAMS}, batch, train=False)[0])(BATCH)
    return found if gate is None else found.at[..., GATE].set(gate)


def apply(method: Any, *given: Any) -> Any:
    return nn.apply(method, NET)({"params": PARAMS}, *given)


def probabilities(found: jax.Array) -> np.ndarray:
    return np.exp(apply(lambda model, x: model.token_logits(x), found))


def vocabulary(found: jax.Array) -> np.ndarray:
    """P_v: softmax of the affine head and the table of tokens."""
    features, table, _ = apply(lambda model, x: model.token_features(x), found)
    return np.asarray(jax.nn.softmax(tied_logits(features, table, None)))


def copies(found: jax.Array) -> np.ndarray:
    """P_c by a loop."""
    weights, made = np.asarray(found[..., D + 1 : D + 1 + S]), np.zeros((3, T, VOCAB))
    for row in range(3):
        for t in range(T):
            for place in range(BATCH["source_lengths"][row]):
                made[row, t, BATCH["source"][row, place]] += weights[row, t, place]
    return made


def test_probabilities_add_up_to_one() -> None:
    found = probabilities(states())
    np.testing.assert_allclose(found.sum(-1), 1, rtol=1e-5)
    np.testing.assert_allclose(copies(states()).sum(-1), 1, rtol=1e-5)


def test_an_open_gate_is_the_vocabulary_head() -> None:
    np.testing.assert_allclose(probabilities(states(60.0)), vocabulary(states()), rtol=1e-4)


def test_without_copies_it_is_the_vocabulary_head() -> None:
    """Loss and probabilities are P_v's, with a cache too; the pointer gets no gradient."""
    plain = palm.build(SIZES, palm.Options(copies=False), VOCAB)
    prepared = TERMS[0].objective.prepare(BATCH, jax.random.key(0))
    mixed, found = (net.apply({"params": PARAMS}, prepared, train=False)[0] for net in (NET, plain))
    np.testing.assert_array_equal(found[..., :D], mixed[..., :D])
    scores = nn.apply(lambda model: model.token_logits(found), plain)({"params": PARAMS})
    expected = vocabulary(mixed)
    assert np.abs(probabilities(mixed) - expected).max() > 0.01
    encode = jax.jit(nn.apply(lambda model: model.encode(prepared, T), plain))
    cached = encode({"params": PARAMS})
    target = {name: x for name, x in prepared.items() if not name.startswith("source")}
    decoded = plain.apply({"params": PARAMS}, target, train=False, cache=cached)[0]
    valid = np.arange(T) < BATCH["lengths"][:, None]
    np.testing.assert_allclose(decoded[..., GATE][valid], found[..., GATE][valid])
    np.testing.assert_allclose(decoded[valid], found[valid], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(np.exp(scores), expected, rtol=1e-4)

    def loss(params: Any) -> jax.Array:
        def forward(model: Any) -> jax.Array:
            read = objectives.Pass(jax.random.key(0))
            return TERMS[0].objective.losses(model, prepared, read)["loss"][0]

        return nn.apply(forward, plain)({"params": params})

    value, gradient = jax.jit(jax.value_and_grad(loss))(PARAMS)
    each = np.take_along_axis(expected, BATCH["tokens"][..., None], -1)[..., 0]
    assert value == pytest.approx(-np.log(each)[valid].sum(), rel=1e-5)
    assert not any(x.any() for x in jax.tree.leaves(gradient.pop("pointer")))
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(gradient))
    assert np.abs(gradient["head"]["kernel"]).max() > 1e-3


def test_a_closed_gate_copies_and_sums_duplicates() -> None:
    found = probabilities(states(-60.0))
    np.testing.assert_allclose(found, copies(states()), rtol=1e-4, atol=1e-6)
    elsewhere = [token for token in range(VOCAB) if token not in BATCH["source"]]
    assert len(elsewhere) > 10 and found[..., elsewhere].max() < 1e-6


def test_the_mixture_is_weighted_by_the_gate() -> None:
    gate = 1 / (1 + np.exp(-np.asarray(states()[..., GATE, None], np.float64)))
    assert gate.std() > 0.01
    expected = gate * vocabulary(states()) + (1 - gate) * copies(states())
    np.testing.assert_allclose(probabilities(states()), expected, rtol=1e-3, atol=1e-6)


def test_attention_and_gate_by_the_equations() -> None:
    """Bi et al. 2020, 3.3."""
    rng = np.random.default_rng(1)
    state, source = rng.normal(size=(3, T, D)), rng.normal(size=(3, S, D))
    pointer, part = palm.Pointer(jnp.float32), PARAMS["pointer"]
    given = (jnp.asarray(x, jnp.float32) for x in (state, source))
    mask = Mask(jnp.asarray(BATCH["source_lengths"]))
    weights, gate = pointer.apply({"params": part}, *given, mask)
    kernel = {name: np.float64(leaf["kernel"]) for name, leaf in part.items()}
    for row, length in enumerate(BATCH["source_lengths"]):
        for t in range(T):
            h, s = source[row, :length], state[row, t]
            inner = h @ kernel["source"] + s @ kernel["state"] + part["state"]["bias"]
            e = np.exp((np.tanh(inner) @ kernel["score"])[:, 0])
            expected = e / e.sum()
            np.testing.assert_allclose(weights[row, t, :length], expected, rtol=1e-4)
            z = expected @ h @ kernel["mean_gate"] + s @ kernel["state_gate"]
            np.testing.assert_allclose(gate[row, t], (z + part["state_gate"]["bias"])[0], rtol=1e-3)
        assert not weights[row, :, length:].any()


def test_the_loss_is_that_of_the_mixture_and_its_gradient_is_finite() -> None:
    """Most targets are in no source, so that copying them has probability 0."""
    prepared = TERMS[0].objective.prepare(BATCH, jax.random.key(0))

    def loss(params: Any) -> jax.Array:
        def forward(model: Any) -> jax.Array:
            found = TERMS[0].objective.losses(model, prepared, objectives.Pass(jax.random.key(0)))
            return found["loss"][0]

        return nn.apply(forward, NET)({"params": params})

    value, gradient = jax.jit(jax.value_and_grad(loss))(PARAMS)
    found = NET.apply({"params": PARAMS}, prepared, train=False)[0]
    each = np.take_along_axis(probabilities(found), BATCH["tokens"][..., None], -1)[..., 0]
    valid = np.arange(T) < BATCH["lengths"][:, None]
    assert value == pytest.approx(-np.log(each)[valid].sum(), rel=1e-4)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(gradient))


@pytest.mark.parametrize("gate", [-3.0, 0.0, 2.0])
def test_a_token_that_is_not_in_the_source_is_only_generated(gate: float) -> None:
    share = 1 / (1 + np.exp(-gate))
    generated = np.log([0.3, 0.3])
    found = np.exp(copy.mix(generated, jnp.array([0.0, 0.5]), jnp.full(2, gate)))
    np.testing.assert_allclose(found, [share * 0.3, share * 0.3 + (1 - share) * 0.5], rtol=1e-5)
    only_copied = copy.mix(jnp.array([-jnp.inf]), jnp.array([0.5]), jnp.array([gate]))
    np.testing.assert_allclose(np.exp(only_copied), [(1 - share) * 0.5], rtol=1e-5)


def test_a_loss_of_one_softmax_is_refused() -> None:
    """Each place has a bias of its own, which such a loss does not read."""
    given = {"heads": palm.HEADS, "sees": palm.SEES, "format": "continuation"}
    objectives.check(["copy"], **given)
    with pytest.raises(ValueError, match="'seq2seq' needs a head 'token'"):
        objectives.check(["seq2seq"], **given)


def test_the_second_stage_takes_the_encoder_of_the_first() -> None:
    """All of a RoBERTa but its head; decoder, pointer and head are new."""
    first = roberta.build(SIZES, None, VOCAB)
    made = [
        objectives.abstract_variables(net, terms, max_len=16, boxed=True)["params"]
        for net, terms in ((first, tiny.terms(roberta, "mlm", size=VOCAB)), (NET, TERMS))
    ]
    given, wanted = (flatten_dict(tree, sep="/") for tree in made)
    found = beginning.match(wanted, {name: box.value.shape for name, box in given.items()})
    body = {name for name in given if not name.startswith("token_head/")}
    assert {name: origin.source for name, origin in found.items()} == {
        f"encoder/{name}": name for name in body
    }
    assert {name for name in wanted if name.startswith("encoder/")} == found.keys()


def test_scores_in_chunks_are_those_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each place has a bias of its own, which has to be cut with the features."""
    targets = BATCH["tokens"].reshape(-1)
    places = token_scores.Places(np.arange(3 * T), targets, np.int32(3 * T))
    each = np.take_along_axis(probabilities(states()), BATCH["tokens"][..., None], -1)
    for most in (10_000, 5 * VOCAB):
        monkeypatch.setattr(token_scores, "MOST_SCORES", {"cpu": most})
        found, _ = token_scores.judge_places(NET, token_scores.nats, PARAMS, BATCH, places)
        np.testing.assert_allclose(found, -np.log(each.reshape(-1)), rtol=1e-3, err_msg=str(most))
