"""Records of a labeled task from Hugging Face `datasets`: GLUE's configs, splits and features."""

from scalelab.helpers import hf_datasets
from scalelab.tasks.records import Labels, Records


def read(
    data_set: str, address: str, texts: tuple[str, ...], labels: Labels | None
) -> Records | None:
    """Reads one split in the order of its `idx`; returns None if it is absent or empty.

    Args:
      data_set: a folder or a name on the Hub, such as "nyu-mll/glue".
      address: config and split, such as "mnli/validation_matched".
      texts: the one or two text features.
      labels: the valid labels, classes in the order of the data set; None for a test split.

    Raises:
      ValueError: the data set cannot be loaded, lacks a feature, or has a label outside `labels`.
    """
    config, _, split = address.partition("/")
    rows = hf_datasets.load(data_set, config).get(split)
    if not rows:
        return None
    return Records.from_rows(rows.to_list(), texts, labels, f"hf:{data_set}/{address}")
