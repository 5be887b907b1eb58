"""Compatibility functions of attention: the score of a key k for a query q, both [D].

| name | score | source |
|---|---|---|
| `additive` | w tanh(W q + U k) | Bahdanau et al. 2015, A.1.2 |
| `concat` | w tanh(W [k; q]) | Luong et al. 2015, 3.1 |
| `dot` | q k | Luong et al. 2015, 3.1 |
| `scaled_dot` | q k / sqrt(D) | Vaswani et al. 2017, 3.2.1 |
| `general` | q W k | Luong et al. 2015, 3.1 |
| `biased_general` | (W q + b) k | Sordoni et al. 2016 |
| `activated_general` | tanh(q W k) | Ma et al. 2017, without its bias |
| `location` | (W q)_j, of the place j alone | Luong et al. 2015, 3.1 |

`additive` and `concat` are the same functions: W and U are parts of one kernel. Their initial
weights differ if the initializer looks at the shape.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike

from scalelab.nn import axes
from scalelab.nn.axes import parameter
from scalelab.nn.linear import ZEROS
from scalelab.nn.product import product

Weights = Mapping[str, jax.Array]
Multiply = Callable[[str, jax.Array, jax.Array], jax.Array]  # an einsum of two arrays, in float32
Scorer = Callable[[jax.Array, jax.Array], jax.Array]  # [B, T, D], [B, S, D] -> [B, T, S] float32
MAP, PAIRS = "btd,de->bte", "btd,bsd->bts"


class Score(NamedTuple):
    """A compatibility function.

    Attributes:
      axes: name of each parameter -> its axes: D, C for 2 D, S for the largest number of keys.
      score: (multiply, weights, queries [B, T, D], keys [B, S, D]) -> [B, T, S].
      keys: (multiply, weights, states [B, S, D]) -> [B, S, D], computed once for all queries.
    """

    axes: Mapping[str, str]
    score: Callable[[Multiply, Weights, jax.Array, jax.Array], jax.Array]
    keys: Callable[[Multiply, Weights, jax.Array], jax.Array] = lambda m, w, h: h


def _tanh(multiply: Multiply, out: jax.Array, queries: jax.Array, keys: jax.Array) -> jax.Array:
    """Returns w tanh(query + key) of all pairs."""
    return multiply("btsd,d->bts", jnp.tanh(queries[:, :, None] + keys[:, None]), out)


SCORES = {
    "additive": Score(
        {"query_kernel": "DD", "key_kernel": "DD", "out_kernel": "D"},
        lambda m, w, q, k: _tanh(m, w["out_kernel"], m(MAP, q, w["query_kernel"]), k),
        lambda m, w, h: m(MAP, h, w["key_kernel"]),
    ),
    "concat": Score(
        {"both_kernel": "CD", "out_kernel": "D"},
        lambda m, w, q, k: _tanh(m, w["out_kernel"], m(MAP, q, w["both_kernel"][q.shape[-1] :]), k),
        lambda m, w, h: m(MAP, h, w["both_kernel"][: h.shape[-1]]),
    ),
    "dot": Score({}, lambda m, w, q, k: m(PAIRS, q, k)),
    "scaled_dot": Score({}, lambda m, w, q, k: m(PAIRS, q, k) * q.shape[-1] ** -0.5),
    "general": Score(
        {"kernel": "DD"},
        lambda m, w, q, k: m(PAIRS, q, k),
        lambda m, w, h: m("bsd,ed->bse", h, w["kernel"]),
    ),
    "biased_general": Score(
        {"kernel": "DD", "bias": "D"},
        lambda m, w, q, k: m(PAIRS, m(MAP, q, w["kernel"]) + w["bias"], k),
    ),
    "activated_general": Score(
        {"kernel": "DD"},
        lambda m, w, q, k: jnp.tanh(m(PAIRS, q, k)),
        lambda m, w, h: m("bsd,ed->bse", h, w["kernel"]),
    ),
    "location": Score(
        {"kernel": "DS"}, lambda m, w, q, k: m(MAP, q, w["kernel"])[..., : k.shape[1]]
    ),
}


def shapes(score: str, width: int, max_keys: int) -> dict[str, tuple[int, ...]]:
    """Returns the shape of each parameter of the function `score` in SCORES."""
    sizes = {"D": width, "C": 2 * width, "S": max_keys}
    axes_of = SCORES[score].axes.items()
    return {name: tuple(sizes[letter] for letter in letters) for name, letters in axes_of}


class Compatibility(nn.Module):
    """A compatibility function with its parameters.

    Attributes:
      score: a name in SCORES.
      width: D, of queries and keys.
      max_keys: S, the largest number of keys; only `location` depends on it.
      kernel_init: initializer of the kernels; biases begin with 0.
      dtype: dtype of the products' operands and of the keys; sums and scores are float32.
    """

    score: str
    width: int
    max_keys: int
    kernel_init: nn.initializers.Initializer
    dtype: DTypeLike = jnp.float32

    def setup(self) -> None:
        """Makes the parameters."""
        names = axes.WIDTH, axes.POSITIONS if self.score == "location" else axes.TRANSFORM
        init, made = self.kernel_init, shapes(self.score, self.width, self.max_keys)
        self.weights = {
            name: parameter(self, name, ZEROS if name == "bias" else init, names[-len(s) :], s)
            for name, s in made.items()
        }

    def keys(self, states: jax.Array) -> jax.Array:
        """Returns the keys [B, S, D] of states [B, S, D], for `scorer`.

        Raises:
          ValueError: there are more states than `max_keys`, for a score that depends on it.
        """
        if self.score == "location" and states.shape[1] > self.max_keys:
            raise ValueError(f"{self.max_keys} positions, but a source of {states.shape[1]} tokens")
        return SCORES[self.score].keys(self._multiply, self.weights, states).astype(self.dtype)

    def scorer(self) -> Scorer:
        """Returns the score as a function of queries and keys; loops over time may call it."""
        score, weights, multiply = SCORES[self.score].score, dict(self.weights), self._multiply
        return lambda queries, keys: score(multiply, weights, queries, keys)

    @nn.nowrap
    def _multiply(self, subscripts: str, a: jax.Array, b: jax.Array) -> jax.Array:
        # Kernels are cast here, inside a caller's loop: their gradients then sum in float32.
        return product(subscripts, a.astype(self.dtype), b.astype(self.dtype))
