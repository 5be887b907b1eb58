"""MASS: Song et al. 2019, "MASS: Masked Sequence to Sequence Pre-training for Language ...".

Reference code: microsoft/MASS, MASS-summarization/mass, s2s_model.py and masked_dataset.py. Norms
come after sublayers, positions are learned, one table embeds tokens, times sqrt(D), and scores
them; a norm follows the sum of embeddings.

Departs from it:
  - a place of the decoder has the position of the token that it predicts (Song et al. 2019, 3.2),
    and the first reads the mask; the code has the token before the fragment, with its position;
  - one fragment in a text, as in the paper; the code masks one in every 64 tokens;
  - the vocabulary is byte-level BPE of 30,000 pieces; the code has BERT's;
  - one dropout rate for residual branches, attention weights and feed-forward activations;
  - the optimizer is the base config's AdamW; batch size and budget are the protocol's.
The paper's translation code (MASS-unsupNMT) also hides the masked places from cross-attention and
has vectors of languages; this model does neither.
"""

import dataclasses
from functools import partial

import jax
from flax import linen as nn

from scalelab.nets.decoder import Decoder
from scalelab.nets.encdec import EncoderDecoder
from scalelab.nn.attention import CrossAttention, SelfAttention, head_size
from scalelab.nn.embed import Embed, InputEmbed, output_table, with_zero_row
from scalelab.nn.ffn import ACTIVATIONS, FeedForward
from scalelab.nn.heads import PlainHead
from scalelab.nn.layer import PostNorm
from scalelab.nn.masks import Context
from scalelab.nn.norm import LayerNorm
from scalelab.nn.positions import LearnedPositions
from scalelab.nn.stack import Stack
from scalelab.systems import Adaptation, Departure, Reading, Sizes

DEPARTURES = (
    Departure("data.format", "masked_fragment", "Song et al. 2019, 3.2"),
    Departure("objective", "seq2seq", "Song et al. 2019, equation 1"),
)
SPECIAL_TOKENS = (
    ("bos", "<s>"),
    ("pad", "<pad>"),
    ("eos", "</s>"),
    ("unk", "<unk>"),
    ("mask", "<mask>"),
)
FRAME = (("<s>",), ("</s>",), ("</s>",))
# The paper only generates; both stacks read a labeled text, as in Lewis et al. 2020, 3.1.
ADAPTATION = Adaptation(("<s>",), ("</s>", "</s>"), ("</s>",), reads="last", source="both")
HEADS = ("token",)
PREDICTS = "next"
SEES = "source + left"
HAS_SOURCE = True
START = "mask"  # the decoder sees no token that the source shows (Song et al. 2019, figure 1)
ORDER = "shuffled"
# A single text is a fragment at the beginning; pre-training masks each of its tokens.
READING = Reading(source=("bos", "mask", "eos"), trained=False)

INIT = nn.initializers.normal(stddev=0.02)
# The row of padding is 0 (fairseq, init_bert_params).
TOKENS_INIT = with_zero_row(INIT, [role for role, _ in SPECIAL_TOKENS].index("pad"))
LAYER_NORM_EPSILON = 1e-5


class FragmentEmbed(nn.Module):
    """Embeddings of a fragment at its positions in the whole text.

    Attributes:
      tokens: the table of tokens.
      inputs: (batch, ctx) -> [B, T, D]; looks tokens up in the same table.
    """

    tokens: Embed
    inputs: InputEmbed

    def __call__(self, batch: dict[str, jax.Array], ctx: Context) -> jax.Array:
        """Embeds tokens: [B, T, D].

        Args:
          batch: tokens [B, T]; offset [B], the position of place 0 in the text; absent: 0.
          ctx: positions, and whether dropout is on.
        """
        if "offset" in batch:
            positions = ctx.positions + batch["offset"][:, None]
            ctx = dataclasses.replace(ctx, positions=positions)
        return self.inputs(batch, ctx)


def build(sizes: Sizes, options: None, vocab_size: int) -> EncoderDecoder:
    """Builds the model, as `System.build`."""
    del options
    norm = partial(LayerNorm, epsilon=sizes.norm_epsilon or LAYER_NORM_EPSILON)
    activation, rate = ACTIVATIONS[sizes.activation or "gelu"], sizes.dropout_rate
    num_heads, K = sizes.num_heads, head_size(sizes.width, sizes.num_heads)  # noqa: N806
    heads = num_heads, K, rate, INIT, INIT, sizes.dtype
    # Encoder, decoder and output share this table.
    tokens = Embed(vocab_size, sizes.width, TOKENS_INIT, factor=sizes.width**0.5)

    def embed() -> InputEmbed:
        positions = LearnedPositions(sizes.max_len, sizes.width, INIT)
        return InputEmbed(tokens, positions, rate, norm=norm(), dtype=sizes.dtype)

    def stack(cross: CrossAttention | None = None) -> Stack:
        ffn = FeedForward(sizes.ffn_width, activation, INIT, INIT, sizes.dtype, dropout_rate=rate)
        layer = PostNorm(SelfAttention(*heads), ffn, norm(), norm(), rate, cross, cross and norm())
        return Stack(layer, sizes.num_layers, sizes.remat)

    decoder = Decoder(
        embed=FragmentEmbed(tokens, embed()),
        stack=stack(CrossAttention(*heads)),
        token_head=PlainHead(),
        output_embed=output_table(sizes.output_embedding, vocab_size, sizes.width, TOKENS_INIT),
    )
    return EncoderDecoder(encoder=stack(), decoder=decoder, source_embed=embed())
