"""`wikitext:DIR`: the published WikiText files, or others in their layout (Merity et al. 2016).

`wiki.{train,valid,test}.{raw,tokens}`, plain or packed as `.gz` or `.xz`. A section is a document.
"""

from collections.abc import Iterator
from pathlib import Path

from scalelab.data import corpora
from scalelab.data.corpora import _sections

VERSION = "1"
SPLITS = ("train", "valid", "test")
VARIANTS = ("raw", "tokens")
PACKINGS = ("", ".gz", ".xz")


def read(argument: str, settings: corpora.Settings) -> corpora.Source:
    """Opens the corpus in the folder `argument`: all files of one variant, raw before tokens.

    Raises:
      ValueError: there is no training file, or an empty file.
    """
    folder = corpora.folder(argument, "wikitext")
    for variant in VARIANTS:
        files: dict[str, list[Path]] = {}
        for split in SPLITS:
            names = [f"wiki.{split}.{variant}{packing}" for packing in PACKINGS]
            files[split] = [folder / name for name in names if (folder / name).is_file()][:1]
        if files["train"]:
            break
    else:
        raise ValueError(
            f"corpus wikitext:{folder}: expected wiki.train.raw or wiki.train.tokens "
            f"(or .gz, .xz), found {corpora.listing(folder)}"
        )
    for path in (path for paths in files.values() for path in paths):
        if not path.stat().st_size:
            raise ValueError(f"{path}: the file is empty")

    def documents(paths: list[Path], tick: corpora.Tick) -> Iterator[str]:
        for path in paths:
            lines = corpora.lines(path, settings.errors, tick)
            yield from _sections.sections(lines, settings.keep_headings)

    return corpora.from_files({split: paths for split, paths in files.items() if paths}, documents)
