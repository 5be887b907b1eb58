"""Counts n-grams in the text of a run, and measures how well they predict documents.

  python -m scalelab.eval.ngram --run=RUN --corpus=wikitext:DIR [--order=3] [--split=valid]
      [--workdir=DIR]

RUN is a run folder. Its tokenizer cuts the text, and its training documents are counted: so the
table is that of a model without parameters beside the model of RUN (`python -m scalelab.eval.lm`),
on the same tokens of the same documents. The first token of a document is not scored.

The smoothing is interpolated Kneser-Ney (`scalelab/systems/ngram/counts.py`). `system=ngram`
leaves a run of the same table.

Under --workdir: documents.tsv (a line for each document), result.json, environment.json.
"""

import argparse
import time
from typing import Any

import numpy as np

from scalelab.config import cli
from scalelab.eval import lm

ORDER = ("order", 3, "tokens of the longest n-grams; default: 3")


def parser() -> cli.Parser:
    """Makes the parser of the command line."""
    made = cli.Parser("python -m scalelab.eval.ngram", __doc__)
    lm.add_flags(made, [ORDER, *(own for own in lm.NUMBERS if own[0] in ("max_docs", "show"))])
    return made


def main(given: argparse.Namespace) -> None:
    """Counts and scores.

    Raises:
      ValueError: run, corpus or arguments do not allow it.
    """
    lm.check_workdir(given.workdir)
    from scalelab.systems.ngram import counts
    from scalelab.training import pretrained

    opened, begun = pretrained.load(given.run, None), time.perf_counter()
    read = {"corpus": given.corpus, "split": given.split, "max_docs": given.max_docs}
    trained = {"corpus": opened.config.data.corpus, "split": "train", "max_docs": None}
    documents, counted = (
        lm.read(argparse.Namespace(**places, errors=None), opened) for places in (read, trained)
    )
    vocab_size = opened.config.tokenizer.vocab_size
    model = counts.fit(counted.tokens, counted.starts, given.order, vocab_size)
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
    if given.workdir:
        lm.write(given.workdir, facts, table)


if __name__ == "__main__":
    cli.run(main, parser())
