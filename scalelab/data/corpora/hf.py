"""`hf:NAME`: a text data set of Hugging Face `datasets`; a row is a document."""

import functools
import hashlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from scalelab.data import corpora
from scalelab.data.corpora.tfds import FIELD, find_splits
from scalelab.helpers import hf_datasets
from scalelab.helpers.names import check_names

if TYPE_CHECKING:
    from datasets import Dataset

VERSION = "1"
BATCH_ROWS = 1000


def read(argument: str, settings: corpora.Data) -> corpora.Source:
    """Opens OWNER/NAME, OWNER/NAME/CONFIG or a folder, and its feature `text`.

    `datasets` keeps the rows in its own cache, which is mapped into memory, never read as a whole.
    """
    spec = f"hf:{argument}"
    loaded = hf_datasets.load(argument)
    names = find_splits(spec, loaded)
    for source in names.values():
        features = loaded[source].features
        check_names([FIELD], features, f"corpus {spec}: no feature")
        if getattr(features[FIELD], "dtype", None) not in ("string", "large_string"):
            raise ValueError(f"corpus {spec}: {FIELD!r} is {features[FIELD]}, expected a string")
    splits = {name: loaded[source].select_columns(FIELD) for name, source in names.items()}

    def stream(name: str, tick: corpora.Tick) -> Iterator[str]:
        for number, text in enumerate(_texts(splits[name], tick)):
            yield corpora.decode(text, settings.errors, f"{spec}, {names[name]}[{number}]")

    return corpora.Source(
        streams={name: functools.partial(stream, name) for name in splits},
        num_bytes={name: split.data.nbytes for name, split in splits.items()},
        identity=lambda: {name: _digest(split) for name, split in splits.items()},
    )


def _texts(split: "Dataset", tick: corpora.Tick = lambda num_bytes: None) -> Iterator[bytes]:
    """Streams the texts, as bytes so that a message can name the row that is not UTF-8."""
    for table in split.with_format("arrow").iter(BATCH_ROWS):
        for text in table[FIELD].cast("large_binary").to_pylist():  # type: ignore[union-attr]
            yield text or b""  # a missing text is an empty document
        tick(table.nbytes)  # type: ignore[union-attr]


def _digest(split: "Dataset") -> str:
    """Returns the SHA-256 of the texts, each with its length.

    The fingerprint of `datasets` depends on the folder's path and the times of its files.
    """
    state = hashlib.sha256()
    for text in _texts(split):
        state.update(len(text).to_bytes(8, "little") + text)
    return state.hexdigest()
