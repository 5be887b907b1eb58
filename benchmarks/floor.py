"""The floor of a step: its own matrix products alone, forward and backward; and the peak rate.

The products are the projections, attention, FFN and the head on the predicted positions, with
nothing in between: no softmax, norm, activation, dropout, loss or update. Gradients have the form
of JAX's own derivative. Causal nets compute the whole scores, as dense attention does; `flops.py`
counts the useful half.
"""

import math
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from scalelab.nn.stack import in_a_loop

PEAK_SIZES = {"cpu": (1024, 2048), "gpu": (4096, 8192), "tpu": (4096, 8192)}


class Floor:
    """The products of a training step as one program.

    Args:
      run: an abstract run with one phase; see `common.abstract_run`.
    """

    def __init__(self, run: Any) -> None:
        rng, net, (phase, *_) = np.random.default_rng(0), run.config.net, run.phases
        self.num_heads, self.predicted = net.num_heads, phase.predicted
        made = {name: draw(rng, size) for name, size in matrix_sizes(run).items()}
        x = draw(rng, (phase.batch_size, phase.length, net.width))
        self.operands = jax.device_put((made, x))
        begun = time.perf_counter()
        self.compiled = jax.jit(self.gradients).lower(*self.operands).compile()
        self.compile_secs = time.perf_counter() - begun

    def gradients(self, made: dict[str, Any], x: Any) -> Any:
        """Runs forward and backward; the scores are their own gradient, so none is constant."""
        forward = lambda made, x: step_products(self.num_heads, self.predicted, made, x)  # noqa: E731
        scores, back = jax.vjp(forward, made, x)
        return back(scores)

    def __call__(self, steps: int) -> None:
        """Computes the products of `steps` steps."""
        for _ in range(steps):
            jax.block_until_ready(self.compiled(*self.operands))


def draw(rng: np.random.Generator, size: tuple[int, ...]) -> np.ndarray:
    """Draws a matrix whose products keep the size of their inputs."""
    return rng.standard_normal(size, np.float32) / math.sqrt(size[-2])


def matrix_sizes(run: Any) -> dict[str, tuple[int, ...]]:
    """Returns the sizes of a run's matrices: layers stacked, the table, the heads' own."""
    net = run.config.net
    sizes = layer_sizes(net.width, net.num_layers)
    sizes["table"] = (run.config.tokenizer.vocab_size, net.width)
    if not run.system.CAUSAL:
        sizes["transform"] = (net.width, net.width)
    if any(objective.needs_pairs for objective in run.objectives):
        sizes["pooler"] = (net.width, net.width)
    return sizes


def layer_sizes(width: int, num_layers: int) -> dict[str, tuple[int, ...]]:
    """Returns the sizes of the matrices of the layers, stacked."""
    square = dict.fromkeys(("query", "key", "value", "out"), (num_layers, width, width))
    return square | {
        "inner": (num_layers, width, 4 * width),
        "outer": (num_layers, 4 * width, width),
    }


def step_products(num_heads: int, predicted: int, made: dict[str, Any], x: Any) -> Any:
    """Returns scores of the vocabulary [B P, V] and the pooler's output, from inputs [B, T, D]."""
    hidden = layer_products(num_heads, made, x)
    chosen = hidden[:, :predicted].reshape(-1, x.shape[-1])
    if "transform" in made:
        chosen = chosen @ made["transform"]
    pairs = hidden[:, 0] @ made["pooler"] if "pooler" in made else None
    return chosen @ made["table"].T, pairs


def layer_products(num_heads: int, made: dict[str, Any], x: Any) -> Any:
    """Runs the products of all layers, [B, T, D] -> [B, T, D].

    Every layer makes queries and keys of the inputs, so that numbers neither grow nor vanish.
    """
    batch_size, length, width = x.shape
    heads = (batch_size, length, num_heads, width // num_heads)
    flat = x.reshape(batch_size * length, width)

    def layer(carry: Any, w: dict[str, Any]) -> tuple[Any, None]:
        query, key = ((flat @ w[name]).reshape(heads) for name in ("query", "key"))
        value = (carry @ w["value"]).reshape(heads)
        attention = jnp.einsum("btnk,bsnk->bnts", query, key)
        mixed = jnp.einsum("bnts,bsnk->btnk", attention, value).reshape(flat.shape)
        for name in ("out", "inner", "outer"):
            mixed = mixed @ w[name]
        return mixed, None

    stacked = {name: w for name, w in made.items() if w.ndim == 3}
    num_layers = len(stacked["out"])
    unroll = 1 if in_a_loop(num_layers, "none") else num_layers
    hidden, _ = jax.lax.scan(layer, flat, stacked, unroll=unroll)
    return hidden.reshape(x.shape)


class Peak:
    """The fastest products of large square float32 matrices, in FLOP/s of wall and CPU time."""

    def __init__(self, sizes: tuple[int, ...] | None = None) -> None:
        sizes = sizes or PEAK_SIZES.get(jax.default_backend(), (1024,))
        self.programs = []
        for size in sizes:
            a = jnp.ones((size, size), jnp.float32)
            self.programs.append((size, a, jax.jit(jnp.matmul).lower(a, a).compile()))
        self.wall, self.cpu = 0.0, 0.0
        self()

    def __call__(self) -> None:
        """Measures once more and keeps the largest rate so far."""
        for size, a, program in self.programs:
            for _ in range(3 if size <= 1024 else 1):
                wall, cpu = time.perf_counter(), time.process_time()
                program(a, a).block_until_ready()
                wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
                self.wall = max(self.wall, 2.0 * size**3 / wall)
                self.cpu = max(self.cpu, 2.0 * size**3 / cpu)
