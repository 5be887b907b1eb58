"""BERT: Devlin et al. 2019, "BERT: Pre-training of Deep Bidirectional Transformers".

Reference code: google-research/bert, modeling.py and create_pretraining_data.py.

Departs from it, as the benchmark protocol does:
  - masks are drawn anew at every step, not once before training (protocol, "Masking");
    `config.mask_copies=10` is the reference's way;
  - random replacements come from the vocabulary without its special tokens, as in RoBERTa's code;
  - the vocabulary is trained on the corpus and has 30,000 pieces;
  - batch size, warm-up and budget are the protocol's; the paper has 256, 10,000 steps, a million.
"""

from functools import partial

from flax import linen as nn

from scalelab.nets.encoder import Encoder
from scalelab.nn import axes
from scalelab.nn.attention import SelfAttention, head_size
from scalelab.nn.embed import Embed, InputEmbed, output_table
from scalelab.nn.ffn import ACTIVATIONS, FeedForward
from scalelab.nn.heads import FirstTokenHead, TransformHead
from scalelab.nn.layer import PostNorm
from scalelab.nn.norm import LayerNorm
from scalelab.nn.positions import LearnedPositions
from scalelab.nn.stack import Stack
from scalelab.systems import Adaptation, Departure, Sizes

DEPARTURES = (
    Departure("tokenizer.kind", "wordpiece", "Devlin et al. 2019, 3"),
    Departure("data.format", "segment_pair", "Devlin et al. 2019, A.2"),
    Departure("objective", "mlm+nsp", "Devlin et al. 2019, 3.1"),
    Departure("optim.total_epochs", 6.0, "protocol: thesis 7.2"),
)
ROLES = ("pad", "unk", "cls", "sep", "mask")
SPECIAL_TOKENS = tuple((role, f"[{role.upper()}]") for role in ROLES)
FRAME = (("[CLS]",), ("[SEP]",), ("[SEP]",))
ADAPTATION = Adaptation(*FRAME)  # Devlin et al. 2019, figure 4: as in pre-training
HEADS = ("token", "pair")
PREDICTS = "masked"
SEES = "both"
HAS_SOURCE = False
ORDER = "shuffled"

NUM_SEGMENTS = 2
# modeling.py: tf.truncated_normal_initializer, cut at two standard deviations and not scaled back.
INIT = nn.initializers.truncated_normal(stddev=0.02)
LAYER_NORM_EPSILON = 1e-12


def build(sizes: Sizes, options: None, vocab_size: int) -> Encoder:
    """Builds the model, as `System.build`."""
    del options
    norm = partial(LayerNorm, epsilon=sizes.norm_epsilon or LAYER_NORM_EPSILON)
    activation = ACTIVATIONS[sizes.activation or "gelu"]
    heads = sizes.num_heads, head_size(sizes.width, sizes.num_heads)
    layer = PostNorm(
        attention=SelfAttention(*heads, sizes.dropout_rate, INIT, INIT, sizes.dtype),
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
        pair_head=FirstTokenHead(2, INIT, sizes.dtype),
    )
