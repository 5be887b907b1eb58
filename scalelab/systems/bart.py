"""BART: Lewis et al. 2020, "BART: Denoising Sequence-to-Sequence Pre-training for ...".

Reference code: fairseq, models/bart/model.py and models/transformer.py.

Departs from it:
  - positions count from 0; fairseq starts after the padding index and leaves two rows unused;
  - a text comes from one document, and the vocabulary is trained on the corpus and has 30,000
    pieces; the paper has GPT-2's;
  - one dropout rate for residual branches, attention weights and feed-forward activations;
  - the optimizer is the base config's AdamW; batch size and budget are the protocol's.
"""

from functools import partial

from flax import linen as nn

from scalelab.nets.decoder import Decoder
from scalelab.nets.encdec import EncoderDecoder
from scalelab.nn.attention import CrossAttention, SelfAttention, head_size
from scalelab.nn.embed import Embed, InputEmbed, output_table, with_zero_row
from scalelab.nn.ffn import ACTIVATIONS, FeedForward
from scalelab.nn.heads import PlainHead
from scalelab.nn.layer import PostNorm
from scalelab.nn.norm import LayerNorm
from scalelab.nn.positions import LearnedPositions
from scalelab.nn.stack import Stack
from scalelab.systems import Adaptation, Departure, Reading, Sizes

DEPARTURES = (
    Departure("data.format", "text_noise", "Lewis et al. 2020, 2.2 and 5.1"),
    Departure("objective", "seq2seq", "Lewis et al. 2020, 2.2: likelihood of the document"),
)
SPECIAL_TOKENS = (
    ("bos", "<s>"),
    ("pad", "<pad>"),
    ("eos", "</s>"),
    ("unk", "<unk>"),
    ("mask", "<mask>"),
)
FRAME = (("<s>",), ("</s>",), ("</s>",))
# Lewis et al. 2020, 3.1 and 3.2: encoder and decoder read the same text; its last state is
# classified, the state of each token is scored.
ADAPTATION = Adaptation(("<s>",), ("</s>", "</s>"), ("</s>",), reads="last", source="both")
HEADS = ("token",)
PREDICTS = "next"
SEES = "source + left"
HAS_SOURCE = True
START = "eos"
ORDER = "shuffled"
# A single text is the target; the source is one span that hides all of it.
READING = Reading(begin=("bos",), source=("bos", "mask", "eos"), trained=False)

INIT = nn.initializers.normal(stddev=0.02)
# The row of padding is 0 (fairseq, init_bert_params).
TOKENS_INIT = with_zero_row(INIT, [role for role, _ in SPECIAL_TOKENS].index("pad"))
LAYER_NORM_EPSILON = 1e-5


def build(sizes: Sizes, options: None, vocab_size: int) -> EncoderDecoder:
    """Builds the model, as `System.build`."""
    del options
    norm = partial(LayerNorm, epsilon=sizes.norm_epsilon or LAYER_NORM_EPSILON)
    activation, rate = ACTIVATIONS[sizes.activation or "gelu"], sizes.dropout_rate
    num_heads, K = sizes.num_heads, head_size(sizes.width, sizes.num_heads)  # noqa: N806
    heads = num_heads, K, rate, INIT, INIT, sizes.dtype
    # Encoder, decoder and output share this table.
    tokens = Embed(vocab_size, sizes.width, TOKENS_INIT)

    def embed() -> InputEmbed:
        positions = LearnedPositions(sizes.max_len, sizes.width, INIT)
        return InputEmbed(tokens, positions, rate, norm=norm(), dtype=sizes.dtype)

    def stack(cross: CrossAttention | None = None) -> Stack:
        ffn = FeedForward(sizes.ffn_width, activation, INIT, INIT, sizes.dtype, dropout_rate=rate)
        layer = PostNorm(SelfAttention(*heads), ffn, norm(), norm(), rate, cross, cross and norm())
        return Stack(layer, sizes.num_layers, sizes.remat)

    decoder = Decoder(
        embed=embed(),
        stack=stack(CrossAttention(*heads)),
        token_head=PlainHead(),
        output_embed=output_table(sizes.output_embedding, vocab_size, sizes.width, TOKENS_INIT),
    )
    return EncoderDecoder(encoder=stack(), decoder=decoder, source_embed=embed())
