"""The floor of a fine-tuning step: its layers' matrix products, and one update of all parameters.

Products forward and backward at each batch's length, with nothing in between, as in floor.py; the
update is the engine's own optimizer on gradients that are there already. No embedding, norm,
softmax, activation, dropout, head or loss.
"""

import functools
import math
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np

from benchmarks import floor
from scalelab.finetuning import loop as finetune_loop
from scalelab.finetuning.group import Group


@functools.partial(jax.jit, static_argnums=0)
def products(num_heads: int, made: dict[str, Any], x: Any) -> Any:
    """Gradients of the layers' matrices and of x [B, T, D]; the output is its own gradient."""
    hidden, back = jax.vjp(lambda w, x: floor.layers(num_heads, w, x), made, x)
    return back(hidden)


class Floor:
    """The least that the steps of a group of one seed have to compute.

    Args:
      run: the task as the engine prepares it.
      group: whose steps; its state is copied.
    """

    def __init__(self, run: Any, group: Group) -> None:
        net, tx = run.start.opened.config.net, run.learner.tx
        rng = np.random.default_rng(0)
        draw = lambda s: rng.standard_normal(s, np.float32) / math.sqrt(s[-2])  # noqa: E731
        sizes = floor.layer_sizes(net.width, net.num_layers)
        self.made = jax.device_put({name: draw(size) for name, size in sizes.items()})
        self.inputs: dict[int, Any] = {}  # by their length, as steps ask for it
        self.group, self.rng, self.num_heads = group, rng, net.num_heads
        self.batch_size, self.width = run.config.batch_size, net.width

        def update(params: Any, opt_state: Any, grads: Any) -> tuple[Any, Any]:
            updates, opt_state = tx.update(grads, opt_state, params)
            return jax.tree.map(lambda p, u: p + 1e-5 * u, params, updates), opt_state

        self.update = jax.jit(update, donate_argnums=(0, 1))
        self.params = jax.tree.map(jax.numpy.copy, group.state.params)
        self.opt_state = tx.init(self.params)
        self.grads = jax.tree.map(jax.numpy.ones_like, self.params)

    def _input(self, length: int) -> Any:
        if length not in self.inputs:
            shape = (self.batch_size, length, self.width)
            self.inputs[length] = jax.device_put(self.rng.standard_normal(shape, np.float32))
        return self.inputs[length]

    def __call__(self, steps: Iterable[int]) -> None:
        """Computes those of so many steps, so many of them under way as in training."""
        pending = []
        for step in steps:
            inputs = self._input(self.group.length(step))
            pending.append(products(self.num_heads, self.made, inputs))
            self.params, self.opt_state = self.update(self.params, self.opt_state, self.grads)
            if len(pending) == finetune_loop.AHEAD:
                jax.block_until_ready((pending, self.params))
                pending.clear()
        jax.block_until_ready((pending, self.params))
