"""LAMBADA: prediction of the last word of a passage (Paperno et al. 2016).

  python -m scalelab.eval.lambada --run=RUN --data=DIR --workdir=DIR

DIR holds lambada_test.jsonl, the cased variant (`{"text": ...}` on each line). --data may also name
a file: another .jsonl, or plain text with one passage per line. Accuracies on different variants
are not comparable. The word is the text after the last space.

The pieces of the word are predicted from left to right, each given the correct pieces before it. A
word is right if each piece is the single most probable token. A causal model sees the passage up to
the piece. A masked model sees masks for the piece and the rest of the word, so it knows the number
of pieces. It also sees a full stop after them, because without it models predict a full stop. The
perplexity is exp(mean of -log p(word)). A passage longer than the model's training inputs loses its
first tokens.

Intervals are 95%: Wilson's for accuracy, a percentile bootstrap over passages for perplexity.
scalelab/eval/evaluation.py lists the files of --workdir.
"""

import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from scalelab.eval import items
from scalelab.eval.evaluation import Asked, Measured
from scalelab.lab.compare import estimates
from scalelab.tasks import data_files

if TYPE_CHECKING:
    from scalelab.training.pretrained import Pretrained

FILE = "lambada_test.jsonl"
NUM_RESAMPLES = 2000


class Passage(NamedTuple):
    """A passage; the model predicts its last word."""

    source: str  # the file name without suffix
    text: str
    begin: int  # index of the space before the word


def read(path: pathlib.Path) -> list[Passage]:
    """Reads the passages of a folder or file.

    Raises:
      ValueError: there is no passage, or one has a single word.
    """
    path = path / FILE if path.is_dir() else path
    if path.suffix == ".jsonl":
        texts = [row["text"] for _, row in data_files.read_objects(path, ("text",))]
    else:
        texts = [line for line in data_files.read_lines(path) if line.strip()]
    made = [Passage(path.stem, text, text.rfind(" ")) for text in map(str.strip, texts)]
    short = [own.text for own in made if own.begin < 0]
    if short or not made:
        raise ValueError(f"{path}: expected passages of two words or more, found {short[:1]}")
    return made


class Guesses(NamedTuple):
    """The predictions of the last words: [n] each."""

    right: np.ndarray
    nats: np.ndarray  # minus the log-probability of the word; NaN if unknown or too long
    pieces: np.ndarray  # number of pieces of the word
    is_cut: np.ndarray  # whether the passage was too long


def guess(opened: "Pretrained", passages: Sequence[Passage], asked: Asked) -> Guesses:
    """Predicts the last word of every passage.

    Raises:
      ValueError: the model predicts no tokens, or most words are unknown to the tokenizer.
    """
    from scalelab.eval import lm, sentence_scores, token_scores

    reading, rule = lm.make_reading(opened, None, None), choose_rule(opened)
    after = "." * (rule == "pll_word")
    encoded = sentence_scores.encode(
        opened.tokenizer, [own.text + after for own in passages],
        [((own.begin, len(own.text)),) for own in passages],
    )  # fmt: skip
    is_unknown = encoded.tokens == opened.tokenizer.special_ids.get("unk", -1)
    pieces = encoded.add_up(np.ones(len(encoded.tokens))).astype(int)
    known = (pieces > 0) & (pieces < np.minimum(encoded.lengths, reading.context))
    known &= encoded.add_up(is_unknown) == 0
    items.check_known(opened.path, ~known, [own.text[own.begin :] for own in passages])
    found = sentence_scores.score(
        opened, encoded, rule, asked, reading=reading, judge=token_scores.guesses, wanted=known,
        words=encoded.inside,
    )  # fmt: skip
    nats = np.where(known, encoded.add_up(found[:, 0]), np.nan)
    right = known & (encoded.add_up(found[:, 2]) == 0)
    return Guesses(right, nats, pieces, encoded.lengths > reading.context)


def choose_rule(opened: "Pretrained") -> str:
    """Returns the rule that predicts a word from the text to its left."""
    return "log_likelihood" if opened.predicts == "next" else "pll_word"


def tabulate(made: Guesses, source: str) -> pd.DataFrame:
    """Makes the table with rows for all passages, words of one piece, words of several pieces."""
    groups = {source: made.pieces >= 0, "1 piece": made.pieces == 1, "more": made.pieces > 1}
    rows = []
    for name, own in groups.items():
        nats = made.nats[own & ~np.isnan(made.nats)]
        if not nats.size:
            continue
        share, num = made.right[own].mean(), int(own.sum())
        with np.errstate(over="ignore"):  # infinite above 1.8e308
            perplexities = np.exp([nats.mean(), *bootstrap_mean(nats)])
        rows.append([name, num, share, *estimates.wilson([(share, num)]), *perplexities])
    columns = ["group", "passages", "accuracy", "low", "high"]
    columns += ["perplexity", "perplexity_low", "perplexity_high"]
    return pd.DataFrame(rows, columns=columns)


def bootstrap_mean(numbers: np.ndarray) -> tuple[float, float]:
    """Returns the 95% percentile-bootstrap interval of the mean of numbers [n].

    Efron and Tibshirani 1993, 13.3. It is (NaN, NaN) if all numbers are equal.
    """
    if np.ptp(numbers) == 0:
        return np.nan, np.nan
    rng = np.random.default_rng(0)
    means = [rng.choice(numbers, len(numbers)).mean() for _ in range(NUM_RESAMPLES)]
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)


def measure(opened: "Pretrained", passages: Sequence[Passage], asked: Asked) -> Measured:
    """Measures a model on the passages."""
    from scalelab.lab import tables

    made = guess(opened, passages, asked)
    table = tabulate(made, passages[0].source)
    counts = [
        ("passages are longer than the model reads: their first tokens are left out", made.is_cut),
        ("words are unknown or too long: counted as wrong, left out of the perplexity",
         np.isnan(made.nats)),
    ]  # fmt: skip
    num = len(passages)
    notes = [f"{own.sum():,} of {num:,} {text}" for text, own in counts if own.any()]
    if opened.config.tokenizer.lowercase:
        notes.append("the tokenizer lowers case: the case of words is not tested")
    rows = [
        [row.group, f"{row.passages:,}", f"{100 * row.accuracy:.2f}",
         f"[{100 * row.low:.2f}, {100 * row.high:.2f}]", f"{row.perplexity:,.1f}",
         estimates.show_interval(row.perplexity_low, row.perplexity_high, ",.1f")]
        for row in table.itertuples()
    ]  # fmt: skip
    header = ["group", "passages", "accuracy", "95% interval", "perplexity", "95% interval"]
    rule = choose_rule(opened)
    return Measured(
        texts=[[own.text for own in passages]],
        recipe=rule,
        table=table,
        printed=f"rule {rule}\n{tables.plain(header, rows)}",
        notes=tuple(notes),
        **items.hits(made.right, ("miss", "hit")),
    )


if __name__ == "__main__":
    from scalelab.eval import suites

    suites.run("lambada")
