"""Recurrent layers of an encoder-decoder; those of the decoder attend to the source in each step.

Bahdanau et al. 2015. The scores of the attention are in `compatibility.py`.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.typing import ArrayPytree
from jax.typing import DTypeLike

from scalelab.nn import axes, recurrence
from scalelab.nn.attention import MASKED_SCORE, WEIGHTS
from scalelab.nn.axes import constrain, parameter, part
from scalelab.nn.dropout import Dropout
from scalelab.nn.linear import Linear
from scalelab.nn.masks import ONE_TEXT, Context
from scalelab.nn.product import product
from scalelab.nn.recurrence import CELLS, State, recurrent_parameters, state_after, turn
from scalelab.systems.rnnsearch.compatibility import Compatibility

Cache = dict[str, ArrayPytree]
Carry = tuple[jax.Array, jax.Array]  # states and contexts, [B, T, D] each
NAMES = (axes.WIDTH,), (axes.TRANSFORM,)


class TwoDirections(nn.Module):
    """Two recurrent layers that read a text in opposite directions; their states side by side.

    Attributes:
      forward: (x [B, T, D], ctx, None) -> (states, None).
      backward: the same, for reversed rows.
    """

    forward: nn.Module
    backward: nn.Module

    def __call__(
        self, carry: jax.Array, ctx: Context, cache: ArrayPytree
    ) -> tuple[jax.Array, ArrayPytree]:
        """Applies the layer in both directions to whole texts [B, T, D]; the cache is None."""
        del cache
        assert ctx.mask.lengths is not None
        if ctx.mask.visible is not None:
            raise ValueError(ONE_TEXT)
        ahead, _ = self.forward(carry, ctx, None)
        back, _ = self.backward(turn(carry, ctx.mask.lengths), ctx, None)
        return jnp.concatenate([ahead, turn(back, ctx.mask.lengths)], axis=-1), None


class SearchLayer(nn.Module):
    """A recurrent layer that reads, with each input, a context from the source.

    Bahdanau et al. 2015, A.1.2 and A.2.2: the context c_i = sum_j a_ij h_j, where a_i is the
    softmax of score(s_{i-1}, h_j), and s_i = cell(s_{i-1}, x_i, c_i). The first state is tanh(W h),
    with the state h in which the source's backward half ends. With `query="current"` a_i compares
    s_i, and s_i = cell(s_{i-1}, x_i) reads no context (Luong et al. 2015, 3.1).

    The cache is {"states": [B, D] each, "keys" and "values": [B, S, D]}. Without a score it is
    {"states", "context": [B, D]}.

    Attributes:
      cell: a name in nn.recurrence.CELLS.
      score: a name in compatibility.SCORES; None: the context is the last state of each
        direction of the source.
      query: "current" as above; None: the state before.
      width: D; the last D // 2 numbers of the source's states are those of the backward half.
      max_len: the largest number of source tokens.
      dropout_rate: on the states that the layer gives, not on those that it keeps.
      kernel_init: initializer of all kernels.
      dtype: dtype of the products; states, gates and softmax are float32.
    """

    cell: str
    score: str | None
    query: str | None
    width: int
    max_len: int
    dropout_rate: float
    kernel_init: nn.initializers.Initializer
    dtype: DTypeLike = jnp.float32

    def init_cache(self, batch_size: int, max_len: int, source_len: int) -> Cache:
        """Returns an empty cache for `source_len` source tokens, whatever `max_len`."""
        del max_len
        shape = (batch_size, self.width)
        states = {name: jnp.zeros(shape, jnp.float32) for name in CELLS[self.cell].names}
        if self.score is None:
            return {"states": states, "context": jnp.zeros(shape, self.dtype)}
        zeros = jnp.zeros((batch_size, source_len, self.width), self.dtype)
        return {"states": states, "keys": zeros, "values": zeros}

    @nn.compact
    def __call__(
        self, carry: Carry, ctx: Context, cache: Cache | None
    ) -> tuple[Carry, Cache | None]:
        """Reads the states of the layer below from left to right.

        Args:
          carry: these states; the contexts beside them are not used.
          ctx: positions and the mask's lengths say which tokens are real; source and its mask.
          cache: the state before the tokens, and the source if `ctx` has none; None: a whole pass.

        Returns:
          The layer's states and contexts, and the cache behind the last real token of each row.
        """
        (x, _), cell = carry, CELLS[self.cell]
        rule, shape = (self.kernel_init, self.dtype), (cell.num_gates * self.width,)
        score = None
        if self.score is not None:
            given = self.score, self.width, self.max_len
            score = Compatibility(*given, *rule, name="compatibility")
        found = cache if ctx.source is None else self._read(ctx, score)
        assert found is not None, "the layer needs a source"
        inputs = Linear(*NAMES, shape, *rule, name="input")(x.swapaxes(0, 1))
        kernel, bias = recurrent_parameters(self, cell, self.width, self.kernel_init)
        names, size, context_kernel = NAMES[0] + NAMES[1], (self.width, *shape), None
        if self.query is None:
            context_kernel = parameter(self, "context_kernel", self.kernel_init, names, size)
        look = self._searcher(found, ctx, score)

        def times(rows: jax.Array, kernel: jax.Array) -> jax.Array:
            # Casts inside the loop let the kernel's gradient sum in float32.
            return product("bd,dg->bg", rows.astype(self.dtype), kernel.astype(self.dtype))

        def step(state: State, x: jax.Array) -> tuple[State, tuple]:
            given, seen = x.astype(jnp.float32), None
            if context_kernel is not None:
                seen = look(state["hidden"])
                given += times(seen[0], context_kernel)
            state = cell.update(given, times(state["hidden"], kernel) + bias, state)
            return state, (state, *(seen or look(state["hidden"])))

        start = found["states"]
        _, (states, contexts, weights) = jax.lax.scan(step, start, inputs, unroll=recurrence.UNROLL)
        if weights is not None:
            self.sow("intermediates", WEIGHTS, weights.swapaxes(0, 1)[:, None])
        if cache is not None:
            last = {name: state_after(start[name], states[name], ctx.num_real) for name in start}
            cache = found | {"states": last}
        y = states["hidden"].swapaxes(0, 1).astype(self.dtype)
        y = constrain(Dropout(self.dropout_rate)(y, ctx), axes.BATCH, axes.LENGTH, axes.WIDTH)
        return (y, contexts.swapaxes(0, 1)), cache

    def _read(self, ctx: Context, score: Compatibility | None) -> Cache:
        """Returns the cache before the first token of a target."""
        source, mask, half = ctx.source, ctx.source_mask, self.width // 2
        assert source is not None and mask is not None and mask.lengths is not None
        first, shape = source[:, 0], (self.width,)
        linear = Linear(*NAMES, shape, self.kernel_init, self.dtype, None, name="start")
        hidden = jnp.tanh(linear(first[:, -half:]).astype(jnp.float32))
        states = {name: jnp.zeros_like(hidden) for name in CELLS[self.cell].names}
        states["hidden"] = hidden
        if score is None:
            places = jnp.maximum(mask.lengths - 1, 0)[:, None, None]
            last = jnp.take_along_axis(source, places, axis=1)[:, 0]
            is_forward = jnp.arange(self.width) < self.width - half
            return {"states": states, "context": jnp.where(is_forward, last, first)}
        return {"states": states, "keys": score.keys(source), "values": source}

    def _searcher(
        self, found: Cache, ctx: Context, score: Compatibility | None
    ) -> Callable[[jax.Array], tuple[jax.Array, jax.Array | None]]:
        """Returns the function state [B, D] -> c_i [B, D] and its weights [B, S]."""
        if score is None:
            return lambda hidden: (found["context"], None)
        assert ctx.source_mask is not None
        allowed = ctx.source_mask.dense(1, found["keys"].shape[1])
        scorer, keys = score.scorer(), found["keys"].astype(jnp.float32)
        values = found["values"].astype(jnp.float32)

        def look(hidden: jax.Array) -> tuple[jax.Array, jax.Array]:
            with part("attention"):
                scores = jnp.where(allowed[:, 0], scorer(hidden[:, None], keys), MASKED_SCORE)
                weights = jax.nn.softmax(scores, axis=-1).astype(self.dtype)
                context = product("bts,bsd->btd", weights, values.astype(self.dtype))
            return context[:, 0].astype(self.dtype), weights[:, 0]

        return look
