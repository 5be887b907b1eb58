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
    """Opens the corpus in the folder `argument`.

    Raises:
      ValueError: there is no training file, or an empty file.
    """
    folder = corpora.folder(argument, "wikitext")
    files = {split: [path] for split, path in _find(folder).items()}
    for (path,) in files.values():
        if not path.stat().st_size:
            raise ValueError(f"{path}: the file is empty")

    def documents(paths: list[Path], tick: corpora.Tick) -> Iterator[str]:
        for path in paths:
            lines = corpora.lines(path, settings.errors, tick)
            yield from _sections.sections(lines, settings.keep_headings)

    return corpora.from_files(files, documents)


def _find(folder: Path) -> dict[str, Path]:
    """Returns a file for each split, all of the training file's variant; raw before tokens."""
    there = {}
    for variant in VARIANTS:
        for split in SPLITS:
            names = [f"wiki.{split}.{variant}{packing}" for packing in PACKINGS]
            paths = [folder / name for name in names if (folder / name).is_file()]
            if paths:
                there[variant, split] = paths[0]
    for variant in VARIANTS:
        if (variant, "train") in there:
            found = {split: path for (v, split), path in there.items() if v == variant}
            break
    else:
        raise ValueError(
            f"corpus wikitext:{folder}: expected wiki.train.raw or wiki.train.tokens "
            "(or .gz, .xz), found "
            + (", ".join(sorted(p.name for p in folder.iterdir())) or "an empty folder")
        )
    others = [
        path.name for (v, split), path in there.items() if v != variant and split not in found
    ]
    if others:
        raise ValueError(
            f"corpus wikitext:{folder}: {found['train'].name} is of the variant {variant!r} but "
            f"{others[0]} is not; put the files of one variant into one folder"
        )
    return found
