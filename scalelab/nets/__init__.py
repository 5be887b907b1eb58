"""Chassis: how embeddings, a layer stack and heads make a model. Families fill the slots."""

from typing import Any, Protocol

import jax

Batch = dict[str, jax.Array]


class Model(Protocol):
    """The methods of a system's model, bound.

    `token_states`, `token_log_probs`, `token_logits` and the heads are optional. Their arguments
    are described here once.
    """

    def __call__(
        self, batch: Batch, *, train: bool, cache: Any = None, step: jax.Array | None = None
    ) -> tuple[jax.Array, Any]:
        """Computes hidden states.

        Args:
          batch: tokens [B, T], lengths [B], examples [B], and the arrays that the model declares,
            such as source [B, S] with source_lengths [B].
          train: whether dropout is on; it needs the random key "dropout".
          cache: from `init_cache` or an earlier call, for a model of the next token; None: there
            are no tokens before the batch.
          step: int32 [], number of the training step; None outside training.

        Returns:
          [B, T, D] in the compute dtype, and the cache with the tokens of the batch; None without.
        """
        ...

    def token_states(
        self, batch: Batch, *, train: bool, step: jax.Array | None = None
    ) -> jax.Array:
        """Computes the states [B, T, D] that score tokens; absent: the hidden states.

        Args:
          batch: as in a call.
          train: as in a call.
          step: as in a call.
        """
        ...

    def token_features(self, hidden: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array | None]:
        """Returns features [..., E], table [V, E] and bias [V] or None for hidden [..., D].

        A model whose scores are no such product returns them as bias [..., V], beside zeros.
        """
        ...

    def token_log_probs(self, hidden: jax.Array, targets: jax.Array) -> jax.Array:
        """Returns the log-probabilities [B, T] of tokens, if the scores are no product.

        Args:
          hidden: [B, T, D].
          targets: [B, T] int32.
        """
        ...

    def token_logits(self, hidden: jax.Array) -> jax.Array:
        """Returns the scores of all tokens at hidden [..., D]: [..., V] float32.

        Absent: the scores are the product of `token_features` (`nn.heads.token_logits`).
        """
        ...

    def pair_logits(self, hidden: jax.Array) -> jax.Array:
        """Returns the scores [B, 2] float32 of hidden [B, T, D], if HEADS has "pair"."""
        ...

    def label_logits(
        self, hidden: jax.Array, task: str, num_classes: int, of_text: bool
    ) -> jax.Array:
        """Returns the scores of labels, float32, if HEADS has "labels".

        Args:
          hidden: [B, T, D].
          task: name of the head.
          num_classes: C.
          of_text: True scores texts, [B, C]; False tokens, [B, T, C].
        """
        ...

    def init_cache(self, batch_size: int, max_len: int) -> Any:
        """Returns an empty cache, if PREDICTS is "next"; works unbound, too.

        Args:
          batch_size: B.
          max_len: most tokens of a text that the cache holds.
        """
        ...

    def encode(self, batch: Batch, max_len: int) -> Any:
        """Reads a source without dropout, if HAS_SOURCE; returns the cache of an empty text.

        Args:
          batch: source [B, S], source_lengths [B], examples [B].
          max_len: as in `init_cache`.
        """
        ...
