"""Classifiers on frozen features: multinomial logistic regression, or with one hidden layer.

The loss is the sum of cross-entropies plus half the squared norm of the weights without biases, as
in scikit-learn's LogisticRegression with C = 1. L-BFGS minimizes it on all examples at once, with
the weights of a mixture of layers, which scikit-learn cannot fit.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
from jax.flatten_util import ravel_pytree

MAX_STEPS = 200  # steps of L-BFGS


class Classifier(NamedTuple):
    """A classifier on a mixture of layers with learned weights softmax(mix).

    Its parameters are one array, `flat`. Inputs are [K, n, F] float32, standardized.
    """

    num_layers: int  # K, layers of the model that it mixes
    num_features: int  # F
    hidden: int | None  # width of the hidden layer; None: linear
    num_labels: int  # C

    def init(self) -> dict[str, Any]:
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

    def params(self, flat: Any) -> dict[str, Any]:
        """Returns the parameters by name."""
        return ravel_pytree(self.init())[1](jnp.asarray(flat))

    def fit(self, inputs: np.ndarray, gold: np.ndarray) -> np.ndarray:
        """Fits the parameters; returns `flat`, float32.

        Args:
          inputs: [K, n, F], the states of K layers.
          gold: [n] int32 labels.
        """
        given = jnp.asarray(inputs), jnp.asarray(gold)

        def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
            value, gradient = _loss(jnp.asarray(flat, jnp.float32), *given, self)
            return float(value), np.asarray(gradient, np.float64)

        start = np.asarray(ravel_pytree(self.init())[0], np.float64)
        options = {"maxiter": MAX_STEPS}
        found = scipy.optimize.minimize(loss, start, jac=True, method="L-BFGS-B", options=options)
        return found.x.astype(np.float32)

    def scores(self, flat: np.ndarray, inputs: np.ndarray) -> np.ndarray:
        """Scores the labels of examples: [n, C] float32.

        Args:
          flat: from `fit`.
          inputs: [K, n, F].
        """
        return np.asarray(_apply(flat, inputs, self))

    def shares(self, flat: np.ndarray) -> np.ndarray:
        """Returns the share of each layer in the mixture: [K]."""
        return np.asarray(jax.nn.softmax(self.params(flat)["mix"]))


@functools.partial(jax.jit, static_argnames="of")
def _apply(flat: jax.Array, inputs: jax.Array, of: Classifier) -> jax.Array:
    """Returns scores [n, C] of examples [K, n, F]."""
    params = of.params(flat)
    # L-BFGS needs exact products; accelerators round by default.
    with jax.default_matmul_precision("highest"):
        x = jnp.tensordot(jax.nn.softmax(params["mix"]), inputs, axes=1)
        for k, (weights, bias) in enumerate(zip(params["weights"], params["biases"], strict=True)):
            x = (jax.nn.relu(x) if k else x) @ weights + bias
    return x


@functools.partial(jax.jit, static_argnames="of")
@functools.partial(jax.value_and_grad, argnums=0)
def _loss(flat: jax.Array, inputs: jax.Array, gold: jax.Array, of: Classifier) -> jax.Array:
    """Returns the loss divided by the number of examples."""
    chances = jax.nn.log_softmax(_apply(flat, inputs, of))
    right = jnp.take_along_axis(chances, gold[:, None], axis=1)
    norm = sum((x**2).sum() for x in of.params(flat)["weights"])
    return 0.5 * norm / len(gold) - right.mean()


def standardize(splits: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Scales each feature of [K, n, F] to mean 0 and standard deviation 1 on the first split."""
    mean = splits[0].mean(axis=1, keepdims=True)
    deviation = np.maximum(splits[0].std(axis=1, keepdims=True), 1e-6)
    return [(split - mean) / deviation for split in splits]
