"""Choosing the next token: values by hand, and frequencies against scipy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from scalelab.decode.choose import Rules, choose, keep_top_k, keep_top_p, penalise, repeats, warp

INF = float("inf")
CHANCES = np.array([[0.05, 0.5, 0.15, 0.3]], np.float32)


def kept(logits: jax.Array) -> list[int]:
    return np.flatnonzero(np.isfinite(np.asarray(logits)[0])).tolist()


@pytest.mark.parametrize(("name", "value", "temperature"), [
    ("temperature", -0.5, None), ("temperature", INF, None),
    ("top_k", 0, 1.0), ("top_k", 5, 0.0), ("top_p", 0.0, 1.0), ("top_p", 1.5, 1.0),
    ("top_p", 0.9, 0.0), ("repetition_penalty", 0.0, 0.0), ("repetition_stop", 0, 0.0),
])  # fmt: skip
def test_rules_refuse(name: str, value: float, temperature: float | None) -> None:
    with pytest.raises(ValueError, match=f"{name} = {value}: expected"):
        Rules(**{"temperature": temperature, name: value})


def test_penalty_lowers_what_was_seen() -> None:
    logits = jnp.array([[2.0, -2.0, 1.0, -1.0]])
    seen = jnp.array([[True, True, False, False]])
    np.testing.assert_allclose(penalise(logits, seen, 4.0), [[0.5, -8.0, 1.0, -1.0]])


@pytest.mark.parametrize(
    ("k", "expected"), [(1, [1]), (2, [1, 3]), (3, [1, 2, 3]), (4, [0, 1, 2, 3]), (9, [0, 1, 2, 3])]
)
def test_top_k(k: int, expected: list[int]) -> None:
    logits = jnp.log(CHANCES)
    found = keep_top_k(logits, k)
    assert kept(found) == expected
    np.testing.assert_array_equal(found[0, expected], logits[0, expected])


@pytest.mark.parametrize(
    ("p", "expected"),
    [(0.01, [1]), (0.49, [1]), (0.51, [1, 3]), (0.79, [1, 3]), (0.81, [1, 2, 3]), (1, [0, 1, 2, 3])]
)  # fmt: skip
def test_top_p(p: float, expected: list[int]) -> None:
    assert kept(keep_top_p(jnp.log(CHANCES), p)) == expected


def test_what_ties_is_kept() -> None:
    logits = jnp.log(jnp.array([[0.25, 0.25, 0.5, 0.0]]))
    assert kept(keep_top_k(logits, 2)) == kept(keep_top_p(logits, 0.6)) == [0, 1, 2]


def test_greedy_takes_the_best_after_the_penalty() -> None:
    logits, keys = jnp.array([[1.0, 3.0, 2.0]]), jax.random.split(jax.random.key(0), 1)
    assert choose(logits, Rules(), None, keys).tolist() == [1]
    seen = jnp.array([[False, True, False]])
    assert choose(logits, Rules(repetition_penalty=2.0), seen, keys).tolist() == [2]
    assert choose(logits, Rules(repetition_penalty=1.4), seen, keys).tolist() == [1]


LOGITS = np.array([0.3, -1.2, 2.0, 1.1, -0.4, 0.9, -2.5, 1.6])
DRAWS = 10_000


def by_hand(temperature: float, top_k: int, top_p: float) -> np.ndarray:
    """Chances in float64, one token after another in the order of its score."""
    scaled = np.exp(LOGITS / temperature)
    order = np.argsort(-scaled)[:top_k]
    total, sum_before, allowed = scaled[order].sum(), 0.0, []
    for token in order:
        if sum_before < top_p:
            allowed.append(token)
        sum_before += scaled[token] / total
    chances = np.zeros(len(LOGITS))
    chances[allowed] = scaled[allowed] / scaled[allowed].sum()
    return chances


def drawn(rules: Rules, seed: int = 0) -> np.ndarray:
    keys = jax.random.split(jax.random.key(seed), DRAWS)
    logits = jnp.broadcast_to(jnp.asarray(LOGITS, jnp.float32), (DRAWS, len(LOGITS)))
    run = jax.jit(lambda logits, keys: choose(logits, rules, None, keys))
    return np.bincount(run(logits, keys), minlength=len(LOGITS))


def p_value(counts: np.ndarray, chances: np.ndarray) -> float:
    """Of the counts, were they drawn with these chances."""
    if counts[chances == 0].sum():
        return 0.0
    there = chances > 0
    return stats.chisquare(counts[there], DRAWS * chances[there]).pvalue


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"),
    [(0.7, None, None), (2.5, 5, None), (1.0, None, 0.8), (1.6, 6, 0.85)],
)
def test_frequencies(temperature: float, top_k: int | None, top_p: float | None) -> None:
    counts = drawn(Rules(temperature=temperature, top_k=top_k, top_p=top_p))
    expected = by_hand(temperature, top_k or 8, top_p or 1.0)
    assert p_value(counts, expected) > 1e-3
    for wrong in (
        by_hand(1.5 * temperature, top_k or 8, top_p or 1.0),
        by_hand(temperature, 3, top_p or 1.0),
        by_hand(temperature, top_k or 8, 0.6),
    ):
        assert p_value(counts, wrong) < 1e-6


@pytest.mark.parity
@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.9])
@pytest.mark.parametrize(("top_k", "top_p"), [(None, None), (7, None), (None, 0.7), (11, 0.9)])
def test_the_distribution_is_that_of_transformers(
    temperature: float, top_k: int | None, top_p: float | None
) -> None:
    """Temperature, top k and top p one after another, as `generate` has them."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install '.[parity]'")
    from transformers.generation import logits_process

    scores = np.random.default_rng(0).normal(0, 3, (50, 40)).astype(np.float32)
    rules = Rules(temperature=temperature, top_k=top_k, top_p=top_p)
    found = np.asarray(jax.nn.softmax(warp(jnp.asarray(scores), rules)))
    theirs = torch.tensor(scores)
    for value, warper in (
        (temperature, logits_process.TemperatureLogitsWarper),
        (top_k, logits_process.TopKLogitsWarper),
        (top_p, logits_process.TopPLogitsWarper),
    ):
        theirs = theirs if value is None else warper(value)(None, theirs)
    expected = torch.softmax(theirs, -1).numpy()
    np.testing.assert_array_equal(found > 0, expected > 0)
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    assert top_p is None or len(set((found > 0).sum(axis=1))) > 1


def test_repeats_as_a_search_in_strings_says() -> None:
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 3, (40, 12))
    for count in range(1, 13):  # behind a text stands more, which must not be looked at
        for length in (1, 2, 3, 4):
            texts = ["".join(map(str, row[:count])) for row in tokens]
            expected = [len(t) > length and t[-length:] in t[:-1] for t in texts]
            assert repeats(jnp.asarray(tokens), jnp.int32(count), length).tolist() == expected
