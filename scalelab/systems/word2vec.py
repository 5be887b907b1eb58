"""Word2vec: Mikolov et al. 2013, "Efficient estimation of word representations in vector space".

Reference code: word2vec.c. A state is the vector of its token, whatever stands around it. The
objective `word_vectors` has skip-grams and CBOW, negative sampling (Mikolov et al. 2013b) and NCE
(Gutmann and Hyvarinen 2010), and says what departs in the loss.

Departs from them:
  - subword tokens and DOC-SENTENCES, as in the benchmark protocol; the paper has words;
  - the optimizer and its schedule are the protocol's, and also move vectors that a batch lacks;
  - both tables begin uniform within 0.5 / D; in word2vec.c that of the neighbors begins at 0.

A head that reads one state sees one token: tasks need `--config.head.lstm_width=64`, and
`--recipe=features --config.feature_layers=1` keeps the vectors as they are. Heads, layers and FFN
width of the shape are ignored.
"""

from scalelab.nets.encoder import Encoder
from scalelab.nn.embed import Embed, InputEmbed, output_table
from scalelab.nn.heads import PlainHead
from scalelab.nn.layer import Unchanged
from scalelab.nn.recurrence import uniform
from scalelab.nn.stack import Stack
from scalelab.systems import Adaptation, Departure, Sizes, refuse

DEPARTURES = (
    Departure("objective", "word_vectors", "Mikolov et al. 2013, 3.2; 2013b, 2.2"),
    Departure("model.output_embedding", "untied", "Mikolov et al. 2013b, equation 2"),
    Departure("model.dropout_rate", 0.0, "Mikolov et al. 2013: none"),
    Departure("optim.learning_rate", 3e-2, "best of three (LOG.md); the paper has SGD at 0.025"),
)
SPECIAL_TOKENS = (("eos", "</s>"),)
FRAME: tuple[tuple[str, ...], ...] = ((), ("</s>",), ("</s>",))
ADAPTATION = Adaptation(*FRAME, reads="last")
HEADS = ("neighbor",)
PREDICTS = None
SEES = "both"
HAS_SOURCE = False
ORDER = "shuffled"


def build(sizes: Sizes, options: None, vocab_size: int) -> Encoder:
    """Builds the model, as `System.build`."""
    del options
    refuse(sizes, "activation", "norm_epsilon")
    init = uniform(0.5 / sizes.width)
    table = Embed(vocab_size, sizes.width, init)
    return Encoder(
        embed=InputEmbed(table, None, sizes.dropout_rate, dtype=sizes.dtype),
        stack=Stack(Unchanged(), sizes.num_layers, sizes.remat),
        token_head=PlainHead(),
        output_embed=output_table(sizes.output_embedding, vocab_size, sizes.width, init),
    )


def n_model(sizes: Sizes, options: None) -> int:
    """Returns 0: there are no layers."""
    del sizes, options
    return 0
