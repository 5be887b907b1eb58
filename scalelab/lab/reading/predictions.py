r"""What a fine-tuning predicted, to look at: predictions.tsv, a confusion matrix, a scatter.

predictions.tsv has a header and one example a line, fields apart by tabs:

  index  text (or text1, text2)  gold  prediction  probability  p:<label> ...

`probability` is that of the predicted class, and a column p:<label> for every class, in class
order, holds all of them. A regression has none of these: gold and prediction are scores. Tabs, line
ends and backslashes in texts and labels are escaped as in \t, \n, \r and \\; numbers have all their
digits. So reading the file gives back what was written, bit for bit.

predictions.npz is what a run keeps of it to be small, and free of the data's texts: gold,
predicted, labels (none for a regression) and the digest of the texts, by which two runs are still
told to have been scored on the same examples.
"""

import dataclasses
import hashlib
import json
import pathlib
import re
import zipfile
import zlib
from collections.abc import Sequence

import numpy as np

from scalelab.lab.show import plots

POINTS, DIAGONAL = plots.COLORS[:2]
ESCAPES = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"}
UNESCAPED = {written: text for text, written in ESCAPES.items()}


@dataclasses.dataclass(frozen=True, eq=False)
class Predictions:
    """What one run predicted on one dev set.

    Attributes:
      texts: for each text column its texts, one an example; None in the packed form.
      gold: [n] int32 classes or float32 scores.
      predicted: [n] likewise.
      labels: names of the classes in class order; None for a regression.
      probabilities: [n, C] float32; None for a regression and in the packed form.
      packed_digest: of the texts, where these are absent.
    """

    texts: tuple[list[str], ...] | None
    gold: np.ndarray
    predicted: np.ndarray
    labels: tuple[str, ...] | None = None
    probabilities: np.ndarray | None = None
    packed_digest: str | None = None

    @property
    def texts_digest(self) -> str:
        """SHA-256 of the texts in their order: the same of either form."""
        if self.texts is None:
            assert self.packed_digest is not None
            return self.packed_digest
        return hashlib.sha256(json.dumps(self.texts).encode()).hexdigest()


def write(
    path: pathlib.Path,
    *,
    texts: Sequence[Sequence[str]],
    gold: np.ndarray,
    outputs: np.ndarray,
    labels: Sequence[str] | None,
) -> Predictions:
    """Writes predictions.tsv, so that no reader ever sees half of it.

    Args:
      path: the file.
      texts: for each text column its texts.
      gold: [n] classes or scores.
      outputs: [n, C] of the classifier's head before the softmax; [n, 1] scores of a regression.
      labels: the C classes by name; None for a regression.

    Returns:
      What `read` will give.

    Raises:
      ValueError: the numbers of examples or classes do not agree.
    """
    num = len(gold)
    width = 1 if labels is None else len(labels)
    if outputs.shape != (num, width) or any(len(column) != num for column in texts):
        raise ValueError(
            f"expected outputs ({num}, {width}) and {num} texts for {num} gold, found"
            f" {outputs.shape} and {[len(column) for column in texts]}"
        )
    columns = tuple(list(column) for column in texts)
    if labels is None:
        made = Predictions(
            columns, np.asarray(gold, np.float32), np.asarray(outputs[:, 0], np.float32)
        )
    else:
        made = Predictions(
            columns,
            np.asarray(gold, np.int32),
            outputs.argmax(axis=1).astype(np.int32),
            tuple(labels),
            _softmax(outputs),
        )
    temporary = path.with_name(path.name + ".tmp")
    lines = ["\t".join(line) + "\n" for line in _lines(made)]
    temporary.write_text("".join(lines), encoding="utf-8", newline="")
    temporary.replace(path)
    return made


def pack(path: pathlib.Path, made: Predictions) -> None:
    """Writes predictions.npz: no texts, no probabilities; the same bytes for the same predictions.

    Args:
      path: the file, which ends in .npz.
      made: what `read` gave.
    """
    arrays: dict[str, np.ndarray] = {"gold": made.gold, "predicted": made.predicted}
    if made.labels is not None:
        small = np.min_scalar_type(max(len(made.labels) - 1, 0))  # uint8 up to 256 classes
        arrays = {name: array.astype(small) for name, array in arrays.items()}
        arrays["labels"] = np.array(made.labels, np.str_)
    arrays["texts"] = np.array(made.texts_digest)
    temporary = path.with_name(path.stem + ".tmp.npz")
    np.savez_compressed(temporary, **arrays)  # pyright: ignore[reportArgumentType]
    temporary.replace(path)


def read(path: pathlib.Path) -> Predictions:
    """Reads what `write` or `pack` wrote, told apart by the file's ending.

    Raises:
      ValueError: the file is not as they leave it; the message says where.
      OSError: it cannot be read.
    """
    return _read_packed(path) if path.suffix == ".npz" else _read_table(path)


def _read_packed(path: pathlib.Path) -> Predictions:
    try:
        with path.open("rb") as file, np.load(file) as packed:
            arrays = {name: packed[name] for name in packed.files}
        gold, predicted = arrays["gold"], arrays["predicted"]
        if gold.ndim != 1 or gold.shape != predicted.shape:
            raise ValueError(f"shapes {gold.shape} and {predicted.shape} of gold and predicted")
        digest, labels = str(arrays["texts"]), arrays.get("labels")
    except (ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{path} is not as it was packed: {error}") from None
    if labels is None:
        return Predictions(None, gold, predicted, packed_digest=digest)
    names = tuple(map(str, labels))
    classes = gold.astype(np.int32), predicted.astype(np.int32)
    return Predictions(None, *classes, names, packed_digest=digest)


def _read_table(path: pathlib.Path) -> Predictions:
    with path.open(encoding="utf-8", newline="") as file:
        header, *lines = file.read().removesuffix("\n").split("\n")
    names = [_unescape(name) for name in header.split("\t")]
    if names[:1] != ["index"] or "gold" not in names:
        raise ValueError(f"{path}:1: expected the header of predictions.tsv, found {header[:60]!r}")
    rows = [line.split("\t") for line in lines]
    for number, row in enumerate(rows, 2):
        if len(row) != len(names):
            raise ValueError(f"{path}:{number}: expected {len(names)} fields, found {len(row)}")
    columns = list(zip(*rows, strict=True)) or [()] * len(names)
    first, after = names.index("gold"), names.index("gold") + 3
    texts = tuple([_unescape(text) for text in column] for column in columns[1:first])
    labels = tuple(name.removeprefix("p:") for name in names[after:])
    try:
        if not labels:
            gold, predicted = (np.array(c, np.float32) for c in columns[first : first + 2])
            return Predictions(texts, gold, predicted)
        index = {label: i for i, label in enumerate(labels)}
        gold, predicted = (
            np.array([index[_unescape(label)] for label in column], np.int32)
            for column in columns[first : first + 2]
        )
        probabilities = np.array(columns[after:], np.float32).T
    except KeyError as error:
        raise ValueError(f"{path}: the label {error} has no column of its own") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    return Predictions(texts, gold, predicted, labels, probabilities)


def draw(
    path: pathlib.Path,
    *,
    gold: np.ndarray,
    predicted: np.ndarray,
    labels: Sequence[str] | None,
    title: str,
) -> None:
    """Draws a confusion matrix, or without labels a scatter; arguments as for these."""
    if labels is None:
        draw_scatter(path, gold=gold, predicted=predicted, title=title)
    else:
        draw_confusion(path, gold=gold, predicted=predicted, labels=labels, title=title)


def draw_confusion(
    path: pathlib.Path,
    *,
    gold: np.ndarray,
    predicted: np.ndarray,
    labels: Sequence[str],
    title: str,
) -> np.ndarray:
    """Draws how often each class is taken for each.

    Args:
      path: the PNG.
      gold: [n] classes.
      predicted: [n] classes.
      labels: the C classes by name.
      title: what the figure says above.

    Returns:
      [C, C] the counts that were drawn, rows of gold.
    """
    num = len(labels)
    counts = np.bincount(gold * num + predicted, minlength=num * num).reshape(num, num)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    figure = plots.canvas(2.6 + num, 1.8 + 0.8 * num)
    axis = figure.subplots()
    shown = axis.imshow(shares, cmap=plots.SHADES, vmin=0, vmax=1)
    for row, column in np.ndindex(num, num):
        color = "black" if shares[row, column] > 0.5 else "white"
        axis.text(column, row, f"{counts[row, column]:,}", ha="center", va="center", color=color)
    slanted = max(map(len, labels)) > 6
    axis.set_xticks(range(num), labels, rotation=20 if slanted else 0)
    axis.set_yticks(range(num), labels)
    axis.set_xlabel("predicted")
    axis.set_ylabel("gold")
    axis.set_title(title)
    figure.colorbar(shown, label="share of the gold class")
    plots.save(figure, path, dpi=110)
    return counts


def draw_scatter(
    path: pathlib.Path, *, gold: np.ndarray, predicted: np.ndarray, title: str
) -> None:
    """Draws predicted against gold scores.

    Args:
      path: the PNG.
      gold: [n] scores.
      predicted: [n] scores.
      title: what the figure says above.
    """
    figure = plots.canvas(4.6, 4.4)
    axis = figure.subplots()
    axis.scatter(gold, predicted, s=8, alpha=0.4, color=POINTS, linewidths=0)
    ends = [float(np.min(gold)), float(np.max(gold))]
    axis.plot(ends, ends, color=DIAGONAL, lw=1, label="predicted = gold")
    axis.set_xlabel("gold")
    axis.set_ylabel("predicted")
    axis.set_title(title)
    axis.grid(alpha=0.3)
    axis.legend(frameon=False)
    plots.save(figure, path, dpi=110)


def _lines(made: Predictions) -> list[list[str]]:
    """Header and rows as they are written."""
    assert made.texts is not None
    num_texts = len(made.texts)
    texts = ["text"] if num_texts == 1 else [f"text{i + 1}" for i in range(num_texts)]
    labels = [_escape(label) for label in made.labels or ()]
    header = ["index", *texts, "gold", "prediction", "probability", *(f"p:{x}" for x in labels)]
    lines = [header]
    for i, row in enumerate(zip(*made.texts, strict=True)):
        line = [str(i), *map(_escape, row)]
        if made.probabilities is None:
            line += [str(made.gold[i]), str(made.predicted[i]), ""]
        else:
            shares = made.probabilities[i]
            own = made.predicted[i]
            line += [labels[made.gold[i]], labels[own], *map(str, (shares[own], *shares))]
        lines.append(line)
    return lines


def _escape(text: str) -> str:
    return re.sub(r"[\\\t\n\r]", lambda found: ESCAPES[found[0]], text)


def _unescape(text: str) -> str:
    return re.sub(r"\\.", lambda found: UNESCAPED.get(found[0], found[0]), text)


def _softmax(outputs: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):  # a failed run's outputs may be infinite: NaN
        grown = np.exp(outputs - outputs.max(axis=1, keepdims=True), dtype=np.float64)
        return (grown / grown.sum(axis=1, keepdims=True)).astype(np.float32)
