"""`jsonl:GLOB`: a JSON object a line, the document in its field `text`."""

import json
from collections.abc import Iterator
from pathlib import Path

from scalelab.data import corpora

VERSION = "1"
FIELD = "text"


def read(argument: str, settings: corpora.Settings) -> corpora.Source:
    """Opens the files that match `argument`; `.gz` and `.xz` are unpacked."""

    def documents(paths: list[Path], tick: corpora.Tick) -> Iterator[str]:
        for path in paths:
            for number, line in enumerate(corpora.lines(path, settings.errors, tick), 1):
                if line.strip():
                    where = f"{path}, line {number}"
                    yield corpora.decode(_text(line, where), settings.errors, where)

    return corpora.from_files({"train": corpora.find(argument, "jsonl")}, documents)


def _text(line: str, where: str) -> str:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:  # also of numbers or nestings without end
        raise ValueError(f"{where}: not JSON ({error})") from error
    text = found.get(FIELD) if isinstance(found, dict) else None
    if not isinstance(text, str):
        message = f"expected an object with a string in the field {FIELD!r}, got {line[:40]}"
        raise ValueError(f"{where}: {message}")
    return text
