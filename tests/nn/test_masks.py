"""The dense form of every mask against the words of its docstring, spelled out in loops."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest

from scalelab.nn.masks import Mask

B, S = 3, 7
LENGTHS = np.array([7, 4, 0], np.int32)
QUERIES = np.array([[2, 3], [0, 6], [5, 1]], np.int32)
VISIBLE = np.sort(np.random.default_rng(0).integers(0, S + 1, (B, S, 2)).astype(np.int32))


def by_loops(num_queries: int, lengths: bool, query_positions: bool, causal: bool) -> np.ndarray:
    allowed = np.zeros((B, num_queries, S), bool)
    for b, t, j in itertools.product(range(B), range(num_queries), range(S)):
        i = QUERIES[b, t] if query_positions else t
        allowed[b, t, j] = not (causal and j > i) and not (lengths and j >= LENGTHS[b])
    return allowed


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("lengths", [False, True])
@pytest.mark.parametrize("query_positions", [False, True])
def test_dense_is_what_the_loops_say(causal: bool, lengths: bool, query_positions: bool) -> None:
    num_queries = 2 if query_positions else S
    mask = Mask(
        lengths=jnp.array(LENGTHS) if lengths else None,
        query_positions=jnp.array(QUERIES) if query_positions else None,
        causal=causal,
    )
    dense = mask.dense(num_queries, S)
    ours = np.broadcast_to(dense, (B, 1, num_queries, S))[:, 0]
    np.testing.assert_array_equal(ours, by_loops(num_queries, lengths, query_positions, causal))


@pytest.mark.parametrize("causal", [False, True])
def test_intervals_by_query_replace_causal(causal: bool) -> None:
    mask = Mask(lengths=jnp.array(LENGTHS), visible=jnp.array(VISIBLE), causal=causal)
    dense = np.broadcast_to(mask.dense(S, S), (B, 1, S, S))
    for b, t, j in itertools.product(range(B), range(S), range(S)):
        first, stop = VISIBLE[b, t]
        assert dense[b, 0, t, j] == (first <= j < min(stop, LENGTHS[b]))


def test_ranks_limit_what_each_query_sees() -> None:
    """A token sees its rank and lower ones; a query, here at place 2, sees lower ones alone."""
    ranks = jnp.array([[0, 2, 1]])
    mask = Mask(ranks=ranks, query_ranks=jnp.array([[0, 2, 1, 0]]), lengths=jnp.array([3]))
    wanted = [[1, 0, 0], [1, 1, 1], [1, 0, 1], [1, 0, 0]]
    np.testing.assert_array_equal(mask.dense(4, 3)[0, 0], np.array(wanted, bool))


def test_lengths_alone_stay_small() -> None:
    """An encoder's mask must not be B x T x S, and no field is no mask."""
    assert Mask().dense(3, 3).tolist() == [[[[True]]]]
    assert Mask(lengths=jnp.array(LENGTHS)).dense(S, S).shape == (B, 1, 1, S)
    assert Mask(causal=True).dense(S, S).shape == (1, 1, S, S)
