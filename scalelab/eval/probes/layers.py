"""Classifier probes of every layer, their control task, and mixtures of layers."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from scalelab.eval import likelihood
from scalelab.eval.evaluation import Asked, Measured
from scalelab.eval.probes import engine, states
from scalelab.eval.probes.classifier import Classifier, standardize
from scalelab.eval.probes.engine import Probing
from scalelab.helpers.progress import show_bar
from scalelab.lab import tables
from scalelab.lab.compare import estimates
from scalelab.tasks import treebank
from scalelab.tasks.treebank import Sentence
from scalelab.training.pretrained import Pretrained

HIDDEN = {"linear": None, "mlp": 64}  # --probe -> width of the hidden layer


class Examples(NamedTuple):
    """The examples of a split: [n]."""

    features: np.ndarray  # [L + 1, n, F] float32
    labels: list[str]
    types: list[str]  # word type of each example
    texts: list[str]
    addresses: list[str]  # sentence and word numbers, from 1


class Probed(NamedTuple):
    """The results of the probes of all layers."""

    table: pd.DataFrame  # one row per layer, then one per baseline
    layer: int  # the best on dev
    gold: np.ndarray  # [n] int32, test labels
    outputs: np.ndarray  # [n, C] float32, test scores at that layer
    labels: list[str]


def measure(
    probing: Probing, opened: Pretrained, items: Sequence[Sequence[Sentence]], asked: Asked
) -> Measured:
    """Trains probes on every layer of a model.

    Args:
      probing: the task of the probe.
      opened: the model.
      items: sentences of train, dev and test.
      asked: options and batch sizes.

    Raises:
      ValueError: an unknown option, or a split without examples.
    """
    kind, pooling, most = (asked.options[name] for name in engine.OPTIONS)
    if kind not in HIDDEN:
        raise ValueError(f"--probe={kind}: expected linear or mlp")
    items = [engine.thin(items[0], most), *items[1:]]
    read, notes = states.read_splits(opened, items, asked, pooling)
    splits = [list_examples(probing, split) for split in read]
    if empty := [name for name, own in zip(treebank.SPLITS, splits, strict=True) if not own.labels]:
        raise ValueError(f"--data: {empty[0]} has no example to label")
    made = probe(splits, HIDDEN[kind], asked.partial)
    test, num = splits[2], len(splits[2].features)
    if probing.column is not None:
        column, compute = probing.column
        values = [compute(own, test.labels) for own in test.features]
        made.table.loc[: num - 1, column] = values
    center, expected = profile(*made.table[["mixed", "weight"]].to_numpy()[:num].T)
    return Measured(
        texts=[test.texts, test.addresses],
        gold=made.gold,
        outputs=made.outputs,
        labels=made.labels,
        recipe=f"{kind}, {pooling}",
        scores={"accuracy": _share(made.outputs, made.gold)},
        table=made.table,
        printed=f"{kind} probes, {pooling} of a word's pieces, {engine.num_words(items[0]):,} words"
        f" of train\n{describe(made.table, made.layer)}"
        f"center of gravity {center:.2f}, expected layer {expected:.2f}\n",
        notes=notes,
    )


def list_examples(probing: Probing, split: states.Split) -> Examples:
    """Lists the examples of a split with their features."""
    places, columns = [], []
    for start, number, sentence in zip(split.starts, split.numbers, split.sentences, strict=False):
        for own, label in probing.find(sentence):
            words = [sentence.words[place] for place in own]
            address = f"{number + 1}:{','.join(str(place + 1) for place in own)}"
            places.append(start + np.array(own))
            columns.append((label, words[-1], " ".join(words), address))
    if not places:
        return Examples(split.vectors, [], [], [], [])
    features = probing.join([split.vectors[column] for column in np.array(places).T])
    lists = map(list, zip(*columns, strict=True))
    return Examples(np.ascontiguousarray(features.swapaxes(0, 1)), *lists)


def probe(
    splits: Sequence[Examples], hidden: int | None, partial: pathlib.Path | None = None
) -> Probed:
    """Trains probes on each layer, on the control task, and on mixtures of layers.

    Args:
      splits: train, dev and test.
      hidden: width of the probes' hidden layer; None: linear.
      partial: file for trained probes; the next call continues from them.
    """
    labels = sorted({label for split in splits for label in split.labels})
    index = {label: k for k, label in enumerate(labels)}
    gold = [np.array([index[label] for label in split.labels], np.int32) for split in splits]
    types = [split.types for split in splits]
    control = control_labels(types, gold[0])
    words = word_sets(types, gold[0])
    inputs = standardize([split.features for split in splits])
    num, rows, found, saved = len(inputs[0]), [], [], likelihood.load_partial(partial)
    shares = np.ones(1)
    with show_bar("probes", 3 * num - 1, show=True) as tick:

        def train(layers: slice, targets: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
            """Returns the scores on dev and test, and the layers' shares in the mixture."""
            given, name = inputs[0][layers], f"{layers.start}-{layers.stop}-{targets is gold[0]}"
            own = Classifier(len(given), given.shape[2], hidden, len(labels))
            if name not in saved:
                saved[name] = own.fit(given, targets)
                likelihood.save_partial(partial, **saved)
            tick(1)
            return [own.scores(saved[name], x[layers]) for x in inputs[1:]], own.shares(saved[name])

        for layer in range(num):
            own = slice(layer, layer + 1)
            mixed = scores = train(own, gold[0])[0]
            found.append(scores[1])
            if layer:
                mixed, shares = train(slice(layer + 1), gold[0])
            random = _share(train(own, control[0])[0][1], control[2])
            right = [own.argmax(axis=1) == k for own, k in zip(scores, gold[1:], strict=True)]
            row = _row(str(layer), right, words)
            rows.append(row | {
                "control": random, "selectivity": row["accuracy"] - random,
                "mixed": _share(mixed[1], gold[2]),
            })  # fmt: skip
    table = pd.DataFrame(rows).assign(weight=shares)
    best = int(table["dev"].argmax())
    more = [
        _row(name, [a == b for a, b in zip(guesses, gold[1:], strict=True)], words)
        for name, guesses in baselines(types, gold[0]).items()
    ]
    table = pd.concat([table, pd.DataFrame(more)], ignore_index=True)
    return Probed(table, best, gold[2], found[best], labels)


def _share(scores: np.ndarray, gold: np.ndarray) -> float:
    """Returns the share of examples in which the gold label has the highest score."""
    return float((scores.argmax(axis=1) == gold).mean())


def _row(name: str, right: Sequence[np.ndarray], words: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Returns the first columns of a table row.

    Args:
      name: the layer or the baseline.
      right: bool, whether each example is answered correctly: those of dev, those of test.
      words: sets of examples of test, each bool.
    """
    dev, test = (float(own.mean()) for own in right)
    low, high = estimates.wilson([(test, len(right[1]))])
    row = {"layer": name, "items": len(right[1]), "dev": dev, "accuracy": test}
    of_words = {own: right[1][chosen].mean() for own, chosen in words.items() if chosen.any()}
    return row | {"low": low, "high": high} | of_words


def word_sets(types: Sequence[Sequence[str]], gold: np.ndarray) -> dict[str, np.ndarray]:
    """Finds the test examples whose word type has one label in train, and those with several.

    A vector of the word alone can only answer one label for each type, so what context adds shows
    in the ambiguous ones.

    Args:
      types: the word type of each example, for each split.
      gold: [n] int32, labels of train.

    Returns:
      [m] bool for each set. Types that train does not have are in neither.
    """
    labels = pd.Series(gold).groupby(np.array(types[0], object)).nunique()
    counts = labels.reindex(types[2], fill_value=0).to_numpy()
    return {"one label": counts == 1, "ambiguous": counts > 1}


def control_labels(types: Sequence[Sequence[str]], gold: np.ndarray) -> list[np.ndarray]:
    """Draws one label for each word type, distributed as `gold` (Hewitt and Liang 2019, 2).

    Args:
      types: the word type of each example, for each split.
      gold: [n] int32, of train.

    Returns:
      The labels of each split.
    """
    known = sorted({name for split in types for name in split})
    drawn = dict(zip(known, np.random.default_rng(0).choice(gold, len(known)), strict=True))
    return [np.array([drawn[name] for name in split], np.int32) for split in types]


def baselines(types: Sequence[Sequence[str]], gold: np.ndarray) -> Mapping[str, list[np.ndarray]]:
    """Returns the answers of two baselines on all splits except the first.

    `majority` is the most frequent label of train. `by word` is the most frequent label of the
    example's word type.

    Args:
      types: for each split, the word type of each example.
      gold: [n] int, labels of train.
    """
    most = np.bincount(gold).argmax()
    counts = pd.crosstab(np.array(types[0], object), gold)
    of_type = counts.idxmax(axis=1).to_dict()
    return {
        "majority": [np.full(len(split), most) for split in types[1:]],
        "by word": [np.array([of_type.get(name, most) for name in split]) for split in types[1:]],
    }


def profile(mixed: np.ndarray, weights: np.ndarray) -> tuple[float, float]:
    """Returns the center of gravity and the expected layer (Tenney et al. 2019, 3.2 and 3.3).

    Args:
      mixed: [L + 1], score of the mixture of layers 0 to l, for each l.
      weights: [L + 1], the layers' shares in the mixture of all layers.

    Returns:
      The mean layer, weighted by `weights`; and the mean layer, weighted by the gain of each layer
      in `mixed`, NaN if the gains sum to 0 or less.
    """
    gains, layers = np.diff(mixed), np.arange(len(mixed))
    gained = gains.sum()
    return float(weights @ layers), float(gains @ layers[1:] / gained if gained > 0 else np.nan)


def describe(table: pd.DataFrame, best: int) -> str:
    """Formats the table; shares are in percent, and a star marks the chosen layer."""
    shown = {}
    for name in table.columns.drop(["low", "high"]):
        text = {"layer": "{}", "items": "{:,}", "weight": "{:.3f}", "nmi": "{:.3f}"}.get(name)
        values = table[name] if text else 100 * table[name]
        shown[name] = values.map((text or "{:.1f}").format, na_action="ignore").fillna("")
        if name == "accuracy":
            ends = (100 * table[["low", "high"]]).itertuples(index=False)
            shown["95% interval"] = ["[{:.1f}, {:.1f}]".format(*own) for own in ends]
    shown["layer"][best] += " *"
    return tables.plain(list(shown), list(zip(*shown.values(), strict=True)))
