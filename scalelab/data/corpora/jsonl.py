"""`jsonl:GLOB`: a JSON object a line, the document in its field `text`.

A field `spans` may mark phrases and entities: [[start, end, "phrase" or "entity"], ...], places of
characters in the text; spans do not overlap. A dialogue has the field `turns` in place of these:
[[speaker, text], ...], at least two.
"""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

from scalelab.data import corpora
from scalelab.helpers.files import parse_json
from scalelab.helpers.names import brief, check_names, prefix_errors

VERSION = "1"
FIELD, SPANS, TURNS = "text", "spans", "turns"


def read(argument: str, settings: corpora.Data) -> corpora.Source:
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
    with prefix_errors(where):
        found = parse_json(line, any_text=True)
    if isinstance(found, dict) and TURNS in found:
        return _join(found[TURNS], where)
    text = found.get(FIELD) if isinstance(found, dict) else None
    if not isinstance(text, str):
        message = f"expected an object with a string in the field {FIELD!r}, got {line[:40]}"
        raise ValueError(f"{where}: {message}")
    return text, _check(found.get(SPANS) or [], len(text), where)


def _join(turns: object, where: str) -> tuple[str, list[corpora.Span]]:
    """Returns the text of a dialogue, and its turns as spans; speakers by order of appearance."""
    text, spans, speakers = "", [], []
    for turn in turns if isinstance(turns, list) else [turns]:
        if not isinstance(turn, list) or [*map(type, turn)] != [str, str] or not turn[1].strip():
            raise ValueError(f"{where}: expected a turn [speaker, text], got {brief(turn)}")
        speakers += [turn[0]] * (turn[0] not in speakers)
        kind = [*corpora.TURNS][min(speakers.index(turn[0]), 3)]
        spans.append((len(text), len(text) + len(turn[1]), kind))
        text += turn[1] + "\n"
    if len(spans) < 2:
        raise ValueError(f"{where}: a dialogue needs at least two turns, got {len(spans)}")
    return text, spans


def _check(spans: object, num_chars: int, where: str) -> list[corpora.Span]:
    """Returns spans in the order of the text; raises ValueError as `Source.spans`."""
    found = spans if isinstance(spans, list) else [spans]
    for span in found:
        if not isinstance(span, list) or list(map(type, span)) != [int, int, str]:
            raise ValueError(f"{where}: expected a span [start, end, kind], got {brief(span)}")
        check_names([span[2]], corpora.UNITS, f"{where}: unknown kind of span")
    last, found = 0, sorted(map(tuple, found))
    for begin, end, _ in found:
        if not last <= begin < end <= num_chars:
            why = f"is empty or runs past the document, which has {num_chars} characters"
            why = "overlaps the one before it" if 0 <= begin < last else why
            raise ValueError(f"{where}: the span from {begin} to {end} {why}")
        last = end
    return found
