"""ERNIE 1.0: Sun et al. 2019, "ERNIE: Enhanced Representation through Knowledge Integration".

Reference code: PaddlePaddle/ERNIE, branch repro, ERNIE 1.0.

BERT's net, from which whole words, phrases and entities are hidden; `objectives/knowledge_mlm.py`
says how, `formats/doc_units.py` what they are.

Departs from it:
  - phrases and entities are spans of the corpus, or found without labels; the paper's tools for
    Chinese are not published;
  - the levels are mixed by example; the paper trains by words, then phrases, then entities;
  - all tokens of a unit are replaced in one way; the reference draws for each token;
  - examples are the control's DOC-SENTENCES, without the dialogue model and next-sentence task;
  - the activation is BERT's GELU; the published checkpoint has a ReLU;
  - batch size, rate and budget are the protocol's; the vocabulary is trained on the corpus.
"""

from functools import partial

from flax import linen as nn

from scalelab.nets.encoder import Encoder
from scalelab.nn import axes
from scalelab.nn.attention import SelfAttention, head_size
from scalelab.nn.embed import Embed, InputEmbed, output_table
from scalelab.nn.ffn import FeedForward, gelu_exact
from scalelab.nn.heads import TransformHead
from scalelab.nn.layer import PostNorm
from scalelab.nn.norm import LayerNorm
from scalelab.nn.positions import LearnedPositions
from scalelab.nn.stack import Stack
from scalelab.systems import Adaptation, Departure, Sizes

DEPARTURES = (
    Departure("tokenizer.kind", "wordpiece", "Sun et al. 2019, 3.1: as BERT"),
    Departure("data.format", "doc_units", "Sun et al. 2019, 3.2"),
    Departure("objective", "knowledge_mlm", "Sun et al. 2019, 3.2"),
)
SPECIAL_TOKENS = (
    ("pad", "[PAD]"),
    ("unk", "[UNK]"),
    ("cls", "[CLS]"),
    ("sep", "[SEP]"),
    ("mask", "[MASK]"),
)
FRAME = (("[CLS]",), ("[SEP]",), ("[SEP]",))
ADAPTATION = Adaptation(*FRAME)  # Sun et al. 2019, 3.1: as BERT
HEADS = ("token",)
PREDICTS = "masked"
SEES = "both"
HAS_SOURCE = False
ORDER = "shuffled"

NUM_SEGMENTS = 2
INIT = nn.initializers.truncated_normal(stddev=0.02)
LAYER_NORM_EPSILON = 1e-12


def build(sizes: Sizes, options: None, vocab_size: int) -> Encoder:
    """Builds the net; see `scalelab.systems`."""
    del options
    norm = partial(LayerNorm, epsilon=LAYER_NORM_EPSILON)
    rest = sizes.dropout_rate, INIT, INIT, sizes.dtype
    layer = PostNorm(
        attention=SelfAttention(sizes.num_heads, head_size(sizes.width, sizes.num_heads), *rest),
        ffn=FeedForward(sizes.ffn_width, gelu_exact, INIT, INIT, sizes.dtype),
        attention_norm=norm(),
        ffn_norm=norm(),
        dropout_rate=sizes.dropout_rate,
    )
    return Encoder(
        embed=InputEmbed(
            tokens=Embed(vocab_size, sizes.width, INIT),
            positions=LearnedPositions(sizes.max_len, sizes.width, INIT),
            segments=Embed(NUM_SEGMENTS, sizes.width, INIT, axes.SEGMENTS),
            norm=norm(),
            dropout_rate=sizes.dropout_rate,
            dtype=sizes.dtype,
        ),
        stack=Stack(layer, sizes.num_layers, sizes.remat),
        token_head=TransformHead(vocab_size, gelu_exact, norm(), INIT, sizes.dtype),
        output_embed=output_table(sizes.output_embedding, vocab_size, sizes.width, INIT),
    )
