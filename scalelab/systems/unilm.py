"""UniLM: Dong et al. 2019, "Unified Language Model Pre-training for Natural Language ...".

Reference code: microsoft/unilm, unilm-v1 (fine-tuning alone; the pre-training is not published).

One BERT model learns with four attention masks (`objectives/unilm.py`). Six segment vectors tell
the model which mask an example has. In tasks and evaluations all tokens see each other, and
PREDICTS and SEES equal BERT's: evaluations score masked tokens and `sample` refuses the model.

Departs from it:
  - the model starts from random weights, the paper's from BERT-large;
  - examples are the base config's DOC-SENTENCES, so source and target are parts of one text without
    a separator; the paper packs pairs of segments. `config.data.format=sentence_order` makes pairs;
  - no next-sentence prediction, which the paper adds for bidirectional examples;
  - masks are single tokens; the paper masks a bigram or a trigram in 20% of the cases;
  - batch size, rate and budget are the protocol's.
"""

from functools import partial

from flax import linen as nn

from scalelab.nets.encoder import Encoder
from scalelab.nn import axes
from scalelab.nn.attention import SelfAttention, head_size
from scalelab.nn.embed import Embed, InputEmbed, output_table
from scalelab.nn.ffn import ACTIVATIONS, FeedForward
from scalelab.nn.heads import TransformHead
from scalelab.nn.layer import PostNorm
from scalelab.nn.norm import LayerNorm
from scalelab.nn.positions import LearnedPositions
from scalelab.nn.stack import Stack
from scalelab.systems import Adaptation, Departure, Sizes

DEPARTURES = (
    Departure("tokenizer.kind", "wordpiece", "Dong et al. 2019, 2.1: as BERT"),
    Departure("objective", "unilm", "Dong et al. 2019, 2.3"),
)
ROLES = ("pad", "unk", "cls", "sep", "mask")
SPECIAL_TOKENS = tuple((role, f"[{role.upper()}]") for role in ROLES)
FRAME = (("[CLS]",), ("[SEP]",), ("[SEP]",))
ADAPTATION = Adaptation(*FRAME)  # Dong et al. 2019, 2.5: as BERT, bidirectional
HEADS = ("token",)
PREDICTS = "masked"
SEES = "both"
HAS_SOURCE = False
ORDER = "shuffled"

NUM_SEGMENTS = 6
INIT = nn.initializers.truncated_normal(stddev=0.02)
LAYER_NORM_EPSILON = 1e-12


def build(sizes: Sizes, options: None, vocab_size: int) -> Encoder:
    """Builds the model, as `System.build`."""
    del options
    norm = partial(LayerNorm, epsilon=sizes.norm_epsilon or LAYER_NORM_EPSILON)
    activation = ACTIVATIONS[sizes.activation or "gelu"]
    rest = sizes.dropout_rate, INIT, INIT, sizes.dtype
    layer = PostNorm(
        attention=SelfAttention(sizes.num_heads, head_size(sizes.width, sizes.num_heads), *rest),
        ffn=FeedForward(sizes.ffn_width, activation, INIT, INIT, sizes.dtype),
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
        token_head=TransformHead(vocab_size, activation, norm(), INIT, sizes.dtype),
        output_embed=output_table(sizes.output_embedding, vocab_size, sizes.width, INIT),
    )
