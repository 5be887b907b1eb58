"""Prediction heads: from hidden states to class scores."""

from collections.abc import Callable
from functools import partial
from typing import Protocol

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike

from scalelab.nn import axes
from scalelab.nn.axes import parameter
from scalelab.nn.dropout import Dropout
from scalelab.nn.linear import ZEROS, Linear
from scalelab.nn.masks import Context


def tied_logits(features: jax.Array, table: jax.Array, bias: jax.Array | None) -> jax.Array:
    """Returns the scores of all tokens: features @ table.T + bias.

    Args:
      features: [..., D]; the product casts the table to its dtype and sums in float32.
      table: [V, D].
      bias: [V] or None.

    Returns:
      [..., V] float32.
    """
    logits = jnp.matmul(
        features, table.T.astype(features.dtype), preferred_element_type=jnp.float32
    )
    return logits if bias is None else logits + bias


def token_logits(model: nn.Module, hidden: jax.Array) -> jax.Array:
    """Returns the scores of all tokens at hidden states: [..., V] float32.

    Args:
      model: a bound `nets.Model`.
      hidden: [..., D].
    """
    if hasattr(model, "token_logits"):
        return model.token_logits(hidden)
    return tied_logits(*model.token_features(hidden))


class PlainHead(nn.Module):
    """The identity: the tied table scores the states directly (GPT; Radford et al. 2018, eq. 2)."""

    def __call__(self, hidden: jax.Array) -> tuple[jax.Array, None]:
        """Returns hidden [..., D] and no bias."""
        return hidden, None


class BiasHead(nn.Module):
    """The identity, and a bias on the scores.

    Attributes:
      vocab_size: V.
    """

    vocab_size: int

    @nn.compact
    def __call__(self, hidden: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Returns hidden [..., D] and the bias [V] of the scores."""
        return hidden, parameter(self, "bias", ZEROS, (axes.VOCAB,), (self.vocab_size,))


class ScaledHead(nn.Module):
    """Hidden states times D^-0.5, for the table that also embeds tokens (mesh_tensorflow)."""

    def __call__(self, hidden: jax.Array) -> tuple[jax.Array, None]:
        """Returns features [..., D] and no bias."""
        return hidden * hidden.shape[-1] ** -0.5, None


class TransformHead(nn.Module):
    """Affine map, activation, norm, and a bias on the scores (BERT family).

    Attributes:
      vocab_size: V.
      activation: the function after the affine map.
      norm: the norm after the activation.
      kernel_init: initializer of the kernel.
      dtype: dtype of the computation.
      width: E, the width of the token table; None: D.
    """

    vocab_size: int
    activation: Callable[[jax.Array], jax.Array]
    norm: nn.Module
    kernel_init: nn.initializers.Initializer
    dtype: DTypeLike = jnp.float32
    width: int | None = None

    @nn.compact
    def __call__(self, hidden: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Maps hidden [..., D] to features [..., E] and the bias [V] of the scores."""
        given = (axes.TRANSFORM,), (self.width or hidden.shape[-1],), self.kernel_init, self.dtype
        dense = Linear((axes.WIDTH,), *given, name="dense")
        bias = parameter(self, "bias", ZEROS, (axes.VOCAB,), (self.vocab_size,))
        return self.norm(self.activation(dense(hidden))), bias


class FirstTokenHead(nn.Module):
    """Affine map and tanh on the first position, then an affine map to classes (BERT's pooler).

    Attributes:
      num_classes: number of scores.
      kernel_init: initializer of both kernels.
      dtype: dtype of the computation.
    """

    num_classes: int
    kernel_init: nn.initializers.Initializer
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, hidden: jax.Array) -> jax.Array:
        """Maps hidden [B, T, D] to scores [B, C] float32."""
        linear = partial(Linear, (axes.WIDTH,), kernel_init=self.kernel_init)
        width = hidden.shape[-1]
        pooler = linear((axes.TRANSFORM,), (width,), dtype=self.dtype, name="pooler")
        classes = (axes.CLASSES,), (self.num_classes,)
        # Named, although it is the default: tests of parity replace jnp.float32 here.
        classifier = linear(*classes, dtype=jnp.float32, name="classifier")
        return classifier(jnp.tanh(pooler(hidden[:, 0])))


class LabelHeads(nn.Module):
    """One head for each task that predicts labels; only heads in use get parameters.

    Attributes:
      kernel_init: initializer of the kernels.
      dtype: dtype of the computation.
    """

    kernel_init: nn.initializers.Initializer
    dtype: DTypeLike

    @nn.compact
    def __call__(self, hidden: jax.Array, task: str, num_classes: int, of_text: bool) -> jax.Array:
        """Maps hidden [B, T, D] to float32 scores [B, C] of texts, or [B, T, C] of tokens.

        Args:
          hidden: the states.
          task: name of the head.
          num_classes: C.
          of_text: True scores texts, False tokens.
        """
        if of_text:
            return FirstTokenHead(num_classes, self.kernel_init, self.dtype, name=task)(hidden)
        classes = (axes.CLASSES,), (num_classes,)
        return Linear((axes.WIDTH,), *classes, self.kernel_init, jnp.float32, name=task)(hidden)


class TaskHead(Protocol):
    """The signature of a head for a fine-tuned task."""

    def __call__(self, vectors: jax.Array, ctx: Context) -> jax.Array:
        """Returns the scores [B, ..., C] float32.

        Args:
          vectors: [B, ..., E], of the places that are scored.
          ctx: whether dropout is on.
        """
        ...


ACTIVATIONS = {"tanh": jnp.tanh, "gelu": partial(jax.nn.gelu, approximate=False)}  # ClassHead's


class ClassHead(nn.Module):
    """An affine map to classes behind dropout, with or without a hidden layer before it.

    Without the hidden layer: Radford et al. 2018, 3.2; with it: protocol, "Fine-tuning".

    Attributes:
      num_classes: C.
      width: width of the hidden layer; None: there is none.
      dropout_rate: before each map.
      kernel_init: initializer of the kernels.
      activation: of the hidden layer, a name in ACTIVATIONS.
      num_layers: k, the layers side by side in a learned sum (`weighted_sum`); 0: one layer.
    """

    num_classes: int
    width: int | None
    dropout_rate: float
    kernel_init: nn.initializers.Initializer
    activation: str = "tanh"
    num_layers: int = 0

    @nn.compact
    def __call__(self, vectors: jax.Array, ctx: Context) -> jax.Array:
        """Returns the scores, as `TaskHead`."""
        linear = partial(Linear, (axes.WIDTH,), kernel_init=self.kernel_init)
        x = weighted_sum(self, self.num_layers)(vectors).astype(jnp.float32)
        x = Dropout(self.dropout_rate, name="dropout")(x, ctx)
        if self.width is not None:
            dense = linear((axes.TRANSFORM,), (self.width,), name="dense")
            x = ACTIVATIONS[self.activation](dense(x))
            x = Dropout(self.dropout_rate, name="dropout_out")(x, ctx)
        return linear((axes.CLASSES,), (self.num_classes,), name="out")(x)


class BiLSTMHead(nn.Module):
    """A head on a bidirectional LSTM over the states of a row (Devlin et al. 2019, 5.1).

    The LSTM's parameters are in the same scope as the head's. Initializers are Flax's defaults.

    Attributes:
      width: W, the width of each direction.
      head: (vectors [B, ..., 2 W], ctx) -> scores [B, ..., C].
      num_layers: k, as in ClassHead.
    """

    width: int
    head: nn.Module
    num_layers: int = 0

    def setup(self) -> None:  # noqa: D102
        nn.share_scope(self, self.head)
        self.sum = weighted_sum(self, self.num_layers)
        named, one = nn.with_logical_partitioning, nn.initializers
        kernel = axes.WIDTH, axes.TRANSFORM

        def direction() -> nn.RNN:
            cell = nn.OptimizedLSTMCell(
                self.width,
                kernel_init=named(one.lecun_normal(), kernel),
                recurrent_kernel_init=named(one.orthogonal(), kernel),
                bias_init=named(one.zeros_init(), kernel[1:]),
            )
            return nn.RNN(cell)

        self.lstm = nn.Bidirectional(direction(), direction())

    def read(self, hidden: jax.Array, lengths: jax.Array) -> jax.Array:
        """Returns the states of both directions side by side, forward first: [B, T, 2 W] float32.

        Args:
          hidden: [B, T, E], or [B, T, k E], layers side by side.
          lengths: [B] int32.
        """
        states = self.lstm(self.sum(hidden).astype(jnp.float32), seq_lengths=lengths)
        return states  # pyright: ignore[reportReturnType]: without the carry

    def __call__(self, vectors: jax.Array, ctx: Context) -> jax.Array:
        """Returns the scores of vectors [B, ..., 2 W], of `read`."""
        return self.head(vectors, ctx)


def weighted_sum(owner: nn.Module, num_layers: int) -> Callable[[jax.Array], jax.Array]:
    """Creates the parameters of a learned sum: scale * sum_j softmax(weights)_j h_j.

    Peters et al. 2018 (ELMo), equation 1; the layers may begin with its layer 0, the embeddings.
    With its initial weights the sum is the mean.

    Args:
      owner: a module, where `owner.param` may be called.
      num_layers: k; 0: no sum.

    Returns:
      A function of k layers side by side, [..., k E], that returns their sum [..., E] float32.
    """
    if not num_layers:
        return lambda x: x
    weights = parameter(owner, "layer_weights", ZEROS, (axes.NORM,), (num_layers,))
    scale = parameter(owner, "layer_scale", nn.initializers.ones_init(), (axes.NORM,), (1,))

    def add(vectors: jax.Array) -> jax.Array:
        layers = vectors.astype(jnp.float32).reshape(*vectors.shape[:-1], num_layers, -1)
        return scale * jnp.einsum("k,...kf", jax.nn.softmax(weights), layers)

    return add
