"""What replaced-token detection takes from xent: samples, and log-probabilities of tokens."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from scalelab.objectives import xent

B, T, D, V = 3, 7, 5, 11


@pytest.fixture(params=[2**25, 40])
def chunks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """All positions at once, or two at a time."""
    monkeypatch.setattr(xent, "CHUNK_SCORES", {"cpu": request.param})
    assert xent.chunk_size(B, T, V) == (T if request.param > 40 else 2)


def draw(*shape: int, seed: int = 0) -> jax.Array:
    return jnp.array(1.5 * np.random.default_rng(seed).normal(size=shape), jnp.float32)


ARGUMENTS = draw(B, T, D), draw(V, D, seed=1), draw(V, seed=2)


def probabilities() -> np.ndarray:
    """[B, T, V] float64."""
    features, table, bias = (np.asarray(x, np.float64) for x in ARGUMENTS)
    scores = np.exp(features @ table.T + bias)
    return scores / scores.sum(-1, keepdims=True)


@pytest.mark.usefixtures("chunks")
def test_a_sample_inverts_the_cumulative_distribution() -> None:
    rng = np.random.default_rng(3)
    cumulative = probabilities().cumsum(-1)
    for _ in range(20):
        uniforms = rng.random((B, T)).astype(np.float32)
        found = np.asarray(xent.sample_tokens(*ARGUMENTS, jnp.array(uniforms)))
        expected = (cumulative <= uniforms[..., None]).sum(-1)
        near = np.abs(cumulative - uniforms[..., None]).min(-1) < 1e-6  # rounding may decide
        assert found.dtype == np.int32 and ((found == expected) | near).all()
    ends = jnp.stack([jnp.zeros((B, T)), jnp.full((B, T), 1 - 2.0**-24)])
    for uniforms in ends:
        found = np.asarray(xent.sample_tokens(*ARGUMENTS, uniforms))
        assert (found >= 0).all() and (found < V).all()


def test_samples_have_the_softmax_as_their_frequencies() -> None:
    features = jnp.broadcast_to(ARGUMENTS[0][:1, :1], (4, 5000, D))
    uniforms = jax.random.uniform(jax.random.key(0), features.shape[:2])
    found = np.asarray(xent.sample_tokens(features, *ARGUMENTS[1:], uniforms))
    counts, expected = np.bincount(found.ravel(), minlength=V), found.size * probabilities()[0, 0]
    assert stats.chisquare(counts, expected).pvalue > 1e-3
    wrong = np.roll(expected, 1)
    assert stats.chisquare(counts, wrong).pvalue < 1e-9


@pytest.mark.usefixtures("chunks")
def test_log_probabilities_are_those_of_log_softmax() -> None:
    """And their gradients by features, table and bias."""
    targets = jnp.array(np.random.default_rng(4).integers(0, V, (B, T)), jnp.int32)
    weights = draw(B, T, seed=5)

    def ours(features: jax.Array, table: jax.Array, bias: jax.Array) -> jax.Array:
        return xent.token_log_probs(features, table, bias, targets)

    def plain(features: jax.Array, table: jax.Array, bias: jax.Array) -> jax.Array:
        scores = jax.nn.log_softmax(features @ table.T + bias)
        return jnp.take_along_axis(scores, targets[..., None], axis=-1)[..., 0]

    np.testing.assert_allclose(ours(*ARGUMENTS), plain(*ARGUMENTS), rtol=1e-5, atol=1e-5)
    grads = [
        jax.grad(lambda *a, f=f: jnp.sum(weights * f(*a)), argnums=(0, 1, 2))(*ARGUMENTS)
        for f in (ours, plain)
    ]
    for a, b in zip(*grads, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
