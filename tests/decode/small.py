"""What tests of decoding run: small models with large weights, and chains of tokens by hand."""

import functools
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import tiny
from flax import linen as nn

from scalelab import systems
from scalelab.config.fields import make_options
from scalelab.nn.heads import token_logits

KNOWN = {name: systems.load(name) for name in tiny.SYSTEMS}
SYSTEMS = [name for name, own in KNOWN.items() if own.PREDICTS == "next" and not own.HAS_SOURCE]
VOCAB, MAX_LEN = 37, 40
PROMPTS = [np.random.default_rng(n).integers(0, VOCAB, n).astype(np.int32) for n in (3, 17, 1, 9)]


@functools.cache
def net(system: str) -> tuple[Any, Any]:
    """A model and its parameters, drawn so large that what is wrong shows.

    Positions are the largest, shifts of all scores are small, the tokens' vectors of one length:
    else most texts would be one token again and again.
    """
    sizes, module = systems.Sizes(2, 12, 2, 24, MAX_LEN, 0.1), systems.load(system)
    made = module.build(sizes, make_options(module, {}), VOCAB)
    if hasattr(module, "count"):  # its tables cannot be drawn
        text = np.random.default_rng(0).integers(0, VOCAB, 3000)
        given = text, np.array([0, len(text)]), make_options(module, {}), VOCAB
        return made, jax.tree.map(jnp.asarray, module.count(*given))
    token = jnp.zeros((1, 1), jnp.int32)
    batch = {"tokens": token, "lengths": token[0] + 1, "examples": token[0]}

    def scores(model: Any) -> jax.Array:
        return token_logits(model, model(batch, train=False)[0])

    shapes = jax.eval_shape(lambda: nn.unbox(nn.init(scores, made)(jax.random.key(0))))
    seed, far = (8, 3.0) if "token_head" in shapes["params"] else (5, 1.5)
    names = str(jax.tree_util.tree_structure(shapes["params"]))
    if "'positions'" not in names:
        seed, far = 13 if "'query'" in names else 16, 3.0  # attention by distances; or none
    rng = np.random.default_rng(seed)

    def draw(path: tuple, leaf: jax.ShapeDtypeStruct) -> jax.Array:
        name = jax.tree_util.keystr(path)
        mean = 1.0 if "scale" in name else 0.0
        small = "norm" in name or "token_head" in name and "bias" in name
        spread = far if "positions" in name or "distances" in name else 0.1 if small else 0.5
        drawn = mean + spread * rng.standard_normal(leaf.shape)
        if "tokens" in name:
            drawn *= 2 / np.linalg.norm(drawn, axis=-1, keepdims=True)
        return jnp.asarray(drawn, jnp.float32)

    return made, jax.tree_util.tree_map_with_path(draw, shapes["params"])


@functools.cache
def _forward(system: str) -> Any:
    made, params = net(system)

    @jax.jit
    def scores(tokens: jax.Array, length: jax.Array) -> jax.Array:
        batch = {"tokens": tokens[None], "lengths": length[None], "examples": jnp.zeros(1, int)}
        hidden, _ = made.apply({"params": params}, batch, train=False)
        return made.apply({"params": params}, hidden[0, length - 1], method=token_logits)

    return scores


def next_scores(system: str, text: Any) -> np.ndarray:
    """Scores [V] of what follows a text, by a forward pass over all of it without a cache."""
    tokens = np.zeros(MAX_LEN, np.int32)
    tokens[: len(text)] = text
    return np.asarray(_forward(system)(tokens, np.int32(len(text))))


@flax.struct.dataclass
class Lengths:
    """A cache with nothing but lengths."""

    layers: Any
    lengths: jax.Array


@flax.struct.dataclass
class Chain:
    """Stands for a Stepper: scores of the next token are a row of a table, by the last token."""

    table: jax.Array
    note: Any = flax.struct.field(pytree_node=False, default=None)

    def init_cache(self, batch_size: int, max_len: int, source: Any) -> Lengths:
        del max_len, source
        return Lengths([jnp.zeros((batch_size, 1))], jnp.zeros((batch_size,), jnp.int32))

    def __call__(self, tokens: Any, lengths: Any, cache: Lengths) -> tuple[jax.Array, Lengths]:
        if self.note is not None:
            jax.debug.callback(self.note)
        last = tokens[jnp.arange(len(tokens)), lengths - 1]
        return self.table[last], cache.replace(lengths=cache.lengths + lengths)


def chain(rows: Any, note: Any = None) -> Chain:
    """From chances [V, V] of the next token after each."""
    return Chain(jnp.log(jnp.asarray(rows, jnp.float32) + 1e-9), note)
