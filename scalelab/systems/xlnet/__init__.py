"""XLNet: Yang et al. 2019, "XLNet: Generalized Autoregressive Pretraining for Language ...".

Reference code: zihangdai/xlnet, modeling.py, data_utils.py; and `transformers`' XLNetModel.

A Transformer-XL that reads in both directions and is trained to predict the last sixth of the
tokens in a random order, one by one (`objectives/plm.py`, `net.py`). Tasks read the
content stream, in which all tokens see each other. Evaluations that mask a token read the query
stream, which sees all other tokens: the mask token itself is never seen. A score of texts is thus a
pseudo-likelihood, as BERT's, and `sample` fills masks one at a time. An order is drawn among the
tokens of each example, without special tokens and padding, so padding is never permuted.

Departs from it:
  - an example is one segment of a document, so there is no second segment and no next-sentence
    prediction; `config.data.format=segment_pair` makes pairs, each a document of its own, to which
    a memory adds nothing. In both, <cls> is its own segment;
  - the memory keeps the whole segment with its special tokens and ends with its document; the code
    keeps the first half of a segment, without them. A fresh memory is empty;
  - a query that sees no token has attention output 0; in the reference code it averages the values
    of all tokens, its own too;
  - all rows are read forward; the code reads half of them backward (`bi_data`);
  - the GELU is exact, as in `transformers`; u, v and the bias of segments begin at 0; no dropout on
    R and after the last layer;
  - batch size, optimizer and budget are the protocol's; the vocabulary is trained on the corpus.
"""

import dataclasses
from functools import partial

from flax import linen as nn

from scalelab.config.fields import Count
from scalelab.nn.attention import head_size
from scalelab.nn.embed import Embed, InputEmbed, output_table
from scalelab.nn.ffn import ACTIVATIONS, FeedForward
from scalelab.nn.heads import BiasHead
from scalelab.nn.layer import PostNorm
from scalelab.nn.norm import LayerNorm
from scalelab.nn.relative import SinusoidDistances, check_distances
from scalelab.nn.stack import Stack
from scalelab.systems import Adaptation, Departure, Sizes
from scalelab.systems.xlnet.attention import TwoStreamAttention
from scalelab.systems.xlnet.net import QueryEmbed, TwoStreams

DEPARTURES = (
    Departure("tokenizer.kind", "unigram", "Yang et al. 2019, 3.1: SentencePiece"),
    Departure("objective", "plm", "Yang et al. 2019, 2.2 and 2.3"),
    Departure("data.format", "segments", "Yang et al. 2019, 2.4"),
    Departure("long.example_rate", 0.0, "the memory is the longer context"),
)
ROLES = ("pad", "unk", "cls", "sep", "mask")
SPECIAL_TOKENS = tuple((role, f"<{role}>") for role in ROLES)
FRAME: tuple[tuple[str, ...], ...] = ((), ("<sep>",), ("<sep>", "<cls>"))
ADAPTATION = Adaptation(*FRAME, reads="last")  # Yang et al. 2019, 2.5; run_classifier.py
HEADS = ("token", "query")  # query: states of places that do not see their tokens
PREDICTS = "masked"
SEES = "both"
HAS_SOURCE = False
ORDER = "contiguous"

INIT = nn.initializers.normal(stddev=0.02)
LAYER_NORM_EPSILON = 1e-12


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of the model."""

    memory_len: Count | None = 128  # M, states that a layer remembers; None: no memory


def build(sizes: Sizes, options: Options, vocab_size: int) -> TwoStreams:
    """Builds the model, as `System.build`.

    Raises:
      ValueError: memory and segment are longer than the slowest sinusoid.
    """
    check_distances(options.memory_len or 0, sizes.max_len)
    ids = sizes.special_ids or {role: i for i, role in enumerate(ROLES)}
    norm = partial(LayerNorm, epsilon=sizes.norm_epsilon or LAYER_NORM_EPSILON)
    heads = sizes.num_heads, head_size(sizes.width, sizes.num_heads)
    distances = SinusoidDistances(*heads, sizes.width, INIT, sizes.dtype)
    rate, activation = sizes.dropout_rate, ACTIVATIONS[sizes.activation or "gelu"]
    attention = TwoStreamAttention(*heads, rate, distances, INIT, sizes.dtype)
    ffn = FeedForward(sizes.ffn_width, activation, INIT, INIT, sizes.dtype, dropout_rate=rate)
    layer = PostNorm(attention, ffn, norm(), norm(), rate)
    tokens = Embed(vocab_size, sizes.width, INIT)
    return TwoStreams(
        embed=InputEmbed(tokens, None, rate, dtype=sizes.dtype),
        query_embed=QueryEmbed(INIT, rate),
        stack=Stack(layer, sizes.num_layers, sizes.remat),
        token_head=BiasHead(vocab_size),
        memory_len=options.memory_len or 0,
        mask_id=ids["mask"],
        class_id=ids["cls"],
        output_embed=output_table(sizes.output_embedding, vocab_size, sizes.width, INIT),
    )


def n_model(sizes: Sizes, options: Options) -> int:
    """Returns the parameters of the layers without norms, biases and segment vectors."""
    del options
    return sizes.num_layers * (5 * sizes.width**2 + 2 * sizes.width * sizes.ffn_width)
