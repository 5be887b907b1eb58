"""Transformer-XL: Dai et al. 2019, "Attentive Language Models beyond a Fixed-Length Context".

Reference code: kimiyoung/transformer-xl, pytorch/mem_transformer.py.

Departs from it:
  - a memory ends with its document (format `segments`), as in evaluation; the code lets the memory
    of one document reach into the next;
  - training and validation do not predict the first token of a segment, as for all systems of this
    repository that predict the next token; the reference code and `eval.lm` predict it;
  - `sample` attends to the whole text, not to a memory of `memory_len` tokens;
  - a fresh memory is empty; the code begins with a memory of zeros that queries see;
  - no adaptive softmax and no adaptive input, and 30,000 tokens; the optimizer and its weight decay
    are the protocol's; no dropout on R and after the last layer;
  - u and v begin at 0; the code draws them as the kernels. Each layer has its own, `untie_r`.

`clip` replaces the sinusoids, u and v by the learned vectors of Shaw et al. 2018 (section 3.2; the
ablation in table 6 of Dai et al.).
"""

import dataclasses
from functools import partial
from typing import Annotated, Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from scalelab.config.fields import between
from scalelab.nets.decoder import Batch, Decoder, DecoderCache
from scalelab.nn.attention import head_size
from scalelab.nn.embed import Embed, InputEmbed, output_table
from scalelab.nn.ffn import ACTIVATIONS, FeedForward
from scalelab.nn.heads import PlainHead
from scalelab.nn.layer import PostNorm
from scalelab.nn.memory import carried_memory
from scalelab.nn.norm import LayerNorm
from scalelab.nn.relative import SinusoidDistances, check_distances
from scalelab.nn.stack import Stack
from scalelab.systems import GPT_INPUT, Departure, Sizes
from scalelab.systems.transformer_xl.attention import ClippedDistances, RelativeAttention

DEPARTURES = (
    Departure("objective", "clm", "Dai et al. 2019, 3.1"),
    Departure("data.format", "segments", "Dai et al. 2019, 3.2"),
    Departure("long.example_rate", 0.0, "the memory is the longer context"),
    Departure("optim.learning_rate", 2.5e-4, "run_wt103_base.sh"),
)
SPECIAL_TOKENS = (("eos", "<|endoftext|>"),)
FRAME: tuple[tuple[str, ...], ...] = ((), ("<|endoftext|>",), ())
ADAPTATION = GPT_INPUT  # the paper does not fine-tune
HEADS = ("token",)
PREDICTS = "next"
SEES = "left"
HAS_SOURCE = False
ORDER = "contiguous"

INIT = nn.initializers.normal(stddev=0.02)
LAYER_NORM_EPSILON = 1e-5
NATURAL = between(0, 2**31 - 1)


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of the model."""

    memory_len: Annotated[int, NATURAL] = 128  # M, states that a layer remembers; 0: no recurrence
    # k of Shaw et al.: the largest distance with its own vectors; 0: sinusoids.
    clip: Annotated[int, NATURAL] = 0


class RecurrentDecoder(nn.Module):
    """A decoder whose layers remember their inputs for the last M tokens of each row.

    Attributes:
      body: the decoder of one segment.
      memory_len: M.
      width: D.
      dtype: dtype of the memory.
    """

    EMBEDDING = ("body/embed",)
    TOKEN_TABLE = "body/embed/tokens/table"

    body: Decoder
    memory_len: int
    width: int
    dtype: Any = jnp.float32

    def init_cache(self, batch_size: int, max_len: int) -> DecoderCache:
        """Returns an empty cache for `max_len` tokens of one segment."""
        return self.body.init_cache(batch_size, max_len)

    @nn.compact
    def __call__(
        self,
        batch: Batch,
        *,
        train: bool,
        cache: DecoderCache | None = None,
        step: jax.Array | None = None,
    ) -> tuple[jax.Array, DecoderCache | None]:
        """Computes hidden states [B, T, D], as `nets.decoder.Decoder`.

        Without a cache, the collection "carried" has the memory of each row. It is empty for a row
        whose batch["continues"] [B] is 0. A pass whose collection is neither there nor mutable has
        no memory.
        """
        sizes = self.body.stack.num_layers, len(batch["tokens"]), self.memory_len, self.width
        found = None if cache is not None else carried_memory(self, sizes, self.dtype, batch)
        if found is None:
            return self.body(batch, train=train, cache=cache, step=step)
        memory, replace = found
        before = DecoderCache(memory, jnp.full(sizes[1:2], self.memory_len, jnp.int32))
        hidden, after = self.body(batch, train=train, cache=before, step=step)
        assert after is not None  # there was a cache
        replace(after.layers)
        return hidden, None

    def token_features(self, hidden: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array | None]:
        """Returns features [..., D], table [V, D] and bias None for hidden [..., D]."""
        return self.body.token_features(hidden)


def build(sizes: Sizes, options: Options, vocab_size: int) -> RecurrentDecoder:
    """Builds the model, as `System.build`.

    Raises:
      ValueError: memory and segment are longer than the slowest sinusoid.
    """
    if not options.clip:
        check_distances(options.memory_len, sizes.max_len)
    norm = partial(LayerNorm, epsilon=sizes.norm_epsilon or LAYER_NORM_EPSILON)
    heads = sizes.num_heads, head_size(sizes.width, sizes.num_heads)
    distances = SinusoidDistances(*heads, sizes.width, INIT, sizes.dtype)
    if options.clip:
        distances = ClippedDistances(options.clip, heads[1], INIT)
    rate, activation = sizes.dropout_rate, ACTIVATIONS[sizes.activation or "relu"]
    attention = RelativeAttention(*heads, rate, distances, INIT, INIT, sizes.dtype)
    ffn = FeedForward(sizes.ffn_width, activation, INIT, INIT, sizes.dtype, dropout_rate=rate)
    layer = PostNorm(attention, ffn, norm(), norm(), rate)
    table = Embed(vocab_size, sizes.width, INIT, factor=sizes.width**0.5)
    body = Decoder(
        embed=InputEmbed(table, None, rate, dtype=sizes.dtype),
        stack=Stack(layer, sizes.num_layers, sizes.remat),
        token_head=PlainHead(),
        output_embed=output_table(sizes.output_embedding, vocab_size, sizes.width, INIT),
    )
    return RecurrentDecoder(body, options.memory_len, sizes.width, sizes.dtype)


def n_model(sizes: Sizes, options: Options) -> int:
    """Returns the parameters of the layers without norms, biases and clipped distances."""
    attention = (4 if options.clip else 5) * sizes.width**2
    return sizes.num_layers * (attention + 2 * sizes.width * sizes.ffn_width)
