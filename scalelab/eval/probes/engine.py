"""The classifier probes pos, dep and spans: their options, data and tables.

A probe reads the frozen states of an example's words at one layer, each feature standardised on
train. It is a multinomial logistic regression, or has one hidden layer (--probe=mlp). Probes are
fitted on train. The layer is chosen on dev. All other scores are of test. predictions.tsv has the
test examples at the chosen layer.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from scalelab.eval.probes import treebank
from scalelab.eval.probes.treebank import Sentence
from scalelab.eval.yardstick import Asked, Measured, Yardstick

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from scalelab.eval.probes.layers import Examples
    from scalelab.runs.pretrained import Pretrained

PROBES = {"linear": None, "mlp": 64}  # name -> width of the hidden layer
OPTIONS = {
    "probe": ("linear", "the classifier: linear or mlp; default: linear"),
    "pooling": ("mean", "a word's vector: mean, first or last of its pieces; default: mean"),
    "max_words": (20_000, "approximate number of words of train, evenly spread; default: 20000"),
}
DATA = "folder of a UD treebank: one *-ud-SPLIT.conllu[.xz] for each of train, dev and test"
Labelled = tuple[tuple[int, ...], str]  # word places in the sentence, from 0; label


@dataclasses.dataclass(frozen=True)
class Probing:
    """The task of a probe."""

    # Finds the examples of a sentence. The last place of an example gives its word type.
    find: Callable[[Sentence], Sequence[Labelled]]
    # Joins the vectors [n, L + 1, D] of an example's places to features [n, L + 1, F].
    join: "Callable[[Sequence[np.ndarray]], np.ndarray]"
    # A further column: its name, and (test features [n, F], labels [n]) -> value at a layer.
    column: "tuple[str, Callable[[np.ndarray, Sequence[str]], float]] | None" = None


def yardstick(name: str, probing: Probing) -> Yardstick:
    """Makes a yardstick of probes."""
    measured = functools.partial(measure, probing)
    return Yardstick(name, read, measured, DATA, "ud-english-ewt", OPTIONS, scratch=True)


def read(folder: pathlib.Path) -> list[list[Sentence]]:
    """Reads the sentences of train, dev and test."""
    return [treebank.read(folder, split) for split in treebank.SPLITS]


def measure(
    probing: Probing, opened: "Pretrained", items: Sequence[Sequence[Sentence]], asked: Asked
) -> Measured:
    """Trains probes on every layer of a net.

    Raises:
      ValueError: an unknown option, or a split without examples.
    """
    from scalelab.eval import placement
    from scalelab.eval.probes import layers, states

    kind, pooling, most = (asked.options[name] for name in OPTIONS)
    if kind not in PROBES or most < 1:
        raise ValueError(
            f"--probe={kind} --max_words={most}: expected linear or mlp, and 1 or more words"
        )
    items = [thin(items[0], most), *items[1:]]
    placed, splits, left_out = placement.place(opened, asked.tensor_parallel), [], 0
    for name, part in zip(treebank.SPLITS, items, strict=True):
        vectors, kept = states.read(opened, placed, part, pooling, batch_tokens=asked.batch_tokens)
        splits.append(_examples(probing, part, kept, vectors))
        left_out += len(part) - len(kept)
        if not splits[-1].labels:
            raise ValueError(f"--data: {name} has no example to label")
    made = layers.probe(splits, PROBES[kind], asked.partial)
    num = len(splits[2].features)
    if probing.column is not None:
        column, compute = probing.column
        values = [compute(own, splits[2].labels) for own in splits[2].features]
        made.table.loc[: num - 1, column] = values
    centre, expected = layers.profile(*made.table[["mixed", "weight"]].to_numpy()[:num].T)
    words = num_words(items[0])
    lines = [
        f"{kind} probes, {pooling} of a word's pieces, {words:,} words of train",
        describe(made.table, made.layer)
        + f"centre of gravity {centre:.2f}, expected layer {expected:.2f}",
    ]
    return Measured(
        texts=[splits[2].texts, splits[2].addresses],
        gold=made.gold,
        outputs=made.outputs,
        labels=made.labels,
        recipe=f"{kind}, {pooling}",
        scores={"accuracy": float((made.outputs.argmax(axis=1) == made.gold).mean())},
        table=made.table,
        printed="".join(f"{line}\n" for line in lines),
        notes=states.describe_left_out(opened, left_out, sum(map(len, items))),
    )


def thin(sentences: Sequence[Sentence], most: int) -> Sequence[Sentence]:
    """Returns evenly spaced sentences of about `most` words: treebanks are sorted by genre."""
    step = max(1.0, num_words(sentences) / most)
    return [sentences[int(k * step)] for k in range(max(1, int(len(sentences) / step)))]


def num_words(sentences: Sequence[Sentence]) -> int:
    """Counts the words of sentences."""
    return sum(len(sentence.words) for sentence in sentences)


def _examples(
    probing: Probing, sentences: Sequence[Sentence], kept: "np.ndarray", vectors: "np.ndarray"
) -> "Examples":
    """Makes the examples of a split from the states [num_words, L + 1, D] of the kept sentences."""
    import numpy as np

    from scalelab.eval.probes.layers import Examples

    places, columns, start = [], [], 0
    for k in kept.tolist():
        words = sentences[k].words
        for own, label in probing.find(sentences[k]):
            places.append([start + place for place in own])
            address = f"{k + 1}:{','.join(str(place + 1) for place in own)}"
            text = " ".join(words[place] for place in own)
            columns.append((label, words[own[-1]], text, address))
        start += len(words)
    if not places:
        return Examples(vectors, [], [], [], [])
    features = probing.join([vectors[column] for column in np.array(places).T])
    lists = map(list, zip(*columns, strict=True))
    return Examples(np.ascontiguousarray(features.swapaxes(0, 1)), *lists)


def describe(table: "pd.DataFrame", best: int) -> str:
    """Formats the table; shares are in percent, and a star marks the chosen layer."""
    from scalelab.lab import tables

    rows = []
    for k, row in enumerate(table.to_dict("records")):
        cells = [f"{row.pop('layer')}{' *' * (k == best)}", f"{row.pop('items'):,}"]
        shares = row.pop("low"), row.pop("high")
        for name, value in row.items():
            percent = name not in ("weight", "nmi")
            text = f"{100 * value:.1f}" if percent else f"{value:.3f}"
            cells.append("" if value != value else text)
            if name == "accuracy":
                cells.append("[{:.1f}, {:.1f}]".format(*(100 * share for share in shares)))
        rows.append(cells)
    header = [name for name in table.columns if name not in ("low", "high")]
    header.insert(header.index("accuracy") + 1, "95% interval")
    return tables.plain(header, rows)
