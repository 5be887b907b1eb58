"""`jsonl:GLOB`: a JSON object a line, the document in its field `text`.

A field `spans` may mark phrases and entities: [[start, end, "phrase" or "entity"], ...], places of
characters in the text; spans do not overlap.
"""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

from scalelab.data import corpora
from scalelab.helpers.names import brief, nearest

VERSION = "1"
FIELD, SPANS = "text", "spans"


def read(argument: str, settings: corpora.Settings) -> corpora.Source:
    """Opens the files that match `argument`; `.gz` and `.xz` are unpacked."""

    def records(paths: list[Path], tick: corpora.Tick) -> Iterator[tuple[str, list[corpora.Span]]]:
        for path in paths:
            for number, line in enumerate(corpora.lines(path, settings.errors, tick), 1):
                if line.strip():
                    where = f"{path}, line {number}"
                    text, spans = _parse(line, where)
                    yield corpora.decode(text, settings.errors, where), spans

    def documents(paths: list[Path], tick: corpora.Tick) -> Iterator[str]:
        return (text for text, _ in records(paths, tick))

    paths = corpora.find(argument, "jsonl")
    source = corpora.from_files({"train": paths}, documents)
    return dataclasses.replace(source, spans=lambda: records(paths, lambda num_bytes: None))


def _parse(line: str, where: str) -> tuple[str, list[corpora.Span]]:
    """Returns the text and the sorted spans of an object."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:  # also of numbers or nestings without end
        raise ValueError(f"{where}: not JSON ({error})") from error
    text = found.get(FIELD) if isinstance(found, dict) else None
    if not isinstance(text, str):
        message = f"expected an object with a string in the field {FIELD!r}, got {line[:40]}"
        raise ValueError(f"{where}: {message}")
    return text, _check(found.get(SPANS) or [], len(text), where)


def _check(spans: object, num_chars: int, where: str) -> list[corpora.Span]:
    """Returns spans in the order of the text; raises ValueError as `Source.spans`."""
    found = spans if isinstance(spans, list) else [spans]
    for span in found:
        if not isinstance(span, list) or list(map(type, span)) != [int, int, str]:
            raise ValueError(f"{where}: expected a span [start, end, kind], got {brief(span)}")
        if span[2] not in corpora.UNITS:
            valid = nearest(span[2], corpora.UNITS)
            raise ValueError(f"{where}: unknown kind of span {span[2]!r}: {valid}")
    last, found = 0, sorted(map(tuple, found))
    for begin, end, _ in found:
        if not last <= begin < end <= num_chars:
            why = f"is empty or runs past the document, which has {num_chars} characters"
            why = "overlaps the one before it" if 0 <= begin < last else why
            raise ValueError(f"{where}: the span from {begin} to {end} {why}")
        last = end
    return found
