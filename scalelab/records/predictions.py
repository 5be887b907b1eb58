r"""The predictions of a fine-tuning: predictions.tsv, and its packed form predictions.npz.

predictions.tsv has a header and one example a line, fields apart by tabs:

  index  text (or text1, text2)  gold  prediction  probability  p:<label> ...

`probability` is the probability of the predicted class; the columns p:<label> have all classes, in
class order. A regression has no probabilities; gold and prediction are scores. Answers that are
texts, such as the tags of a sentence, have no column `probability`. Tabs, line ends and
backslashes in texts and labels are escaped as in \t, \n, \r and \\; numbers have all their digits.
So the file restores the predictions bit for bit.

predictions.npz is small and has no texts: gold, predicted, labels (none for a regression) and the
digest of the texts, which shows whether two runs were scored on the same examples.
"""

import dataclasses
import hashlib
import json
import pathlib
import re
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from scalelab.helpers import files

ESCAPES = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"}
OWN = ("index", "gold", "prediction", "class", "probability")
UNESCAPED = {written: text for text, written in ESCAPES.items()}


@dataclasses.dataclass(frozen=True, eq=False)
class Predictions:
    """The predictions of one run on one dev set."""

    texts: tuple[list[str], ...] | None  # for each text column its texts; None if packed
    gold: np.ndarray  # [n] int32 classes, float32 scores, or texts
    predicted: np.ndarray  # likewise
    labels: tuple[str, ...] | None = None  # names of the classes; None for scores and texts
    probabilities: np.ndarray | None = None  # [n, C] float32; None without classes or if packed
    packed_digest: str | None = None  # digest of the texts, where these are absent

    @property
    def texts_digest(self) -> str:
        """SHA-256 of the texts in their order; equal for both forms."""
        if self.texts is None:
            assert self.packed_digest is not None
            return self.packed_digest
        return hashlib.sha256(json.dumps(self.texts).encode()).hexdigest()


def lines(
    texts: Sequence[Sequence[str]],
    outputs: np.ndarray,
    labels: Sequence[str] | None,
    gold: np.ndarray | None = None,
    classes: Sequence[str] | None = None,
    start: int = 0,
    names: Sequence[str] | None = None,
) -> Iterator[str]:
    """Yields the header and the lines of predictions.tsv.

    Args:
      texts: for each text column its texts.
      outputs: [n, C] of the classifier's head before the softmax; [n, 1] scores or texts.
      labels: the C classes as files spell them; None for scores and texts.
      gold: [n] classes, scores or texts; None: the column is left out.
      classes: the names of the C classes, for a column `class`; None: there is none.
      start: index of the first example.
      names: of the text columns; None, or where one has the name of another column: text, or text1
        and text2.
    """
    num = len(outputs)
    assert outputs.shape == (num, 1 if labels is None else len(labels))
    named = ["text"] if len(texts) == 1 else [f"text{i + 1}" for i in range(len(texts))]
    if names and not any(name in OWN or name.startswith("p:") for name in names):
        named = [*map(_escape, names)]
    table: dict[str, Iterable[object]] = {"index": range(start, start + num)}
    table |= {name: map(_escape, column) for name, column in zip(named, texts, strict=True)}
    if outputs.dtype.kind == "U":
        table |= {} if gold is None else {"gold": map(_escape, gold)}
        table |= {"prediction": map(_escape, outputs[:, 0])}
    elif labels is None:
        scores = np.asarray(outputs[:, 0], np.float32)
        table |= {} if gold is None else {"gold": np.asarray(gold, np.float32)}
        table |= {"prediction": scores, "probability": [""] * num}
    else:
        shares, spelt, best = _softmax(outputs), [*map(_escape, labels)], outputs.argmax(axis=1)
        table |= {} if gold is None else {"gold": [spelt[i] for i in np.asarray(gold, np.int32)]}
        table["prediction"] = [spelt[i] for i in best]
        table |= {} if classes is None else {"class": [classes[i] for i in best]}
        table["probability"] = shares[np.arange(num), best]
        table |= {f"p:{name}": column for name, column in zip(spelt, shares.T, strict=True)}
    for line in zip(*([name, *map(str, column)] for name, column in table.items()), strict=True):
        yield "\t".join(line) + "\n"


def pack(path: pathlib.Path, made: Predictions) -> None:
    """Writes predictions.npz: no texts, no probabilities; equal bytes for equal predictions."""
    arrays: dict[str, np.ndarray] = {"gold": made.gold, "predicted": made.predicted}
    if made.labels is not None:
        small = np.min_scalar_type(max(len(made.labels) - 1, 0))  # uint8 up to 256 classes
        arrays = {name: array.astype(small) for name, array in arrays.items()}
        arrays["labels"] = np.array(made.labels, np.str_)
    arrays["texts"] = np.array(made.texts_digest)
    with files.whole(path) as temporary:
        np.savez_compressed(temporary, **arrays)  # pyright: ignore[reportArgumentType]


def read(path: pathlib.Path) -> Predictions:
    """Reads predictions.tsv or a file of `pack`; the ending decides which.

    Raises:
      Unreadable: the file is missing or damaged; the message says where.
    """
    with files.reading(path):
        return _read_packed(path) if path.suffix == ".npz" else _read_table(path)


def _read_packed(path: pathlib.Path) -> Predictions:
    with path.open("rb") as file, np.load(file) as packed:
        arrays = {name: packed[name] for name in packed.files}
    gold, predicted, digest = arrays["gold"], arrays["predicted"], str(arrays["texts"])
    if gold.ndim != 1 or gold.shape != predicted.shape:
        raise ValueError(f"has shapes {gold.shape} and {predicted.shape} of gold and predicted")
    if gold.dtype.kind == "U":
        return Predictions(None, gold, predicted, packed_digest=digest)
    if "labels" not in arrays:
        return Predictions(None, *map(_read_scores, (gold, predicted)), packed_digest=digest)
    names = tuple(map(str, arrays["labels"]))
    gold, predicted = gold.astype(np.int32), predicted.astype(np.int32)
    if not set(gold) | set(predicted) <= set(range(len(names))):
        raise ValueError("has a class without a label")
    return Predictions(None, gold, predicted, names, packed_digest=digest)


def _read_scores(values: np.ndarray | tuple[str, ...]) -> np.ndarray:
    """Returns scores as float32; raises ValueError if one is no finite number."""
    scores = np.asarray(values).astype(np.float32)
    if not np.isfinite(scores).all():
        raise ValueError("has a score that is not finite")
    return scores


def _read_table(path: pathlib.Path) -> Predictions:
    with path.open(encoding="utf-8", newline="") as file:
        header, *lines = file.read().removesuffix("\n").split("\n")
    names = [_unescape(name) for name in header.split("\t")]
    if names[:1] != ["index"] or "gold" not in names:
        raise ValueError(f"expected the header of predictions.tsv, found {header[:60]!r}")
    rows = [line.split("\t") for line in lines]
    for number, row in enumerate(rows, 2):
        if len(row) != len(names):
            raise ValueError(f"line {number}: expected {len(names)} fields, found {len(row)}")
    columns = list(zip(*rows, strict=True)) or [()] * len(names)
    first, after = names.index("gold"), names.index("gold") + 3
    texts = tuple([_unescape(text) for text in column] for column in columns[1:first])
    labels = tuple(name.removeprefix("p:") for name in names[after:])
    answers = columns[first : first + 2]
    if "probability" not in names:
        return Predictions(texts, *(np.array([_unescape(x) for x in c], np.str_) for c in answers))
    if not labels:
        return Predictions(texts, *map(_read_scores, answers))
    index = {label: i for i, label in enumerate(labels)}
    gold, predicted = (np.array([index[_unescape(x)] for x in c], np.int32) for c in answers)
    return Predictions(texts, gold, predicted, labels, np.array(columns[after:], np.float32).T)


def _escape(text: str) -> str:
    return re.sub(r"[\\\t\n\r]", lambda found: ESCAPES[found[0]], text)


def _unescape(text: str) -> str:
    return re.sub(r"\\.", lambda found: UNESCAPED.get(found[0], found[0]), text)


def _softmax(outputs: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):  # a failed run's outputs may be infinite: NaN
        grown = np.exp(outputs - outputs.max(axis=1, keepdims=True), dtype=np.float64)
        return (grown / grown.sum(axis=1, keepdims=True)).astype(np.float32)
