"""Records of a labelled task from TensorFlow Datasets: `glue/<name>`."""

import hashlib
import urllib.error
import urllib.request
from typing import Any

import numpy as np

from scalelab.tasks.records import Labels, Records

HOST = "https://dl.fbaipublicfiles.com"  # of most of the files that `glue` downloads
WAIT_SECS = 10


def read(address: str, texts: tuple[str, ...], labels: Labels | None) -> Records:
    """Reads one split, in the order of its `idx`, which is that of the published file.

    Args:
      address: config and split of the data set `glue`, such as "mnli/validation_matched".
      texts: the one or two text features.
      labels: the valid labels, classes in the order of the data set; None for a test split, whose
        labels are all -1 and are not read.

    Raises:
      ValueError: TensorFlow Datasets is not installed or cannot prepare the data set, or a label is
        outside `labels`.
    """
    config, _, split = address.partition("/")
    try:
        import tensorflow_datasets as tfds  # takes seconds, and only this reader needs it

        builder = tfds.builder(f"glue/{config}")
        if not builder.is_prepared():
            check_network()  # the download itself would be tried again for minutes
            builder.download_and_prepare()
    except Exception as error:  # whatever a data set's own code or its server comes up with
        message = (str(error).strip() or type(error).__name__).split("\n")[0]
        if isinstance(error, ImportError):
            message = f"tensorflow-datasets is not installed: {message}"
        raise ValueError(
            f"tfds:glue/{config} cannot be prepared here ({message}): give --data, the folder that"
            " holds the GLUE files"
        ) from error
    rows = tfds.as_numpy(builder.as_dataset(split=split, shuffle_files=False))
    rows = sorted(rows, key=lambda row: int(row["idx"]))
    source = f"tfds:{builder.info.full_name}, {split}"
    columns = tuple([row[name].decode("utf-8") for row in rows] for name in texts)
    found = None if labels is None else _labels(rows, labels, source)
    return Records(columns, found, source, _digest(columns, found))


def check_network() -> None:
    """Raises OSError if the server of the files cannot be reached."""
    try:
        urllib.request.urlopen(HOST, timeout=WAIT_SECS).close()
    except urllib.error.HTTPError:  # it has answered
        pass


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


def _digest(columns: tuple[list[str], ...], labels: np.ndarray | None) -> str:
    """Returns the SHA-256 of texts, each with its length, and labels."""
    state = hashlib.sha256()
    for column in columns:
        for text in column:
            data = text.encode()
            state.update(len(data).to_bytes(8, "little") + data)
    state.update(b"" if labels is None else labels.tobytes())
    return state.hexdigest()
