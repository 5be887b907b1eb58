"""The floor of a step: its own matrix products alone, forward and backward; and the peak.

Projections, attention, FFN and the head on the predicted positions, at the step's sizes, with
nothing in between: no softmax, norm, activation, dropout, loss or update. Each gradient has the
form that the net gives it (`scalelab.nn.linear`), at most shapes the faster by up to 9%, or that of
JAX's own derivative. Of causal nets the whole scores are computed, as dense attention does; their
useful half is what flops.py counts.
"""

import math
import time
from collections.abc import Callable
from typing import Any

from benchmarks.step_case import Case

PEAK_SIZES = {"cpu": (1024, 2048), "gpu": (4096, 8192), "tpu": (4096, 8192)}


class Floor:
    """The products of a case's step as one program.

    Args:
      case: what is measured.
      by_jax: gradients have the form that JAX gives them, not the net's faster one.
    """

    def __init__(self, case: Case, *, by_jax: bool = False) -> None:
        import jax
        import numpy as np

        self.case, self.by_jax = case, by_jax
        rng = np.random.default_rng(0)
        shapes = jax.tree.map(lambda x: x.shape, weights(case), is_leaf=lambda x: x is None)
        draw = lambda s: rng.standard_normal(s, np.float32) / math.sqrt(s[-2])  # noqa: E731
        made = jax.tree.map(draw, shapes, is_leaf=lambda x: isinstance(x, tuple))
        x = rng.standard_normal((case.batch_size, case.length, case.sizes[1]), np.float32)
        self.operands = jax.device_put((made, x))
        begun = time.perf_counter()
        self.run = jax.jit(self.products).lower(*self.operands).compile()
        self.compile_secs = time.perf_counter() - begun

    def products(self, made: dict[str, Any], x: Any) -> Any:
        """Forward and backward; the scores are their own gradient, so that none is constant."""
        import jax

        scores, back = jax.vjp(lambda w, x: forward(self.case, w, x, self.by_jax), made, x)
        return back(scores)

    def __call__(self, steps: int) -> None:
        """Computes them so many times."""
        import jax

        for _ in range(steps):
            jax.block_until_ready(self.run(*self.operands))


def weights(case: Case) -> dict[str, Any]:
    """The matrices of a case's net, abstract: layers stacked, the table, the head's own."""
    import jax
    import jax.numpy as jnp

    _, width, num_layers = case.sizes
    sizes: dict[str, tuple[int, ...]] = layer_sizes(width, num_layers)
    sizes["table"] = (case.vocab_size, width)
    if not case.module.CAUSAL:
        sizes["transform"] = (width, width)
    if any(objective.needs_pairs for objective in case.objectives):
        sizes["pooler"] = (width, width)
    return {name: jax.ShapeDtypeStruct(size, jnp.float32) for name, size in sizes.items()}


def layer_sizes(width: int, num_layers: int) -> dict[str, tuple[int, ...]]:
    """The matrices of the layers, stacked."""
    square = dict.fromkeys(("query", "key", "value", "out"), (num_layers, width, width))
    return square | {
        "inner": (num_layers, width, 4 * width),
        "outer": (num_layers, 4 * width, width),
    }


def product(by_jax: bool) -> Callable[[Any, Any], Any]:
    """Rows times kernel, with JAX's own gradient or the net's."""
    import jax.numpy as jnp

    from scalelab.nn.linear import rows_times_kernel

    return jnp.matmul if by_jax else rows_times_kernel


def forward(case: Case, made: dict[str, Any], x: Any, by_jax: bool = False) -> Any:
    """Scores of the vocabulary [B P, V], and the pooler's output, from inputs x [B, T, D]."""
    rows_times_kernel = product(by_jax)
    num_heads, width, _ = case.sizes
    hidden = layers(num_heads, made, x, by_jax)
    chosen = hidden[:, : case.num_predicted].reshape(-1, width)
    if "transform" in made:
        chosen = rows_times_kernel(chosen, made["transform"])
    pairs = hidden[:, 0] @ made["pooler"] if "pooler" in made else None
    return rows_times_kernel(chosen, made["table"].T), pairs


def layers(num_heads: int, made: dict[str, Any], x: Any, by_jax: bool = False) -> Any:
    """The products of all layers, [B, T, D] -> [B, T, D], with the stacked matrices of `made`.

    Queries and keys are made of the inputs in every layer, so that numbers neither grow nor vanish
    with the layers: their products are as large as the net's.
    """
    import jax
    import jax.numpy as jnp

    from scalelab.nn.stack import in_a_loop

    rows_times_kernel = product(by_jax)
    batch_size, length, width = x.shape
    heads = (batch_size, length, num_heads, width // num_heads)
    flat = x.reshape(batch_size * length, width)

    def layer(carry: Any, w: dict[str, Any]) -> tuple[Any, None]:
        query, key = (rows_times_kernel(flat, w[n]).reshape(heads) for n in ("query", "key"))
        value = rows_times_kernel(carry, w["value"]).reshape(heads)
        attention = jnp.einsum("btnk,bsnk->bnts", query, key)
        mixed = jnp.einsum("bnts,bsnk->btnk", attention, value).reshape(flat.shape)
        for name in ("out", "inner", "outer"):
            mixed = rows_times_kernel(mixed, w[name])
        return mixed, None

    stacked = {name: w for name, w in made.items() if w.ndim == 3}
    num_layers = len(stacked["out"])
    unroll = 1 if in_a_loop(num_layers, "none") else num_layers
    hidden, _ = jax.lax.scan(layer, flat, stacked, unroll=unroll)
    return hidden.reshape(x.shape)


class Peak:
    """The fastest products of large square matrices, float32: FLOP/s of wall and of CPU time."""

    def __init__(self, sizes: tuple[int, ...] | None = None) -> None:
        import jax
        import jax.numpy as jnp

        sizes = sizes or PEAK_SIZES.get(jax.default_backend(), (1024,))
        self.runs = []
        for size in sizes:
            a = jnp.ones((size, size), jnp.float32)
            self.runs.append((size, a, jax.jit(jnp.matmul).lower(a, a).compile()))
        self.wall, self.cpu = 0.0, 0.0
        self()

    def __call__(self) -> None:
        """Measures once more; the largest rate so far stands."""
        for size, a, run in self.runs:
            for _ in range(3 if size <= 1024 else 1):
                wall, cpu = time.perf_counter(), time.process_time()
                run(a, a).block_until_ready()
                wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
                count = 2.0 * size**3
                self.wall, self.cpu = max(self.wall, count / wall), max(self.cpu, count / cpu)
