"""ELECTRA: Clark et al. 2020, "ELECTRA: Pre-training Text Encoders as Discriminators ...".

Reference code: google-research/electra, pretrain/pretrain_helpers.py, run_pretraining.py.

A small masked language model, the generator, fills the masks; the discriminator tells which tokens
it has replaced. Tasks get the discriminator. `objectives/rtd.py` has the losses and the variants.

Departs from it:
  - examples are the base config's DOC-SENTENCES, and masks are 80/10/10; the reference packs two
    segments, and masks 85% of the chosen tokens;
  - the default embedding is as wide as the discriminator, as in the paper's base size (3.2); its
    small size has width 128;
  - batch size and budget are the protocol's.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Annotated

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike

from scalelab.config.fields import Count, Positive, choice
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
from scalelab.systems.electra.net import Discriminator, Tower

DEPARTURES = (
    Departure("tokenizer.kind", "wordpiece", "Clark et al. 2020, 3.1: as BERT"),
    Departure("objective", "mlm+50*rtd", "Clark et al. 2020, 2 and table 6"),
)
ROLES = ("pad", "unk", "cls", "sep", "mask")
SPECIAL_TOKENS = tuple((role, f"[{role.upper()}]") for role in ROLES)
FRAME = (("[CLS]",), ("[SEP]",), ("[SEP]",))
ADAPTATION = Adaptation(*FRAME, activation="gelu")  # `transformers`' ElectraClassificationHead
HEADS = ("token", "replaced", "restored")
PREDICTS = "masked"
SEES = "both"
HAS_SOURCE = False
ORDER = "shuffled"

NUM_SEGMENTS = 2
INIT = nn.initializers.truncated_normal(stddev=0.02)
LAYER_NORM_EPSILON = 1e-12


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of the system."""

    embed_width: Count | None = None  # E; None: the discriminator's width
    # Ratio of the generator's width, heads and FFN to the discriminator's; None: no generator.
    generator_rate: Positive | None = 0.25
    embeddings: Annotated[str, choice("shared", "own")] = "shared"  # own: two tables


class ReplacedHead(nn.Module):
    """Affine map, activation, affine map to a score per token (electra, modeling.py).

    Attributes:
      activation: the model's activation.
      dtype: dtype of the computation.
    """

    activation: Callable[[jax.Array], jax.Array]
    dtype: DTypeLike

    @nn.compact
    def __call__(self, hidden: jax.Array) -> jax.Array:
        """Maps hidden [B, T, D] to scores [B, T] float32: positive means replaced."""
        names, width = ((axes.WIDTH,), (axes.TRANSFORM,)), hidden.shape[-1]
        dense = Linear(*names, (width,), INIT, self.dtype, name="dense")
        out = Linear((axes.WIDTH,), (axes.CLASSES,), (1,), INIT, jnp.float32, name="out")
        return out(self.activation(dense(hidden)))[..., 0]


def build(sizes: Sizes, options: Options, vocab_size: int) -> Discriminator:
    """Builds the model, as `System.build`."""
    norm = partial(LayerNorm, epsilon=sizes.norm_epsilon or LAYER_NORM_EPSILON)
    activation = ACTIVATIONS[sizes.activation or "gelu"]
    embed_width = options.embed_width or sizes.width

    def tower(own: Sizes) -> Tower:
        rest = own.dropout_rate, INIT, INIT, own.dtype
        layer = PostNorm(
            attention=SelfAttention(own.num_heads, head_size(own.width, own.num_heads), *rest),
            ffn=FeedForward(own.ffn_width, activation, INIT, INIT, own.dtype),
            attention_norm=norm(),
            ffn_norm=norm(),
            dropout_rate=own.dropout_rate,
        )
        projection = None
        if own.width != embed_width:
            projection = Linear((axes.WIDTH,), (axes.TRANSFORM,), (own.width,), INIT, own.dtype)
        return Tower(Stack(layer, own.num_layers, own.remat), projection)

    def embed() -> InputEmbed:
        return InputEmbed(
            tokens=Embed(vocab_size, embed_width, INIT),
            positions=LearnedPositions(sizes.max_len, embed_width, INIT),
            segments=Embed(NUM_SEGMENTS, embed_width, INIT, axes.SEGMENTS),
            norm=norm(),
            dropout_rate=sizes.dropout_rate,
            dtype=sizes.dtype,
        )

    def head() -> TransformHead:
        return TransformHead(vocab_size, gelu_exact, norm(), INIT, sizes.dtype, embed_width)

    return Discriminator(
        embed=embed(),
        discriminator=tower(sizes),
        generator=None
        if options.generator_rate is None
        else tower(dataclasses.replace(sizes, **narrow(sizes, options.generator_rate))),
        token_head=head(),
        replaced_head=ReplacedHead(activation, sizes.dtype),
        restored_head=head(),
        generator_embed=None if options.embeddings == "shared" else embed(),
        output_embed=output_table(sizes.output_embedding, vocab_size, embed_width, INIT),
    )


def narrow(sizes: Sizes, rate: float) -> dict[str, int]:
    """Returns the sizes in which the generator differs (Clark et al. 2020, 3.2).

    Args:
      sizes: of the discriminator.
      rate: share of its width, FFN and heads, in (0, 1].
    """
    heads = max(1, round(sizes.num_heads * rate))
    width = max(1, round(sizes.width * rate / heads)) * heads
    ffn_width = max(1, round(sizes.ffn_width * rate))
    return {"num_heads": heads, "width": width, "ffn_width": ffn_width}


def parts(sizes: Sizes, options: Options) -> dict[str, Part]:
    """Returns the two models as `System.parts`: discriminator and generator."""
    if options.generator_rate is None:
        return {}
    own = {"embed_width": options.embed_width or sizes.width, "generator_rate": None}
    large = {n: n for n in ("embed", "discriminator", "replaced_head")}
    small = {name: name for name in ("token_head", "output_embed")} | {"generator": "discriminator"}
    small["embed" if options.embeddings == "shared" else "generator_embed"] = "embed"
    return {
        "discriminator": Part({}, own, large | {"restored_head": "token_head"}),
        "generator": Part(narrow(sizes, options.generator_rate), own, small),
    }
