"""Readers: every fault is named by file and place."""

import gzip
import lzma
import os
from pathlib import Path

import pytest

from scalelab.data import corpora
from scalelab.data.corpora import open_corpus

PACK = {"": lambda b: b, ".gz": gzip.compress, ".xz": lzma.compress}


def parquet(path, rows, column="text"):
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table({column: rows}), path)


@pytest.mark.parametrize(
    "spec, message",
    [
        ("wikitex:x", "unknown corpus reader 'wikitex' in 'wikitex:x': did you mean 'wikitext'"),
        ("", "unknown corpus reader ''"),
        ("builtin:x", "takes no argument, got 'x'"),
        ("wikitext:no/such/folder", "corpus wikitext:no/such/folder: expected a folder"),
        ("wikitext:", "corpus wikitext:: expected a folder"),
        ("parquet:no/such/folder", "corpus parquet:no/such/folder: expected a folder"),
        ("text:no/such/*.txt", "corpus text:no/such/\\*.txt: no file matches"),
        ("text:", "corpus text: needs a file or pattern"),
        ("jsonl:none.jsonl", "no file matches"),
    ],
)
def test_missing(spec, message):
    with pytest.raises(ValueError, match=message):
        open_corpus(spec)


@pytest.mark.parametrize(
    "option, value", [("errors", "ignore"), ("valid_rate", 0), ("valid_rate", 1)]
)
def test_settings_out_of_range(option, value):
    with pytest.raises(ValueError, match=f"data.{option} must .* got {value!r}"):
        open_corpus("builtin", **{option: value})


def test_empty(tmp_path):
    with pytest.raises(ValueError, match="expected wiki.train.raw .* found an empty folder"):
        open_corpus(f"wikitext:{tmp_path}")
    with pytest.raises(ValueError, match="expected train-.*found an empty folder"):
        open_corpus(f"parquet:{tmp_path}")
    (tmp_path / "wiki.train.raw").touch()
    with pytest.raises(ValueError, match="wiki.train.raw: the file is empty"):
        open_corpus(f"wikitext:{tmp_path}")
    with pytest.raises(ValueError, match="every file that matches is empty"):
        open_corpus(f"text:{tmp_path}/*")


BROKEN = "Grüße. Zwei\n".encode("latin-1")


@pytest.mark.parametrize("pack", PACK)
def test_invalid_utf8_is_named_by_file_and_byte(tmp_path, pack):
    start = "Schön.\n\n".encode() * 3
    path = tmp_path / f"x.txt{pack}"
    path.write_bytes(PACK[pack](start + BROKEN))
    spec = f"text:{path}"
    with pytest.raises(
        ValueError, match=rf"x.txt{pack}: invalid UTF-8 at byte {len(start) + 2} .*errors=replace"
    ):
        list(open_corpus(spec).labelled())
    got = [text for _, text in open_corpus(spec, errors="replace").labelled()]
    assert got == ["Schön."] * 3 + ["Gr\ufffd\ufffde. Zwei"]


def test_invalid_utf8_in_json_and_parquet(tmp_path):
    (tmp_path / "x.jsonl").write_text('{"text": "good"}\n{"text": "bad \\ud800 half"}\n')
    spec = f"jsonl:{tmp_path}/x.jsonl"
    with pytest.raises(ValueError, match="x.jsonl, line 2: invalid UTF-8 at byte 4 of the text"):
        list(open_corpus(spec).labelled())
    assert ("train", "bad \ufffd half") in list(open_corpus(spec, errors="replace").labelled())

    parquet(tmp_path / "train-00000-of-00001.parquet", [b" = A = ", b"", BROKEN])
    spec = f"parquet:{tmp_path}"
    with pytest.raises(
        ValueError, match="train-00000-of-00001.parquet: invalid UTF-8 at byte 2 of row 2"
    ):
        list(open_corpus(spec).labelled())
    assert [text for _, text in open_corpus(spec, errors="replace").labelled()] == [
        "Gr\ufffd\ufffde. Zwei"
    ]


@pytest.mark.parametrize(
    "line, message",
    [
        ("{", "line 2: not JSON"),
        ("[1]", "line 2: expected an object"),
        ('{"texts": "a"}', "line 2: the object has no field 'text'; did you mean 'texts'"),
        ('{"text": 5}', "line 2: the field 'text' is not a string: 5"),
        ('{"n": ' + "7" * 5000 + "}", "line 2: not JSON"),
        ("[" * 100_000, "line 2: not JSON"),
    ],
)
def test_broken_json_lines(tmp_path, line, message):
    (tmp_path / "x.jsonl").write_text('{"text": "good"}\n' + line)
    with pytest.raises(ValueError, match=message):
        list(open_corpus(f"jsonl:{tmp_path}/*").labelled())


@pytest.mark.parametrize("pack", [".gz", ".xz"])
@pytest.mark.parametrize(
    "harm", [lambda b: b[: len(b) // 2], lambda b: b"x" + b], ids=["cut", "not packed"]
)
def test_broken_packed_files(tmp_path, pack, harm):
    content = PACK[pack](os.urandom(1000).hex().encode())
    (tmp_path / f"x.txt{pack}").write_bytes(harm(content))
    with pytest.raises(ValueError, match=f"x.txt{pack}: truncated"):
        list(open_corpus(f"text:{tmp_path}/*").labelled())


def test_links_in_circles_lead_to_a_file_once(tmp_path):
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/x.txt").write_text("One text.")
    (tmp_path / "a/loop").symlink_to(tmp_path / "a")
    (tmp_path / "a/again.txt").symlink_to(tmp_path / "a/b/x.txt")
    corpus = open_corpus(f"text:{tmp_path}/**/*.txt")
    assert [text for _, text in corpus.labelled()] == ["One text."]


def test_a_document_of_one_long_line_is_cut_at_spaces(tmp_path, monkeypatch):
    words = [f"word{i}" for i in range(500)]
    (tmp_path / "x.txt").write_text(" ".join(words) + "\n\n" + "y" * 250)
    monkeypatch.setattr(corpora, "MAX_CHARS", 100)
    found = list(open_corpus(f"text:{tmp_path}/x.txt").labelled())
    assert max(len(text) for _, text in found) <= 100
    assert " ".join(text.strip() for _, text in found[:-3]).split() == words
    assert [len(text) for _, text in found[-3:]] == [100, 100, 50]
    assert len({split for split, _ in found[:-3]}) == 1  # all of a document are in one split


def test_broken_parquet(tmp_path):
    path = tmp_path / "train-00000-of-00001.parquet"
    path.write_bytes(b"PAR1 no more")
    with pytest.raises(ValueError, match="train-00000-of-00001.parquet: cannot be read"):
        list(open_corpus(f"parquet:{tmp_path}").labelled())
    parquet(path, ["a"], column="line")
    with pytest.raises(ValueError, match="no column 'text'; .*line"):
        list(open_corpus(f"parquet:{tmp_path}").labelled())


def test_unreadable_file(tmp_path, monkeypatch):
    (tmp_path / "wiki.train.raw").write_text(" = A = \n \n Text. \n")
    real = Path.open

    def refuse(self, *args, **kwargs):
        if self.name == "wiki.train.raw":
            raise PermissionError(13, "Permission denied", str(self))
        return real(self, *args, **kwargs)

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(ValueError, match="wiki.train.raw: cannot be read .Permission denied"):
        open_corpus(f"wikitext:{tmp_path}").fingerprint()
