"""The chassis, with slots filled by the plainest parts: what they hand to whom."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from scalelab import objectives
from scalelab.nets.decoder import Decoder
from scalelab.nets.encdec import EncoderDecoder
from scalelab.nets.encoder import Encoder
from scalelab.nn.attention import SelfAttention
from scalelab.nn.embed import Embed, InputEmbed
from scalelab.nn.ffn import FeedForward, gelu_tanh
from scalelab.nn.heads import PlainHead, token_logits
from scalelab.nn.layer import PreNorm
from scalelab.nn.norm import LayerNorm
from scalelab.nn.positions import LearnedPositions
from scalelab.nn.stack import Stack
from scalelab.systems.electra.net import Discriminator, Tower

B, T, D, V, L = 3, 8, 6, 13, 2
NORMAL = nn.initializers.normal(0.5)
TOKENS = np.random.default_rng(0).integers(0, V, (B, T)).astype(np.int32)
LENGTHS = np.array([8, 5, 1], np.int32)


def embed() -> InputEmbed:
    return InputEmbed(Embed(V, D, NORMAL), LearnedPositions(2 * T, D, NORMAL), 0.0)


def stack() -> Stack:
    attention = SelfAttention(2, 3, 0.0, NORMAL, NORMAL)
    ffn = FeedForward(8, gelu_tanh, NORMAL, NORMAL)
    return Stack(PreNorm(attention, ffn, LayerNorm(1e-5), LayerNorm(1e-5), 0.0), L)


def batch(tokens: Any = TOKENS, lengths: Any = LENGTHS) -> dict[str, Any]:
    return {"tokens": tokens, "lengths": lengths, "examples": np.arange(len(tokens))}


def make(kind: type) -> tuple[Any, Any]:
    net = kind(embed(), stack(), PlainHead())
    init = jax.jit(lambda key: nn.unbox(net.init(key, batch(), train=False)))
    return net, init(jax.random.key(0))


@functools.partial(jax.jit, static_argnums=0)
def run(net: Any, variables: Any, batch: Any, cache: Any = None) -> Any:
    return net.apply(variables, batch, train=False, cache=cache)


def with_table(variables: Any, name: str, table: jax.Array) -> Any:
    variables = jax.tree.map(lambda x: x, variables)
    variables["params"]["embed"][name]["table"] = table
    return variables


@pytest.mark.parametrize(("kind", "ahead"), [(Encoder, True), (Decoder, False)])
def test_who_sees_whom(kind: type, ahead: bool) -> None:
    """Jacobian support: where a hidden state depends on the embedding of a position."""
    net, variables = make(kind)

    def hidden(table: jax.Array) -> jax.Array:
        given = with_table(variables, "positions", table)
        return net.apply(given, batch(), train=False)[0].sum(-1)

    table = variables["params"]["embed"]["positions"]["table"]
    seen = np.abs(jax.jit(jax.jacobian(hidden))(table)).max(axis=-1)[:, :, :T] > 1e-9  # [B, T, T]
    for b, n in enumerate(LENGTHS):
        expected = (np.arange(T) < n) & (ahead | np.tri(T, dtype=bool))
        np.testing.assert_array_equal(seen[b, :n], expected[:n])


def test_a_batch_may_say_who_sees_whom() -> None:
    """With the other's mask in the batch, encoder and decoder compute what the other does."""
    nets, places = [make(kind) for kind in (Encoder, Decoder)], np.arange(T)
    said = [np.stack([0 * places, stops], -1) for stops in (0 * places + T, places + 1)]
    more = [{}, *({"visible": np.broadcast_to(own, (B, T, 2))} for own in said)]
    states = [[run(*net, batch() | own)[0] for own in more] for net in nets]
    (both, *encoder), (left, *decoder) = states
    for found in (encoder, decoder):
        np.testing.assert_array_equal(found[0], both)
        np.testing.assert_array_equal(found[1], left)
    assert np.abs(both - left).max() > 0.01


@pytest.mark.parametrize("kind", [Encoder, Decoder])
def test_logits_are_tied_to_the_token_table(kind: type) -> None:
    net, variables = make(kind)
    hidden, cache = run(net, variables, batch())
    assert cache is None
    logits = net.apply(variables, hidden, method=token_logits)
    table = variables["params"]["embed"]["tokens"]["table"]
    np.testing.assert_allclose(logits, hidden @ table.T, rtol=1e-4, atol=1e-5)
    features, same, bias = net.apply(variables, hidden, method="token_features")
    assert bias is None
    np.testing.assert_array_equal(features, hidden)
    np.testing.assert_array_equal(same, table)
    if kind is Encoder:
        with pytest.raises(AssertionError, match="no cache"):
            net.apply(variables, batch(), train=False, cache=object())


def test_the_table_gets_both_gradients() -> None:
    """Tied: the gradient is the sum of those through the input and through the output."""
    net, variables = make(Decoder)

    def loss(table_in: jax.Array, table_out: jax.Array) -> jax.Array:
        hidden, _ = net.apply(with_table(variables, "tokens", table_in), batch(), train=False)
        return jnp.sum(jnp.sin(hidden @ table_out.T))

    def tied(table: jax.Array) -> jax.Array:
        def forward(model: Any) -> jax.Array:
            return jnp.sum(jnp.sin(token_logits(model, model(batch(), train=False)[0])))

        return nn.apply(forward, net)(with_table(variables, "tokens", table))

    table = variables["params"]["embed"]["tokens"]["table"]
    first, second = jax.jit(jax.grad(loss, (0, 1)))(table, table)
    assert np.abs(first).max() > 1e-3 and np.abs(second).max() > 1e-3
    np.testing.assert_allclose(jax.jit(jax.grad(tied))(table), first + second, rtol=1e-3, atol=1e-4)


def test_a_norm_after_the_last_layer() -> None:
    net, variables = make(Decoder)
    hidden, _ = run(net, variables, batch())
    final = net.clone(norm=LayerNorm(1e-5))
    scale, bias = jnp.arange(1.0, D + 1), jnp.ones(D)
    params = variables["params"] | {"norm": {"scale": scale, "bias": bias}}
    normed, _ = run(final, {"params": params}, batch())
    x = np.asarray(hidden)
    expected = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(normed, expected * scale + bias, rtol=1e-3, atol=1e-4)


def test_chunks_of_any_length_through_the_cache() -> None:
    """Prompts of different lengths, then pieces of different lengths, each row at its own place."""
    net, variables = make(Decoder)
    tokens = np.random.default_rng(1).integers(0, V, (B, 10)).astype(np.int32)
    full = np.full(B, 10, np.int32)
    expected, _ = run(net, variables, batch(tokens, full))
    cache, done = net.init_cache(B, 10), np.zeros(B, np.int32)
    for pieces in ([4, 1, 3], [1, 1, 1], [0, 5, 2], [5, 3, 4]):
        piece = np.zeros((B, max(pieces)), np.int32)
        for b, n in enumerate(pieces):
            piece[b, :n] = tokens[b, done[b] : done[b] + n]
        lengths = np.array(pieces, np.int32)
        hidden, cache = run(net, variables, batch(piece, lengths), cache)
        for b, n in enumerate(pieces):
            wanted = expected[b, done[b] : done[b] + n]
            np.testing.assert_allclose(hidden[b, :n], wanted, rtol=1e-3, atol=1e-4)
        done += lengths
        np.testing.assert_array_equal(cache.lengths, done)
    assert done.tolist() == [10, 10, 10]


class Steps(nn.Module):
    """Stands for layers: adds the step, and the source if there is one."""

    def __call__(self, carry: jax.Array, ctx: Any, cache: Any) -> tuple[jax.Array, Any]:
        return carry + ctx.step + (0.0 if ctx.source is None else ctx.source), cache


HEAD, TOWER = PlainHead(), Tower(Steps(), None)
CHASSIS = [
    (Encoder(embed(), Steps(), HEAD), 1),
    (Decoder(embed(), Steps(), HEAD), 1),
    (Discriminator(embed(), TOWER, TOWER, HEAD, HEAD, HEAD), 1),
    (EncoderDecoder(Steps(), Decoder(embed(), Steps(), HEAD)), 2),  # the source's layers, too
]


@pytest.mark.parametrize(("net", "times"), CHASSIS, ids=lambda x: type(x).__name__)
def test_layers_see_the_step_of_the_pass(net: Any, times: int) -> None:
    given = batch() | {"source": TOKENS, "source_lengths": LENGTHS}

    def states(step: int) -> tuple[jax.Array, jax.Array]:
        ctx = objectives.Pass(jax.random.key(0), jnp.int32(step))
        both = lambda model: (ctx.hidden(model, given), ctx.token_hidden(model, given))  # noqa: E731
        return nn.init_with_output(both, net)(jax.random.key(0))[0]

    for now, before in zip(states(7), states(0), strict=True):
        np.testing.assert_allclose(now - before, np.full((B, T, D), 7.0 * times), rtol=1e-4)
