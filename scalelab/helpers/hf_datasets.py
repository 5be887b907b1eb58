"""Data sets of Hugging Face `datasets`, from the Hub or from a folder that it can read."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datasets import Dataset


def load(address: str, config: str | None = None) -> "dict[str, Dataset]":
    """Returns the splits of a data set by their names.

    Args:
      address: a folder, NAME, or OWNER/NAME. Without `config`, OWNER/NAME/CONFIG too, and
        FOLDER/CONFIG if the folder's README.md lists its configs.
      config: the data set's config; None: the one in `address`, or the default.

    Raises:
      ValueError: `datasets` is not installed, or cannot find, download or read the data set.
    """
    given = "hf:" + "/".join(filter(None, (address, config)))
    if not address:
        raise ValueError(f"{given} needs a data set, such as hf:OWNER/NAME or hf:FOLDER")
    try:
        import datasets  # takes seconds, and only `hf:` needs it
    except ImportError as error:
        raise ValueError(
            f"{given} needs the package datasets ({error}): pip install 'scalelab[datasets]'"
        ) from error
    path = Path(address).expanduser()
    if config is None and not path.is_dir():
        name, _, last = address.rpartition("/")
        if name.count("/") == 1 or (name and (path.parent / "README.md").is_file()):
            address, config, path = name, last, path.parent
    try:
        found = datasets.load_dataset(str(path) if path.is_dir() else address, config)
    except Exception as error:  # whatever the Hub or a reader of files comes up with
        message = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"{given}: {message}") from error
    return {str(name): rows for name, rows in found.items()}
