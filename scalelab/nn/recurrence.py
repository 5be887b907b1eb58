"""Recurrent layers: Elman's network, LSTM and GRU, with the gates of `torch.nn`.

The product of all inputs with their kernel is computed before the loop over time, and the gradient
of the recurrent kernel after it, each as one product. The loop has only the product of one state.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike

from scalelab.nn import axes
from scalelab.nn.axes import constrain, parameter
from scalelab.nn.dropout import Dropout
from scalelab.nn.linear import ZEROS, Linear
from scalelab.nn.masks import Context

State = dict[str, jax.Array]  # name -> [B, D] float32; the layer's result is "hidden"
UNROLL = 1  # steps of time in a turn of the loop


class Cell(NamedTuple):
    """A kind of recurrent cell.

    Attributes:
      num_gates: G; kernels are [D, G D].
      names: names of its states.
      update: (input [B, G D], recurrent [B, G D], state) -> state, element by element.
      biased_gates: number of gates, the last ones, whose recurrent part has a bias of its own.
    """

    num_gates: int
    names: tuple[str, ...]
    update: Callable[[jax.Array, jax.Array, State], State]
    biased_gates: int = 0


def _elman(given: jax.Array, recurrent: jax.Array, state: State) -> State:
    """Elman 1990: h' = tanh(W x + U h + b)."""
    return {"hidden": jnp.tanh(given + recurrent)}


def _lstm(given: jax.Array, recurrent: jax.Array, state: State) -> State:
    """Hochreiter and Schmidhuber 1997 with the forget gate of Gers et al. 2000; gates i f g o."""
    write, keep, new, read = jnp.split(given + recurrent, 4, axis=-1)
    cell = jax.nn.sigmoid(keep) * state["cell"] + jax.nn.sigmoid(write) * jnp.tanh(new)
    return {"hidden": jax.nn.sigmoid(read) * jnp.tanh(cell), "cell": cell}


def _gru(given: jax.Array, recurrent: jax.Array, state: State) -> State:
    """Cho et al. 2014, with the reset gate after the product, as in cuDNN; gates r z n."""
    size = state["hidden"].shape[-1]
    reset, update = jnp.split(jax.nn.sigmoid(given + recurrent)[..., : 2 * size], 2, axis=-1)
    new = jnp.tanh(given[..., 2 * size :] + reset * recurrent[..., 2 * size :])
    return {"hidden": (1 - update) * new + update * state["hidden"]}


CELLS = {
    "lstm": Cell(4, ("hidden", "cell"), _lstm),
    "gru": Cell(3, ("hidden",), _gru, biased_gates=1),
    "rnn": Cell(1, ("hidden",), _elman),
}


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def recur(
    cell: Cell, given: jax.Array, kernel: jax.Array, bias: jax.Array, start: State
) -> tuple[jax.Array, State]:
    """Runs a cell over time.

    Args:
      cell: the kind of cell.
      given: [T, B, G D], products of the inputs with their kernel.
      kernel: [D, G D], of the state; the product has its dtype.
      bias: [G D] float32, added to the product.
      start: the state before the first input; no gradient flows into it.

    Returns:
      The hidden states [T, B, D] float32, and all states [T, B, D], through which no gradient
      flows.
    """
    return _forward(cell, given, kernel, bias, start)[0]


def _forward(
    cell: Cell, given: jax.Array, kernel: jax.Array, bias: jax.Array, start: State
) -> tuple[tuple[jax.Array, State], tuple]:
    def step(state: State, given: jax.Array) -> tuple[State, tuple[State, jax.Array]]:
        rows = state["hidden"].astype(kernel.dtype)
        recurrent = jnp.matmul(rows, kernel, preferred_element_type=jnp.float32) + bias
        state = cell.update(given.astype(jnp.float32), recurrent, state)
        return state, (state, recurrent)

    _, (states, recurrent) = jax.lax.scan(step, start, given, unroll=UNROLL)
    return (states["hidden"], states), (given, kernel, start, states, recurrent)


def _backward(cell: Cell, kept: tuple, gradients: tuple[jax.Array, State]) -> tuple:
    given, kernel, start, states, recurrent = kept
    before = jax.tree.map(lambda a, b: jnp.concatenate([a[None], b[:-1]]), start, states)

    def step(later: State, at: tuple) -> tuple[State, tuple[jax.Array, jax.Array]]:
        gradient, given, recurrent, before = at
        _, pull = jax.vjp(cell.update, given.astype(jnp.float32), recurrent, before)
        given, recurrent, earlier = pull(later | {"hidden": later["hidden"] + gradient})
        rows = recurrent.astype(kernel.dtype)
        through = jnp.matmul(rows, kernel.T, preferred_element_type=jnp.float32)
        return earlier | {"hidden": earlier["hidden"] + through}, (given, recurrent)

    zeros, inputs = jax.tree.map(jnp.zeros_like, start), (gradients[0], given, recurrent, before)
    _, (own, through) = jax.lax.scan(step, zeros, inputs, reverse=True, unroll=UNROLL)
    rows, columns = (
        x.reshape(-1, x.shape[-1]).astype(kernel.dtype) for x in (before["hidden"], through)
    )
    of_kernel = jnp.matmul(rows.T, columns, preferred_element_type=jnp.float32)
    of_bias, of_start = through.sum((0, 1)), jax.tree.map(jnp.zeros_like, start)
    return own.astype(given.dtype), of_kernel.astype(kernel.dtype), of_bias, of_start


recur.defvjp(_forward, _backward)


def uniform(most: float) -> nn.initializers.Initializer:
    """Returns the initializer that draws uniformly from -most to most."""
    draw = nn.initializers.uniform(2 * most)
    return lambda *given: draw(*given) - most


def turn(x: jax.Array, lengths: jax.Array) -> jax.Array:
    """Reverses the order of the real tokens of each row; padding stays where it is.

    Args:
      x: [B, T, D].
      lengths: [B] int32, number of real tokens.
    """
    places, lengths = jnp.arange(x.shape[1]), lengths[:, None]
    turned = jnp.where(places < lengths, lengths - 1 - places, places)
    return jnp.take_along_axis(x, turned[..., None], axis=1)


def recurrent_parameters(
    module: nn.Module, cell: Cell, width: int, kernel_init: nn.initializers.Initializer
) -> tuple[jax.Array, jax.Array]:
    """Makes the parameters of the product of states: a kernel [D, G D] and a bias [G D].

    Args:
      module: the owner.
      cell: the kind of cell.
      width: D.
      kernel_init: initializer of the kernel.
    """
    names, shape = (axes.WIDTH, axes.TRANSFORM), (width, cell.num_gates * width)
    kernel = parameter(module, "recurrent_kernel", kernel_init, names, shape)
    bias = jnp.zeros(shape[1])
    if num := cell.biased_gates * width:
        bias = bias.at[-num:].set(parameter(module, "recurrent_bias", ZEROS, names[1:], (num,)))
    return kernel, bias


class Recurrent(nn.Module):
    """A recurrent layer with dropout on its results (Zaremba et al. 2014).

    Attributes:
      cell: a name in CELLS.
      width: D, of the states; inputs may have another width.
      dropout_rate: on the states that the layer gives, not on those that it keeps.
      kernel_init: initializer of both kernels.
      dtype: dtype of the products; states and gates are float32.
    """

    cell: str
    width: int
    dropout_rate: float
    kernel_init: nn.initializers.Initializer
    dtype: DTypeLike = jnp.float32

    def init_cache(self, batch_size: int, max_len: int) -> State:
        """Returns states of zeros [B, D], whatever `max_len`."""
        return {n: jnp.zeros((batch_size, self.width), jnp.float32) for n in CELLS[self.cell].names}

    @nn.compact
    def __call__(
        self, x: jax.Array, ctx: Context, cache: State | None
    ) -> tuple[jax.Array, State | None]:
        """Reads x [B, T, E] from left to right.

        Args:
          x: [B, T, E].
          ctx: positions and the mask's lengths say which tokens of x are real.
          cache: the state before x; None: zeros.

        Returns:
          [B, T, D], and the state behind the last real token of each row.
        """
        (B, T, _), cell = x.shape, CELLS[self.cell]  # noqa: N806
        shape = (cell.num_gates * self.width,)
        given = Linear(
            (axes.WIDTH,), (axes.TRANSFORM,), shape, self.kernel_init, self.dtype, name="input"
        )(x.swapaxes(0, 1))
        kernel, bias = recurrent_parameters(self, cell, self.width, self.kernel_init)
        start = jax.lax.stop_gradient(cache or self.init_cache(B, T))
        made: Any = recur(cell, given, kernel.astype(self.dtype), bias, start)
        hidden, states = made
        if cache is not None:
            cache = {name: state_after(start[name], states[name], ctx.num_real) for name in start}
        y = Dropout(self.dropout_rate)(hidden.swapaxes(0, 1).astype(self.dtype), ctx)
        return constrain(y, axes.BATCH, axes.LENGTH, axes.WIDTH), cache


def state_after(start: jax.Array, states: jax.Array, number: jax.Array) -> jax.Array:
    """Returns the state [B, D] after some tokens of each row, without gradient.

    Args:
      start: [B, D], the state before the tokens.
      states: [T, B, D], the state after each token.
      number: [B] int32, the number of tokens.
    """
    found = jnp.take_along_axis(states, jnp.maximum(number - 1, 0)[None, :, None], axis=0)[0]
    return jax.lax.stop_gradient(jnp.where((number > 0)[:, None], found, start))
