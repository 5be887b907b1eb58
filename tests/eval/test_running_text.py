"""A model with a memory reads running text as a loop over its windows does."""

import dataclasses
import functools
import json
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import guests
import jax
import numpy as np
import pytest
import tiny
from flax import linen as nn

from scalelab.eval import likelihood, lm, placement, running_text, token_scores
from scalelab.nn.heads import tied_logits
from scalelab.objectives import Pass
from scalelab.training import pretrained

LENGTHS = (5, 1, 23, 0, 12, 13, 2)  # tokens of documents
STARTS = np.cumsum([0, *LENGTHS])
CONTEXT = 6


@pytest.fixture(autouse=True, scope="module")
def systems_of_tests() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        guests.add(patch, "two_streams", "reminded")
        yield


@pytest.fixture(scope="module")
def runs(wikitext: Any, cache_dir: Any, tmp_path_factory: Any) -> Callable[[str], pathlib.Path]:
    folder = tmp_path_factory.mktemp("runs")
    return functools.cache(
        lambda name: tiny.write_run(folder / name, name, wikitext, cache_dir, spread=0.5)
    )


@pytest.fixture(scope="module")
def run(runs: Any) -> pathlib.Path:
    return runs("two_streams")


@functools.partial(jax.jit, static_argnums=0)
def read(net: Any, params: Any, carried: Any, row: np.ndarray) -> tuple[jax.Array, Any]:
    """Log-probabilities [T, V] at a row without padding, and the memory behind it."""
    lengths, examples = np.array([len(row)]), np.zeros(1, np.int32)
    batch = {"tokens": row[None], "lengths": lengths, "examples": examples}

    def score(model: Any) -> jax.Array:
        hidden = Pass(jax.random.key(0)).token_hidden(model, batch)
        return tied_logits(*model.token_features(hidden[0]))

    given = {"params": params, "carried": carried}
    scores, changed = nn.apply(score, net, mutable=["carried"])(given)
    return jax.nn.log_softmax(scores), changed["carried"]


def by_hand(opened: pretrained.Pretrained, tokens: np.ndarray) -> np.ndarray:
    """A document at a time, in windows behind one another; one pass for each token to mask."""
    ids, found = opened.tokenizer.special_ids, np.full(len(tokens), np.nan)
    apply = functools.partial(read, opened.net, opened.params)
    for start, stop in zip(STARTS, STARTS[1:], strict=False):
        carried: Any = {}
        for first in range(start, stop, CONTEXT):
            row = tokens[first : min(first + CONTEXT, stop)]
            if opened.predicts == "masked":
                row = np.array([ids["bos"], *row, ids["eos"]], np.int32)
                for k in range(1, len(row) - 1):
                    masked = np.where(np.arange(len(row)) == k, ids["mask"], row)
                    found[first + k - 1] = -apply(carried, masked)[0][k, row[k]]
            chances, carried = apply(carried, row)
            following = tokens[first + 1 : min(first + CONTEXT + 1, stop)]
            if opened.predicts == "next":
                found[first + 1 :][: len(following)] = -chances[
                    np.arange(len(following)), following
                ]
    return found


@pytest.mark.parametrize("memory_len", [8, 20])  # as in training, and longer
def test_windows_follow_one_another(run: pathlib.Path, memory_len: int) -> None:
    opened = pretrained.load(run)
    config = dataclasses.replace(opened.config, system_options={"memory_len": memory_len})
    opened = dataclasses.replace(opened, config=config)
    tokens = np.random.default_rng(0).integers(1, 300, STARTS[-1]).astype(np.int32)
    reading = likelihood.Reading((), (), None, CONTEXT, CONTEXT)
    given = placement.place(opened), tokens, STARTS, reading, 2
    found = running_text.score(*given, judge=token_scores.nats)
    expected = by_hand(opened, tokens)
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    assert np.flatnonzero(np.isnan(found)).tolist() == [0, 5, 6, 29, 41, 54]  # first of a document
    blind = likelihood.score(*given[:3], reading._replace(stride=5), 2, judge=token_scores.nats)
    assert (np.abs(found - blind) > 1e-3).sum() > 20  # windows without a memory


def test_windows_of_a_masked_net_follow_one_another(runs: Any) -> None:
    opened = pretrained.load(runs("reminded"))
    tokens = np.random.default_rng(0).integers(5, 300, STARTS[-1]).astype(np.int32)
    reading = lm.make_reading(opened, CONTEXT + 2, None)
    given = placement.place(opened), tokens, STARTS, reading, 2
    found = running_text.score(*given, judge=token_scores.nats)
    expected = by_hand(opened, tokens)
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    blind = likelihood.score(*given, judge=token_scores.nats)  # windows without a memory
    behind = np.concatenate([np.arange(n) >= CONTEXT for n in LENGTHS])
    assert (np.abs(found - blind)[behind] > 1e-3).all()
    np.testing.assert_allclose(found[~behind], blind[~behind], rtol=1e-4)


def test_the_program_reads_masked_nets_so(runs, wikitext, tmp_path, start, refused) -> None:
    given = [f"--run={runs('reminded')}", f"--corpus=wikitext:{wikitext}", "--max_docs=4"]
    code, _, errors = start(lm, *given, "--context=12", f"--workdir={tmp_path / 'work'}")
    assert code == 0, errors
    result = json.loads((tmp_path / "work/result.json").read_text())
    assert (result["context"], result["stride"]) == (12, 10)
    assert result["predicted"] == result["tokens"] and "pseudo_perplexity" in result
    assert "--stride=6" in refused(lm, *given, "--context=12", "--stride=6")


def test_the_program_reads_so(run, wikitext, tmp_path, start, refused) -> None:
    given = [f"--run={run}", f"--corpus=wikitext:{wikitext}", "--max_docs=4", "--context=12"]
    code, _, errors = start(lm, *given, f"--workdir={tmp_path / 'work'}")
    assert code == 0, errors
    result = json.loads((tmp_path / "work/result.json").read_text())
    assert result["context"] == result["stride"] == 12
    assert result["predicted"] == result["tokens"] - 4
    assert "--stride=6" in refused(lm, *given, "--stride=6")
    code, _, errors = start(lm, *given, "--option=memory_len=20", f"--workdir={tmp_path / 'long'}")
    assert code == 0, errors
    longer = json.loads((tmp_path / "long/result.json").read_text())
    assert longer["options"] == ["memory_len=20"] and longer["loss"] != result["loss"]
    assert "'memory_len'" in refused(lm, *given, "--option=memory=20")


@pytest.mark.parametrize("system", ["xlnet", "transformer_xl"])
def test_a_memory_longer_than_the_sinusoids(pretrained_runs, system, wikitext, refused) -> None:
    given = [f"--run={pretrained_runs(system)}", f"--corpus=wikitext:{wikitext}"]
    assert "memory_len = 70000" in refused(lm, *given, "--option=memory_len=70000")
