"""A decoder whose layers keep a state of fixed size, and attention over its earlier states."""

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.typing import ArrayPytree
from jax.typing import DTypeLike

from scalelab.nets.decoder import Batch, Decoder, DecoderCache
from scalelab.nn import axes
from scalelab.nn.attention import MASKED_SCORE
from scalelab.nn.axes import part, useful
from scalelab.nn.linear import Linear
from scalelab.nn.masks import Context, Step
from scalelab.nn.product import product


class RecurrentDecoder(nn.Module):
    """A decoder whose rows continue: a segment begins with the states that the last one left.

    No gradient flows from a segment into the one before: truncated backpropagation through time.

    Attributes:
      body: the decoder of one segment; caches of its layers for no earlier tokens are its states.
    """

    EMBEDDING = ("body/embed",)
    TOKEN_TABLE = "body/embed/tokens/table"

    body: Decoder

    def init_cache(self, batch_size: int, max_len: int) -> DecoderCache:
        """Returns an empty cache for `max_len` tokens, as `nets.decoder.Decoder`."""
        return self.body.init_cache(batch_size, max_len)

    @nn.compact
    def __call__(
        self, batch: Batch, *, train: bool, cache: DecoderCache | None = None, step: Step = None
    ) -> tuple[jax.Array, DecoderCache | None]:
        """Computes hidden states [B, T, D], as `nets.decoder.Decoder`.

        Without a cache, the collection "carried" has the states of each row. They are zeros for a
        row whose batch["continues"] [B] is 0. A pass whose collection is neither there nor mutable
        begins with zeros.
        """
        keep = self.is_mutable_collection("carried")
        if cache is not None or not (keep or self.has_variable("carried", "hidden")):
            return self.body(batch, train=train, cache=cache, step=step)
        size, names = len(batch["tokens"]), (axes.LAYERS, axes.BATCH, axes.WIDTH)
        empty = self.init_cache(size, 0)
        layers: dict[str, ArrayPytree] = empty.layers

        def carried(name: str, zeros: jax.Array) -> nn.Variable:
            made = nn.with_logical_partitioning(lambda: zeros, names)
            return self.variable("carried", name, made)

        kept = {name: carried(name, zeros) for name, zeros in layers["states"].items()}
        goes_on = batch.get("continues", jnp.ones(size, jnp.int32)) > 0
        states = {name: jnp.where(goes_on[:, None], x.value, 0) for name, x in kept.items()}
        before = DecoderCache(layers | {"states": states}, empty.lengths)
        hidden, after = self.body(batch, train=train, cache=before, step=step)
        if keep and not self.is_initializing():
            assert after is not None  # there was one before
            for name, variable in kept.items():
                variable.value = after.layers["states"][name]
        return hidden, None

    def token_features(self, hidden: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array | None]:
        """Returns features [..., D], table [V, D] and bias None for hidden [..., D]."""
        return self.body.token_features(hidden)


class RecurrentStack(nn.Module):
    """Recurrent layers, and perhaps attention over the earlier states of the last one.

    Its cache is {"states": the layers' states}, with the attention also {"earlier": ...}.

    Attributes:
      stack: (carry, ctx, cache) -> (carry, cache), the layers.
      attention: (x, ctx, cache) -> (x, cache); None: no attention.
    """

    stack: nn.Module
    attention: nn.Module | None = None

    def init_cache(self, batch_size: int, max_len: int) -> dict[str, ArrayPytree]:
        """Returns an empty cache; for `max_len` = 0 the attention reads no earlier tokens."""
        cache = {"states": self.stack.init_cache(batch_size, max_len)}
        if self.attention is not None and max_len:
            cache["earlier"] = self.attention.init_cache(batch_size, max_len)[None]
        return cache

    def __call__(
        self, carry: jax.Array, ctx: Context, cache: dict[str, ArrayPytree] | None
    ) -> tuple[jax.Array, dict[str, ArrayPytree] | None]:
        """Applies the stack and the attention to [B, T, D], as `nn.layer.Layer`.

        The cache has "states" of the layers and perhaps "earlier" states (`init_cache`).
        """
        found = cache or {}
        carry, states = self.stack(carry, ctx, found.get("states"))
        made = {"states": states}
        if self.attention is not None:
            earlier = found["earlier"][0] if "earlier" in found else None
            with part("body"):
                carry, earlier = self.attention(carry, ctx, earlier)
            if earlier is not None:
                made["earlier"] = earlier[None]
        return carry, None if cache is None else made


class EarlierStates(nn.Module):
    """Attention from each state to those before it: y = tanh(W [c; h]).

    Luong et al. 2015, equations 5, 7 and 8 ("dot"), within one text. Where there is no state
    before, c is 0.

    Attributes:
      width: D.
      kernel_init: initializer of W.
      dtype: dtype of the products; scores and softmax are float32.
    """

    width: int
    kernel_init: nn.initializers.Initializer
    dtype: DTypeLike = jnp.float32

    def init_cache(self, batch_size: int, max_len: int) -> jax.Array:
        """Returns an empty cache for `max_len` tokens: zeros [B, max_len, D]."""
        return jnp.zeros((batch_size, max_len, self.width), self.dtype)

    @nn.compact
    def __call__(
        self, x: jax.Array, ctx: Context, cache: jax.Array | None
    ) -> tuple[jax.Array, jax.Array | None]:
        """Attends from x [B, T, D] to earlier states.

        Args:
          x: [B, T, D].
          ctx: positions, and the causal mask.
          cache: [B, S, D], states of earlier tokens; None: there are none before x.

        Returns:
          [B, T, D], and the cache with x.
        """
        earlier = x
        if cache is not None:
            rows = jnp.arange(len(x))[:, None]
            earlier = cache = cache.at[rows, ctx.positions].set(x, mode="drop")
        allowed = ctx.mask.dense(x.shape[1], earlier.shape[1])
        itself = ctx.positions[..., None] == jnp.arange(earlier.shape[1])
        allowed = allowed[:, 0] & ~itself
        with part("attention"), useful(0.5):
            scores = product("btd,bsd->bts", x, earlier)
        weights = jax.nn.softmax(jnp.where(allowed, scores, MASKED_SCORE), axis=-1)
        weights = jnp.where(allowed.any(axis=-1, keepdims=True), weights, 0).astype(self.dtype)
        with part("attention"), useful(0.5):
            context = jnp.einsum("bts,bsd->btd", weights, earlier)
        names, shape = ((axes.WIDTH,), (axes.TRANSFORM,)), (self.width,)
        combine = Linear(*names, shape, self.kernel_init, self.dtype, None, name="combine")
        return jnp.tanh(combine(jnp.concatenate([context, x], axis=-1))), cache
