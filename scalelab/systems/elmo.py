"""ELMo: Peters et al. 2018, "Deep contextualized word representations".

Two stacks of LSTMs read a text in opposite directions. They share the table of tokens, which also
scores them (`objectives/bilm.py`). A state is both streams side by side, [B, T, 2 D]. The paper's
use is `--recipe=features` with `feature_layers` = L + 1 (the embeddings are layer 0, twice side by
side), `feature_mix` and a BiLSTM (`head.lstm_width`), see docs/finetune.md. Evaluations of texts
and `sample` read the forward stream alone, as a left-to-right language model.

Departs from it:
  - subword tokens; the paper has characters, two highway layers and a sampled softmax of words;
  - no projections: states are as wide as the tokens' vectors (512 of 4,096 there);
  - DOC-SENTENCES, as in the benchmark protocol; the paper reads single sentences and keeps the
    states of a batch for the next one;
  - inputs times sqrt(D), initial weights and cell are those of `lstm`; the optimizer is the
    protocol's, the paper has Adagrad.

Heads and FFN width of the shape are ignored.
"""

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.typing import ArrayPytree

from scalelab.nets.decoder import Decoder
from scalelab.nn.embed import Embed, InputEmbed, output_table
from scalelab.nn.masks import Context
from scalelab.nn.recurrence import Recurrent, State, turn, uniform
from scalelab.nn.stack import Stack
from scalelab.systems import Adaptation, Departure, Sizes, refuse

DEPARTURES = (
    Departure("objective", "bilm", "Peters et al. 2018, 3.1"),
    Departure("optim.learning_rate", 1e-3, "Adam's own; the paper has Adagrad"),
)
SPECIAL_TOKENS = (("bos", "<s>"), ("eos", "</s>"))
FRAME: tuple[tuple[str, ...], ...] = (("<s>",), ("</s>",), ("</s>",))
ADAPTATION = Adaptation(*FRAME, reads="last")
HEADS = ("token", "next", "previous")
PREDICTS = "next"
SEES = "both"  # the two halves together; the forward half sees the left side alone
HAS_SOURCE = False
ORDER = "shuffled"


class TwoStreams(nn.Module):
    """A layer of two LSTMs that read [B, T, 2 D] in opposite directions.

    Each adds its input to its result, but for the first layer (Peters et al. 2018, 4).

    Attributes:
      forward: (x [B, T, D], ctx, None) -> (x, None).
      backward: the same, for the rows turned round.
    """

    forward: Recurrent
    backward: Recurrent

    def init_cache(self, batch_size: int, max_len: int) -> State:
        """Returns the empty state of the forward stream."""
        return self.forward.init_cache(batch_size, max_len)

    def __call__(
        self, carry: jax.Array, ctx: Context, cache: State | None
    ) -> tuple[jax.Array, State | None]:
        """Applies the layer; returns [B, T, 2 D] and the state behind the forward stream.

        Args:
          carry: [B, T, 2 D].
          ctx: what the pass gives to layers.
          cache: the state of the forward stream before the first token. With it the backward half
            is no use, since the rest of the text is not there; None: the carry is a whole text.
        """
        assert ctx.mask.lengths is not None and ctx.layer is not None
        left, right = jnp.split(carry, 2, axis=-1)
        read, after = self.forward(left, ctx, cache)
        if cache is None:
            turned, _ = self.backward(turn(right, ctx.mask.lengths), ctx, None)
            right = turn(turned, ctx.mask.lengths)
        made = jnp.concatenate([read, right], axis=-1)
        return made + jnp.where(ctx.layer > 0, carry, 0), after


class StreamStack(nn.Module):
    """A stack that begins with its input twice, side by side.

    Attributes:
      stack: (carry [B, T, 2 D], ctx, cache) -> (carry, cache).
    """

    stack: Stack

    def init_cache(self, batch_size: int, max_len: int) -> ArrayPytree:
        """Returns the empty cache of the stack."""
        return self.stack.init_cache(batch_size, max_len)

    def __call__(
        self, carry: jax.Array, ctx: Context, cache: ArrayPytree
    ) -> tuple[jax.Array, ArrayPytree]:
        """Applies the stack; returns [B, T, 2 D] and its cache.

        Args:
          carry: [B, T, D].
          ctx: what the pass gives to layers.
          cache: of the stack; None: the carry is a whole text.
        """
        return self.stack(jnp.concatenate([carry, carry], axis=-1), ctx, cache)


class ForwardHead(nn.Module):
    """The features of the token scores: the first half of a state.

    Attributes:
      width: D.
    """

    width: int

    def __call__(self, hidden: jax.Array) -> tuple[jax.Array, None]:
        """Returns [..., D] for states [..., 2 D], or for streams [..., D], and no bias."""
        return hidden[..., : self.width], None


def build(sizes: Sizes, options: None, vocab_size: int) -> Decoder:
    """Builds the model, as `System.build`."""
    del options
    refuse(sizes, "activation", "norm_epsilon")

    def stream() -> Recurrent:
        init = uniform(sizes.width**-0.5)
        return Recurrent("lstm", sizes.width, sizes.dropout_rate, init, sizes.dtype)

    table_init = uniform(0.1)
    table = Embed(vocab_size, sizes.width, table_init, factor=sizes.width**0.5)
    layer = TwoStreams(stream(), stream())
    return Decoder(
        embed=InputEmbed(table, None, sizes.dropout_rate, dtype=sizes.dtype),
        stack=StreamStack(Stack(layer, sizes.num_layers, sizes.remat)),
        token_head=ForwardHead(sizes.width),
        output_embed=output_table(sizes.output_embedding, vocab_size, sizes.width, table_init),
    )


def n_model(sizes: Sizes, options: None) -> int:
    """Returns the parameters of the layers without biases."""
    del options
    return 2 * 8 * sizes.num_layers * sizes.width**2
