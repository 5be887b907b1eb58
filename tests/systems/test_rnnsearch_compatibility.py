"""Compatibility functions against a loop over pairs, each other, and PyTorch's attention."""

import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from parts import NORMAL, init

from scalelab.systems.rnnsearch.compatibility import SCORES, Compatibility, shapes

B, T, S, D, MOST = 2, 3, 5, 7, 6
RNG = np.random.default_rng(0)
QUERIES, STATES = RNG.normal(size=(B, T, D)), RNG.normal(size=(B, S, D))


@pytest.fixture(autouse=True)
def in_double() -> Iterator[None]:
    with tiny.in_double():
        yield


def make(score: str, **more: Any) -> Compatibility:
    given = {"width": D, "max_keys": MOST, "kernel_init": NORMAL, "dtype": np.float64}
    return Compatibility(score, **(given | more))


def draw(module: Compatibility) -> dict[str, np.ndarray]:
    found = init(module, STATES, method="keys").get("params", {})
    return {name: np.asarray(x) for name, x in found.items()}


def scores(
    module: Compatibility, weights: Any, queries: Any = QUERIES, states: Any = STATES
) -> Any:
    def both(module: Any) -> jax.Array:
        return module.scorer()(queries, module.keys(states))

    return module.apply({"params": weights}, method=both)


def by_hand(score: str, w: Any, q: np.ndarray, k: np.ndarray, j: int) -> float:
    """The score of one pair, as the papers write it."""
    if score == "additive":
        return w["out_kernel"] @ np.tanh(w["query_kernel"].T @ q + w["key_kernel"].T @ k)
    if score == "concat":
        return w["out_kernel"] @ np.tanh(w["both_kernel"].T @ np.concatenate([k, q]))
    if score == "location":
        return (w["kernel"].T @ q)[j]
    if score == "biased_general":
        return k @ (w["kernel"].T @ q + w["bias"])
    between = q @ w["kernel"] @ k if score.endswith("general") else q @ k
    change = {"activated_general": math.tanh, "scaled_dot": lambda x: x / math.sqrt(D)}
    return change.get(score, float)(between)


@pytest.mark.parametrize("score", SCORES)
def test_each_score_is_that_of_a_loop_over_pairs(score: str) -> None:
    module = make(score)
    weights = draw(module)
    found = scores(module, weights)
    for b, i, j in np.ndindex(B, T, S):
        wanted = by_hand(score, weights, QUERIES[b, i], STATES[b, j], j)
        np.testing.assert_allclose(found[b, i, j], wanted, rtol=1e-10)
    assert shapes(score, D, MOST) == {name: x.shape for name, x in weights.items()}
    for name in weights:  # every one counts, and its axes are not exchanged
        wrong = weights[name].T if weights[name].shape == (D, D) else weights[name][::-1]
        assert np.abs(scores(module, weights | {name: wrong}) - found).max() > 1e-3, name


def test_scores_that_are_one_function() -> None:
    additive, general = make("additive"), make("general")
    weights, one = draw(additive), draw(general)
    both = np.concatenate([weights["key_kernel"], weights["query_kernel"]])
    joined = {"both_kernel": both, "out_kernel": weights["out_kernel"]}
    same = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12)  # noqa: E731
    same(scores(make("concat"), joined), scores(additive, weights))
    found = scores(general, one)
    same(scores(make("biased_general"), one | {"bias": np.zeros(D)}), found)
    same(np.arctanh(scores(make("activated_general"), {"kernel": one["kernel"] / 99})), found / 99)
    same(scores(make("general"), {"kernel": np.eye(D)}), scores(make("dot"), {}))


def test_location_sees_no_key_and_refuses_more_than_it_has() -> None:
    module = make("location")
    weights = draw(module)
    same = scores(module, weights, states=1 - STATES) == scores(module, weights)
    assert same.all()
    with pytest.raises(ValueError, match="4 positions, but a source of 5"):
        scores(make("location", max_keys=4), {"kernel": weights["kernel"][:, :4]})


def test_only_scaled_products_keep_their_variance_and_gradients() -> None:
    """Vaswani et al. 2017, 3.2.1: q k has variance D, and large scores small gradients."""
    rng, number, keys, found = np.random.default_rng(2), 2000, 16, {}
    for score in ("dot", "scaled_dot"):
        for width in (4, 256):
            q, h = rng.normal(size=(number, 1, width)), rng.normal(size=(number, keys, width))
            a = scores(make(score, width=width, max_keys=keys), {}, q, h)[:, 0]
            assert a.var() == pytest.approx(width if score == "dot" else 1, rel=0.1)
            slopes = jax.vmap(jax.jacobian(jax.nn.softmax))(a)
            found[score, width] = float(jnp.linalg.norm(slopes, axis=(1, 2)).mean())
    assert found["dot", 256] < 0.6 * found["dot", 4]
    assert found["scaled_dot", 256] == pytest.approx(found["scaled_dot", 4], rel=0.1)


@pytest.mark.parity
def test_the_scaled_product_is_pytorchs() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    values = RNG.normal(size=(B, S, D))
    theirs = torch.nn.functional.scaled_dot_product_attention(
        *map(torch.tensor, (QUERIES, STATES, values))
    ).numpy()
    apart = {
        score: np.abs(jax.nn.softmax(scores(make(score), {})) @ values - theirs).max()
        for score in ("scaled_dot", "dot")
    }
    assert apart["scaled_dot"] < 1e-12 and apart["dot"] > 1e-3
