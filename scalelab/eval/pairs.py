"""Minimal pairs: does a model give the better sentence the higher score?

  python -m scalelab.eval.pairs --run=RUN --data=FILE.jsonl --workdir=DIR

A line of the file is an object with the sentences `good` and `bad`, and optionally `group`, a row
of the table. scalelab/eval/sentence_scores.py has the rules that score a sentence. An item is right
if the right text has the highest score. If scores are equal, the text that comes first wins; the
right text comes first equally often as the others, so that ties score as guessing does.

The row `mean` weights the finest groups equally. The row `all items` is the share of right items,
the score in result.json and in studies. `by mean` is the accuracy by mean scores of tokens,
`chance` the accuracy of guessing. Intervals are 95%.

scalelab/eval/evaluation.py lists the files of --workdir.
"""

import collections
import itertools
import pathlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from scalelab.eval import items as items_lib
from scalelab.eval.evaluation import Asked, Measured
from scalelab.eval.items import Item

if TYPE_CHECKING:
    from scalelab.eval.sentence_scores import Encoded
    from scalelab.training.pretrained import Pretrained
    from scalelab.training.pretraining import Pretraining

# Reads --data: the accuracies of other models [groups, models], by group; empty if it has none.
Published = Callable[[pathlib.Path], pd.DataFrame]


def watch(training: "Pretraining") -> None:
    """Makes a training evaluate the pairs of config.eval.pairs: a user's own, or BLiMP's folder.

    Raises:
      ValueError: several processes, no such pairs, or the model cannot score them.
    """
    import jax

    from scalelab.eval import sentence_scores, suites
    from scalelab.helpers.progress import timed
    from scalelab.training import pretrained

    if jax.process_count() > 1:
        raise ValueError("config.eval.pairs needs one process")
    config, asked = training.config, training.config.eval

    def open_net() -> "Pretrained":
        state = training.state
        return pretrained.Pretrained(
            training.workdir, config, training.model.system, training.data.tokenizer, state.params,
            int(state.step), finished=False, frozen=training.nets,
        )  # fmt: skip

    opened = open_net()
    opened.check_alone(source=True)
    path, rule = pathlib.Path(asked.pairs or ""), sentence_scores.choose_rule(opened, None)
    try:
        items = suites.read_pairs(path)
    except ValueError as error:
        try:
            items = suites.read_blimp(path)
        except ValueError:
            raise ValueError(f"config.eval.pairs: {error}") from None
    fitting(opened, items, encode(opened, items), rule)
    request = Asked(None, path, {"rule": rule, "per_group": asked.pairs_per_group or 0})
    marks = {"eval/pairs_untrained": 1.0} if opened.reading_notes else {}
    notes, every = opened.reading_notes, asked.pairs_every_words or 0
    del opened  # frees memory

    def judge() -> str:
        with timed(training.timers, "eval_secs"):
            accuracy = measure(open_net(), items, request).scores["accuracy"]
        words = training.reached.words[-1] * every
        training.write_line({"eval/pairs_accuracy": accuracy, "eval/words": words} | marks)
        text = f"step {training.step}, {words:,} words: {100 * accuracy:.1f}% of the pairs"
        return "; ".join(
            [text + ", kept for `hf export --step`" * training.reached.is_kept, *notes]
        )

    training.judge = judge


def encode(opened: "Pretrained", items: Sequence[Item]) -> "Encoded":
    """Encodes the texts of all items, one item after the other, with their spans."""
    from scalelab.eval import sentence_scores

    texts = [text for item in items for text in item.texts]
    spans = [span for item in items for span in item.spans or [None] * len(item.texts)]
    return sentence_scores.encode(opened.tokenizer, texts, spans)


def lengths(opened: "Pretrained", items: Sequence[Item], encoded: "Encoded") -> np.ndarray:
    """Returns for each item the minimum and the maximum number of tokens of its texts: [n, 2].

    Raises:
      ValueError: in most items the right text equals another text, or has the same tokens.
    """
    rows = iter([encoded.tokens[a:b].tobytes() for a, b in itertools.pairwise(encoded.starts)])
    found = [[next(rows) for _ in item.texts] for item in items]
    # The texts of a formula may be equal: it compares regions.
    same = np.array([item.formula is None and own.count(own[item.right]) > 1
                     for item, own in zip(items, found, strict=True)], bool)  # fmt: skip
    rights = [item.texts[item.right] for item in items]
    twice = np.array([item.formula is None and item.texts.count(right) > 1
                      for item, right in zip(items, rights, strict=True)], bool)  # fmt: skip
    if 2 * twice.sum() > len(items):
        raise ValueError(
            f"{twice.sum():,} of the {len(items):,} items have equal texts, such as"
            f" {rights[int(twice.argmax())][-60:]!r}, so no model can prefer one of them: check the"
            " file"
        )
    # Equal texts are ties, whatever the tokenizer knows.
    apart = [right for right, equal in zip(rights, twice, strict=True) if not equal]
    items_lib.check_known(opened.path, same[~twice], apart)
    sizes = [sorted(map(len, own)) for own in found]
    return np.array([(own[0], own[-1]) for own in sizes]) // encoded.tokens.itemsize


def fitting(
    opened: "Pretrained", items: Sequence[Item], encoded: "Encoded", rule: str
) -> np.ndarray:
    """Returns True for items with texts that fit a row of the model and have a score: [n] bool.

    Args:
      opened: the model.
      items: n items.
      encoded: their tokens, from `encode`.
      rule: name of the rule that scores texts.

    Raises:
      ValueError: no item fits, or as in `lengths`.
    """
    from scalelab.eval import sentence_scores

    reading = sentence_scores.make_reading(opened, rule)
    least = 2 if reading.looks_back and not reading.begin else 1
    fewest, most = lengths(opened, items, encoded).T
    fits = (least <= fewest) & (most <= reading.context)
    if not fits.any():
        raise ValueError(
            f"{opened.path} can score no item: texts must have {least} to {reading.context} tokens"
        )
    return fits


def score(
    opened: "Pretrained",
    items: Sequence[Item],
    rule: str,
    asked: Asked,
    *,
    encoded: "Encoded | None" = None,
    fits: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Scores every alternative of every item.

    Args:
      opened: the run.
      items: the questions.
      rule: one of `sentence_scores.rules(opened)`.
      asked: the request.
      encoded: their texts, from `encode`.
      fits: [n] bool, the items to score; None: all.

    Returns:
      Log-probabilities [n, C] in nats, and numbers of scored tokens [n, C]; C is the largest number
      of alternatives. Missing alternatives have -inf, items that are not scored NaN.
    """
    from scalelab.eval import sentence_scores

    encoded = encoded or encode(opened, items)
    sizes = np.array([len(item.texts) for item in items])
    wanted = None if fits is None else np.repeat(fits, sizes)
    nats = sentence_scores.score(opened, encoded, rule, asked, wanted=wanted)
    sums, counts = np.zeros((2, len(items), sizes.max()))
    there = np.arange(sizes.max()) < sizes[:, None]
    sums[:] = -np.inf
    sums[there], counts[there] = -encoded.add_up(nats), encoded.add_up(~np.isnan(nats) + 0.0)
    if fits is not None:
        sums[~fits], counts[~fits] = np.nan, np.nan
    return sums, counts


# --- The evaluation ----------------

OPTIONS = {
    "rule": (None, "how a sentence is scored; default: by what the model predicts"),
    "per_group": (0, "score only the first N items of each finest group; 0, the default: all"),
}


def measure(
    opened: "Pretrained", items: Sequence[Item], asked: Asked, *, by_mean: bool = False,
    published: Published | None = None,
) -> Measured:  # fmt: skip
    """Measures a model on items.

    Args:
      opened: the run.
      items: the questions.
      asked: the request, with the options of OPTIONS.
      by_mean: True scores a text by the mean over its tokens, False by the sum.
      published: reads the scores of other models, which the table adds as columns.

    Raises:
      ValueError: the rule does not suit the model, or it can score no item.
    """
    from scalelab.eval import sentence_scores

    rule = sentence_scores.choose_rule(opened, asked.options["rule"])
    published_table = None if published is None else published(asked.data)
    if most := asked.options["per_group"]:
        nth = collections.defaultdict(itertools.count)
        items = [item for item in items if next(nth[item.groups[0]]) < most]
    # Items that do not fit this model are kept, so that models can be compared item by item.
    encoded = encode(opened, items)
    fits = fitting(opened, items, encoded, rule)
    sums, counts = score(opened, items, rule, asked, encoded=encoded, fits=fits)
    notes = (items_lib.TIED.format((~fits).sum(), len(fits)),) * (not fits.all())
    if by_mean:
        sums, counts = sums / np.maximum(counts, 1), np.ones_like(counts)
    answers = items_lib.judge(items, sums, counts)
    table = items_lib.table(items, answers.right, answers.by_mean)
    if published_table is not None:
        table = table.join(published_table, on="group")
    width = answers.outputs.shape[1]
    texts = [items_lib.turn(item.texts, k) for k, item in enumerate(items)]
    columns = zip(*(own + [""] * (width - len(own)) for own in texts), strict=True)
    return Measured(
        texts=[list(column) for column in columns],
        gold=answers.gold,
        outputs=answers.outputs,
        labels=[str(k + 1) for k in range(width)],
        recipe=rule,
        scores={"accuracy": float(answers.right.mean())},
        table=table,
        printed=f"rule {rule}\n{items_lib.describe(table)}",
        notes=notes,
    )


if __name__ == "__main__":
    from scalelab.eval import suites

    suites.run("pairs")
