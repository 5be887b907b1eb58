"""`tfds:NAME`: a text data set of TensorFlow Datasets; an example is a document."""

from collections.abc import Iterator
from typing import Any

from scalelab.data import corpora
from scalelab.helpers.names import nearest

VERSION = "1"
FIELD = "text"
SPLITS = {"train": "train", "validation": "valid", "valid": "valid", "dev": "valid", "test": "test"}


def read(argument: str, settings: corpora.Settings) -> corpora.Source:
    """Opens the data set `argument`, such as `wiki40b/en` or `lm1b:1.1.0`, and its feature `text`.

    Raises:
      ValueError: TensorFlow Datasets is not installed, does not know the name, or there is no
        text in it.
    """
    try:
        import tensorflow_datasets as tfds  # takes seconds, and only this reader needs it
    except ImportError as error:
        raise ValueError(f"corpus tfds:{argument}: needs tensorflow-datasets ({error})") from error
    try:
        builder = tfds.builder(argument)
    except (tfds.core.registered.DatasetNotFoundError, ValueError, TypeError) as error:
        message = str(error).strip().split("\n")[0]
        raise ValueError(f"corpus tfds:{argument}: {message}") from error
    features = list(builder.info.features or {})
    if FIELD not in features:
        raise ValueError(
            f"corpus tfds:{argument}: no feature {FIELD!r}; {nearest(FIELD, features)}"
        )
    try:
        builder.download_and_prepare()
    except Exception as error:  # whatever a data set's own code or its server comes up with
        message = str(error).strip().split("\n")[0]
        raise ValueError(f"corpus tfds:{argument}: cannot be prepared ({message})") from error
    splits = {ours: theirs for theirs, ours in SPLITS.items() if theirs in builder.info.splits}
    if "train" not in splits:
        found = ", ".join(builder.info.splits)
        raise ValueError(
            f"corpus tfds:{argument}: expected a split 'train', found {found or 'none'}"
        )

    def stream(split: str, tick: corpora.Tick) -> Iterator[str]:
        dataset = builder.as_dataset(split=split, shuffle_files=False)
        for number, example in enumerate(tfds.as_numpy(dataset)):
            yield _decoded(example[FIELD], settings.errors, f"tfds:{argument}, {split}[{number}]")
            tick(len(example[FIELD]))

    return corpora.Source(
        streams={
            ours: lambda tick, theirs=theirs: stream(theirs, tick)
            for ours, theirs in splits.items()
        },
        num_bytes={
            ours: builder.info.splits[theirs].num_bytes or 0 for ours, theirs in splits.items()
        },
        identity=lambda: _identity(builder),
    )


def _identity(builder: Any) -> list:
    """Name, version and size of each split: a version of a data set never changes its content."""
    sizes = {
        name: [split.num_examples, split.num_bytes] for name, split in builder.info.splits.items()
    }
    return [builder.info.full_name, sizes]


def _decoded(value: bytes | str, errors: str, where: str) -> str:
    if isinstance(value, str):
        return value
    try:
        return value.decode("utf-8", errors)
    except UnicodeDecodeError as error:
        raise ValueError(corpora.invalid(where, error.start, error.reason)) from error
