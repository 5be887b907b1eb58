"""`tfds:NAME`: a text data set of TensorFlow Datasets; an example is a document."""

import functools
from collections.abc import Iterable, Iterator

from scalelab.data import corpora
from scalelab.helpers.names import check_names

VERSION = "1"
FIELD = "text"
SPLITS = {"train": "train", "validation": "valid", "valid": "valid", "dev": "valid", "test": "test"}


def read(argument: str, settings: corpora.Data) -> corpora.Source:
    """Opens a data set, such as `wiki40b/en` or `lm1b:1.1.0`, and its feature `text`."""
    try:
        import tensorflow_datasets as tfds  # takes seconds, and only this reader needs it
    except ImportError as error:
        raise ValueError(f"corpus tfds:{argument}: needs tensorflow-datasets ({error})") from error
    try:
        builder = tfds.builder(argument)
        features = list(builder.info.features or {})
        check_names([FIELD], features, "no feature")
        builder.download_and_prepare()
    except Exception as error:  # whatever a data set's own code or its server comes up with
        message = str(error).strip().split("\n")[0]
        raise ValueError(f"corpus tfds:{argument}: {message}") from error
    splits = find_splits(f"tfds:{argument}", builder.info.splits)

    def stream(split: str, tick: corpora.Tick) -> Iterator[str]:
        dataset = builder.as_dataset(split=split, shuffle_files=False)
        for number, example in enumerate(tfds.as_numpy(dataset)):
            where = f"tfds:{argument}, {split}[{number}]"
            yield corpora.decode(example[FIELD], settings.errors, where)
            tick(len(example[FIELD]))

    def identity() -> list[object]:
        """Name, version and sizes: a version of a data set never changes its content."""
        infos = builder.info.splits.items()
        return [builder.info.full_name, {n: [i.num_examples, i.num_bytes] for n, i in infos}]

    return corpora.Source(
        streams={name: functools.partial(stream, source) for name, source in splits.items()},
        num_bytes={n: builder.info.splits[source].num_bytes or 0 for n, source in splits.items()},
        identity=identity,
    )


def find_splits(spec: str, names: Iterable[str]) -> dict[str, str]:
    """Returns a data set's own names of "train", "valid" and "test"; there must be "train"."""
    names = [*names]
    splits = {split: source for source, split in SPLITS.items() if source in names}
    if "train" not in splits:
        raise ValueError(f"corpus {spec}: no split 'train' in {names}")
    return splits
