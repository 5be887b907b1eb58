"""Cross-entropy against log_softmax over all scores, in value, gradient and accuracy; samples."""

import math
from typing import Any

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from scalelab.objectives import xent

B, T, D, V = 3, 7, 5, 11
RNG = np.random.default_rng(0)
FEATURES = RNG.normal(size=(B, T, D)).astype(np.float32)
TABLE = RNG.normal(size=(V, D)).astype(np.float32)
BIAS = RNG.normal(size=V).astype(np.float32)
BEST = (FEATURES @ TABLE.T + BIAS).argmax(-1)
TARGETS = np.where(RNG.uniform(size=(B, T)) < 0.5, BEST, RNG.integers(0, V, (B, T)))
WEIGHTS = RNG.uniform(size=(B, T)).astype(np.float32) * (RNG.uniform(size=(B, T)) < 0.7)

# Scores at a time, and rows of the table at a time: everything; chunks of 2 positions with one left
# over, the table in blocks of 4, 4 and 3; one position and one row.
CHUNKS = {"whole": (2**20, V), "chunks": (2 * B * V, 4), "single": (1, 1)}


@pytest.fixture(params=CHUNKS.values(), ids=CHUNKS.keys())
def chunks(request, monkeypatch) -> None:
    scores, rows = request.param
    monkeypatch.setitem(xent.CHUNK_SCORES, jax.default_backend(), scores)
    monkeypatch.setitem(xent.MOST_ROWS, jax.default_backend(), rows)


def reference(features: Any, table: Any, bias: Any, weights: Any) -> jax.Array:
    """The textbook: all scores, log_softmax, pick, weigh, sum."""
    scores = features @ table.T + (0 if bias is None else bias)
    log_probs = jax.nn.log_softmax(scores)
    picked = jnp.take_along_axis(log_probs, TARGETS[..., None], axis=-1)[..., 0]
    return -jnp.sum(picked * weights)


def ours(features: Any, table: Any, bias: Any, weights: Any, **kwargs: Any) -> jax.Array:
    terms = xent.token_cross_entropy(features, table, bias, TARGETS, weights, **kwargs)
    return terms["loss"][0]


@pytest.mark.parametrize("bias", [BIAS, None], ids=["bias", "no bias"])
@pytest.mark.parametrize("accuracy", [False, True])
def test_value_and_gradients(chunks: None, bias: Any, accuracy: bool) -> None:
    args = FEATURES, TABLE, bias, WEIGHTS
    wrt = tuple(i for i, a in enumerate(args) if a is not None)
    # A factor, so that the incoming cotangent is not 1.
    value, grads = jax.value_and_grad(lambda *a: 3 * ours(*a, accuracy=accuracy), wrt)(*args)
    expected, expected_grads = jax.value_and_grad(lambda *a: 3 * reference(*a), wrt)(*args)
    assert value == pytest.approx(float(expected), rel=1e-5)
    for a, b in zip(grads, expected_grads, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    assert ours(*args) == pytest.approx(float(expected) / 3, rel=1e-5)


def contracted_sizes(jaxpr: Any) -> set[int]:
    """Over how many numbers each matrix product of a program sums."""
    found: set[int] = set()
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            axes, _ = equation.params["dimension_numbers"][0]
            found.add(math.prod(equation.invars[0].aval.shape[axis] for axis in axes))
        for inner in jax.extend.core.jaxprs_in_params(equation.params):
            found |= contracted_sizes(inner)
    return found


def sums_over(width: int, dtype: Any, platform: str) -> bool:
    """Whether a product of the loss and its gradients sums over so many numbers."""
    given = FEATURES.astype(dtype), TABLE, BIAS, WEIGHTS
    with xent.as_on(platform):
        made = jax.make_jaxpr(jax.grad(ours, (0, 1, 2)))(*given)
    return width in contracted_sizes(made.jaxpr)


def test_on_cpu_in_float32_the_bias_is_one_more_column() -> None:
    assert sums_over(D + 1, np.float32, "cpu")
    assert not sums_over(D + 1, np.float32, "gpu")
    assert not sums_over(D + 1, jnp.bfloat16, "cpu")
    grads = []
    for platform in ("cpu", "gpu"):
        with xent.as_on(platform):
            made = jax.value_and_grad(lambda *a: 3 * ours(*a), (0, 1, 2, 3))
            grads.append(made(FEATURES, TABLE, BIAS, WEIGHTS))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), *grads)


def test_weight_and_accuracy(chunks: None) -> None:
    given = FEATURES, TABLE, BIAS, TARGETS, WEIGHTS
    terms = xent.token_cross_entropy(*given, accuracy=True)
    assert xent.token_cross_entropy(*given).keys() == {"loss"}
    hits = total = 0.0
    for b in range(B):
        for t in range(T):
            scores = (TABLE * FEATURES[b, t]).sum(-1) + BIAS
            hits += float(WEIGHTS[b, t]) * (scores.argmax() == TARGETS[b, t])
            total += float(WEIGHTS[b, t])
    assert 0 < hits < total
    assert terms["accuracy"][0] == pytest.approx(hits, rel=1e-5)
    assert terms["accuracy"][1] == terms["loss"][1] == pytest.approx(total, rel=1e-5)


def test_large_scores_do_not_overflow(chunks: None) -> None:
    value, grads = jax.value_and_grad(ours, (0, 1, 2))(1e3 * FEATURES, TABLE, BIAS, WEIGHTS)
    assert np.isfinite(value) and all(np.isfinite(g).all() for g in grads)


def test_bfloat16_features_sum_in_float32(chunks: None) -> None:
    features = FEATURES.astype(jnp.bfloat16)
    args = features.astype(np.float32), TABLE.astype(jnp.bfloat16).astype(np.float32), BIAS
    value = ours(features, TABLE, BIAS, WEIGHTS)
    assert value.dtype == jnp.float32
    assert value == pytest.approx(float(reference(*args, WEIGHTS)), rel=1e-5)
    grads = jax.grad(ours, (0, 1, 2))(features, TABLE, BIAS, WEIGHTS)
    assert [g.dtype for g in grads] == [jnp.bfloat16, jnp.float32, jnp.float32]
    expected = jax.grad(reference, (0, 1, 2))(*args, WEIGHTS)
    for a, b in zip(grads, expected, strict=True):
        np.testing.assert_allclose(a.astype(jnp.float32), b, rtol=0.05, atol=0.03)


def test_all_scores_are_never_held(monkeypatch) -> None:
    """The compiled gradient's own account of its memory."""
    monkeypatch.setitem(xent.CHUNK_SCORES, jax.default_backend(), 2**18)
    shape = jax.ShapeDtypeStruct
    b, t, d, v = 16, 128, 8, 2048

    def loss(features: Any, table: Any, targets: Any, weights: Any) -> jax.Array:
        return xent.token_cross_entropy(features, table, None, targets, weights)["loss"][0]

    compiled = (
        jax.jit(jax.grad(loss, (0, 1)))
        .lower(
            shape((b, t, d), jnp.float32),
            shape((v, d), jnp.float32),
            shape((b, t), jnp.int32),
            shape((b, t), jnp.float32),
        )
        .compile()
    )
    assert compiled.memory_analysis().temp_size_in_bytes < 0.5 * 4 * b * t * v


ARGUMENTS = FEATURES, TABLE, BIAS


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
    features = jnp.broadcast_to(FEATURES[:1, :1], (4, 5000, D))
    uniforms = jax.random.uniform(jax.random.key(0), features.shape[:2])
    found = np.asarray(xent.sample_tokens(features, TABLE, BIAS, uniforms))
    counts, expected = np.bincount(found.ravel(), minlength=V), found.size * probabilities()[0, 0]
    assert stats.chisquare(counts, expected).pvalue > 1e-3
    wrong = np.roll(expected, 1)
    assert stats.chisquare(counts, wrong).pvalue < 1e-9


def test_log_probabilities_are_those_of_log_softmax(chunks: None) -> None:
    """And their gradients by features, table and bias."""

    def ours(*given: Any) -> Any:
        return -jnp.sum(WEIGHTS * xent.token_log_probs(*given, jnp.array(TARGETS, jnp.int32)))

    def theirs(*given: Any) -> Any:
        return reference(*given, WEIGHTS)

    found, expected = (jax.value_and_grad(f, (0, 1, 2))(*ARGUMENTS) for f in (ours, theirs))
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    each = xent.token_log_probs(*ARGUMENTS, jnp.array(TARGETS, jnp.int32))
    picked = np.take_along_axis(np.log(probabilities()), TARGETS[..., None], -1)[..., 0]
    np.testing.assert_allclose(each, picked, rtol=1e-4, atol=1e-5)
