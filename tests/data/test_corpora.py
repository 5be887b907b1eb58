"""Readers: every layout gives its documents; every fault is named."""

import gzip
import json
import lzma
import os
from pathlib import Path

import pytest

from scalelab.config.pretraining import Data
from scalelab.data import corpora
from scalelab.data.corpora import assign_split, open_corpus

DATA = Path(os.environ.get("SCALELAB_DATA", Path(__file__).parents[2] / "../shared/data"))

# The layout of the published files: every line begins and ends with a space, blank lines hold one.
TEXT = """
= Holt Abbey =

Holt Abbey is a ruin . It lies low .
A second paragraph .

= = History = =


= = = Early = = =

Key : Pld
= Played , W =
Wins , L

= = W = 4 = =

Why W = 4 is so .
= =

= = = Uneven = =


= Next =

Über alles , 漢字 ."""
LINES = [f" {line} " if line else " " for line in TEXT.split("\n")]
DOCUMENTS = [
    "Holt Abbey is a ruin . It lies low .\nA second paragraph .",
    "Key : Pld\n= Played , W =\nWins , L",
    "Why W = 4 is so .\n= =\n= = = Uneven = =",
    "Über alles , 漢字 .",
]
HEADINGS = "= Holt Abbey =", "= = = Early = = =", "= = W = 4 = =", "= Next ="
HEADED = [f"{heading}\n{text}" for heading, text in zip(HEADINGS, DOCUMENTS, strict=True)]
PACK = {"": lambda b: b, ".gz": gzip.compress, ".xz": lzma.compress}


def write(path, lines=LINES, end="\n", pack=""):
    path.with_name(path.name + pack).write_bytes(PACK[pack]((end.join(lines) + end).encode()))


def assert_documents(corpus):
    assert corpus.splits == ("train", "valid", "test")
    found = [list(corpus.documents(split)) for split in corpus.splits]
    assert found == [DOCUMENTS, DOCUMENTS[:1], DOCUMENTS[-1:]]


@pytest.mark.parametrize("pack", PACK)
@pytest.mark.parametrize("variant", ["raw", "tokens"])
def test_wikitext(tmp_path, variant, pack):
    for split, lines in (("train", LINES), ("valid", LINES[:5]), ("test", LINES[-4:])):
        end = "\r\n" if split == "test" else "\n"
        write(tmp_path / f"wiki.{split}.{variant}", lines, end, pack)
    corpus, ticks = open_corpus(f"wikitext:{tmp_path}"), []
    assert_documents(corpus)
    assert list(corpus.labeled(ticks.append)) == (
        [("train", text) for text in DOCUMENTS] + [("valid", DOCUMENTS[0]), ("test", DOCUMENTS[-1])]
    )
    assert sum(ticks) == sum(path.stat().st_size for path in tmp_path.iterdir())
    headed = open_corpus(f"wikitext:{tmp_path}", Data(keep_headings=True))
    assert list(headed.documents("train")) == HEADED
    assert headed.fingerprint() != corpus.fingerprint()


def texts(count):
    return [f"Document {i} says {i * i}." for i in range(count)]


def test_text(tmp_path):
    (tmp_path / "b.txt").write_text("\ufeffOne.\n  More of one.\n\n\nTwo.\n")
    (tmp_path / "a").mkdir()
    (tmp_path / "a/a.txt.gz").write_bytes(gzip.compress(b"Zero.\r\n\r\nHalf."))
    corpus = open_corpus(f"text:{tmp_path}/**/*.txt*", Data(valid_rate=1e-9))
    assert list(corpus.documents("train")) == ["Zero.", "Half.", "One.\nMore of one.", "Two."]
    assert corpus.splits == ("train", "valid")


def test_jsonl(tmp_path):
    lines = [json.dumps({"id": i, "text": text}) for i, text in enumerate(texts(50))]
    (tmp_path / "x.jsonl").write_text("\n".join([*lines[:30], "", *lines[30:]]))
    corpus = open_corpus(f"jsonl:{tmp_path}/*.jsonl", Data(valid_rate=0.3))
    assert sorted([*corpus.documents("train"), *corpus.documents("valid")]) == sorted(texts(50))


def parquet(path, rows, column="text"):
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table({column: rows}), path)


def test_parquet_in_the_layout_of_the_hub(tmp_path):
    # There, a row is a line with its line break and a blank line an empty string; files are cut
    # anywhere.
    rows = ["" if line == " " else line + "\n" for line in LINES]
    parquet(tmp_path / "train-00000-of-00002.parquet", rows[:4])
    parquet(tmp_path / "train-00001-of-00002.parquet", rows[4:])
    parquet(tmp_path / "validation-00000-of-00001.parquet", rows[:5])
    parquet(tmp_path / "test-00000-of-00001.parquet", rows[-4:])
    assert_documents(open_corpus(f"parquet:{tmp_path}"))


@pytest.mark.slow
def test_tfds(tmp_path):
    tfds = pytest.importorskip("tensorflow_datasets")
    import numpy as np

    class TinyText(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("1.0.0")

        def _info(self):
            features = tfds.features.FeaturesDict({"text": tfds.features.Text(), "n": np.int32})
            return tfds.core.DatasetInfo(builder=self, features=features)

        def _split_generators(self, manager):
            return {"train": self._generate_examples(20), "test": self._generate_examples(3)}

        def _generate_examples(self, count):
            for i, text in enumerate(texts(count)):
                yield i, {"text": text, "n": i}

    TinyText(data_dir=tmp_path).download_and_prepare()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tfds, "builder", lambda name: TinyText(data_dir=tmp_path))
        corpus = open_corpus("tfds:tiny_text", Data(valid_rate=0.3))
        assert corpus.splits == ("train", "valid", "test")
        both = [*corpus.documents("train"), *corpus.documents("valid")]
        assert sorted(both) == sorted(texts(20))
        assert sorted(corpus.documents("test")) == sorted(texts(3))
        assert (
            corpus.fingerprint()
            == open_corpus("tfds:tiny_text", Data(valid_rate=0.3)).fingerprint()
        )
    with pytest.raises(ValueError, match="tfds:mnist: .*'text'.*image"):
        open_corpus("tfds:mnist")


def test_the_split_is_a_partition_of_the_documents(tmp_path):
    (tmp_path / "x.txt").write_text("\n\n".join(texts(2000)))
    corpus = open_corpus(f"text:{tmp_path}/x.txt", Data(valid_rate=0.1))
    valid = list(corpus.documents("valid"))
    train = list(corpus.documents("train"))
    assert sorted(train + valid) == sorted(texts(2000))
    assert 140 < len(valid) < 260  # five standard deviations around 200
    assert train == [text for text in texts(2000) if text not in set(valid)]  # in order
    # A document keeps its split when others come, or when the rate grows.
    assert {text for text in texts(2100)[:2000] if assign_split(text, 0.1) == "valid"} == set(valid)
    assert {text for text in texts(2000) if assign_split(text, 0.4) == "valid"} > set(valid)


def test_the_fingerprint_is_of_the_content(tmp_path):
    def make(name, lines, **options):
        folder = tmp_path / name
        folder.mkdir()
        write(folder / "wiki.train.raw", lines)
        return open_corpus(f"wikitext:{folder}", Data(**options)).fingerprint()

    first = make("a", LINES)
    assert make("b", LINES) == first
    assert make("c", LINES[:-1] + [" Über alles , 漢宇 . "]) != first
    assert make("d", LINES, valid_rate=0.1) != first
    assert make("e", LINES, errors="replace") != first


@pytest.mark.realdata
def test_wikitext_2_has_its_published_numbers_of_articles():
    folder = DATA / "wikitext-2"
    if not folder.is_dir():
        pytest.skip(f"no {folder}")
    corpus = open_corpus(f"wikitext:{folder}", Data(keep_headings=True))
    # 600, 60 and 60 articles (Merity et al. 2016, table 1): titles are headings of the first level.
    # An article's lead section is its own document.
    for split, articles in (("train", 600), ("valid", 60), ("test", 60)):
        first = [text.split("\n")[0] for text in corpus.documents(split)]
        titles = [line for line in first if line.startswith("= ") and not line.startswith("= =")]
        assert len(titles) == articles, split


@pytest.mark.parametrize("spec, message", [
    ("wikitex:x", "'wikitex:x'.*'wikitext'"),
    ("builtin:x", "builtin.*'x'"),
    ("parquet:no/such/folder", "parquet:no/such/folder: "),
    ("text:no/such/*.txt", "text:no/such/\\*.txt: "),
    ("text:", "text: .*text:texts/"),
    ("wikitext:EMPTY", "expected wiki.train.raw .*empty"),
    ("parquet:EMPTY", "expected train-.*empty"),
    ("wikitext:FOLDER", "wiki.train.raw: .*empty"),
    ("text:FOLDER/*", "text:.*: .*empty"),
    ("text:FOLDER", "is a folder.*text:FOLDER/\\*.txt"),
    ("jsonl:FOLDER/", "is a folder.*jsonl:FOLDER/\\*.jsonl"),
    ("FOLDER", "did you mean wikitext:FOLDER\\?"),
    ("EMPTY", "did you mean text:EMPTY/\\*.txt\\?"),
    ("FOLDER/wiki.train.raw", "did you mean text:FOLDER/wiki"),
    ("", "unknown reader ''"),
])  # fmt: skip
def test_missing(tmp_path, spec, message):
    (tmp_path / "empty").mkdir()
    (tmp_path / "wiki.train.raw").touch()
    spec, message = (
        text.replace("EMPTY", f"{tmp_path}/empty").replace("FOLDER", str(tmp_path))
        for text in (spec, message)
    )
    with pytest.raises(ValueError, match=message):
        open_corpus(spec)


BROKEN = "Grüße. Zwei\n".encode("latin-1")


@pytest.mark.parametrize("pack", PACK)
def test_invalid_utf8_is_named_by_file_and_byte(tmp_path, pack):
    start = "Schön.\n\n".encode() * 3
    path = tmp_path / f"x.txt{pack}"
    path.write_bytes(PACK[pack](start + BROKEN))
    spec = f"text:{path}"
    fault = rf"x.txt{pack}: .*UTF-8 .*{len(start) + 2} .*errors=replace"
    with pytest.raises(ValueError, match=fault):
        list(open_corpus(spec).labeled())
    got = [text for _, text in open_corpus(spec, Data(errors="replace")).labeled()]
    assert got == ["Schön."] * 3 + ["Gr\ufffd\ufffde. Zwei"]


def test_faults_of_json_and_parquet_name_the_row(tmp_path):
    (tmp_path / "x.jsonl").write_text('{"text": "good"}\n{"text": "bad \\ud800 half"}\n')
    spec = f"jsonl:{tmp_path}/x.jsonl"
    with pytest.raises(ValueError, match="x.jsonl, line 2: .*UTF-8 .*4"):
        list(open_corpus(spec).labeled())
    assert ("train", "bad \ufffd half") in list(open_corpus(spec, Data(errors="replace")).labeled())

    parquet(tmp_path / "train-00000-of-00001.parquet", [b" = A = ", b"", BROKEN])
    spec = f"parquet:{tmp_path}"
    with pytest.raises(ValueError, match="train-00000-of-00001.parquet, row 2: .*UTF-8 .*2"):
        list(open_corpus(spec).labeled())
    with pytest.raises(ValueError, match="'text'.*line"):
        parquet(tmp_path / "train-00000-of-00001.parquet", ["a"], column="line")
        list(open_corpus(spec).labeled())


@pytest.mark.parametrize("line, message", [
    ("{", "line 2: .*JSON"),
    ('{"texts": "a"}', "line 2: .*object"),
    ('{"text": 5}', "line 2: .*object"),
    ('{"n": ' + "7" * 5000 + "}", "line 2: .*JSON"),
    ("[" * 100_000, "line 2: .*JSON"),
])  # fmt: skip
def test_broken_json_lines(tmp_path, line, message):
    (tmp_path / "x.jsonl").write_text('{"text": "good"}\n' + line)
    with pytest.raises(ValueError, match=message):
        list(open_corpus(f"jsonl:{tmp_path}/*").labeled())


@pytest.mark.parametrize("pack", [".gz", ".xz"])
@pytest.mark.parametrize(
    "harm", [lambda b: b[: len(b) // 2], lambda b: b"x" + b], ids=["cut", "not packed"]
)
def test_broken_packed_files(tmp_path, pack, harm):
    content = PACK[pack](os.urandom(1000).hex().encode())
    (tmp_path / f"x.txt{pack}").write_bytes(harm(content))
    with pytest.raises(ValueError, match=f"x.txt{pack}: "):
        list(open_corpus(f"text:{tmp_path}/*").labeled())


def test_links_in_circles_lead_to_a_file_once(tmp_path):
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/x.txt").write_text("One text.")
    (tmp_path / "a/loop").symlink_to(tmp_path / "a")
    (tmp_path / "a/again.txt").symlink_to(tmp_path / "a/b/x.txt")
    corpus = open_corpus(f"text:{tmp_path}/**/*.txt")
    assert [text for _, text in corpus.labeled()] == ["One text."]


def test_a_document_of_one_long_line_is_cut_at_spaces(tmp_path, monkeypatch):
    words = [f"word{i}" for i in range(500)]
    (tmp_path / "x.txt").write_text(" ".join(words) + "\n\n" + "y" * 250)
    monkeypatch.setattr(corpora, "MAX_CHARS", 100)
    found = list(open_corpus(f"text:{tmp_path}/x.txt").labeled())
    assert max(len(text) for _, text in found) <= 100
    assert " ".join(text.strip() for _, text in found[:-3]).split() == words
    assert [len(text) for _, text in found[-3:]] == [100, 100, 50]
    assert len({split for split, _ in found[:-3]}) == 1  # all of a document are in one split


@pytest.mark.parametrize(("num", "words", "held"), [
    (415, 1000, 28),  # a tenth of the words, 41,500, is less than 50,000; see below
    (2000, 10, 100),
    (400, 2000, 25),  # 50,000 words
    (20, 5, 2),
    (2, 5, 1),
])  # fmt: skip
def test_a_validation_is_large_enough_or_a_tenth(num, words, held, tmp_path) -> None:
    held = 42 if num == 415 else held  # a tenth of the documents, rounded up
    lines = [json.dumps({"text": f"{i} " + "a " * (words - 1)}) for i in range(num)]
    (tmp_path / "x.jsonl").write_text("\n".join(lines))
    corpus = open_corpus(f"jsonl:{tmp_path}/x.jsonl")
    found = {split: [*corpus.documents(split)] for split in ("train", "valid")}
    assert (len(found["valid"]), len(found["train"])) == (held, num - held)
    same = open_corpus(f"jsonl:{tmp_path}/x.jsonl", Data(valid_rate=corpus.valid_rate))
    assert same.fingerprint() == corpus.fingerprint()


def test_a_large_corpus_keeps_the_least_share_and_is_not_read_to_its_end() -> None:
    passed = []
    stream = (passed.append(i) or f"text {i}" for i in range(1_000_000))
    assert corpora.choose_rate(stream) == 0.005
    assert len(passed) < 40_000
    assert corpora.choose_rate(["a"] * 1000) == 0.005  # one text, often
