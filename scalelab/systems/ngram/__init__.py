"""N-grams with interpolated Kneser-Ney smoothing: Chen and Goodman 1999, 2.7 and 4.1.1.

"An empirical study of smoothing techniques for language modeling". A run counts the n-grams of its
training documents, before its first step, by `counts.py`: the numbers are those of
`python -m scalelab.eval.ngram`. The tables are the parameters. No step changes them, so one step is
enough (`steps=1`): steps only measure the loss. Whatever the budget, the whole text is counted.

The tables have `system_options.max_ngrams` rows for each order above 1, used or not, so that a
config alone describes the model. The parameters of a run count all rows.

Evaluations hold the probabilities of all tokens at all places of a batch: at V = 30,000 use a small
--batch_size.

Departs from the paper:
  - subword tokens, as in the benchmark protocol; the paper has words;
  - nothing predicts the end of a text, and each example is scored as if it began a document.

A state is the number of the n-gram before the next token, for each order. It has no meaning beyond
that, so the model cannot be fine-tuned. Heads, width, layers and FFN width of the shape are
ignored, and so are dropout and the optimizer's fields.
"""

import dataclasses
from typing import Annotated, Any

import numpy as np

from scalelab.config.fields import between
from scalelab.systems import Adaptation, Departure, Sizes, refuse
from scalelab.systems.ngram import counts
from scalelab.systems.ngram.net import NGramModel

DEPARTURES = (
    Departure("objective", "clm", "Chen and Goodman 1999, 1"),
    Departure("model.dropout_rate", 0.0, "counts need none"),
)
SPECIAL_TOKENS = (("eos", "<|endoftext|>"),)
FRAME: tuple[tuple[str, ...], ...] = ((), ("<|endoftext|>",), ())
ADAPTATION = Adaptation(*FRAME)  # unused: counts are not fine-tuned
HEADS = ("token",)
PREDICTS = "next"
SEES = "left"
HAS_SOURCE = False
ORDER = "shuffled"

MOST = 2**24  # float32 has all integers up to here


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of the model."""

    order: Annotated[int, between(1, 9)] = 3  # N, tokens of the longest n-grams
    max_ngrams: Annotated[int, between(1, MOST)] = 2**20  # rows of a table of each order above 1


def num_rows(options: Options, vocab_size: int) -> tuple[int, ...]:
    """Returns the rows of each order's table; order 1 has all tokens, and the place before a text.

    Args:
      options: options of the model.
      vocab_size: V.
    """
    most = ((vocab_size + 1) ** n for n in range(2, options.order + 1))
    return (vocab_size + 1, *(min(options.max_ngrams, size) for size in most))


def count(
    tokens: np.ndarray, starts: np.ndarray, options: Options, vocab_size: int
) -> dict[str, Any]:
    """Returns the parameters, as `System` says.

    Args:
      tokens: [n] int, all documents, one behind the other.
      starts: [D + 1], the first token of each document, and n.
      options: options of the model.
      vocab_size: V.

    Raises:
      ValueError: the tables are too small.
    """
    unigrams, tables = counts.fit(tokens, starts, options.order, vocab_size).tables()
    most = max((len(table["last"]) for table in tables), default=0)
    if most > options.max_ngrams:
        hint = f"set --config.system_options.max_ngrams={most}"
        if most > MOST:
            hint = f"at most {MOST:,} are possible: choose a smaller corpus, vocabulary or order"
        raise ValueError(
            f"the training documents have {most:,} different n-grams of one order, and"
            f" system_options.max_ngrams = {options.max_ngrams:,}: {hint}"
        )
    made: dict[str, Any] = {"unigrams_undecayed": np.float32(unigrams)}
    rows = num_rows(options, vocab_size)
    for n, (table, size) in enumerate(zip(tables, rows[1:], strict=True), 2):
        length = {"last": size, "own": size, "first": rows[n - 2] + 1, "rest": rows[n - 2]}
        # Unused contexts have no n-grams: their first one is behind the last.
        filler = {"last": 0, "own": 0, "first": table["first"][-1], "rest": 1}
        made[f"order_{n}"] = {
            f"{name}_undecayed": np.pad(
                np.float32(array), (0, length[name] - len(array)), constant_values=filler[name]
            )
            for name, array in table.items()
        }
    return made


def build(sizes: Sizes, options: Options, vocab_size: int) -> NGramModel:
    """Builds the model, as `System.build`."""
    refuse(sizes, "activation", "norm_epsilon", "output_embedding")
    return NGramModel(options.order, num_rows(options, vocab_size), vocab_size)


def n_model(sizes: Sizes, options: Options) -> int:
    """Returns 0: there are no layers."""
    del sizes, options
    return 0
