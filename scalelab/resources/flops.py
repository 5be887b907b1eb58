"""Parameters and FLOPs of a system, one named term a line.

A multiply-add counts as two FLOPs. Matrix products only: softmax, norms and element-wise work are
left out, as everywhere in the literature. The backward pass costs twice the forward pass.
"""

import dataclasses
import time
from collections.abc import Iterable

import jax
import jax.numpy as jnp
import numpy as np
from flax.typing import ArrayPytree

from scalelab.config.pretraining import Config
from scalelab.objectives import Objective


@dataclasses.dataclass(frozen=True)
class Flops:
    """Forward FLOPs of one batch."""

    body: float  # projections and FFN of all layers, 2 * n_model per position (F = 4H)
    attention: float  # scores and weighted sums, 4 L n H per position without a causal mask
    head: float  # transforms and vocabulary logits, on the positions they run on
    embedding: float = 0.0  # look-ups are copies, not products

    @property
    def forward(self) -> float:
        """All terms together."""
        return self.body + self.attention + self.head + self.embedding

    @property
    def train(self) -> float:
        """Forward and backward: three times forward."""
        return 3.0 * self.forward


PARTS = ("body", "attention", "head", "embedding")


def count_parameters(params: ArrayPytree) -> int:
    """Every parameter of a tree, of concrete or abstract arrays."""
    return int(sum(np.prod(leaf.shape, dtype=np.int64) for leaf in jax.tree.leaves(params)))


def count_forward(
    params: ArrayPytree,
    *,
    width: int,
    num_layers: int,
    batch_size: int,
    length: int,
    predicted: int,
    causal: bool,
) -> Flops:
    """Counts the forward pass over one batch of padded examples, from the net's own parameters.

    Args:
      params: the parameter tree, concrete or abstract: "stack" runs on every position, "token_head"
        and the tied vocabulary table on the predicted ones, "pair_head" on the first of each
        example.
      width: H.
      num_layers: L.
      batch_size: B.
      length: n, padded length of every example.
      predicted: positions of an example that pass through the token head.
      causal: counts the useful half of the attention scores, as the protocol does (section 7.1).
    """
    positions, seen = batch_size * length, length / 2 if causal else length
    token_head = params["embed"]["tokens"]["table"].size + _kernel_sizes(params.get("token_head"))
    heads = predicted * token_head + _kernel_sizes(params.get("pair_head"))
    return Flops(
        body=2.0 * positions * _kernel_sizes(params["stack"]),
        attention=4.0 * positions * num_layers * seen * width,
        head=2.0 * batch_size * heads,
    )


def _kernel_sizes(params: ArrayPytree) -> int:
    """Parameters in the matrices of a tree: every leaf named kernel."""
    leaves = jax.tree_util.tree_leaves_with_path(params)
    return int(sum(np.prod(leaf.shape) for path, leaf in leaves if path[-1].key == "kernel"))


def count_predicted(objectives: Iterable[Objective], length: int) -> int:
    """Returns the positions of an example of `length` that pass through the token head."""
    return sum(objective.num_predicted(length) for objective in objectives)


def count_phases(
    params: ArrayPytree, objectives: Iterable[Objective], config: Config, *, causal: bool
) -> list[Flops]:
    """Counts the forward pass of a training step of each phase of a config; see `count_forward`."""
    return [
        count_forward(
            params,
            width=config.net.width,
            num_layers=config.net.num_layers,
            batch_size=phase.batch_size,
            length=phase.max_len,
            predicted=count_predicted(objectives, phase.max_len),
            causal=causal,
        )
        for phase in config.phases
    ]


@jax.jit
def _square(a: jax.Array) -> jax.Array:
    return a @ a


def measure_peak(dtype: str = "float32") -> float:
    """Measures the rate of matrix products of one device, in FLOP/s; in under a second.

    Args:
      dtype: of the operands.
    """
    size = 1024 if jax.default_backend() == "cpu" else 8192
    a = jnp.ones((size, size), dtype)
    _square(a).block_until_ready()
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        _square(a).block_until_ready()
        best = min(best, time.perf_counter() - start)
    return 2.0 * size**3 / best
