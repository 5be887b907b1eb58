"""`text:GLOB`: plain text; a blank line or the end of a file ends a document."""

from collections.abc import Iterator
from pathlib import Path

from scalelab.data import corpora

VERSION = "1"


def read(argument: str, settings: corpora.Data) -> corpora.Source:
    """Opens the files that match `argument`; `.gz` and `.xz` are unpacked."""

    def documents(paths: list[Path], tick: corpora.Tick) -> Iterator[str]:
        for path in paths:
            paragraph: list[str] = []
            for line in map(str.strip, corpora.lines(path, settings.errors, tick)):
                if line:
                    paragraph.append(line)
                elif paragraph:
                    yield "\n".join(paragraph)
                    paragraph = []
            if paragraph:
                yield "\n".join(paragraph)

    return corpora.from_files({"train": corpora.find(argument, "text")}, documents)
