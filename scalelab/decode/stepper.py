"""A model that reads a few tokens at a time, with parameters laid out for it.

Reading the parameters from memory dominates a step of a few tokens.

- Parameters and caches stacked by layer would be copied out of their stack in every step. Here each
  layer has its own arrays. They are stacked inside the program, and the compiler removes both the
  stacking and the slicing of the unrolled layers.
- On CPU, a product of few rows with the token table spends most of its time on rearranging the
  table. So a second copy of the table is kept as blocks of columns, which are read in order.
"""

from collections.abc import Sequence
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from flax.traverse_util import path_aware_map
from flax.typing import ArrayPytree

from scalelab.nn import axes
from scalelab.nn.heads import token_logits

COLUMNS = 64  # columns of a block
Cache = ArrayPytree  # a DecoderCache; arrays in `layers` are Unstacked here
Source = tuple[jax.Array, jax.Array]  # tokens [B, S] int32, lengths [B] int32


@flax.struct.dataclass
class Unstacked:
    """An array [L, ...] as L arrays."""

    parts: list[jax.Array]


@flax.struct.dataclass
class Stepper:
    """A model with its parameters; `prepare` makes it."""

    params: ArrayPytree  # the model's parameters; arrays stacked by layers or groups are Unstacked
    # [V / COLUMNS, E, COLUMNS], the token table; None: the table in `params` is used.
    blocks: jax.Array | None
    # The unbound model, as in nets/decoder.py or nets/encdec.py.
    net: Any = flax.struct.field(pytree_node=False)

    def init_cache(self, batch_size: int, max_len: int, source: Source | None = None) -> Cache:
        """Returns an empty cache for `max_len` tokens of a text; the source, if any, is read."""
        if source is None:
            cache = self.net.init_cache(batch_size, max_len)
        else:
            assert len(source[0]) == batch_size, "each text needs a source"
            batch = {"source": source[0], "source_lengths": source[1]}
            batch["examples"] = jnp.arange(batch_size)
            variables = {"params": _stack(self.params)}
            cache = self.net.apply(variables, batch, max_len, method="encode")
        return cache.replace(layers=jax.tree.map(_unstack, cache.layers))

    def __call__(
        self, tokens: jax.Array, lengths: jax.Array, cache: Cache
    ) -> tuple[jax.Array, Cache]:
        """Reads the next tokens.

        Args:
          tokens: [B, T] int32, the next tokens after the tokens in the cache.
          lengths: [B] int32, number of real tokens, at least 1.
          cache: from `init_cache` or an earlier call.

        Returns:
          Scores [B, V] float32 of the token after each row's last token, and the cache.
        """
        rows = jnp.arange(len(tokens))
        batch = {"tokens": tokens, "lengths": lengths, "examples": rows}
        variables = {"params": _stack(self.params)}
        cache = cache.replace(layers=_stack(cache.layers))
        hidden, cache = self.net.apply(variables, batch, train=False, cache=cache)
        last = hidden[rows, lengths - 1]
        cache = cache.replace(layers=jax.tree.map(_unstack, cache.layers))
        return self._logits(variables, last), cache

    def _logits(self, variables: ArrayPytree, hidden: jax.Array) -> jax.Array:
        """Returns the scores of all tokens at hidden [B, D]."""
        if self.blocks is None:
            return self.net.apply(variables, hidden, method=token_logits)
        features, table, bias = self.net.apply(variables, hidden, method="token_features")
        repeated = jnp.broadcast_to(features, (len(self.blocks), *features.shape))
        product = jnp.matmul(repeated, self.blocks, preferred_element_type=jnp.float32)
        logits = product.transpose(1, 0, 2).reshape(len(hidden), -1)[:, : len(table)]
        return logits if bias is None else logits + bias


@flax.struct.dataclass
class Ensemble:
    """Models that write one text together; has a Stepper's methods.

    The probability of a token is the mean of the members'. Raffel et al. 2020 (T5), 3.6, average
    the scores before the softmax instead.
    """

    # Models with the same tokens; sizes and kinds of their nets may differ.
    members: Sequence[Stepper]

    def init_cache(self, batch_size: int, max_len: int, source: Source | None = None) -> Cache:
        """Returns the members' empty caches as one; each member reads the source, if any."""
        return _join([own.init_cache(batch_size, max_len, source) for own in self.members])

    def __call__(
        self, tokens: jax.Array, lengths: jax.Array, cache: Cache
    ) -> tuple[jax.Array, Cache]:
        """Reads the next tokens.

        Args:
          tokens: [B, T] int32, the next tokens after the tokens in the cache.
          lengths: [B] int32, number of real tokens, at least 1.
          cache: from `init_cache` or an earlier call.

        Returns:
          Log probabilities [B, V] float32 of the token after each row's last token, and the cache.
        """
        logs, caches = [], []
        for member, layers in zip(self.members, cache.layers, strict=True):
            logits, read = member(tokens, lengths, cache.replace(layers=layers))
            logs.append(jax.nn.log_softmax(logits))
            caches.append(read)
        mean = jax.nn.logsumexp(jnp.stack(logs), axis=0) - jnp.log(float(len(logs)))
        return mean, _join(caches)


Reader = Stepper | Ensemble


def prepare(net: Any, params: ArrayPytree) -> Stepper:
    """Returns a stepper with a copy of a model's parameters.

    Args:
      net: the unbound model.
      params: its parameters, stacked by layers.
    """
    one = jnp.zeros((1, 1), jnp.int32)
    batch = {"tokens": one, "lengths": one[0] + 1, "examples": one[0]}
    batch |= {"source": one, "source_lengths": one[0] + 1}

    def features(net: Any) -> tuple[jax.Array, jax.Array, jax.Array | None]:
        hidden, _ = net(batch, train=False)
        return net.token_features(hidden)

    @jax.jit
    def table_in_blocks(params: ArrayPytree) -> jax.Array:
        features_, table, _ = net.apply({"params": params}, method=features)
        padded = jnp.pad(table.astype(features_.dtype), ((0, -len(table) % COLUMNS), (0, 0)))
        return padded.reshape(-1, COLUMNS, table.shape[1]).transpose(0, 2, 1)

    blocks = table_in_blocks(params) if jax.default_backend() == "cpu" else None
    made = jax.eval_shape(lambda key: net.init(key, method=features), jax.random.key(0))
    names = axes.names_by_path(made["params"])

    def lay_out(path: tuple, leaf: jax.Array) -> jax.Array | Unstacked:
        axis = names.get("/".join(path), ("",))[0]  # none for heads that score no tokens
        return _unstack(leaf) if axis in (axes.LAYERS, axes.GROUPS) else leaf

    return Stepper(path_aware_map(lay_out, params), blocks, net)


def _join(caches: Sequence[Cache]) -> Cache:
    """Returns the first cache with the layers of all; lengths are alike."""
    return caches[0].replace(layers=tuple(cache.layers for cache in caches))


def _unstack(stacked: jax.Array) -> Unstacked:
    return Unstacked([stacked[i] for i in range(len(stacked))])


def _stack(tree: ArrayPytree) -> ArrayPytree:
    is_unstacked = lambda x: isinstance(x, Unstacked)  # noqa: E731
    return jax.tree.map(
        lambda x: jnp.stack(x.parts) if is_unstacked(x) else x, tree, is_leaf=is_unstacked
    )
