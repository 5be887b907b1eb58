"""Preparation against a plain loop: read the file, split, encode with AutoTokenizer."""

import dataclasses
import itertools
import json

import numpy as np
import pytest
import transformers

from scalelab.config.pretraining import Data
from scalelab.data import prepare, sentences, tokenizers
from scalelab.data.corpora import open_corpus

BERT = tuple((role, f"[{role.upper()}]") for role in ("pad", "unk", "cls", "sep", "mask"))
GPT2 = (("eos", "<|endoftext|>"),)

WORDPIECE = tokenizers.TokenizerSpec(
    "wordpiece", 150, False, BERT, ("[CLS]",), ("[SEP]",), ("[SEP]",)
)
BYTEBPE = tokenizers.TokenizerSpec("bytebpe", 320, False, GPT2, (), ("<|endoftext|>",), ())


def prepare_rows(rows, spec, folder):
    """Prepares a corpus of JSON lines with few pieces, a fifth of it for validation."""
    (folder / "x.jsonl").write_text("\n".join(map(json.dumps, rows)))
    spec = dataclasses.replace(spec, vocab_size=80 if spec is WORDPIECE else 290)
    source = open_corpus(f"jsonl:{folder}/x.jsonl", Data(valid_rate=0.2))
    text = prepare.Sentences(source, folder / "cache", num_workers=0, progress=False)
    return prepare.prepare_documents(text, spec)


def paragraph(i):
    return (
        f"Section {i} is about the number {i * i}. It isn't long, as Dr. Smith said! "
        f"Was it {'very ' * (i % 4)}useful [MASK]? 漢字  here.\u00a0Yes."
    )


@pytest.fixture
def corpus(tmp_path):
    """A folder in WikiText's layout with a training and a validation file."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    for split, numbers in (("train", range(60)), ("valid", range(60, 70))):
        lines = []
        for i in numbers:
            lines += [" ", f" = Title {i} = ", " ", f" {paragraph(i)} "]
            lines += [f" {paragraph(i + 1)} "] * (i % 3)
        (folder / f"wiki.{split}.raw").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def run(corpus, directory, spec=WORDPIECE, **options):
    options = dict(num_workers=0, progress=False) | options
    given = {name: options.pop(name) for name in ("errors", "keep_headings", "valid_rate")
             if name in options}  # fmt: skip
    source = open_corpus(f"wikitext:{corpus}", Data(**given))
    return prepare.prepare_documents(prepare.Sentences(source, directory, **options), spec)


def naive_sections(path):
    """Documents of a file in which every line that begins with ` = ` is a heading."""
    documents = [[]]
    for line in path.read_text(encoding="utf-8").split("\n"):
        if line.startswith(" = "):
            documents.append([])
        elif line.strip():
            documents[-1].append(line.strip())
    return [document for document in documents if document]


def naive(path, tokenizer_dir):
    """Sentences of each document as lists of ids, and their bytes."""
    auto = transformers.AutoTokenizer.from_pretrained(tokenizer_dir)
    documents = []
    for paragraphs in naive_sections(path):
        found = [s for text in paragraphs for s in sentences.split(text)]
        made = []
        for i, sentence in enumerate(found):
            text = sentence if i == 0 else " " + sentence
            made.append((auto(text, add_special_tokens=False)["input_ids"], len(text.encode())))
        documents.append(made)
    return documents


def as_lists(documents):
    """`Documents` in the form of `naive`."""
    pieces = np.split(documents.tokens, documents.sentence_starts[1:-1])
    made = [
        (ids.tolist(), int(size))
        for ids, size in zip(pieces, documents.sentence_bytes, strict=True)
    ]
    return [made[a:b] for a, b in itertools.pairwise(documents.document_starts)]


@pytest.mark.parametrize("spec", [WORDPIECE, BYTEBPE], ids=["wordpiece", "bytebpe"])
def test_documents_are_those_of_a_plain_loop(corpus, tmp_path, spec, monkeypatch):
    monkeypatch.setattr(prepare, "_BLOCK_BYTES", 500)  # many blocks, of which workers take turns
    prepared = run(corpus, tmp_path / "cache", spec, num_workers=0 if spec is WORDPIECE else 2)
    assert sorted(prepared.documents) == ["train", "valid"]
    for split, documents in prepared.documents.items():
        expected = naive(corpus / f"wiki.{split}.raw", prepared.tokenizer_dir)
        assert as_lists(documents) == expected
        assert documents.tokens.dtype == np.uint16
        assert documents.sentence_starts.dtype == documents.document_starts.dtype == np.int64
        assert documents.sentence_bytes.dtype == np.int32
        auto = transformers.AutoTokenizer.from_pretrained(prepared.tokenizer_dir)
        joined = [
            " ".join(s for text in paragraphs for s in sentences.split(text))
            for paragraphs in naive_sections(corpus / f"wiki.{split}.raw")
        ]
        whole = [auto(text, add_special_tokens=False)["input_ids"] for text in joined]
        assert documents.tokens.tolist() == [i for ids in whole for i in ids]
        assert documents.sentence_bytes.sum() == sum(len(text.encode()) for text in joined)


def test_sentences_without_tokens_are_left_out(tmp_path):
    # BERT's normaliser drops control characters, so these sentences have no tokens.
    some = "Plain words here. More plain words.", "\x03\nAnd the plain words. \x04"
    texts = ["\x01\x02", *some] * 20
    (tmp_path / "x.txt").write_text("\n\n".join(texts))
    source = open_corpus(f"text:{tmp_path}/x.txt", Data(valid_rate=0.4))
    spec = tokenizers.TokenizerSpec("wordpiece", 40, False, BERT)
    options = dict(progress=False, num_workers=0)
    text = prepare.Sentences(source, tmp_path / "cache", **options)
    prepared = prepare.prepare_documents(text, spec)
    for documents in prepared.documents.values():
        assert (np.diff(documents.sentence_starts) > 0).all()
        assert (np.diff(documents.document_starts) > 0).all()
        assert documents.num_sentences == len(documents.sentence_bytes)
        assert documents.sentence_starts[-1] == len(documents.tokens)
        assert documents.document_starts[-1] == documents.num_sentences


def stages(directory):
    return sorted(p.name.split("-")[0] for p in directory.iterdir() if p.is_dir())


def test_each_stage_is_shared_by_what_depends_on_it(corpus, tmp_path, capfd):
    directory = tmp_path / "cache"
    first = run(corpus, directory, progress=True)
    out, shown = capfd.readouterr()
    for stage in ("sentences", "tokenizer", "tokens (train)", "tokens (valid)"):
        assert f"{stage}: done in" in shown and not out
    assert stages(directory) == ["sentences", "tokenizer", "tokens"]
    again = run(corpus, directory, num_workers=2)  # processes do not matter
    assert stages(directory) == ["sentences", "tokenizer", "tokens"]
    assert {"sentences", "tokenizer", "tokens"} <= set(first.timings)
    assert not {"sentences", "tokenizer", "tokens"} & set(again.timings)
    assert again.key == first.key and again.corpus_hash == first.corpus_hash
    for split in first.documents:
        before, after = (
            {name: array for name, array in vars(own.documents[split]).items() if name != "units"}
            for own in (first, again)
        )
        assert all((before[name] == after[name]).all() for name in before)
        assert all(isinstance(array, np.memmap) for array in after.values())

    other = run(corpus, directory, BYTEBPE)
    assert capfd.readouterr() == ("", "")  # no progress
    assert stages(directory) == ["sentences", "tokenizer", "tokenizer", "tokens", "tokens"]
    assert other.key != first.key and other.corpus_hash == first.corpus_hash
    for options in ({"keep_headings": True}, {"errors": "replace"}):
        assert run(corpus, directory, **options).key != first.key
    with (corpus / "wiki.valid.raw").open("a") as file:
        file.write(" One more. \n")
    changed = run(corpus, directory)
    assert changed.key != first.key and changed.corpus_hash != first.corpus_hash
    json.dumps(changed.key)


@pytest.mark.parametrize("files, options, message", [
    ({"train": " \n \n"}, {}, "text in it$"),
    ({"train": " = A = \n \n Text. \n", "valid": " \n"}, {}, "valid split"),
    ({"train": " = A = \n \n Text. \n"}, {"valid_rate": 0.999999}, "train split.*valid_rate"),
    ({"train": "Grün", "valid": "x"}, {}, "wiki.train.raw: .*UTF-8 .*2"),
])  # fmt: skip
def test_bad_corpora_leave_nothing(tmp_path, files, options, message):
    folder = tmp_path / "corpus"
    folder.mkdir()
    for split, text in files.items():
        (folder / f"wiki.{split}.raw").write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match=message):
        run(folder, tmp_path / "cache", **options)
    assert stages(tmp_path / "cache") == []
