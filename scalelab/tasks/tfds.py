"""Records of a labelled task from TensorFlow Datasets: `glue/<name>`."""

import hashlib
import sys
from collections.abc import Iterable
from typing import Any

import numpy as np

from scalelab.tasks.records import Labels, Records, num_empty

NEEDED = "or give --data, the folder that holds the GLUE files"


def read(name: str, split: str, texts: tuple[str, ...], labels: Labels | None) -> Records:
    """Reads one split, in the order of its `idx`, which is that of the published file.

    Args:
      name: data set and config, such as "glue/cola".
      split: "train", "validation_matched", ...
      texts: the one or two text features.
      labels: the valid labels, classes in the order of the data set; None for a test split, whose
        labels are all -1 and are not read.

    Raises:
      ValueError: TensorFlow Datasets is not installed, cannot prepare the data set, has no such
        split, or means something else by its labels; a label is outside `labels`, a text is not
        UTF-8.
    """
    source = f"tfds:{name}, {split}"
    builder = _builder(name)
    if labels is not None and labels.classes is not None:
        _check_classes(source, builder.info.features["label"], labels.classes)
    rows = sorted(_rows(builder, split, source), key=lambda row: int(row["idx"]))
    if not rows:
        raise ValueError(f"{source}: the split is empty")
    columns = tuple(
        [_decoded(row[t], f"{source}, idx {row['idx']}, {t}") for row in rows] for t in texts
    )
    read_labels = None if labels is None else _labels(rows, labels, source)
    return Records(
        texts=columns,
        labels=read_labels,
        source=f"tfds:{builder.info.full_name}, {split}",
        digest=_digest(columns, read_labels),
        num_empty=num_empty(columns),
    )


def _builder(name: str) -> Any:
    try:
        import tensorflow_datasets as tfds  # takes seconds, and only this reader needs it
    except ImportError as error:
        raise ValueError(f"tfds:{name}: install tensorflow-datasets ({error}), {NEEDED}") from error
    try:
        builder = tfds.builder(name)
        if not builder.is_prepared():
            print(f"tfds:{name}: downloading, once; without a network, {NEEDED}", file=sys.stderr)
        builder.download_and_prepare()
    except Exception as error:  # whatever a data set's own code or its server comes up with
        message = (str(error).strip() or type(error).__name__).split("\n")[0]
        raise ValueError(f"tfds:{name}: cannot be prepared ({message}); try again, {NEEDED}") from (
            error
        )
    return builder


def _rows(builder: Any, split: str, source: str) -> Iterable[dict[str, Any]]:
    import tensorflow_datasets as tfds

    there = list(builder.info.splits)
    if there and split not in there:
        raise ValueError(f"{source}: no such split; there are {', '.join(there)}")
    return tfds.as_numpy(builder.as_dataset(split=split, shuffle_files=False))


def _check_classes(source: str, feature: Any, classes: tuple[str, ...]) -> None:
    """Refuses classes of another number or order: index 0 must mean the same in files and here."""
    names = tuple(getattr(feature, "names", None) or ())
    same_words = set(names) & set(classes)
    if len(names) != len(classes) or (same_words and names != classes):
        raise ValueError(f"{source}: expected the classes {classes}, found {names}")


def _labels(rows: list[dict[str, Any]], labels: Labels, source: str) -> np.ndarray:
    where = [f"{source}, idx {row['idx']}" for row in rows]
    if labels.classes is None:
        return labels.array(zip(where, (str(row["label"]) for row in rows), strict=True))
    found = np.array([row["label"] for row in rows], np.int32)
    wrong = np.flatnonzero((found < 0) | (found >= len(labels.classes)))
    if wrong.size:
        raise ValueError(
            f"{where[wrong[0]]}: the label {found[wrong[0]]} is not a class index from 0 to"
            f" {len(labels.classes) - 1}"
        )
    return found


def _decoded(value: bytes | str, where: str) -> str:
    if isinstance(value, str):
        return value
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{where}: invalid UTF-8 at byte {error.start} ({error.reason})"
        ) from error


def _digest(columns: tuple[list[str], ...], labels: np.ndarray | None) -> str:
    """SHA-256 over texts and labels; lengths go in so that no two contents look alike."""
    state = hashlib.sha256()
    for column in columns:
        for text in column:
            data = text.encode()
            state.update(len(data).to_bytes(8, "little") + data)
    state.update(b"" if labels is None else labels.tobytes())
    return state.hexdigest()
