"""A net that reads a few tokens at a time, its parameters laid out for that.

A step of a few tokens takes as long as reading the parameters from memory.

- Layers stacked on one axis would be copied out of their stack in every step. Here each layer's
  parameters and cache are arrays of their own; they are joined where the net is applied, and the
  compiler cancels joining against the slices that an unrolled stack takes.
- On CPU, a product of few rows with the table of tokens spends most of its time on rearranging the
  table. Here it is kept, once more, as blocks of columns that are read from front to back.
"""

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from flax.typing import ArrayPytree

STACK = "stack"  # where nets keep parameters with a leading axis of layers
COLUMNS = 64  # of a block
Cache = ArrayPytree  # of a net, see nets/decoder.py; `layers` is a list here


@flax.struct.dataclass
class Stepper:
    """A net with its parameters; `prepare` makes it.

    Attributes:
      params: the net's parameters without its layers.
      layers: the layers' parameters, one tree for each.
      blocks: [V / COLUMNS, D, COLUMNS], the table of tokens; None: the net's own is used.
      net: the unbound net, as in nets/decoder.py.
    """

    params: ArrayPytree
    layers: list[ArrayPytree]
    blocks: jax.Array | None
    net: Any = flax.struct.field(pytree_node=False)

    def init_cache(self, batch_size: int, max_len: int) -> Cache:
        """Returns the net's empty cache, with a list of the layers' caches as `layers`."""
        cache = self.net.init_cache(batch_size, max_len)
        return cache.replace(layers=_unstack(cache.layers))

    def __call__(
        self, tokens: jax.Array, lengths: jax.Array, cache: Cache
    ) -> tuple[jax.Array, Cache]:
        """Reads the next tokens.

        Args:
          tokens: [B, T] int32, those after the tokens in the cache.
          lengths: [B] int32, number of real tokens, at least 1.
          cache: from `init_cache` or an earlier call.

        Returns:
          Scores [B, V] float32 of the token after the last of each row, and the cache.
        """
        rows = jnp.arange(len(tokens))
        batch = {"tokens": tokens, "lengths": lengths, "examples": rows}
        variables = {"params": self.params | {STACK: _stack(self.layers)}}
        cache = cache.replace(layers=_stack(cache.layers))
        hidden, cache = self.net.apply(variables, batch, train=False, cache=cache)
        last = hidden[rows, lengths - 1]
        return self._logits(variables, last), cache.replace(layers=_unstack(cache.layers))

    def _logits(self, variables: ArrayPytree, hidden: jax.Array) -> jax.Array:
        """Returns the scores of all tokens at hidden [B, D]."""
        if self.blocks is None:
            return self.net.apply(variables, hidden, method="token_logits")
        features, table, bias = self.net.apply(variables, hidden, method="token_features")
        repeated = jnp.broadcast_to(features, (len(self.blocks), *features.shape))
        product = jnp.matmul(repeated, self.blocks, preferred_element_type=jnp.float32)
        logits = product.transpose(1, 0, 2).reshape(len(hidden), -1)[:, : len(table)]
        return logits if bias is None else logits + bias


def prepare(net: Any, params: ArrayPytree) -> Stepper:
    """Lays out a copy of the parameters of an unbound net, layers stacked on axis 0, for steps."""
    others = {name: tree for name, tree in params.items() if name != STACK}
    token = jnp.zeros((1, 1), jnp.int32)
    batch = {"tokens": token, "lengths": token[0] + 1, "examples": token[0]}

    @jax.jit
    def table_in_blocks(params: ArrayPytree) -> jax.Array:
        hidden, _ = net.apply({"params": params}, batch, train=False)
        features, table, _ = net.apply({"params": params}, hidden, method="token_features")
        padded = jnp.pad(table.astype(features.dtype), ((0, -len(table) % COLUMNS), (0, 0)))
        return padded.reshape(-1, COLUMNS, table.shape[1]).transpose(0, 2, 1)

    blocks = table_in_blocks(params) if jax.default_backend() == "cpu" else None
    return Stepper(others, _unstack(params[STACK]), blocks, net)


def _unstack(stacked: ArrayPytree) -> list[ArrayPytree]:
    num_layers = len(jax.tree.leaves(stacked)[0])
    return [jax.tree.map(lambda x, i=i: x[i], stacked) for i in range(num_layers)]


def _stack(layers: list[ArrayPytree]) -> ArrayPytree:
    return jax.tree.map(lambda *each: jnp.stack(each), *layers)
