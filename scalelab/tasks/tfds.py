"""Records of a labeled task from TensorFlow Datasets: `glue/<name>`."""

import urllib.error
import urllib.request

from scalelab.tasks.records import Labels, Records

HOST = "https://dl.fbaipublicfiles.com"  # has most of the files that `glue` downloads
WAIT_SECS = 10


def read(address: str, texts: tuple[str, ...], labels: Labels | None) -> Records:
    """Reads one split in the order of its `idx`, the order of the published file.

    Args:
      address: config and split of the data set `glue`, such as "mnli/validation_matched".
      texts: the one or two text features.
      labels: the valid labels, classes in the order of the data set; None for a test split: its
        labels are all -1 and are not read.

    Raises:
      ValueError: TensorFlow Datasets is not installed or cannot prepare the data set, or a label is
        outside `labels`.
    """
    config, _, split = address.partition("/")
    try:
        import tensorflow_datasets as tfds  # slow to import, and only this reader needs it

        builder = tfds.builder(f"glue/{config}")
        if not builder.is_prepared():
            check_network()  # the download itself would retry for minutes
            builder.download_and_prepare()
    except Exception as error:  # any error of a data set's own code or of its server
        message = (str(error).strip() or type(error).__name__).split("\n")[0]
        if isinstance(error, ImportError):
            message = f"tensorflow-datasets is not installed: {message}"
        raise ValueError(
            f"tfds:glue/{config} cannot be prepared here ({message}): give --data, the folder that"
            " holds the GLUE files, or --data=hf:nyu-mll/glue"
        ) from error
    rows = [
        {name: x.decode() if isinstance(x, bytes) else x.item() for name, x in row.items()}
        for row in tfds.as_numpy(builder.as_dataset(split=split, shuffle_files=False))
    ]
    return Records.from_rows(rows, texts, labels, f"tfds:{builder.info.full_name}, {split}")


def check_network() -> None:
    """Raises OSError if the server of the files cannot be reached."""
    try:
        urllib.request.urlopen(HOST, timeout=WAIT_SECS).close()
    except urllib.error.HTTPError:  # the server has answered
        pass
