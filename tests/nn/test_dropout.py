"""Dropout: rate, scale, and masks that go with the example."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from parts import context

from scalelab.nn.dropout import Dropout, random_words

KEY = jax.random.key(3)


def drop(x: np.ndarray, rate: float, examples: np.ndarray, *, train: bool = True) -> np.ndarray:
    ctx = context(len(x), x.shape[1], train=train).replace(examples=jnp.array(examples))
    return np.asarray(Dropout(rate).apply({}, jnp.array(x), ctx, rngs={"dropout": KEY}))


def test_rate_and_scale() -> None:
    out = drop(np.ones((64, 100, 32), np.float32), 0.1, np.arange(64))
    kept = out != 0
    np.testing.assert_allclose(out[kept], 1 / 0.9, rtol=1e-6)
    n = out.size
    assert abs((~kept).sum() - 0.1 * n) < 5 * (n * 0.1 * 0.9) ** 0.5
    # Each example, each place and each unit alike, not only the whole.
    for axis in ((1, 2), (0, 2), (0, 1)):
        share = (~kept).mean(axis=axis)
        m = n / len(share)
        assert np.abs(share - 0.1).max() < 5.5 * (0.1 * 0.9 / m) ** 0.5


def test_masks_of_examples_and_places_are_unrelated() -> None:
    kept = (drop(np.ones((32, 64, 64), np.float32), 0.5, np.arange(32)) != 0).reshape(32, -1)
    signs = 2.0 * kept - 1.0
    between = signs @ signs.T / kept.shape[1]
    assert np.abs(between - np.diag(np.diag(between))).max() < 5.5 / kept.shape[1] ** 0.5
    for shift in (1, 2, 64):
        related = (signs[:, :-shift] * signs[:, shift:]).mean()
        assert abs(related) < 5 / kept.size**0.5


@pytest.mark.slow
def test_random_words_are_fair_bits() -> None:
    """Every bit, every pair of bits, neighbours and distant places: all fair coins."""
    words = np.asarray(random_words(KEY, np.arange(50, 58), (8, 30_000)))
    bits = (words[..., None] >> np.arange(32, dtype=np.uint32)) & 1
    signs = 1.0 - 2.0 * bits.reshape(-1, 32)
    limit = 5.5 / len(signs) ** 0.5
    assert np.abs(signs.mean(axis=0)).max() < limit
    for shift in (0, 1, 2, 3, 128, 4096, 30_000):
        related = signs[: len(signs) - shift].T @ signs[shift:] / len(signs)
        assert np.abs(related - (shift == 0) * np.eye(32)).max() < limit, shift


def test_random_words_differ_between_keys_of_neighbours() -> None:
    draws = [random_words(jax.random.key(k), np.arange(4), (4, 2000)) for k in range(2)]
    words = np.stack(draws).reshape(8, 2000)
    assert len(np.unique(words)) > words.size - 10  # 2^32 values: about 0.03 repeats to be expected


@pytest.mark.parametrize("rows", [slice(0, 3), slice(3, 8), [6, 1, 4]], ids=str)
def test_part_of_a_batch_has_the_masks_of_the_whole(rows: slice | list[int]) -> None:
    x, examples = np.ones((8, 5, 6), np.float32), np.arange(100, 108)
    whole = drop(x, 0.3, examples)
    np.testing.assert_array_equal(drop(x[rows], 0.3, examples[rows]), whole[rows])


def test_off() -> None:
    x = np.ones((2, 3, 4), np.float32)
    np.testing.assert_array_equal(drop(x, 0.5, np.arange(2), train=False), x)
    np.testing.assert_array_equal(drop(x, 0.0, np.arange(2)), x)
    ctx = context(2, 3)  # nor does it ask for a key
    np.testing.assert_array_equal(Dropout(0.5).apply({}, x, ctx), x)


def test_two_dropouts_differ() -> None:
    class Two(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array, ctx: object) -> tuple[jax.Array, jax.Array]:
            return Dropout(0.5)(x, ctx), Dropout(0.5)(x, ctx)

    ctx = context(4, 50, train=True)
    a, b = Two().apply({}, jnp.ones((4, 50, 8)), ctx, rngs={"dropout": KEY})
    assert 0.4 < (np.asarray(a) != np.asarray(b)).mean() < 0.6


def test_the_gradient_passes_where_the_value_does() -> None:
    ctx = context(2, 3, train=True)
    x = jnp.arange(1.0, 25.0).reshape(2, 3, 4)
    f = lambda x: Dropout(0.5).apply({}, x, ctx, rngs={"dropout": KEY})  # noqa: E731
    gradient = jax.grad(lambda x: f(x).sum())(x)
    np.testing.assert_allclose(gradient, f(x) / x, rtol=1e-6)


def test_padding_an_example_moves_no_mask() -> None:
    short = np.asarray(random_words(KEY, np.arange(2), (2, 3, 8, 16)))
    long = np.asarray(random_words(KEY, np.arange(2), (2, 3, 11, 29)))
    np.testing.assert_array_equal(short, long[:, :, :8, :16])
    assert len(np.unique(long)) > long.size - 3
