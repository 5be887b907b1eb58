"""SpanBERT: Joshi et al. 2020, "SpanBERT: Improving Pre-training by ... Predicting Spans".

Reference code: facebookresearch/SpanBERT, pretraining/fairseq/models/pair_bert.py.

BERT's model with a second head, which predicts a hidden span from the two tokens next to it.
Examples are single contiguous texts (3.3): the base config's DOC-SENTENCES.

Departs from it:
  - spans never touch, and words are never cut (`objectives/span_mlm.py`);
  - tokens after position `num_positions` of a span share its vector; the reference does not
    predict them;
  - batch size, warm-up and budget are the protocol's; the vocabulary is trained on the corpus.
"""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.typing import ArrayPytree
from jax.typing import DTypeLike

from scalelab.config.fields import Count
from scalelab.nets.encoder import Encoder
from scalelab.nn import axes
from scalelab.nn.attention import SelfAttention, head_size
from scalelab.nn.embed import Embed, InputEmbed, output_table
from scalelab.nn.ffn import ACTIVATIONS, FeedForward, gelu_exact
from scalelab.nn.heads import TransformHead
from scalelab.nn.layer import PostNorm
from scalelab.nn.linear import Linear
from scalelab.nn.norm import LayerNorm
from scalelab.nn.positions import LearnedPositions
from scalelab.nn.stack import Stack
from scalelab.systems import Adaptation, Departure, Part, Sizes

DEPARTURES = (
    Departure("tokenizer.kind", "wordpiece", "Joshi et al. 2020, 4.2: as BERT"),
    Departure("objective", "span_mlm+sbo", "Joshi et al. 2020, 3.1 and 3.2"),
)
ROLES = ("pad", "unk", "cls", "sep", "mask")
SPECIAL_TOKENS = tuple((role, f"[{role.upper()}]") for role in ROLES)
FRAME = (("[CLS]",), ("[SEP]",), ("[SEP]",))
ADAPTATION = Adaptation(*FRAME)  # Joshi et al. 2020, 4.1: as BERT
HEADS = ("token", "boundary")
PREDICTS = "masked"
SEES = "both"
HAS_SOURCE = False
ORDER = "shuffled"

NUM_SEGMENTS = 2
INIT = nn.initializers.truncated_normal(stddev=0.02)
LAYER_NORM_EPSILON = 1e-12
Features = tuple[jax.Array, jax.Array, jax.Array | None]  # features, table and bias of scores


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of the system."""

    position_width: Count = 200  # width of the position vectors inside a span
    num_positions: Count = 20  # positions in a span; later tokens use the last one


class BoundaryHead(nn.Module):
    """Two layers on the tokens next to a span and a position in it (Joshi et al. 2020, eq. 1)."""

    vocab_size: int
    options: Options
    dtype: DTypeLike

    @nn.compact
    def __call__(
        self, left: jax.Array, right: jax.Array, offsets: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Returns features [..., D] and bias [V].

        Args:
          left: [..., D], the state before the span.
          right: [..., D], the state after it.
          offsets: [...] int32, from 1, of the predicted place in the span.
        """
        rows, width = (self.options.num_positions, self.options.position_width), (left.shape[-1],)
        position = Embed(*rows, INIT, axes.POSITIONS, name="positions")(offsets - 1)
        x = jnp.concatenate([left, right, position.astype(self.dtype)], axis=-1)
        for name in ("first", "second"):
            dense = Linear((axes.WIDTH,), (axes.TRANSFORM,), width, INIT, self.dtype, name=name)
            x = LayerNorm(LAYER_NORM_EPSILON, name=f"{name}_norm")(gelu_exact(dense(x)))
        zeros = nn.initializers.zeros_init()
        return x, axes.parameter(self, "bias", zeros, (axes.VOCAB,), (self.vocab_size,))


class SpanEncoder(nn.Module):
    """An encoder and a second head, which predicts a span from the tokens next to it."""

    EMBEDDING, TOKEN_TABLE = Encoder.EMBEDDING, Encoder.TOKEN_TABLE

    encoder: Encoder
    boundary_head: BoundaryHead

    def setup(self) -> None:
        """Gives the encoder's parameters the same paths as in BERT."""
        nn.share_scope(self, self.encoder)

    def __call__(self, batch: dict[str, jax.Array], **rest: Any) -> tuple[jax.Array, ArrayPytree]:
        """Computes hidden states as `Encoder`."""
        return self.encoder(batch, **rest)

    def token_features(self, hidden: jax.Array) -> Features:
        """Returns features, table and bias as `Encoder`."""
        return self.encoder.token_features(hidden)

    def boundary_features(self, left: jax.Array, right: jax.Array, offsets: jax.Array) -> Features:
        """Returns features, table and bias of a span's tokens.

        Args:
          left: [..., D], the state before the span.
          right: [..., D], the state after the span.
          offsets: [...] int32, position of each token in the span, from 1.
        """
        features, bias = self.boundary_head(left, right, offsets)
        output = self.encoder.output_embed or self.encoder.embed.tokens
        return features, output.table, bias


def build(sizes: Sizes, options: Options, vocab_size: int) -> SpanEncoder:
    """Builds the model, as `System.build`."""
    norm = partial(LayerNorm, epsilon=sizes.norm_epsilon or LAYER_NORM_EPSILON)
    rest = INIT, INIT, sizes.dtype
    activation = ACTIVATIONS[sizes.activation or "gelu"]
    heads = sizes.num_heads, head_size(sizes.width, sizes.num_heads)
    layer = PostNorm(
        attention=SelfAttention(*heads, sizes.dropout_rate, *rest),
        ffn=FeedForward(sizes.ffn_width, activation, *rest),
        attention_norm=norm(),
        ffn_norm=norm(),
        dropout_rate=sizes.dropout_rate,
    )
    embed = InputEmbed(
        tokens=Embed(vocab_size, sizes.width, INIT),
        positions=LearnedPositions(sizes.max_len, sizes.width, INIT),
        segments=Embed(NUM_SEGMENTS, sizes.width, INIT, axes.SEGMENTS),
        norm=norm(),
        dropout_rate=sizes.dropout_rate,
        dtype=sizes.dtype,
    )
    encoder = Encoder(
        embed=embed,
        stack=Stack(layer, sizes.num_layers, sizes.remat),
        token_head=TransformHead(vocab_size, activation, norm(), INIT, sizes.dtype),
        output_embed=output_table(sizes.output_embedding, vocab_size, sizes.width, INIT),
    )
    return SpanEncoder(encoder, BoundaryHead(vocab_size, options, sizes.dtype))


def parts(sizes: Sizes, options: Options) -> dict[str, Part]:
    """Returns the model without the second head, which no class of `transformers` has."""
    del sizes, options
    names = ("embed", "stack", "token_head", "output_embed")
    return {"encoder": Part({}, {}, {name: name for name in names})}
