"""Counts n-grams in the text of a run, and measures how well they predict documents.

  python -m scalelab.eval.ngram --run=RUN --corpus=wikitext:DIR [--order=3] [--split=valid]
      [--workdir=DIR]

RUN is a run folder. Its tokenizer cuts the text, and its training documents are counted: so the
table is that of a model without parameters beside the model of RUN (`python -m scalelab.eval.lm`),
on the same tokens of the same documents. As there, the first token of a document is not scored.

The smoothing is interpolated Kneser-Ney (Chen and Goodman 1999, 2.7 and 4.1.1). The n-grams of the
highest order have their counts. Those of a lower order have the number of tokens that they follow.
A discount is taken from each count and given to the next lower order, in the end to all tokens
alike. By default each order has the discount n1 / (n1 + 2 n2) of Ney et al. 1994, where n1 and n2
count the n-grams that occur once and twice.

Under --workdir: documents.tsv (a line for each document), result.json, environment.json.
"""

import argparse
import dataclasses
import pathlib
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from scalelab.config import cli

if TYPE_CHECKING:
    import pandas as pd


class Order(NamedTuple):
    """The counts of one order n.

    Attributes:
      keys: [G] int64, the n-grams, ascending: first token x number of (n-1)-grams + its suffix.
      counts: [G], of each n-gram.
      totals: [C], the sum of the counts behind each context, an (n-1)-gram.
      types: [C], the number of n-grams with a count behind each context.
      discount: taken from each count above 0.
    """

    keys: np.ndarray
    counts: np.ndarray
    totals: np.ndarray
    types: np.ndarray
    discount: float


@dataclasses.dataclass(frozen=True)
class NGrams:
    """An interpolated Kneser-Ney model.

    Attributes:
      orders: counts of the orders 1, 2, ..., N.
      vocab_size: V; None: the first order has no discount, and new tokens no probability.
    """

    orders: list[Order]
    vocab_size: int | None

    def nats(self, tokens: np.ndarray, starts: np.ndarray) -> np.ndarray:
        """Returns minus the log-probability of each token [n] after the tokens of its document.

        Args:
          tokens: [n] int, all documents, one behind the other.
          starts: [D + 1], the first token of each document, and n.
        """
        stream, real = pad(tokens, starts, len(self.orders) - 1)
        chance = np.full(len(stream), 1.0 / self.vocab_size if self.vocab_size else 0.0)
        grams = np.zeros(len(stream), np.int64)  # the empty n-gram
        num_grams = 1
        for n, order in enumerate(self.orders, 1):
            context = before(grams, 1) if n > 1 else grams
            grams, num_grams = look_up(order.keys, stream, grams, n, num_grams)[0], len(order.keys)
            known = (context >= 0) & (order.totals[context] > 0)
            totals = np.where(known, order.totals[context], 1)
            counts = np.where(grams >= 0, order.counts[grams], 0)
            own = np.maximum(counts - order.discount, 0) / totals
            rest = order.discount * order.types[context] / totals
            chance = np.where(known, own + rest * chance, chance)
        with np.errstate(divide="ignore"):  # without `vocab_size` a new token has none
            return -np.log(chance[real])


def pad(tokens: np.ndarray, starts: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Puts tokens 0 before each document; returns the tokens plus 1, and their places.

    Args:
      tokens: [n], of all documents.
      starts: [documents + 1], the first token of each document, and the end.
      size: number of tokens 0 before each document.
    """
    real = np.arange(len(tokens)) + size * np.repeat(np.arange(1, len(starts)), np.diff(starts))
    stream = np.zeros(len(tokens) + size * (len(starts) - 1), np.int64)
    stream[real] = np.asarray(tokens, np.int64) + 1
    return stream, real


def before(values: np.ndarray, steps: int) -> np.ndarray:
    """Moves values to later places, and puts -1 where nothing is before.

    Args:
      values: [n].
      steps: number of places.
    """
    return np.concatenate(
        [np.full(min(steps, len(values)), -1), values[: max(0, len(values) - steps)]]
    )


def look_up(
    keys: np.ndarray | None, stream: np.ndarray, suffixes: np.ndarray, n: int, num_suffixes: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the index of the n-gram that ends at each place, or -1, and the keys [G].

    Args:
      keys: [G], of known n-grams; None: all of the stream are known.
      stream: [n], tokens.
      suffixes: [n], index of the (n-1)-gram that ends at each place, or -1.
      n: the order.
      num_suffixes: number of (n-1)-grams.
    """
    # For n = 1 the empty suffix ends everywhere, and the first token is the one at the place.
    first = before(stream, n - 1)
    there = (first >= 0) & (suffixes >= 0)
    made = np.where(there, first * num_suffixes + suffixes, -1)
    if keys is None:
        keys = np.unique(made[there])
    index = np.minimum(np.searchsorted(keys, made), len(keys) - 1)
    return np.where(there & (keys[index] == made), index, -1), keys


def fit(
    tokens: np.ndarray, starts: np.ndarray, order: int, vocab_size: int | None,
    discount: float | None = None,
) -> NGrams:  # fmt: skip
    """Counts the n-grams of documents.

    Args:
      tokens: [n] int, all documents, one behind the other.
      starts: [D + 1], the first token of each document, and n.
      order: N, the length of the longest n-grams.
      vocab_size: V, as in `NGrams`.
      discount: of all orders; None: estimated for each.
    """
    stream, real = pad(tokens, starts, order - 1)
    grams, keys = [np.zeros(len(stream), np.int64)], [np.zeros(1, np.int64)]
    for n in range(1, order + 1):
        found, made = look_up(None, stream, grams[-1], n, len(keys[-1]))
        grams.append(found)
        keys.append(made)
    orders, counts = [], np.bincount(grams[order][real], minlength=len(keys[order]))
    for n in range(order, 0, -1):
        contexts = np.zeros(len(keys[n]), np.int64)
        contexts[grams[n][real]] = before(grams[n - 1], 1)[real] if n > 1 else 0
        size = len(keys[n - 1])
        totals = np.bincount(contexts, counts, size)
        types = np.bincount(contexts, counts > 0, size)
        once, twice = ((counts == k).sum() for k in (1, 2))
        own = once / max(once + 2 * twice, 1) if discount is None else discount
        if n == 1 and vocab_size is None:
            own = 0.0
        orders.append(Order(keys[n], counts, totals, types, float(own)))
        if n > 1:  # the n-grams that end in each (n-1)-gram
            suffixes = keys[n][counts > 0] % size
            counts = np.bincount(suffixes, minlength=size)
    return NGrams(orders[::-1], vocab_size)


def parser() -> cli.Parser:
    """Makes the parser of the command line."""
    made = cli.Parser("python -m scalelab.eval.ngram", __doc__)
    made.add_argument("--run", required=True, type=pathlib.Path, help="run folder of a model")
    made.add_argument("--corpus", required=True, help="as of a training: wikitext:DIR, text:GLOB")
    made.add_argument("--split", default="valid", help="train, valid or test; default: valid")
    made.add_argument("--workdir", type=pathlib.Path, help="folder to make, for all numbers")
    for name, default, text in (
        ("order", 3, "tokens of the longest n-grams; default: 3"),
        ("max_docs", None, "score only the first N documents"),
        ("show", 3, "documents in the table: the N worst and the N best; default: 3"),
    ):
        made.add_argument(f"--{name}", type=cli.positive, metavar="N", default=default, help=text)
    return made


def main(given: argparse.Namespace) -> None:
    """Counts and scores.

    Raises:
      ValueError: run, corpus or arguments do not allow it.
    """
    workdir = given.workdir
    if workdir and workdir.exists() and (not workdir.is_dir() or any(workdir.iterdir())):
        raise ValueError(f"--workdir={workdir} is in use: choose another, or delete it")
    from scalelab.eval import lm
    from scalelab.training import pretrained

    opened, begun = pretrained.load(given.run, None), time.perf_counter()
    read = {"corpus": given.corpus, "split": given.split, "max_docs": given.max_docs}
    trained = {"corpus": opened.config.data.corpus, "split": "train", "max_docs": None}
    documents, counted = (
        lm.read(argparse.Namespace(**places, errors=None), opened) for places in (read, trained)
    )
    vocab_size = opened.config.tokenizer.vocab_size
    model = fit(counted.tokens, counted.starts, given.order, vocab_size)
    nats = model.nats(documents.tokens, documents.starts)
    nats[documents.starts[:-1][np.diff(documents.starts) > 0]] = np.nan
    if np.isnan(nats).all():
        raise ValueError("no document of the corpus has a token to predict")
    table = lm.score_documents(nats, documents)
    facts: dict[str, Any] = {
        "status": "completed", "task": "ngram", "measure": lm.MEASURES["next"],
        "run": str(opened.path), "order": given.order, "corpus": given.corpus,
        "split": given.split, "counted_tokens": len(counted.tokens),
        "discounts": [order.discount for order in model.orders],
        **lm.summarize(table, "next"), "notes": lm.notes(opened, documents),
        "seconds": time.perf_counter() - begun,
    }  # fmt: skip
    print(f"{given.order}-grams of {facts['counted_tokens']:,} tokens, on {given.corpus}")
    print(f"split {given.split}\n\n{lm.describe(facts, table, given.show)}")
    print("".join(f"* {note}\n" for note in facts["notes"]), end="")
    if workdir:
        write(workdir, facts, table)


def write(workdir: pathlib.Path, facts: dict[str, Any], table: "pd.DataFrame") -> None:
    """Writes documents.tsv, result.json and environment.json to a new folder."""
    from scalelab.helpers.files import write_json
    from scalelab.records import run_folder

    workdir.mkdir(parents=True, exist_ok=True)
    columns = ["tokens", "predicted", "bytes", "nll", "bits_per_byte"]
    table.to_csv(workdir / "documents.tsv", sep="\t", columns=columns, float_format="%.6f")
    write_json(workdir / "environment.json", run_folder.describe_environment())
    write_json(workdir / "result.json", facts)
    print(f"wrote {workdir}/documents.tsv and result.json")


if __name__ == "__main__":
    cli.run(main, parser())
