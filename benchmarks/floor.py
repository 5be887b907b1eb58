"""The floor of a step: its own matrix products alone, forward and backward.

The products are the projections, attention, FFN and the head on the predicted positions, with
nothing in between: no softmax, norm, activation, dropout, loss or update. Gradients have the form
of JAX's own derivative. Causal models compute the whole scores, as dense attention does; `flops.py`
counts the useful half.
"""

import functools
import math
import time

import jax
import jax.numpy as jnp
import numpy as np

from scalelab.nn.heads import TransformHead
from scalelab.nn.stack import in_a_loop
from scalelab.training.blueprint import Blueprint

Matrices = dict[str, jax.Array]


class Floor:
    """The products of a training step as one program; of a run with one phase."""

    def __init__(self, run: Blueprint) -> None:
        rng, net, phase = np.random.default_rng(0), run.config.model, run.config.short
        masked = run.system.PREDICTS == "masked"
        rate, length = run.config.mask_rate, phase.max_len
        self.num_heads = net.num_heads
        self.predicted = math.ceil(rate * length) if masked else length - 1
        made = {name: draw(rng, size) for name, size in matrix_sizes(run).items()}
        if run.system.HAS_SOURCE:
            batch = run.batch(length, phase.batch_size)
            self.predicted, length = batch["tokens"].shape[1], batch["source"].shape[1]
        x = draw(rng, (phase.batch_size, length, net.width))
        self.operands = jax.device_put((made, x))
        begun = time.perf_counter()
        self.compiled = jax.jit(self.gradients).lower(*self.operands).compile()
        self.compile_secs = time.perf_counter() - begun

    def gradients(self, made: Matrices, x: jax.Array) -> tuple[Matrices, jax.Array]:
        """Returns the gradients of matrices and inputs.

        The scores are their own gradient, so that none is constant.

        Args:
          made: name -> matrix.
          x: [B, T, D], inputs of the layers.
        """
        forward = functools.partial(step_products, self.num_heads, self.predicted)
        scores, back = jax.vjp(forward, made, x)
        return back(scores)

    def __call__(self, steps: int) -> None:
        """Computes the products of `steps` steps."""
        for _ in range(steps):
            jax.block_until_ready(self.compiled(*self.operands))


def draw(rng: np.random.Generator, size: tuple[int, ...]) -> np.ndarray:
    """Draws a matrix whose products keep the size of their inputs."""
    return rng.standard_normal(size, np.float32) / math.sqrt(size[-2])


def matrix_sizes(run: Blueprint) -> dict[str, tuple[int, ...]]:
    """Returns the sizes of a run's matrices: layers stacked, the table, the heads' own."""
    layers, width = run.config.model.num_layers, run.config.model.width
    square, wide = (layers, width, width), (layers, width, 4 * width)
    sizes: dict[str, tuple[int, ...]] = dict.fromkeys(("query", "key", "value", "out"), square)
    sizes |= {"inner": wide, "outer": (layers, 4 * width, width)}
    if run.system.HAS_SOURCE:
        sizes |= {f"decoder_{name}": size for name, size in sizes.items()}
        sizes |= dict.fromkeys(("cross_query", "cross_key", "cross_value", "cross_out"), square)
    sizes["table"] = (run.config.tokenizer.vocab_size, width)
    if isinstance(getattr(run.net, "token_head", None), TransformHead):
        sizes["transform"] = (width, width)
    if "pair" in run.system.HEADS:
        sizes["pooler"] = (width, width)
    return sizes


def step_products(
    num_heads: int, predicted: int, made: Matrices, x: jax.Array
) -> tuple[jax.Array, jax.Array | None]:
    """Runs the forward products of a step.

    Args:
      num_heads: N.
      predicted: P, tokens of an example that are scored, the first ones.
      made: name -> matrix.
      x: [B, T, D], inputs of the layers.

    Returns:
      Scores [B P, V], and the pooler's output [B, D]; None without a pooler.
    """
    first = {name: made[name] for name in ("query", "key", "value", "out", "inner", "outer")}
    hidden = layer_products(num_heads, first, x)
    if "cross_key" in made:
        own = {name.removeprefix("decoder_"): w for name, w in made.items()}
        own = {name: w for name, w in own.items() if w.ndim == 3}
        hidden = layer_products(num_heads, own, x[:, :predicted], hidden)
    chosen = hidden[:, :predicted].reshape(-1, x.shape[-1])
    if "transform" in made:
        chosen = chosen @ made["transform"]
    pairs = hidden[:, 0] @ made["pooler"] if "pooler" in made else None
    return chosen @ made["table"].T, pairs


def layer_products(
    num_heads: int, made: Matrices, x: jax.Array, source: jax.Array | None = None
) -> jax.Array:
    """Runs the products of all layers, [B, T, D] -> [B, T, D].

    Every layer makes queries and keys of the inputs, so that numbers neither grow nor vanish.

    Args:
      num_heads: N.
      made: name -> matrices of all layers [L, ...].
      x: [B, T, D].
      source: [B, S, D], for cross-attention; None: there is no source.
    """
    batch_size, length, width = x.shape
    heads = (batch_size, -1, num_heads, width // num_heads)
    flat = x.reshape(batch_size * length, width)

    def attend(w: Matrices, part: str, *given: jax.Array) -> jax.Array:
        names = ("query", "key", "value")
        query, key, value = (
            (a @ w[part + n]).reshape(heads) for a, n in zip(given, names, strict=True)
        )
        attention = jnp.einsum("btnk,bsnk->bnts", query, key)
        mixed = jnp.einsum("bnts,bsnk->btnk", attention, value).reshape(flat.shape)
        return mixed @ w[part + "out"]

    def layer(carry: jax.Array, w: Matrices) -> tuple[jax.Array, None]:
        mixed = attend(w, "", flat, flat, carry)
        if source is not None:
            read = source.reshape(-1, width)
            mixed = attend(w, "cross_", mixed, read, read)
        return mixed @ w["inner"] @ w["outer"], None

    stacked = {name: w for name, w in made.items() if w.ndim == 3}
    num_layers = len(stacked["out"])
    unroll = 1 if in_a_loop(num_layers, "none") else num_layers
    hidden, _ = jax.lax.scan(layer, flat, stacked, unroll=unroll)
    return hidden.reshape(x.shape)
