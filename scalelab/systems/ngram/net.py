"""A model of n-grams: parameters are tables of counts, and states are the n-grams so far."""

import jax
import jax.numpy as jnp
from flax import linen as nn

from scalelab.nets.decoder import DecoderCache
from scalelab.nn import axes
from scalelab.nn.axes import parameter
from scalelab.nn.masks import Step


def log(chance: jax.Array) -> jax.Array:
    """Returns the logarithm, finite at 0: a discount of 0 gives new tokens nothing."""
    return jnp.log(jnp.maximum(chance, jnp.finfo(chance.dtype).tiny))


class Table(nn.Module):
    """The n-grams of an order n, grouped by context: the (n-1)-gram before the last token.

    Attributes:
      num_rows: rows of n-grams.
      num_contexts: rows of contexts.
      vocab_size: V.
    """

    num_rows: int
    num_contexts: int
    vocab_size: int

    def setup(self) -> None:
        """Makes the arrays; without counts, no context has an n-gram."""
        zeros, ones = nn.initializers.zeros_init(), nn.initializers.ones_init()

        def make(name: str, init: nn.initializers.Initializer, size: int) -> jax.Array:
            made = parameter(self, name, init, (axes.NGRAMS,), (size,), decay=False)
            return jax.lax.stop_gradient(made)

        self.last = make("last", zeros, self.num_rows)  # last token plus 1, ascending in a context
        self.own = make("own", zeros, self.num_rows)  # discounted share of the context's counts
        self.first = make("first", zeros, self.num_contexts + 1)  # first n-gram of each context
        self.rest = make("rest", ones, self.num_contexts)  # weight of the next lower order

    def ends(self, contexts: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Returns the first n-gram [...] of contexts [...], and the one behind the last."""
        at = jnp.maximum(contexts, 0)
        first, stop = (self.first[at + k].astype(jnp.int32) for k in (0, 1))
        return first, jnp.where(contexts < 0, first, stop)

    def weights(self, contexts: jax.Array) -> jax.Array:
        """Returns the weights [...] of the next lower order in contexts [...]; -1: unknown."""
        return jnp.where(contexts < 0, 1.0, self.rest[jnp.maximum(contexts, 0)])

    def find(self, contexts: jax.Array, tokens: jax.Array) -> jax.Array:
        """Returns the n-grams [...] of contexts and tokens, -1 where there is none.

        Args:
          contexts: [...] int32, (n-1)-grams; -1: unknown.
          tokens: [...] int32, last tokens.
        """
        first, stop = self.ends(contexts)

        def halve(_: int, bounds: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            low, high = bounds
            middle = (low + high) // 2
            below = (self.last[middle] < tokens + 1) & (low < high)
            return jnp.where(below, middle + 1, low), jnp.where(below, high, middle)

        turns = (self.vocab_size + 1).bit_length()
        found, _ = jax.lax.fori_loop(0, turns, halve, (first, stop))
        return jnp.where((found < stop) & (self.last[found] == tokens + 1), found, -1)

    def interpolate(self, contexts: jax.Array, lower: jax.Array) -> jax.Array:
        """Returns the probabilities [P, V] of all tokens behind contexts.

        Args:
          contexts: [P] int32, (n-1)-grams; -1: unknown.
          lower: [P, V], the probabilities of the next lower order.
        """
        first, stop = self.ends(contexts)
        rows = jnp.arange(len(contexts))

        def add(k: jax.Array, chance: jax.Array) -> jax.Array:
            # The k-th n-gram of each context; contexts with fewer get a column that is not there.
            last = self.last[first + k].astype(jnp.int32) - 1
            column = jnp.where((first + k < stop) & (last >= 0), last, self.vocab_size)
            return chance.at[rows, column].add(self.own[first + k], mode="drop")

        chance = self.weights(contexts)[:, None] * lower
        return jax.lax.fori_loop(0, jnp.max(stop - first), add, chance)


class NGramModel(nn.Module):
    """A model of counts; the methods are those of `nets.Model`.

    Attributes:
      order: N.
      num_rows: rows of the orders 1 to N; order 1 has a row for each token, behind one for the
        places before a text.
      vocab_size: V.
    """

    EMBEDDING = ()
    TOKEN_TABLE = "unigrams_undecayed"

    order: int
    num_rows: tuple[int, ...]
    vocab_size: int

    def setup(self) -> None:
        """Makes the tables; without counts, all tokens have one probability."""
        V = self.vocab_size  # noqa: N806
        init = nn.initializers.constant(1 / V)
        self.unigrams = parameter(self, "unigrams", init, (axes.VOCAB,), (V,), decay=False)
        sizes = zip(self.num_rows[1:], self.num_rows, strict=False)
        self.tables = [Table(*pair, V, name=f"order_{n}") for n, pair in enumerate(sizes, 2)]

    def init_cache(self, batch_size: int, max_len: int) -> DecoderCache:
        """Returns the states before a text, n-grams 0, whatever `max_len`."""
        del max_len
        states = jnp.zeros((1, batch_size, max(1, self.order - 1)), jnp.float32)
        return DecoderCache(states, jnp.zeros((batch_size,), jnp.int32))

    def __call__(
        self, batch: dict[str, jax.Array], *, train: bool, cache: DecoderCache | None = None,
        step: Step = None,
    ) -> tuple[jax.Array, DecoderCache | None]:  # fmt: skip
        """Returns the n-grams [B, T, max(1, N - 1)] of orders 1 to N - 1 that end in each token."""
        del train, step
        tokens, lengths = batch["tokens"], batch["lengths"]
        before = (cache or self.init_cache(len(tokens), 0)).layers[0][:, None]
        found = [tokens + 1]
        for n, table in enumerate(self.tables[: self.order - 2], 1):
            first = before[:, :, n - 1].astype(jnp.int32)
            contexts = jnp.concatenate([first, found[-1][:, :-1]], axis=1)
            found.append(table.find(contexts, tokens))
        states = jnp.stack(found, axis=-1).astype(jnp.float32)
        if cache is not None:
            joined = jnp.concatenate([before, states], axis=1)
            last = jnp.take_along_axis(joined, lengths[:, None, None], axis=1)
            cache = DecoderCache(last.swapaxes(0, 1), cache.lengths + lengths)
        return states, cache

    def token_log_probs(self, hidden: jax.Array, targets: jax.Array) -> jax.Array:
        """Returns the log-probabilities [...] of targets [...] at hidden [..., D]."""
        chance = jax.lax.stop_gradient(self.unigrams)[targets]
        for n, table in enumerate(self.tables):
            contexts = hidden[..., n].astype(jnp.int32)
            found = table.find(contexts, targets)
            own = jnp.where(found < 0, 0.0, table.own[found])
            chance = own + table.weights(contexts) * chance
        return log(chance)

    def token_features(self, hidden: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Returns zeros [..., 1], zeros [V, 1], and all log-probabilities [..., V] as bias."""
        states = hidden.reshape(-1, hidden.shape[-1]).astype(jnp.int32)
        chance = jnp.broadcast_to(self.unigrams, (len(states), self.vocab_size))
        for n, table in enumerate(self.tables):
            chance = table.interpolate(states[:, n], chance)
        scores = log(chance).reshape(*hidden.shape[:-1], -1)
        return jnp.zeros((*hidden.shape[:-1], 1)), jnp.zeros((self.vocab_size, 1)), scores

    def token_logits(self, hidden: jax.Array) -> jax.Array:
        """Returns the log-probabilities of all tokens at hidden [..., D]: [..., V] float32."""
        return self.token_features(hidden)[2]
