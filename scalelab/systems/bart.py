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

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike

from scalelab.nets.decoder import Decoder
from scalelab.nets.encdec import EncoderDecoder
from scalelab.nn.attention import CrossAttention, SelfAttention, head_size
from scalelab.nn.embed import Embed, InputEmbed, output_table
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

PAD_ID = [role for role, _ in SPECIAL_TOKENS].index("pad")
INIT = nn.initializers.normal(stddev=0.02)
LAYER_NORM_EPSILON = 1e-5


def init_tokens(
    key: jax.Array, shape: tuple[int, ...], dtype: DTypeLike = jnp.float32
) -> jax.Array:
    """Draws a normal table [V, D] with a zero row for padding (fairseq, init_bert_params)."""
    return INIT(key, shape, dtype).at[PAD_ID].set(0.0)


def build(sizes: Sizes, options: None, vocab_size: int) -> EncoderDecoder:
    """Builds the model, as `System.build`."""
    del options
    norm = partial(LayerNorm, epsilon=sizes.norm_epsilon or LAYER_NORM_EPSILON)
    activation, rate = ACTIVATIONS[sizes.activation or "gelu"], sizes.dropout_rate
    num_heads, K = sizes.num_heads, head_size(sizes.width, sizes.num_heads)  # noqa: N806
    heads = num_heads, K, rate, INIT, INIT, sizes.dtype
    tokens = Embed(vocab_size, sizes.width, init_tokens)  # of both sides, and of the output

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
        output_embed=output_table(sizes.output_embedding, vocab_size, sizes.width, init_tokens),
    )
    return EncoderDecoder(encoder=stack(), decoder=decoder, source_embed=embed())


def n_model(sizes: Sizes, options: None) -> int:
    """Returns the parameters of both stacks without norms and biases."""
    del options
    attention, ffn = 4 * sizes.width**2, 2 * sizes.width * sizes.ffn_width
    return sizes.num_layers * (3 * attention + 2 * ffn)
