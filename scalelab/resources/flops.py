"""Parameters and FLOPs, counted from the program.

A multiply-add counts as two FLOPs. Only matrix products count: softmax, norms and element-wise work
are left out, as is usual in the literature. The backward pass counts twice the forward FLOPs of the
products that get a gradient.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax.typing import ArrayPytree
from jax.extend import core

from scalelab import objectives
from scalelab.config.pretraining import Config
from scalelab.nn.axes import PARTS, innermost_part
from scalelab.objectives import Batch, Pass, Term

FORWARD_ONLY = "forward_only"
# Substring of `device_kind` -> dense bfloat16 FLOP/s from the data sheet; the first match counts.
PEAKS = {
    "H100 PCIe": 756e12, "H100": 989e12, "H200": 989e12, "A100": 312e12, "TPU v6": 918e12,
    "TPU v5p": 459e12, "TPU v5 lite": 197e12, "TPU v5": 459e12, "TPU v4": 275e12,
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Flops:
    """Forward FLOPs of one batch, by the part of the model (`nn.axes.part`)."""

    body: float  # projections and FFN of all layers, 2 * n_model per position (F = 4D)
    attention: float  # scores and weighted sums, 4 L T D per position without a causal mask
    head: float  # all products outside the other parts: transforms and vocabulary logits
    embedding: float = 0.0  # look-ups are copies, not products
    forward_only: float = 0.0  # the part without a gradient (`nn.axes.forward_only`)

    @property
    def forward(self) -> float:
        """The sum of all parts."""
        return self.body + self.attention + self.head + self.embedding

    @property
    def train(self) -> float:
        """Training FLOPs: 3 * forward, but 1 * forward for products without a gradient.

        Kaplan et al. 2020, 2.1, count the backward pass twice too.
        """
        return 3.0 * self.forward - 2.0 * self.forward_only


def count_parameters(params: ArrayPytree) -> int:
    """Returns the number of parameters of a tree of concrete or abstract arrays."""
    return int(sum(np.prod(leaf.shape, dtype=np.int64) for leaf in jax.tree.leaves(params)))


def of_program(function: Callable[..., Any], *arguments: Any) -> Flops:
    """Counts the matrix products of a program by tracing it; nothing is computed.

    The body of a `scan` counts once for each iteration, the body of a `while` loop once, because
    its number of iterations is unknown. Of a condition only the costliest branch counts.
    Recomputation by remat does not count. The arguments may be abstract.
    """
    totals = dict.fromkeys((*PARTS, FORWARD_ONLY), 0.0)
    for part, amount in _products(jax.make_jaxpr(function)(*arguments).jaxpr, ()):
        totals[part] += amount
    return Flops(**totals)


def _products(jaxpr: core.Jaxpr, outer: tuple[str, ...]) -> list[tuple[str, float]]:
    """Returns the field of Flops and the FLOPs of each product of a traced program."""
    found = []
    for equation in jaxpr.eqns:
        scopes = (*outer, *str(equation.source_info.name_stack).split("/"))
        name, params = equation.primitive.name, equation.params
        if name in ("dot_general", "conv_general_dilated"):
            part, share, forward_only = innermost_part(scopes)
            found.append((part, share * _product_flops(equation)))
            if forward_only:
                found.append((FORWARD_ONLY, found[-1][1]))
        inner = [_products(each, scopes) for each in core.jaxprs_in_params(params)]
        if name == "cond":
            inner = [max(inner, key=lambda branch: sum(amount for _, amount in branch))]
        turns = params["length"] if name == "scan" else 1
        found += [(part, turns * amount) for branch in inner for part, amount in branch]
    return found


def _product_flops(equation: core.JaxprEqn) -> float:
    left, right, out = equation.invars[0].aval, equation.invars[1].aval, equation.outvars[0].aval
    if equation.primitive.name == "dot_general":
        (contracted, _), (batch, _) = equation.params["dimension_numbers"]
        if left.ndim == right.ndim == len(contracted) + len(batch):
            return 0.0  # element-wise: no axis is free on either side
        return 2.0 * out.size * math.prod(left.shape[axis] for axis in contracted)
    out_axis = equation.params["dimension_numbers"].rhs_spec[0]
    return 2.0 * out.size * right.size / right.shape[out_axis]


def count_phases(
    params: ArrayPytree,
    net: nn.Module,
    terms: Sequence[Term],
    config: Config,
    carried: ArrayPytree = None,
    frozen: ArrayPytree = None,
) -> list[Flops]:
    """Counts the forward pass of a training step of each phase of a config.

    Args:
      params: the model's parameters, concrete or abstract.
      net: unbound.
      terms: the terms of the loss.
      config: the run's config.
      carried: as in `objectives.forward`.
      frozen: as in `objectives.Pass`.
    """

    def forward(params: Any, carried: Any, frozen: Any, batch: Batch, key: jax.Array) -> Any:
        prepared = objectives.prepare(batch, terms, key)
        ctx = Pass(key, jnp.zeros((), jnp.int32), train=True, frozen=frozen or {})
        return objectives.forward(net, params, prepared, terms, ctx, carried)

    arrays, key = objectives.needed_arrays(terms), jax.random.key(0)
    batches = [
        jax.eval_shape(lambda p=p: objectives.example_batch(p.max_len, arrays, p.batch_size))
        for p in config.phases
    ]
    return [of_program(forward, params, carried, frozen, batch, key) for batch in batches]


def device_peak(kind: str) -> float | None:
    """Returns the published peak in FLOP/s of a `device_kind`; None: unknown, as for every CPU."""
    return next((peak for name, peak in PEAKS.items() if name in kind), None)
