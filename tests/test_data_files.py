"""Readers of data files: faults end in one ValueError that names file and line."""

import json
import lzma
import pathlib
import random
import re
from collections.abc import Callable
from typing import Any

import pytest
from data_readers import READERS, Reader

from scalelab.tasks import data_files
from scalelab.tasks.records import Records


def content(found: Any) -> str:
    """Writes what was read; `json` fails on objects that are no data."""
    if isinstance(found, Records):
        labels = None if found.labels is None else found.labels.tolist()
        found = [found.texts, labels, found.remarks]
    elif hasattr(found, "train"):
        return content(found.train)
    elif hasattr(found, "to_json"):
        return found.to_json()
    texts = [text for own in found for text in getattr(getattr(own, "item", own), "texts", ())]
    assert all(isinstance(text, str) for text in texts)
    return json.dumps(found, ensure_ascii=False)


@pytest.mark.parametrize("name", READERS)
def test_line_ends_and_byte_order_marks_are_no_content(name: str, tmp_path: pathlib.Path) -> None:
    reader, folder = READERS[name], tmp_path
    reader.write(folder)
    sound = content(reader.read(folder))
    assert len(sound) > 5
    changes: dict[str, Callable[[bytes], bytes]] = {
        "CRLF": lambda data: data.replace(b"\n", b"\r\n"),
        "CR": lambda data: data.replace(b"\n", b"\r"),
        "a mark": lambda data: b"\xef\xbb\xbf" + data,
    }
    for change, make in changes.items():
        for path in reader.files:
            if (change, path) != ("a mark", "trec/TREC.test"):  # Latin-1
                (folder / path).write_bytes(make(reader.files[path].encode()))
        assert content(reader.read(folder)) == sound, change
        reader.write(folder)


def twice(content: str) -> tuple[str, str]:
    """Returns a key of the innermost object of the first line, and an object that repeats it."""
    key = content.partition("\n")[0].rpartition("{")[2].partition(":")[0]
    return f"{{{key}:", f"{{{key}: 1, {key}:"


DEEP, LONG = "[" * 5000, "7" * 5000
FAULTS = [  # reader, file, what stands there, what replaces it, the place and the message
    ("winogender", "all_sentences.tsv", "female.txt", 'female.txt\t"', "line 3: expected 2 .*3"),
    ("winogender", "occupations-stats.tsv", "90", "9O", "line 2: .*9O"),
    ("crows_pairs", "crows_pairs_anonymized.csv", 'sir."', "sir.", "line 2: .*quotes closed"),
    ("green", "colorlessgreen/English/generated.tab", "wrong", "right", "line 2: .*correct and a"),
    ("linzen", "linzen_testset/subj_agr_filtered.gold", "2\t", "two\t", "line 1: .*'two'"),
    ("predict jsonl", "x.jsonl", '{"a": "A.", "b": "B."}', "1.5", "line 1: .*object, found 1.5"),
    ("predict jsonl", "x.jsonl", '"D."', LONG, "line 2: not JSON: .*5000 digits$"),
    ("predict csv", "x.csv", "A dog.", "x" * 200_000, "line 2: .*field limit"),
    ("pairs", "p.jsonl", '"g"', "1e999", "line 1: .*range: '1e999'"),
    ("pairs", "p.jsonl", '"A."', '"\\ud800"', "line 1: .*surrogates not allowed"),
    ("pairs", "p.jsonl", '"A."', '"\\u0000"', "line 1: holds NUL"),
    ("glue", "dev.tsv", "a\tb", "a\ta", "line 1: .*'b'.*'a', 'a'"),
    ("predict tsv", "x.tsv", "a\tb\tlabel", "a\tb\tb", "line 1: .*'b' occurs 2 times"),
    ("copa", "val.jsonl", '"label": 0', '"label": 2', "line 1: 2 "),
    ("prompts", "agnews/test.csv", '"3"', '"three"', "line 1: .*'three'"),
    ("cats", "commonsense_ability_test/ca.txt", "1\x01", f"{LONG}\x01", "line 1: .*place"),
    ("syntaxgym", "json/number_x.json", "(1;%b%)", "'a'", "formula"),
    ("babylm", "reading/reading_data.csv", ",0,", ",none,", "line 2: .*none"),
    ("babylm", "entity_tracking/regular.jsonl", '["a hat.", "a dog."]', "[]", "line 1: .*several"),
    ("blimp published", "published/models_summary.jsonl", "0.5", '"high"', "'high'"),
    ("wordsim", "ws.txt", "7.5", "inf", "line 1: .*score"),
    ("wordsim", "ws.txt", "7.5", "1", "different scores"),
    ("treebank", "en-ud-dev.conllu", "\tdep", "", "line 2: .*10 fields"),
    *((name, path, None, DEEP, "levels") for name, reader in READERS.items()
      for path in reader.files if path.endswith((".json", ".jsonl"))),
    *((name, path, *twice(content), "repeated") for name, reader in READERS.items()
      for path, content in reader.files.items() if path.endswith((".json", ".jsonl"))),
]  # fmt: skip


@pytest.mark.parametrize(("name", "path", "there", "instead", "message"), FAULTS)
def test_a_fault_is_named(
    name: str, path: str, there: str | None, instead: str, message: str, tmp_path: pathlib.Path
) -> None:
    reader = READERS[name]
    reader.write(tmp_path)
    text = reader.files[path]
    assert there is None or there in text
    (tmp_path / path).write_text(instead if there is None else text.replace(there, instead, 1))
    with pytest.raises(ValueError, match=rf"(?s){path}.*{message}"):
        reader.read(tmp_path)


def test_fields_as_written(tmp_path: pathlib.Path) -> None:
    (tmp_path / "x").write_bytes(b'a,"b ""c"",\r\nd"\r\n\r\ne,f')
    rows = list(data_files.read_fields(tmp_path / "x", ",", quoted=True))
    assert rows == [(1, ["a", 'b "c",\nd']), (4, ["e", "f"])]
    (tmp_path / "x").write_bytes(b'"a\tb"\n\n\x0b\x1c\t\xe2\x80\xa8')
    rows = list(data_files.read_fields(tmp_path / "x"))
    assert rows == [(1, ['"a', 'b"']), (2, [""]), (3, ["\x0b\x1c", "\u2028"])]


@pytest.mark.parametrize("pack", [bytes, lzma.compress])
def test_a_bad_byte_far_inside_is_named(pack, tmp_path: pathlib.Path) -> None:
    path = tmp_path / ("x.tsv" if pack is bytes else "x.tsv.xz")
    path.write_bytes(pack(b"a row\n" * 20_000 + b"gr\xfcn\n" + b"a row\n" * 20_000))
    with pytest.raises(ValueError, match=r"x.tsv.*, line 20001: .* byte 120002 "):
        list(data_files.read_lines(path))


# --- Mutations -----------------------------------------------------------------------------------

PIECES = [piece.encode("utf-8", "surrogatepass") for piece in (
    '"', '""', "'", "\t", ",", "\n", "\r", "\r\n", "\n\n", "\0", "\x01", "\ufeff", "\u2028", "\x0b",
    " ", ".", "-", "#", "\\", "{", "}", "[", "]", ":", DEEP, "[" * 25 + "]" * 25, LONG, "1e999",
    "1e308", "-1", "NaN", "Infinity", "null", "true", "1.5", "{}", "[]", '""', '"\\ud800"', '"x"',
    "\\u0000", "\\ud83d\\ude00", "\ud800", "99999999999999999999", "[1]", '{"a": 1}', "\u0663",
)] + [b"\xff", b"\xc3", b"\xed\xa0"]  # fmt: skip
VALUE = re.compile(rb'"[^"]*"|[\w.%+-]+|[\[{][^\[\]{}]*[\]}]')


def mutate(data: bytes, draw: random.Random) -> bytes:
    """Changes a file in one to three places."""
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        a, b = sorted(draw.randrange(len(data) + 1) for _ in range(2))
        lines = data.split(b"\n")
        k = draw.randrange(len(lines))
        match draw.randrange(7):
            case 0:  # inserts
                data = data[:a] + draw.choice(PIECES) + data[a:]
            case 1 | 2:  # replaces a value
                found = list(VALUE.finditer(data))
                start, stop = draw.choice(found).span() if found else (a, b)
                data = data[:start] + draw.choice(PIECES) + data[stop:]
            case 3:  # leaves out
                data = data[:a] + data[min(b, a + draw.randrange(1, 9)) :]
            case 4:  # ends early
                data = data[:b]
            case 5:  # repeats or drops a line
                data = b"\n".join(lines[:k] + lines[k:][:1] * draw.choice((0, 2)) + lines[k + 1 :])
            case 6:  # changes one byte
                data = data[:a] + bytes([draw.randrange(256)]) + data[a + 1 :]
    return data


def judge(name: str, reader: Reader, path: str, folder: pathlib.Path) -> str | None:
    """Reads; returns a description of what should not happen."""
    try:
        content(reader.read(folder)).encode()
    except ValueError as error:
        if type(error) is ValueError and str(folder) in str(error):
            return None
        return f"{name}, {path}: {type(error).__name__}: {str(error)[:200]}"
    except Exception as error:
        return f"{name}, {path}: {type(error).__name__}: {str(error)[:200]}"
    return None


def test_no_mutation_raises_another_error(request, tmp_path: pathlib.Path) -> None:
    """`make mutate` tries a million."""
    num, draw, found = request.config.getoption("--mutations"), random.Random(0), []
    for name, reader in READERS.items():
        reader.write(tmp_path / name.replace(" ", "_"))
    names = list(READERS)
    for k in range(num):
        name = names[k % len(names)]
        reader, folder = READERS[name], tmp_path / name.replace(" ", "_")
        path = draw.choice([*reader.files])
        sound = reader.files[path].encode()
        mutated = mutate(sound, draw)
        for data in (mutated, sound):
            (folder / path).unlink()  # some file systems wait for the disk to replace a content
            (folder / path).write_bytes(data)
            if data is mutated and (message := judge(name, reader, path, folder)):
                found.append(f"{message}\n    {mutated[:300]!r}")
    assert not found, f"{len(found)} of {num}\n" + "\n".join(found[:20])
