"""PALM: Bi et al. 2020, "PALM: Pre-training an Autoencoding & Autoregressive Language Model ...".

Reference code: alibaba/AliceMind, PALM/models/model_builder.py and decoder.py.

Its first stage trains the encoder to predict masked tokens: `system=roberta`. The second stage is
this system with `--init` of that run. It takes the whole encoder; the decoder and the head are new.

Departs from them:
  - the copy head is the paper's (3.3); the code copies by the mean of its decoder's attention;
  - the decoder's norms come after sublayers and its positions are learned, as in BART;
  - one table embeds and scores all tokens; the code's decoder begins with a copy of it;
  - byte-level BPE, trained on the corpus; fragments do not overlap; encoder and decoder are equally
    deep, where LARGE has 24 and 6 layers; optimizer, batch size and budget are the protocol's.
"""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.typing import ArrayPytree
from jax.typing import DTypeLike

from scalelab.nets.decoder import Batch, Decoder, DecoderCache
from scalelab.nets.encdec import EncoderDecoder, split_texts
from scalelab.nets.encoder import Encoder
from scalelab.nn import axes
from scalelab.nn.attention import CrossAttention, SelfAttention, head_size
from scalelab.nn.embed import Embed, InputEmbed, output_table
from scalelab.nn.ffn import ACTIVATIONS, FeedForward
from scalelab.nn.heads import PlainHead, tied_logits
from scalelab.nn.layer import PostNorm
from scalelab.nn.linear import Linear
from scalelab.nn.masks import Mask, Step
from scalelab.nn.norm import LayerNorm
from scalelab.nn.positions import LearnedPositions
from scalelab.nn.product import product
from scalelab.nn.stack import Stack
from scalelab.systems import Adaptation, Departure, Sizes

DEPARTURES = (
    Departure("data.format", "continuation", "Bi et al. 2020, 3.2 and 4.1"),
    Departure("objective", "copy", "Bi et al. 2020, 3.2 and 3.3"),
)
ROLES = {"bos": "<s>", "pad": "<pad>", "eos": "</s>", "unk": "<unk>", "mask": "<mask>"}
SPECIAL_TOKENS = tuple(ROLES.items())
FRAME = (("<s>",), ("</s>",), ("</s>",))
ADAPTATION = Adaptation(*FRAME)  # Bi et al. 2020, 4: all tasks generate text
HEADS = ("copy",)  # not "token": each place has a bias of its own
PREDICTS, SEES, HAS_SOURCE, START, ORDER = "next", "source + left", True, "bos", "shuffled"
INIT = nn.initializers.normal(stddev=0.02)
HEAD_INIT = nn.initializers.xavier_uniform()  # model_builder.py initializes the generator so
LAYER_NORM_EPSILON = 1e-5


@dataclasses.dataclass(frozen=True)
class Options:
    """The settings of PALM alone."""

    copies: bool | None = None  # False: copies nothing, but keeps the pointer's parameters


class New(nn.Module):
    """Wraps a part of the decoder: `--init` does not fill its new parameter path."""

    part: nn.Module

    def init_cache(self, *sizes: int) -> ArrayPytree:  # noqa: D102
        return self.part.init_cache(*sizes)

    def __call__(self, *given: ArrayPytree) -> ArrayPytree:  # noqa: D102
        return self.part(*given)


class Pointer(nn.Module):
    """The attention that copies, and the gate between vocabulary and copying.

    Bi et al. 2020, 3.3: e_tl = w tanh(W_m h_l + W_s s_t + b); the gate reads s_t and the mean of h.
    Scores and softmax are float32; the scores take B T S D numbers of memory.
    """

    dtype: DTypeLike

    @nn.compact
    def __call__(self, states: jax.Array, source: jax.Array, mask: Mask) -> tuple[jax.Array, ...]:
        """Returns the weights [B, T, S] of the source, and the gate's scores [B, T].

        Args:
          states: [B, T, D], of the decoder.
          source: [B, S, D], states of the encoder.
          mask: the places of the source that each state may copy.
        """
        inner = (axes.WIDTH,), (axes.TRANSFORM,), states.shape[-1:], HEAD_INIT, self.dtype
        one = (axes.CLASSES,), (1,), HEAD_INIT, jnp.float32
        keys = Linear(*inner, bias_init=None, name="source")(source).astype(jnp.float32)
        queries = Linear(*inner, name="state")(states).astype(jnp.float32)
        mixed = jnp.tanh(keys[:, None] + queries[:, :, None])
        scores = Linear((axes.TRANSFORM,), *one, bias_init=None, name="score")(mixed)[..., 0]
        seen = mask.dense(*mixed.shape[1:3])[:, 0]
        weights = jax.nn.softmax(jnp.where(seen, scores, -1e30), axis=-1)
        mean = product("bts,bsd->btd", weights.astype(source.dtype), source)
        gate = Linear((axes.WIDTH,), *one, name="state_gate")(states)
        gate += Linear((axes.WIDTH,), *one, bias_init=None, name="mean_gate")(mean)
        return weights, gate[..., 0]


class PointerGenerator(nn.Module):
    """An encoder-decoder that generates a token or copies one of the source.

    Its states [..., D + 1 + 2 S], float32, hold what scores tokens: the decoder's state, the gate's
    score, the attention to the source, and its tokens.
    """

    EMBEDDING = ("encoder/embed", "decoder/embed")
    TOKEN_TABLE = "encoder/embed/tokens/table"
    encoder: Encoder
    decoder: Decoder
    pointer: Pointer
    head: Linear  # [..., D] -> features [..., D] for the table of tokens
    output_embed: Embed | None = None  # the table that scores tokens; None: the encoder's
    copies: bool = True
    encode = EncoderDecoder.encode  # a cache's `layers` then also have the source

    def __call__(
        self, batch: Batch, *, train: bool, cache: DecoderCache | None = None, step: Step = None
    ) -> tuple[jax.Array, DecoderCache | None]:
        """Computes states [B, T, D + 1 + 2 S]; arguments as in `EncoderDecoder`."""
        own, batch = split_texts(batch)
        if "source" in batch:
            tokens, lengths = batch["source"], batch["source_lengths"]
            read = own | {"tokens": tokens, "lengths": lengths, "examples": batch["examples"]}
            source = memory = self.encoder(read, train=train, step=step)[0]
        else:
            assert cache is not None and cache.source_lengths is not None
            (layers, (memory,), (tokens,)), source = cache.layers, None
            cache, lengths = dataclasses.replace(cache, layers=layers), cache.source_lengths
        hidden, cache = self.decoder(batch, train=train, cache=cache, step=step, source=source)
        mask = Mask(lengths, visible=batch.get("source_bounds"))
        weights, gate = self.pointer(hidden, memory, mask)
        gate = gate if self.copies else jnp.full_like(gate, 1e9)  # its sigmoid is 1
        if cache is not None:  # axis 1 of all arrays is the examples
            cache = dataclasses.replace(cache, layers=(cache.layers, memory[None], tokens[None]))
        parts = hidden, gate[..., None], weights, jnp.broadcast_to(tokens[:, None], weights.shape)
        return jnp.concatenate([x.astype(jnp.float32) for x in parts], axis=-1), cache

    def gate(self, states: jax.Array) -> jax.Array:
        """Returns the gate's scores [...] at states [..., D + 1 + 2 S]."""
        return states[..., self.head.out_shape[0]]

    def token_features(self, states: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Returns features, table and a bias [..., V], whose softmax is the mixture."""
        features, table, mixed, logits = self._mix(states)
        return features, table, mixed - logits

    def token_logits(self, states: jax.Array) -> jax.Array:
        """Returns the log-probabilities of all tokens at states [...]: [..., V] float32."""
        return self._mix(states)[2]

    def _mix(self, states: jax.Array) -> tuple[jax.Array, ...]:
        features, table, gate, weights, tokens = self.split(states)
        logits, gate = tied_logits(features, table, None), gate[..., None]
        places = (*jnp.indices(tokens.shape, sparse=True)[:-1], tokens)
        copied = jnp.log(jnp.zeros(logits.shape).at[places].add(weights))
        generated = jax.nn.log_softmax(logits) + jax.nn.log_sigmoid(gate)
        return features, table, jnp.logaddexp(generated, copied + jax.nn.log_sigmoid(-gate)), logits

    def split(self, states: jax.Array) -> tuple[jax.Array, ...]:
        """Returns features, table, the gate's scores, weights and tokens [..., S] of the source."""
        embed = self.encoder.embed.tokens if self.output_embed is None else self.output_embed
        (width,) = self.head.out_shape
        weights, tokens = jnp.split(states[..., width + 1 :], 2, axis=-1)
        hidden, gate = states[..., :width], states[..., width]
        return self.head(hidden), embed.table, gate, weights, tokens.astype(jnp.int32)


def build(sizes: Sizes, options: Options, vocab_size: int) -> PointerGenerator:
    """Builds the model, as `System.build`."""
    norm = partial(LayerNorm, epsilon=sizes.norm_epsilon or LAYER_NORM_EPSILON)
    activation, rate, D = ACTIVATIONS[sizes.activation or "gelu"], sizes.dropout_rate, sizes.width  # noqa: N806
    heads = sizes.num_heads, head_size(D, sizes.num_heads), rate, INIT, INIT, sizes.dtype
    tokens = Embed(vocab_size, D, INIT)  # encoder, decoder and output share this table

    def embed() -> InputEmbed:
        positions = LearnedPositions(sizes.max_len, D, INIT)
        return InputEmbed(tokens, positions, rate, norm=norm(), dtype=sizes.dtype)

    def stack(cross: CrossAttention | None = None) -> Stack:
        ffn = FeedForward(sizes.ffn_width, activation, INIT, INIT, sizes.dtype)
        layer = PostNorm(SelfAttention(*heads), ffn, norm(), norm(), rate, cross, cross and norm())
        return Stack(layer, sizes.num_layers, sizes.remat)

    return PointerGenerator(
        encoder=Encoder(embed(), stack(), PlainHead()),
        decoder=Decoder(New(embed()), New(stack(CrossAttention(*heads))), PlainHead()),
        pointer=Pointer(sizes.dtype),
        head=Linear((axes.WIDTH,), (axes.TRANSFORM,), (D,), HEAD_INIT, sizes.dtype),
        output_embed=output_table(sizes.output_embedding, vocab_size, D, INIT),
        copies=options.copies is not False,
    )
