"""A pre-trained model with a head for a labeled task."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import linen as nn

from scalelab.nn.masks import Context, Mask

Batch = dict[str, jax.Array]
States = Callable[[nn.Module, Batch], jax.Array]  # (bound model, batch) -> [B, T, D]


def one_vector(hidden: jax.Array, batch: Batch, reads: str, num_rows: int) -> jax.Array:
    """Returns a vector of each example: one token's state per row, summed over the rows.

    Args:
      hidden: [B R, T, E]; [B R, T, 2 E] if `reads` is "ends".
      batch: with lengths [B R].
      reads: "first", "last", "ends" or "pair", as in `Classifier`.
      num_rows: R.

    Returns:
      [B, E]; [B, 2 E] for "ends".
    """
    if reads == "ends":
        forward, backward = jnp.split(hidden, 2, axis=-1)
        ends = one_vector(forward, batch, "last", 1), one_vector(backward, batch, "first", 1)
        vectors = jnp.concatenate(ends, axis=-1)
    elif reads in ("first", "pair"):
        vectors = hidden[:, 0]
    else:
        last = jnp.maximum(batch["lengths"] - 1, 0)
        vectors = jnp.take_along_axis(hidden, last[:, None, None], axis=1)[:, 0]
    return vectors.reshape(-1, num_rows, vectors.shape[-1]).sum(axis=1)


class Classifier(nn.Module):
    """Model -> vectors of some tokens -> scores.

    Attributes:
      body: a system's model.
      head: (vectors [B, ..., E], ctx) -> scores [B, ..., C] float32.
      reads: the vector of a row: "first": of its first token; "last": of its last token; "ends":
        the last state of each direction of the head's BiLSTM (`nn.heads.BiLSTMHead`); "pair":
        the head's sums over the tokens of two texts (`nn.decomposable.DecomposableHead`).
      num_rows: R, rows of an example, one after another.
      vectors: (hidden [B R, T, E], batch, reads, R) -> the vectors [B, ..., E] that are scored.
      source: "both": the rows are the model's source, and behind the token `start` its text,
        without the last token (Lewis et al. 2020, BART, 3.1). "source": they are the source, and
        the text is `start` alone. None: the model reads no source.
      start: id of the token that begins a text behind a source.
    """

    body: nn.Module
    head: nn.Module
    reads: str
    num_rows: int = 1
    vectors: Callable[[jax.Array, Batch, str, int], jax.Array] = one_vector
    source: str | None = None
    start: int | None = None

    def __call__(self, batch: Batch, states: States, *, train: bool) -> jax.Array:
        """Scores examples: [B, ..., C] float32.

        Args:
          batch: tokens [B R, T], lengths, examples, and second_starts of the same rows.
          states: computes the states of the body, such as `objectives.Pass.hidden`.
          train: whether dropout is on.
        """
        if self.source is not None:
            assert self.start is not None, "a source needs a token that begins the text"
            tokens, lengths = batch["tokens"], batch["lengths"]
            batch = batch | {"source": tokens, "source_lengths": lengths}
            read = jnp.roll(tokens, 1, axis=1).at[:, 0].set(self.start)
            if self.source == "source":
                read, lengths = read[:, :1], jnp.ones_like(lengths)
            batch |= {"tokens": read, "lengths": lengths}
        return self.classify(states(self.body, batch), batch, train=train)

    def classify(self, hidden: jax.Array, batch: Batch, *, train: bool) -> jax.Array:
        """Returns the scores [B, ..., C] of hidden states.

        Args:
          hidden: [B R, T, E].
          batch: lengths [B R] and examples [B R]; second_starts [B R] if `reads` is "pair".
          train: whether dropout is on.
        """

        def context(examples: jax.Array) -> Context:
            nowhere = jnp.zeros((len(examples), 1), jnp.int32)
            return Context(mask=Mask(), positions=nowhere, examples=examples, train=train)

        if self.reads == "ends":
            hidden = self.head.read(hidden, batch["lengths"])
        elif self.reads == "pair":
            hidden = self.head.read(hidden, batch, context(batch["examples"]))
        vectors = self.vectors(hidden, batch, self.reads, self.num_rows)
        return self.head(vectors, context(batch["examples"][:: self.num_rows]))
