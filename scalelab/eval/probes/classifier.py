"""Classifiers on frozen features: multinomial logistic regression, or with one hidden layer.

The loss is the sum of cross-entropies plus half the squared norm of the weights without biases, as
in scikit-learn's LogisticRegression with C = 1. L-BFGS minimises it on all examples at once.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
from jax.flatten_util import ravel_pytree

MAX_STEPS = 200  # of L-BFGS
Params = dict[str, Any]


class Sizes(NamedTuple):
    """The sizes of a classifier."""

    num_layers: int  # K, layers of the net that it mixes
    num_features: int  # F
    hidden: int | None  # width of the hidden layer; None: linear
    num_labels: int  # C

    def init(self) -> Params:
        """Draws the initial parameters; a linear classifier starts at 0."""
        widths = [self.num_features, *([] if self.hidden is None else [self.hidden])]
        shapes = list(zip(widths, [*widths[1:], self.num_labels], strict=True))
        keys = jax.random.split(jax.random.key(0), len(shapes))
        scale = 0.0 if self.hidden is None else 1.0
        return {
            "mix": jnp.zeros(self.num_layers),
            "weights": [
                scale * jax.random.normal(key, shape) / shape[0] ** 0.5
                for key, shape in zip(keys, shapes, strict=True)
            ],
            "biases": [jnp.zeros(width) for _, width in shapes],
        }


class Fitted(NamedTuple):
    """A trained classifier."""

    sizes: Sizes
    flat: np.ndarray  # its parameters

    @property
    def weights(self) -> np.ndarray:
        """The share of each layer in the mixture: [K]."""
        return np.asarray(jax.nn.softmax(_unflatten(self.flat, self.sizes)["mix"]))

    def scores(self, inputs: np.ndarray) -> np.ndarray:
        """Scores the labels of examples [K, n, F]: [n, C] float32."""
        return np.asarray(_apply(self.flat, inputs, self.sizes))


def standardize(splits: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Gives each feature of [K, n, F] mean 0 and deviation 1 on the first split."""
    mean = splits[0].mean(axis=1, keepdims=True)
    deviation = np.maximum(splits[0].std(axis=1, keepdims=True), 1e-6)
    return [(split - mean) / deviation for split in splits]


def fit(inputs: np.ndarray, gold: np.ndarray, num_labels: int, hidden: int | None) -> Fitted:
    """Trains a classifier on a mixture of layers with learnt weights softmax(mix).

    Args:
      inputs: [K, n, F] float32, standardised.
      gold: [n] int32 labels.
      num_labels: C.
      hidden: width of the hidden layer; None: linear.
    """
    num_layers, _, num_features = inputs.shape
    sizes = Sizes(num_layers, num_features, hidden, num_labels)
    given = jnp.asarray(inputs), jnp.asarray(gold)

    def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = _loss(jnp.asarray(flat, jnp.float32), *given, sizes)
        return float(value), np.asarray(gradient, np.float64)

    start = np.asarray(ravel_pytree(sizes.init())[0], np.float64)
    found = scipy.optimize.minimize(
        loss, start, jac=True, method="L-BFGS-B", options={"maxiter": MAX_STEPS}
    )
    return Fitted(sizes, found.x.astype(np.float32))


def _unflatten(flat: jax.Array | np.ndarray, sizes: Sizes) -> Params:
    """Returns the parameters that `flat` holds."""
    return ravel_pytree(sizes.init())[1](jnp.asarray(flat))


@functools.partial(jax.jit, static_argnames="sizes")
def _apply(flat: jax.Array, inputs: jax.Array, sizes: Sizes) -> jax.Array:
    """Returns scores [n, C] of examples [K, n, F]."""
    params = _unflatten(flat, sizes)
    # L-BFGS needs exact products; accelerators round by default.
    with jax.default_matmul_precision("highest"):
        x = jnp.tensordot(jax.nn.softmax(params["mix"]), inputs, axes=1)
        for k, (weights, bias) in enumerate(zip(params["weights"], params["biases"], strict=True)):
            x = (jax.nn.relu(x) if k else x) @ weights + bias
    return x


@functools.partial(jax.jit, static_argnames="sizes")
@functools.partial(jax.value_and_grad, argnums=0)
def _loss(flat: jax.Array, inputs: jax.Array, gold: jax.Array, sizes: Sizes) -> jax.Array:
    """Returns the loss divided by the number of examples."""
    chances = jax.nn.log_softmax(_apply(flat, inputs, sizes))
    right = jnp.take_along_axis(chances, gold[:, None], axis=1)
    norm = sum((x**2).sum() for x in _unflatten(flat, sizes)["weights"])
    return 0.5 * norm / len(gold) - right.mean()
