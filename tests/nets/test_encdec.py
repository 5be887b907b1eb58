"""The encoder-decoder: against PyTorch's Transformer, and its cache against the whole pass."""

from typing import Any

import jax
import numpy as np
import pytest
import small_encdec as small

from scalelab.nn.layer import PostNorm, PreNorm

B, S, T = 3, 7, 5
RNG = np.random.default_rng(0)
SOURCE, TOKENS = (RNG.integers(0, small.VOCAB, (B, n)) for n in (S, T))
SOURCE_LENGTHS, LENGTHS = np.array([7, 4, 1]), np.array([5, 3, 4])
BATCH = small.batch(SOURCE, SOURCE_LENGTHS, TOKENS, LENGTHS)
REAL = np.arange(T) < LENGTHS[:, None]
CLOSE: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-4}

# Each reads something else than the batch: another source, or another length of it.
WRONG = {
    "another's source": BATCH | {"source": np.roll(BATCH["source"], 1, 0)},
    "padding is read": BATCH | {"source_lengths": np.full(B, S, np.int32)},
    "another's length": BATCH | {"source_lengths": np.array([4, 4, 1], np.int32)},
}


def differs(found: Any, expected: Any) -> bool:
    return float(np.abs(found - expected)[REAL].max()) > 0.05


@pytest.mark.ci
@pytest.mark.parity
@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
@pytest.mark.parametrize("layer", [PreNorm, PostNorm])
def test_it_is_pytorchs_transformer(layer: Any) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed: pip install '.[parity]'")
    net = small.build(layer, head_size=small.WIDTH // small.HEADS)
    params = small.parameters(net)
    found, _ = small.hidden(net, params, BATCH)
    expected = small.torch_hidden(layer, params, BATCH)
    np.testing.assert_allclose(found[REAL], expected[REAL], **CLOSE)
    for batch in WRONG.values():
        assert differs(small.hidden(net, params, batch)[0], expected)


def stepwise(net: Any, params: Any, cache: Any) -> np.ndarray:
    """Reads TOKENS one by one, each row to its own length."""
    parts = []
    for t in range(T):
        piece = {"tokens": BATCH["tokens"][:, t : t + 1], "lengths": np.int32(t < LENGTHS)}
        states, cache = small.hidden(net, params, piece | {"examples": np.arange(B)}, cache)
        parts.append(states)
    assert cache.lengths.tolist() == LENGTHS.tolist()
    return np.concatenate(parts, axis=1)


@pytest.mark.parametrize("layer", [PreNorm, PostNorm])
def test_steps_from_a_read_source_equal_the_whole_pass(layer: Any) -> None:
    net = small.build(layer)
    params = small.parameters(net)
    whole, nothing = small.hidden(net, params, BATCH)
    assert nothing is None
    cache = small.encode(net, params, BATCH, T + 2)
    assert {leaf.shape[:2] for leaf in jax.tree.leaves(cache.layers)} == {(3, B)}
    assert {leaf.shape[3] for leaf in jax.tree.leaves(cache.layers)} == {T + 2, S}
    found = stepwise(net, params, cache)
    np.testing.assert_allclose(found[REAL], whole[REAL], **CLOSE)
    for batch in WRONG.values():
        assert differs(stepwise(net, params, small.encode(net, params, batch, T + 2)), whole)


def test_padding_of_the_source_moves_nothing() -> None:
    net = small.build()
    params = small.parameters(net)
    whole, _ = small.hidden(net, params, BATCH)
    longer = np.pad(SOURCE, ((0, 0), (0, 4)), constant_values=small.VOCAB - 1)
    longer[np.arange(S + 4) >= SOURCE_LENGTHS[:, None]] = 3
    batch = BATCH | {"source": longer.astype(np.int32)}
    np.testing.assert_allclose(small.hidden(net, params, batch)[0], whole, **CLOSE)
    found = stepwise(net, params, small.encode(net, params, batch, T + 2))
    np.testing.assert_allclose(found[REAL], whole[REAL], **CLOSE)
