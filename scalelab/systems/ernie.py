"""ERNIE: Sun et al. 2019, "ERNIE: Enhanced Representation through Knowledge Integration".

Reference code: PaddlePaddle/ERNIE, branch repro, ERNIE 1.0.

BERT's model, trained to predict hidden words, phrases and entities. `formats/doc_units.py` finds
them, and `objectives/knowledge_mlm.py` hides them.

Departs from it:
  - phrases and entities are spans of the corpus, or found without labels (no tool is published);
  - the levels are mixed by example; the paper trains by words, then phrases, then entities;
  - all tokens of a unit are replaced in one way; the reference draws for each token;
  - next sentences are not predicted; the dialogue model is `mlm` on the format `dialogue`;
  - the activation is BERT's GELU; the published checkpoint has a ReLU;
  - task ids and label heads, each with its own pooler, are ERNIE 2.0's (Sun et al. 2020);
  - batch size, rate and budget are the protocol's; the vocabulary is trained on the corpus.
"""

import dataclasses
from functools import partial

from flax import linen as nn

from scalelab.config.fields import Count
from scalelab.nets.encoder import Encoder
from scalelab.nn import axes
from scalelab.nn.attention import SelfAttention, head_size
from scalelab.nn.embed import Embed, InputEmbed, output_table
from scalelab.nn.ffn import ACTIVATIONS, FeedForward
from scalelab.nn.heads import LabelHeads, TransformHead
from scalelab.nn.layer import PostNorm
from scalelab.nn.norm import LayerNorm
from scalelab.nn.positions import LearnedPositions
from scalelab.nn.stack import Stack
from scalelab.systems import Adaptation, Departure, Part, Sizes

DEPARTURES = (
    Departure("tokenizer.kind", "wordpiece", "Sun et al. 2019, 3.1: as BERT"),
    Departure("data.format", "doc_units", "Sun et al. 2019, 3.2"),
    Departure("objective", "knowledge_mlm", "Sun et al. 2019, 3.2"),
)
ROLES = ("pad", "unk", "cls", "sep", "mask")
SPECIAL_TOKENS = tuple((role, f"[{role.upper()}]") for role in ROLES)
FRAME = (("[CLS]",), ("[SEP]",), ("[SEP]",))
ADAPTATION = Adaptation(*FRAME)  # Sun et al. 2019, 3.1: as BERT
HEADS = ("token", "labels")
PREDICTS = "masked"
SEES = "both"
HAS_SOURCE = False
ORDER = "shuffled"

INIT = nn.initializers.truncated_normal(stddev=0.02)
LAYER_NORM_EPSILON = 1e-12


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of the system."""

    num_segments: Count = 2  # number of segment ids; 3 for the roles of `dialogue`
    # Number of task ids; larger ids count as the last one. None: no task ids.
    num_tasks: Count | None = None


def build(sizes: Sizes, options: Options, vocab_size: int) -> Encoder:
    """Builds the model, as `System.build`."""
    norm = partial(LayerNorm, epsilon=sizes.norm_epsilon or LAYER_NORM_EPSILON)
    activation = ACTIVATIONS[sizes.activation or "gelu"]
    heads = sizes.num_heads, head_size(sizes.width, sizes.num_heads)
    layer = PostNorm(
        attention=SelfAttention(*heads, sizes.dropout_rate, INIT, INIT, sizes.dtype),
        ffn=FeedForward(sizes.ffn_width, activation, INIT, INIT, sizes.dtype),
        attention_norm=norm(), ffn_norm=norm(), dropout_rate=sizes.dropout_rate,
    )  # fmt: skip
    tasks = None
    if options.num_tasks is not None:
        tasks = Embed(options.num_tasks, sizes.width, INIT, axes.SEGMENTS)
    return Encoder(
        embed=InputEmbed(
            tokens=Embed(vocab_size, sizes.width, INIT),
            positions=LearnedPositions(sizes.max_len, sizes.width, INIT),
            segments=Embed(options.num_segments, sizes.width, INIT, axes.SEGMENTS),
            tasks=tasks,
            norm=norm(),
            dropout_rate=sizes.dropout_rate,
            dtype=sizes.dtype,
        ),
        stack=Stack(layer, sizes.num_layers, sizes.remat),
        token_head=TransformHead(vocab_size, activation, norm(), INIT, sizes.dtype),
        output_embed=output_table(sizes.output_embedding, vocab_size, sizes.width, INIT),
        label_heads=LabelHeads(INIT, sizes.dtype),
    )


def parts(sizes: Sizes, options: Options) -> dict[str, Part]:
    """Returns the model without the heads for labels, which no class of `transformers` has."""
    del sizes, options
    paths = {name: name for name in ("embed", "stack", "token_head", "output_embed")}
    return {"encoder": Part({}, {}, paths)}
