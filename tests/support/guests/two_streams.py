"""Two streams and a memory (Yang et al. 2019, "XLNet", 2.2 to 2.4), with absolute positions.

Each example has its own random order. The query stream predicts each token from the tokens before
it in this order. Keys and values are the memory of the row's earlier batches, then the content
stream. One more query, the last in every order, predicts the token after the text.
"""

import dataclasses
from functools import partial
from typing import Any, ClassVar

import declared
import jax
import jax.numpy as jnp
from flax import linen as nn

from scalelab import systems
from scalelab.nn import axes
from scalelab.nn.attention import CrossAttention, head_size
from scalelab.nn.masks import Context, Mask
from scalelab.objectives import Batch, clm, example_keys
from scalelab.systems import roberta
from scalelab.systems.gpt2 import ADAPTATION, SPECIAL_TOKENS  # noqa: F401

DEPARTURES = (systems.Departure("objective", "permuted", "a test"),)
FRAME: tuple[tuple[str, ...], ...] = ((), ("<|endoftext|>",), ())
HEADS, PREDICTS, SEES, HAS_SOURCE, ORDER = ("token",), "next", "left", False, "contiguous"
NORMAL = nn.initializers.normal(0.02)


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of the model."""

    memory_len: int = 8  # M


class TwoStreams(nn.Module):
    """A layer that both streams share; its cache is the memory [B, M, D]."""

    layer: nn.Module

    def __call__(self, carry: Any, ctx: Context, memory: jax.Array) -> tuple[Any, jax.Array]:
        content, query = carry
        M, T = memory.shape[1], content.shape[1]  # noqa: N806
        source = jnp.concatenate([memory, content], axis=1)

        def read(x: jax.Array, own: int) -> jax.Array:
            stops = jnp.broadcast_to(M + own + jnp.arange(x.shape[1]), x.shape[:2])
            visible = jnp.stack([jnp.zeros_like(stops), stops], axis=-1)
            mask = Mask(lengths=M + ctx.mask.lengths, visible=visible)
            return self.layer(x, dataclasses.replace(ctx, source=source, source_mask=mask), None)[0]

        places = jnp.argsort(ctx.positions[:, :T])[..., None]
        text = jnp.take_along_axis(content, places, axis=1)
        inside = jnp.arange(T)[None, :, None] < ctx.mask.lengths[:, None, None]
        new = jnp.concatenate([memory, jnp.where(inside, text, 0)], axis=1)[:, T:]
        return (read(content, 1), read(query, 0)), jax.lax.stop_gradient(new)


class Net(nn.Module):
    """Reads tokens in the order of their prediction; returns both streams in text order."""

    EMBEDDING = ("embed",)
    TOKEN_TABLE = "embed/tokens/table"

    embed: nn.Module
    stack: nn.Module
    memory_len: int

    @nn.compact
    def _read(self, batch: Batch, train: bool, step: Any) -> tuple[jax.Array, jax.Array]:
        B, T = batch["tokens"].shape  # noqa: N806
        order = batch.get("order", jnp.broadcast_to(jnp.arange(T), (B, T)))
        more = jnp.concatenate([order, jnp.full((B, 1), T)], axis=1)  # query positions
        ctx = Context(Mask(batch["lengths"]), order, batch["examples"], step=step, train=train)
        content = self.embed({"tokens": jnp.take_along_axis(batch["tokens"], order, 1)}, ctx)
        start = axes.parameter(self, "start", NORMAL, (axes.WIDTH,), content.shape[2:])
        shape = self.stack.num_layers, B, self.memory_len, content.shape[2]
        names = axes.LAYERS, axes.BATCH, axes.LENGTH, axes.WIDTH
        empty = nn.with_logical_partitioning(partial(jnp.zeros, shape), names)
        memory = self.variable("carried", "memory", empty)
        carry = content, start + self.embed.positions(more)
        carry, new = self.stack(carry, ctx, memory.value)
        if self.is_mutable_collection("carried") and not self.is_initializing():
            memory.value = new
        places = jnp.argsort(more)[..., None]
        found = zip(carry, (places[:, :T], places), strict=True)
        return tuple(jnp.take_along_axis(x, where, axis=1) for x, where in found)

    def __call__(
        self, batch: Batch, *, train: bool, cache: None = None, step: Any = None
    ) -> tuple[jax.Array, None]:
        return self._read(batch, train, step)[0], None

    def token_states(self, batch: Batch, *, train: bool, step: Any = None) -> jax.Array:
        """The query stream; the state before a token predicts it."""
        return self._read(batch, train, step)[1][:, 1:]

    def token_features(self, hidden: jax.Array) -> tuple[jax.Array, jax.Array, None]:
        return hidden, self.embed.tokens.table, None


def build(sizes: systems.Sizes, options: Options, vocab_size: int) -> Net:
    """RoBERTa's model with other attention and one more position."""
    made = roberta.build(dataclasses.replace(sizes, max_len=sizes.max_len + 1), None, vocab_size)
    heads = sizes.num_heads, head_size(sizes.width, sizes.num_heads), sizes.dropout_rate
    layer = TwoStreams(made.stack.layer.clone(attention=CrossAttention(*heads, NORMAL, NORMAL)))
    return Net(made.embed, made.stack.clone(layer=layer), options.memory_len)


@dataclasses.dataclass(frozen=True)
class Permuted(clm.CLM):
    """Every token but the first is predicted from those before it in a random order."""

    name: ClassVar[str] = "permuted"
    samples: ClassVar[bool] = True

    def prepare(self, batch: Batch, rng: jax.Array) -> Batch:
        tokens, keys = batch["tokens"], example_keys(rng, batch)
        draws = jax.vmap(lambda key: jax.random.uniform(key, tokens.shape[1:]))(keys)
        places = jnp.arange(tokens.shape[1])
        ranks = jnp.where(places < batch["lengths"][:, None], draws, 1.0 + places)  # padding last
        return batch | {"order": jnp.argsort(ranks, axis=1).astype(jnp.int32)}


OBJECTIVES = {"permuted": vars(clm) | dict(make=lambda setting, options: Permuted())}
KERNELS = {k.replace("layer/", "layer/layer/") for k in declared.kernels_of_layers()}
EXPECTED = declared.Expected(
    tokenizer="bytebpe",
    stddevs={"": 0.02},
    first_losses={"permuted": declared.GUESS},
    num_parameters={},
    decayed=frozenset(KERNELS | {"embed/tokens/table", "embed/positions/table", "start"}),
    mixed_masks=True,
    whole=True,
    peer="a test's own",
)
