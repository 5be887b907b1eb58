"""Minimal pairs: does a net give the better sentence the higher score?

  python -m scalelab.eval.pairs --run=RUN --data=FILE.jsonl --workdir=DIR

A line of the file is an object with `good` and `bad`, two sentences, and perhaps `group`, by which
the table has rows. scalelab/eval/sentence_scores.py has the rules that score a sentence. An item is
right where the right text has the highest score. Of equal scores the text that stands first wins;
the right one takes every place in turn, so that ties give what guessing gives.

The row `mean` weights the finest groups alike. The row `all items` is the share of right items, the
score in result.json and in studies. `by mean` is the accuracy by mean scores of tokens, `chance`
the accuracy of guessing. Intervals hold 95%.

scalelab/eval/yardstick.py lists the files of --workdir.
"""

import collections
import dataclasses
import functools
import itertools
import pathlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from scalelab.eval.yardstick import Asked, Measured, Yardstick, program
from scalelab.helpers import files
from scalelab.helpers.progress import show_bar

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from flax.typing import ArrayPytree

    from scalelab.eval.items import Item
    from scalelab.runs.pretrained import Pretrained
    from scalelab.runs.run import Pretraining

AT_ONCE = 8192  # texts between two saves
Reader = Callable[[pathlib.Path], "list[Item]"]
# Reads --data: the accuracies of other models [groups, models], by group; empty if it has none.
Published = Callable[[pathlib.Path], "pd.DataFrame"]


def read(path: pathlib.Path) -> "list[Item]":
    """Reads a user's own pairs: a file, or all files *.jsonl of a folder."""
    from scalelab.eval.items import Item

    if path.is_dir() and not any(path.glob("*.jsonl")):
        raise ValueError(f"{path} holds no *.jsonl")
    found = []
    for own in sorted(path.glob("*.jsonl")) if path.is_dir() else [path]:
        for number, line in files.numbered_lines(own, ("good", "bad")):
            texts = line["good"], line["bad"]
            if not all(isinstance(text, str) and text.strip() for text in texts):
                raise ValueError(f"{own}, line {number}: expected two texts, found {texts}")
            found.append(Item((str(line.get("group", own.stem)),), texts, 0))
    return found


def watch(training: "Pretraining") -> None:
    """Has a training evaluate the pairs of config.eval.pairs: a user's own, or BLiMP's folder.

    Raises:
      ValueError: several processes, no such pairs, or the net cannot score them.
    """
    import jax

    from scalelab.eval import blimp, sentence_scores

    if jax.process_count() > 1:
        raise ValueError("config.eval.pairs needs one process")
    asked, opened = training.config.eval, training.open_net()
    opened.check_alone(source=True)
    path, rule = pathlib.Path(asked.pairs or ""), sentence_scores.choose_rule(opened, None)
    try:
        items = read(path)
    except ValueError as error:
        try:
            items = blimp.read(path)
        except ValueError:
            raise ValueError(f"config.eval.pairs: {error}") from None
    fitting(opened, items, rule)
    request = Asked(None, path, {"rule": rule, "per_group": asked.pairs_per_group or 0})
    opened = dataclasses.replace(opened, params=None)  # frees memory

    def judge(params: "ArrayPytree") -> float:
        own = dataclasses.replace(opened, params=params)
        return measure(own, items, request).scores["accuracy"]

    training.judge = judge


def score(
    opened: "Pretrained",
    items: "Sequence[Item]",
    rule: str,
    *,
    batch_tokens: int | None = None,
    tensor_parallel: int = 1,
    partial: pathlib.Path | None = None,
) -> "tuple[np.ndarray, np.ndarray]":
    """Scores every alternative of every item.

    Args:
      opened: the run.
      items: what is asked.
      rule: one of `sentence_scores.rules(opened)`.
      batch_tokens: tokens in a batch, padding included; None: what suits the device.
      tensor_parallel: devices that share the net.
      partial: file that keeps what is done; it goes on from there.

    Returns:
      Log-probabilities [n, C], and the numbers of tokens that they are of; C is the largest number
      of alternatives, and what an item has less scores -inf.
    """
    import numpy as np

    from scalelab.eval import likelihood, placement, sentence_scores

    width = max(len(item.texts) for item in items)
    found = np.zeros((2, len(items), width))
    found[0] = -np.inf
    done = 0
    if saved := likelihood.load_partial(partial):
        done = int(saved["done"])
        found[:, :done] = saved["found"]
    placed = placement.place(opened, tensor_parallel)
    score_texts = sentence_scores.scorer(opened, placed, rule, batch_tokens)
    with show_bar("items", len(items), show=True) as tick:
        tick(done)
        at_once = max(1, AT_ONCE // width)
        for start in range(done, len(items), at_once):
            part = items[start : start + at_once]
            spans = [span for item in part for span in item.spans or [None] * len(item.texts)]
            made = score_texts([text for item in part for text in item.texts], spans)
            added, at = made.add_up(spans), 0
            for place, item in enumerate(part, start):
                num = len(item.texts)
                for row, values in zip(found, added, strict=True):
                    row[place, :num] = values[at : at + num]
                at += num
            done = start + len(part)
            likelihood.save_partial(partial, done=done, found=found[:, :done])
            tick(len(part))
    return found[0], found[1]


# --- The yardstick ----------------

OPTIONS = {
    "rule": (None, "how a sentence is scored; default: by what the net predicts"),
    "per_group": (0, "score only the first N items of each finest group; default: all"),
}


def yardstick(
    name: str, reader: Reader, data: str, *, folder: str | None = None, by_mean: bool = False,
    published: Published | None = None,
) -> Yardstick:  # fmt: skip
    """Makes a yardstick of minimal pairs.

    Args:
      name: of the yardstick, as in result.json.
      reader: reads the items from --data.
      data: the help of --data.
      folder: of its data, below a study's `yardstick_data`; None: its name.
      by_mean: whether scores are means over tokens, and not sums.
      published: reads the scores of other models, which the table shows beside the net's.
    """
    measured = functools.partial(measure, by_mean=by_mean, published=published)
    return Yardstick(name, reader, measured, data, folder or name, OPTIONS, source=True)


def measure(
    opened: "Pretrained", items: "Sequence[Item]", asked: Asked, *, by_mean: bool = False,
    published: Published | None = None,
) -> Measured:  # fmt: skip
    """Measures a net on items.

    Raises:
      ValueError: the rule does not suit the net, or it can score no item.
    """
    import numpy as np

    from scalelab.eval import items as items_lib
    from scalelab.eval import sentence_scores

    rule = sentence_scores.choose_rule(opened, asked.options["rule"])
    if most := asked.options["per_group"]:
        nth = collections.defaultdict(itertools.count)
        items = [item for item in items if next(nth[item.groups[0]]) < most]
    # An item that this net cannot hold stays, so that nets compare item by item.
    fits = fitting(opened, items, rule)
    sums, counts = score_fitting(opened, items, fits, rule, asked)
    notes = (items_lib.TIED.format(fits.count(False), len(fits)),) * (not all(fits))
    if by_mean:
        sums, counts = sums / np.maximum(counts, 1), np.ones_like(counts)
    answers = items_lib.judge(items, sums, counts)
    table = items_lib.table(items, answers.right, answers.by_mean)
    if published is not None:
        table = table.join(published(asked.data), on="group")
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


def score_fitting(
    opened: "Pretrained", items: "Sequence[Item]", fits: Sequence[bool], rule: str, asked: Asked
) -> "tuple[np.ndarray, np.ndarray]":
    """Scores the items that fit, as `score`; the rows of the others are NaN."""
    import numpy as np

    made = score(
        opened, list(itertools.compress(items, fits)), rule, batch_tokens=asked.batch_tokens,
        tensor_parallel=asked.tensor_parallel, partial=asked.partial,
    )  # fmt: skip
    sums, counts = np.full((2, len(items), max(len(item.texts) for item in items)), np.nan)
    for whole, part in zip((sums, counts), made, strict=True):
        whole[fits, : part.shape[1]] = part
    return sums, counts


def count_tokens(opened: "Pretrained", items: "Sequence[Item]") -> list[list[int]]:
    """Returns for each item the numbers of tokens of its texts.

    Raises:
      ValueError: in most items the right text has the tokens of another text.
    """
    import numpy as np

    from scalelab.eval import items as items_lib

    tokens, starts = opened.tokenizer.encode_flat([text for item in items for text in item.texts])
    rows = iter([tokens[a:b].tobytes() for a, b in itertools.pairwise(starts)])
    found = [[next(rows) for _ in item.texts] for item in items]
    # The texts of a formula may be equal: it compares regions.
    same = [item.formula is None and own.count(own[item.right]) > 1
            for item, own in zip(items, found, strict=True)]  # fmt: skip
    rights = [item.texts[item.right] for item in items]
    items_lib.check_known(opened.path, np.array(same, bool), rights)
    return [[len(row) // tokens.itemsize for row in own] for own in found]


def fitting(opened: "Pretrained", items: "Sequence[Item]", rule: str) -> list[bool]:
    """Returns for each item whether a row of the net holds and scores its texts.

    Raises:
      ValueError: none does, or as in `count_tokens`.
    """
    from scalelab.eval import sentence_scores

    reading = sentence_scores.make_reading(opened, rule)
    least = 2 if reading.looks_back and not reading.begin else 1
    lengths = count_tokens(opened, items)
    fits = [least <= min(own) and max(own) <= reading.context for own in lengths]
    if not any(fits):
        raise ValueError(
            f"{opened.path} can score no item: texts must have {least} to {reading.context} tokens"
        )
    return fits


YARDSTICK = yardstick("pairs", read, "file of pairs, one JSON object a line; or a folder of files")
main = program(YARDSTICK, __doc__)

if __name__ == "__main__":
    main()
