"""The system of n-grams: the tables are the counts, and a run of it works as that of any system."""

import json
import pathlib
from typing import Any

import in_process
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from scalelab import sample, train
from scalelab.config.finetuning import FinetuneConfig
from scalelab.eval import lm
from scalelab.eval import ngram as ngram_program
from scalelab.finetuning import warm_start
from scalelab.systems import ngram
from scalelab.systems.ngram import counts
from scalelab.systems.ngram.net import NGramModel
from scalelab.training import pretrained

VOCAB, LENGTH = 7, 9


def draw(seed: int, lengths: tuple[int, ...] = (40, 1, 17, 0, 30)) -> tuple[np.ndarray, np.ndarray]:
    """Documents without the last token of the vocabulary."""
    starts = np.cumsum([0, *lengths])
    chances = np.random.default_rng(9).dirichlet(np.ones(VOCAB - 1))
    return np.random.default_rng(seed).choice(VOCAB - 1, starts[-1], p=chances), starts


def batch_of(texts: np.ndarray) -> dict[str, np.ndarray]:
    lengths = np.full(len(texts), texts.shape[1], np.int32)
    return {"tokens": texts, "lengths": lengths, "examples": np.arange(len(texts))}


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_chances_are_those_of_the_counts_and_add_up(order: int) -> None:
    """At all places of counted and of new texts; of one token as of all of them."""
    options = ngram.Options(order, 200)
    net = NGramModel(order, ngram.num_rows(options, VOCAB), VOCAB)
    params = jax.tree.map(jnp.asarray, ngram.count(*draw(0), options, VOCAB))
    texts = np.random.default_rng(1).integers(0, VOCAB, (30, LENGTH)).astype(np.int32)
    texts[:20] = np.stack([draw(0)[0][i : i + LENGTH] for i in range(20)])

    @jax.jit
    def run(params: Any, texts: Any, targets: Any) -> Any:
        hidden, _ = net.apply({"params": params}, batch_of(texts), train=False)
        own = net.apply({"params": params}, hidden, targets, method="token_log_probs")
        return own, net.apply({"params": params}, hidden, method="token_logits")

    counted = counts.fit(*draw(0), order, VOCAB)
    nats = counted.nats(texts.ravel(), np.arange(0, texts.size + 1, LENGTH))
    scores = np.asarray(run(params, texts, texts)[1])
    np.testing.assert_allclose(np.exp(scores).sum(axis=-1), 1, rtol=1e-6)
    found = np.take_along_axis(scores[:, :-1], texts[:, 1:, None], -1)[..., 0]
    np.testing.assert_allclose(found, -nats.reshape(texts.shape)[:, 1:], rtol=2e-6)
    for token in range(VOCAB):
        own = run(params, texts, np.full_like(texts, token))[0]
        np.testing.assert_allclose(own, scores[..., token], rtol=2e-6)


def test_a_cache_continues_texts_of_several_lengths() -> None:
    options = ngram.Options(4, 200)
    net = NGramModel(4, ngram.num_rows(options, VOCAB), VOCAB)
    params = {"params": jax.tree.map(jnp.asarray, ngram.count(*draw(0), options, VOCAB))}
    read = jax.jit(lambda batch, cache: net.apply(params, batch, train=False, cache=cache))
    texts = np.stack([draw(0)[0][i : i + LENGTH] for i in range(8)]).astype(np.int32)
    texts[3] = texts[3, ::-1]
    whole, _ = read(batch_of(texts), None)
    lengths, rows = np.tile(np.int32([1, 3, 2, 4]), 2), np.arange(8)
    states, cache = read(batch_of(texts[:, :5]) | {"lengths": lengths}, net.init_cache(8, LENGTH))
    states = states[rows, lengths - 1][:, None]
    for k in range(LENGTH - 4):
        np.testing.assert_array_equal(states[:, 0], whole[rows, lengths + k - 1])
        states, cache = read(batch_of(texts[rows, lengths + k][:, None]), cache)
    assert (np.asarray(whole) >= 0).mean() > 0.5


def test_too_small_tables_are_refused_with_the_size_that_fits() -> None:
    with pytest.raises(
        ValueError, match=r"max_ngrams = 5: set --config\S+max_ngrams=\d+"
    ) as raised:
        ngram.count(*draw(0), ngram.Options(3, 5), VOCAB)
    size = int(str(raised.value).rpartition("=")[2])
    assert "last_undecayed" in ngram.count(*draw(0), ngram.Options(3, size), VOCAB)["order_3"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return tiny.write_wikitext(tmp_path_factory.mktemp("ngram") / "corpus", num_sections=60)


def flags_of(corpus: pathlib.Path, name: str, *flags: str) -> list[str]:
    """The flags of a training of one step, in a folder beside the corpus."""
    given = tiny.train_flags(corpus.parent / name, corpus, corpus.parent / "cache", 1)
    given = [flag.replace("system=bert", "system=ngram") for flag in given]
    return [*given, "--config.machine.tracker=None", *flags]


@pytest.fixture(scope="module")
def run(corpus: pathlib.Path) -> pathlib.Path:
    in_process.run(train, flags_of(corpus, "run"))
    return corpus.parent / "run"


@pytest.mark.ci
def test_a_run_has_the_bits_per_byte_of_eval_ngram(
    corpus: pathlib.Path, run: pathlib.Path, capsys: Any
) -> None:
    scores = []
    for program in (lm, ngram_program):
        folder = corpus.parent / program.__name__
        flags = [f"--run={run}", f"--corpus=wikitext:{corpus}", f"--workdir={folder}"]
        in_process.run(program, flags)
        scores.append(json.loads((folder / "result.json").read_text()))
    ours, theirs = scores
    assert ours["bits_per_byte"] == pytest.approx(theirs["bits_per_byte"], rel=1e-6)
    assert ours["predicted"] == theirs["predicted"]
    assert ours["loss"] < json.loads((run / "result.json").read_text())["unigram_nats"]
    capsys.readouterr()
    in_process.run(sample, [f"--run={run}", "--prompt=Ba", "--max_new_tokens=5"])
    start, text = capsys.readouterr().out.strip().split(" ", 1)
    assert start == "[1]" and text.startswith("Ba") and len(text) > len("Ba") + 3


@pytest.mark.ci
def test_a_step_changes_nothing(run: pathlib.Path) -> None:
    opened = pretrained.load(run, 0), pretrained.load(run, 1)
    assert len({pretrained.tree_digest(each.params) for each in opened}) == 1
    assert not (opened[0].params["unigrams_undecayed"] == 1 / 300).any()  # counted


@pytest.mark.ci
def test_what_counts_cannot_do_is_refused(
    corpus: pathlib.Path, run: pathlib.Path, capsys: Any
) -> None:
    flags = ("total_steps=None", "total_flops=1e9", "warmup_steps=None", "warmup_flops=0")
    given = flags_of(corpus, "flops", *(f"--config.optim.{flag}" for flag in flags))
    assert in_process.code(train, given) == 2
    assert "in flops, and a step of ngram has none" in capsys.readouterr().err
    given = flags_of(corpus, "few", "--config.system_options.max_ngrams=9")
    assert in_process.code(train, given) == 2
    assert "set --config.system_options.max_ngrams=" in capsys.readouterr().err
    assert in_process.code(train, flags_of(corpus, "begun", f"--init={run}")) == 2
    assert "counts its own text: leave --init out" in capsys.readouterr().err
    with pytest.raises(ValueError, match="CoLA: the parameters of ngram are counts"):
        warm_start.check_fits(pretrained.load(run), FinetuneConfig(), "CoLA", 10)
