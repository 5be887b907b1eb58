"""MASS: positions of fragments, the language model that it contains, and BART's class, changed."""

import dataclasses
import functools
from typing import Any

import jax
import numpy as np
import pytest
import tiny

from scalelab import systems
from scalelab.nn.heads import token_logits
from scalelab.systems import mass

VOCAB, SHAPE, T, S = 61, (3, 24, 2), 7, 16
SIZES = systems.Sizes(*SHAPE, ffn_width=96, max_len=S, dropout_rate=0.1)
NET = mass.build(SIZES, None, VOCAB)
MASK = systems.special_ids(mass)["mask"]
POSITIONS = ("decoder", "embed", "inputs", "positions", "table")


def make_batch(offset: Any = (2, 0, 6)) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    source, tokens = (rng.integers(5, VOCAB, (3, n)) for n in (S, T))
    given = {"source": source, "source_lengths": [S, 9, 13], "tokens": tokens, "offset": offset}
    given |= {"lengths": [T, 5, T], "examples": np.arange(3)}
    return {name: np.asarray(x, np.int32) for name, x in given.items()}


@functools.cache
def parameters() -> Any:
    drawn = tiny.draw(NET, tiny.terms(mass, "seq2seq", size=VOCAB))
    is_scale = lambda path: path[-1].key == "scale"  # noqa: E731
    return jax.tree_util.tree_map_with_path(lambda path, x: x + is_scale(path), drawn)


@jax.jit
def states(params: Any, batch: Any) -> jax.Array:
    return NET.apply({"params": params}, batch, train=False)[0]


def test_offset_0_is_no_offset() -> None:
    batch = make_batch((0, 0, 0))
    plain = {name: x for name, x in batch.items() if name != "offset"}
    np.testing.assert_array_equal(states(parameters(), batch), states(parameters(), plain))


def test_place_t_has_the_position_of_token_offset_plus_t() -> None:
    """The same as a table of positions that begins at the offset; the source's stays."""
    found = states(parameters(), make_batch())
    for row, offset in enumerate((2, 0, 6)):
        moved = jax.tree.map(np.copy, parameters())
        table = functools.reduce(dict.__getitem__, POSITIONS, moved)
        table[:] = np.roll(table, -offset, axis=0)
        expected = states(moved, make_batch((0, 0, 0)))
        np.testing.assert_allclose(found[row], expected[row], rtol=1e-4, atol=1e-5)
    assert np.abs(found - states(parameters(), make_batch((0, 0, 0)))).max() > 0.1


def test_a_fragment_of_the_whole_text_is_a_language_model() -> None:
    """Its source is masks alone, so that a token is predicted from the tokens before it."""
    batch = make_batch((0, 0, 0))
    batch["source"][:] = MASK
    batch["source_lengths"][:] = batch["lengths"][:] = T
    batch["tokens"][:, :4] = batch["tokens"][0, :4]
    found = np.asarray(states(parameters(), batch))
    np.testing.assert_allclose(found[:, :4], found[:1, :4].repeat(3, 0), rtol=1e-4, atol=1e-5)
    assert np.abs(found[0, 4:] - found[1, 4:]).max() > 1e-3
    batch["source"][1, T - 1] = 9  # a token that is not masked is seen
    assert np.abs(states(parameters(), batch)[1, :4] - found[1, :4]).max() > 1e-3


def test_the_decoder_begins_with_the_mask() -> None:
    (term,) = tiny.terms(mass, "seq2seq", size=VOCAB)
    batch = make_batch()
    read = term.objective.prepare(batch, jax.random.key(0))
    assert (np.asarray(read["tokens"])[:, 0] == MASK).all()
    np.testing.assert_array_equal(read["tokens"][:, 1:], batch["tokens"][:, :-1])


@pytest.mark.parity
def test_agrees_with_barts_class_at_shifted_positions() -> None:
    """In float64, with the class's factor sqrt(D); it has the other parts of the reference code."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    import peers
    import sides

    model, batch = peers.make("bart", SHAPE, S, scale_embedding=True), make_batch()
    table = model.model.decoder.embed_positions
    places = torch.tensor(batch["offset"][:, None] + np.arange(T) + 2, dtype=torch.long)
    table.forward = lambda *_, **__: torch.nn.functional.embedding(places, table.weight)
    valid = np.arange(T) < batch["lengths"][:, None]
    seen = np.arange(S) < batch["source_lengths"][:, None]
    long = functools.partial(torch.tensor, dtype=torch.long)
    theirs = model(
        input_ids=long(batch["source"]), attention_mask=long(seen),
        decoder_input_ids=long(batch["tokens"]), use_cache=False,
    ).logits.detach().numpy()  # fmt: skip
    with sides.in_double():
        net = mass.build(dataclasses.replace(SIZES, dtype=np.float64), None, VOCAB)
        params = peers.weights(model)
        embed = params["decoder"]["embed"]
        tokens = embed.pop("tokens")
        params["decoder"]["embed"] = {"tokens": tokens, "inputs": embed}

        @jax.jit
        def logits(batch: Any) -> jax.Array:
            hidden, _ = net.apply({"params": params}, batch, train=False)
            return net.apply({"params": params}, hidden, method=token_logits)

        assert sides.relative(np.asarray(logits(batch))[valid], theirs[valid]) < 1e-10
        wrong = logits(batch | {"offset": batch["offset"] + 1})
    assert sides.relative(np.asarray(wrong)[valid], theirs[valid]) > 1e-3
