"""The program that evaluates language models: texts, bits per byte, tables, files, refusals."""

import dataclasses
import json
import math
import re

import jax
import numpy as np
import pytest
import tiny
from test_sentence_scores import opened_run

from scalelab import train
from scalelab.data import prepare
from scalelab.data.corpora import open_corpus
from scalelab.data.tokenizers import TokenizerSpec
from scalelab.eval import likelihood, lm
from scalelab.training import pretrained


def test_bits_per_byte_by_hand() -> None:
    """Four bits a token; ten tokens, one of them not predicted, over 40 bytes: one bit a byte."""
    bits = np.array([np.nan, *[4.0] * 9, np.nan, 2.0, np.nan])
    documents = likelihood.Documents(np.zeros(13), np.array([0, 10, 12, 13]), [40, 24, 5], [""] * 3)
    table = lm.score_documents(bits * math.log(2), documents)
    np.testing.assert_allclose(table["bits_per_byte"], [1.0, 2 * 2 / 24, np.nan], rtol=1e-12)
    # 36 + 2 bits over 10 predicted tokens, times 12 tokens, over 64 bytes.
    assert lm.summarize(table[:2], "next")["bits_per_byte"] == pytest.approx(3.8 * 12 / 64)


@pytest.mark.parametrize("system", tiny.SYSTEMS)
def test_the_texts_are_those_of_training(pretrained_runs, cache_dir, system: str) -> None:
    """Token by token and byte by byte as the training's preparation has them."""
    opened = opened_run(pretrained_runs(system))
    config, module = opened.config, opened.system
    begin, between, end = module.FRAME
    spec = TokenizerSpec(
        config.tokenizer.kind, 300, config.tokenizer.lowercase, module.SPECIAL_TOKENS,
        begin, between, end,
    )  # fmt: skip
    corpus = open_corpus(config.data.corpus)
    text = prepare.Sentences(corpus, cache_dir, num_workers=1, progress=False)
    prepared = prepare.prepare_documents(text, spec)
    made = likelihood.read_documents(corpus, "valid", None, opened.tokenizer, lambda _: None)
    documents = prepared.documents["valid"]
    np.testing.assert_array_equal(made.tokens, documents.tokens)
    expected = np.asarray(documents.sentence_starts)[documents.document_starts]
    np.testing.assert_array_equal(made.starts, expected)
    assert sum(made.num_bytes) == prepared.documents["valid"].sentence_bytes.sum()
    few = likelihood.read_documents(corpus, "valid", 3, opened.tokenizer, lambda _: None)
    np.testing.assert_array_equal(few.starts, made.starts[:4])


@pytest.mark.parametrize("system", ["gpt2", "bert"])
def test_from_run_and_corpus_to_tables(
    pretrained_runs, wikitext, tmp_path, start, refused, system
) -> None:
    given = [f"--run={pretrained_runs(system)}", f"--corpus=wikitext:{wikitext}", "--max_docs=9"]
    code, out, errors = start(lm, *given, f"--workdir={tmp_path / 'work'}", "--show=2")
    assert code == 0, errors
    assert len(out[out.index("worst first") : out.index("...")].splitlines()) == 4
    result = json.loads((tmp_path / "work/result.json").read_text())
    header, *lines = (tmp_path / "work/documents.tsv").read_text().splitlines()
    table = [dict(zip(header.split("\t"), line.split("\t"), strict=True)) for line in lines]
    assert [int(row["document"]) for row in table] == list(range(9))
    for name in ("tokens", "predicted", "bytes", "nll"):
        assert sum(float(row[name]) for row in table) == pytest.approx(result[name], rel=1e-6)
    assert result["predicted"] == result["tokens"] - 9 * (system == "gpt2")
    assert result["loss"] == pytest.approx(result["nll"] / result["predicted"])
    bits = result["loss"] * result["tokens"] / result["bytes"] / math.log(2)
    assert result["bits_per_byte"] == pytest.approx(bits)
    name = "perplexity" if system == "gpt2" else "pseudo_perplexity"
    assert result[name] == pytest.approx(math.exp(result["loss"]))
    assert result["context"] == 32 and result["stride"] == (16 if system == "gpt2" else 15)
    assert f"{result['bits_per_byte']:.4f}" in out and "..." in out
    assert ("PLL/token" in out) == (system == "bert")
    assert "scores: done in" in errors
    assert json.loads((tmp_path / "work/environment.json").read_text())["packages"]
    assert "is in use" in refused(lm, *given, f"--workdir={tmp_path / 'work'}")


def test_unknown_words_are_counted(wikitext, cache_dir, tmp_path, start) -> None:
    """By the training and by the evaluation, as a plain split of the text counts them."""
    fields = dict(tokenizer__kind="word", tokenizer__vocab_size=200)
    flags = tiny.train_flags(tmp_path / "run", wikitext, cache_dir, steps=2, **fields)
    code, _, errors = start(train, *flags)
    assert code == 0, errors
    known = json.loads((tmp_path / "run/tokenizer/tokenizer.json").read_text())["model"]["vocab"]
    lines = (wikitext / "wiki.valid.raw").read_text().splitlines()
    text = " ".join(line for line in lines if not line.startswith(" ="))
    words = re.findall(r"\w+|[^\w\s]", text)
    unknown = sum(word not in known for word in words)
    result = json.loads((tmp_path / "run/result.json").read_text())
    assert 0 < unknown == result["validation"]["unknown"] < len(words)
    share = rf"{unknown:,} of {len(words):,} tokens \({unknown / len(words):.2%}\)"
    (remark,) = (line for line in result["remarks"] if "unknown" in line)
    assert re.search(f"{share}.*bits per byte are a lower bound", remark)
    opened = opened_run(tmp_path / "run")
    corpus = open_corpus(f"wikitext:{wikitext}")
    documents = likelihood.read_documents(corpus, "valid", None, opened.tokenizer, lambda _: None)
    assert lm.notes(opened, documents) == [remark]


def test_a_net_that_knows_nothing_has_a_perplexity_of_v(
    pretrained_runs, wikitext, start, tmp_path, monkeypatch
) -> None:
    opened = opened_run(pretrained_runs("gpt2"))
    empty = jax.tree.map(lambda x: x * 0, opened.params)
    blank = dataclasses.replace(opened, params=empty)
    monkeypatch.setattr(pretrained, "load", lambda *_: blank)
    given = [f"--run={opened.path}", f"--corpus=wikitext:{wikitext}", "--max_docs=4"]
    code, out, errors = start(lm, *given, f"--workdir={tmp_path / 'work'}")
    assert code == 0, errors
    result = json.loads((tmp_path / "work/result.json").read_text())
    assert result["perplexity"] == pytest.approx(300, rel=1e-6)
    bits = math.log2(300) * result["tokens"] / result["bytes"]
    assert result["bits_per_byte"] == pytest.approx(bits, rel=1e-6)
    assert "300.000" in out


def test_parameters_that_are_not_finite(pretrained_runs, wikitext, refused, monkeypatch):
    opened = opened_run(pretrained_runs("gpt2"))
    lost = jax.tree.map(lambda x: x * np.nan, opened.params)
    blank = dataclasses.replace(opened, params=lost)
    monkeypatch.setattr(pretrained, "load", lambda *_: blank)
    assert "not finite" in refused(
        lm, f"--run={opened.path}", f"--corpus=wikitext:{wikitext}", "--max_docs=1"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--run is missing"),
        (["--run=RUN", "--corpus=wikitext:DIR", "--stride=0"], "--stride: .*'0'"),
        (["--run=RUN", "--corpus=wikitext:DIR", "--split=vaild"], "no split 'vaild': .*'valid'"),
        (["--run=RUN", "--corpus=wikitext:DIR", "--context=65"], "65 .* 64"),
        (["--run=RUN", "--corpus=wikitext:DIR", "--context=1"], "context=1 .*2"),
        (["--run=RUN", "--corpus=wikitext:DIR", "--context=8", "--stride=8"], "at most 7"),
        (["--run=RUN", "--corpus=text:BAD", "--split=train"], "--errors=replace"),
    ],
)
def test_what_is_refused(pretrained_runs, wikitext, tmp_path, refused, arguments, message):
    (tmp_path / "bad.txt").write_bytes(b"one\n\ntwo \xff\n\nthree\n")
    names = {"RUN": pretrained_runs("gpt2"), "DIR": wikitext, "BAD": tmp_path / "bad.txt"}
    given = []
    for argument in arguments:
        for name, path in names.items():
            argument = argument.replace(name, str(path))
        given.append(argument)
    errors = refused(lm, *given)
    assert "Traceback" not in errors
    (line,) = [line for line in errors.splitlines() if line.startswith("error: ")]
    assert re.search(message, line), line


def test_the_context_is_what_training_showed(pretrained_runs) -> None:
    """Its long phase is left out, its positions are 64; an import has seen no steps."""
    opened = opened_run(pretrained_runs("gpt2"))
    assert lm.make_reading(opened, None, None).context == 32
    assert lm.make_reading(dataclasses.replace(opened, step=0), None, None).context == 64
