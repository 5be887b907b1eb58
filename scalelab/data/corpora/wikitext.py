"""`wikitext:DIR`: the published WikiText files, or others in their layout (Merity et al. 2016).

`wiki.{train,valid,test}.{raw,tokens}`, plain or packed as `.gz` or `.xz`. A section is a document.
"""

import itertools
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from scalelab.data import corpora
from scalelab.helpers.files import listing

VERSION = "1"
SPLITS = ("train", "valid", "test")
VARIANTS = ("raw", "tokens")
PACKINGS = ("", ".gz", ".xz")
_HEADING = re.compile(r" (=(?: =)*) (\S.*?) (=(?: =)*) ?")


def read(argument: str, settings: corpora.Data) -> corpora.Source:
    """Opens the corpus in the folder `argument`: all files of one variant, raw before tokens."""
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
            f"corpus wikitext:{folder}: expected wiki.train.raw or wiki.train.tokens (or .gz, .xz);"
            f" {listing(folder)}"
        )
    for path in (path for paths in files.values() for path in paths):
        if not path.stat().st_size:
            raise ValueError(f"{path}: the file is empty")

    def documents(paths: list[Path], tick: corpora.Tick) -> Iterator[str]:
        for path in paths:
            lines = corpora.lines(path, settings.errors, tick)
            yield from sections(lines, settings.keep_headings)

    return corpora.from_files({split: paths for split, paths in files.items() if paths}, documents)


def is_heading(line: str) -> bool:
    """Returns True for ` = Title = `, with as many signs before as after."""
    match = _HEADING.fullmatch(line)
    return match is not None and match[1] == match[3]


def sections(lines: Iterable[str], keep_headings: bool) -> Iterator[str]:
    """Streams the sections of a file as documents: the text between headings of any depth.

    A heading has a blank line on either side. A line such as ` = Wins , L = ` inside a paragraph,
    where some formula or table was torn apart, is text. A section without text is no document.
    Paragraphs are stripped and joined by line breaks. With `keep_headings` a document begins with
    its heading.
    """
    heading: list[str] = []
    paragraphs: list[str] = []
    previous, current = "", None
    for following in itertools.chain(lines, [""]):
        if current is not None:
            bounded = not previous.strip() and not following.strip()
            if bounded and is_heading(current):
                if paragraphs:
                    yield "\n".join(heading + paragraphs)
                heading, paragraphs = [current.strip()] if keep_headings else [], []
            elif stripped := current.strip():
                paragraphs.append(stripped)
            previous = current
        current = following
    if paragraphs:
        yield "\n".join(heading + paragraphs)
