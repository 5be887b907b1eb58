"""A net with a memory reads running text as a loop over its windows does."""

import dataclasses
import json
import pathlib
from collections.abc import Iterator
from typing import Any

import guests
import jax
import numpy as np
import pytest
import tiny

from scalelab.eval import likelihood, lm, placement, running_text, token_scores
from scalelab.nn.heads import tied_logits
from scalelab.training import pretrained

LENGTHS = (5, 1, 23, 0, 12, 13, 2)  # tokens of documents
STARTS = np.cumsum([0, *LENGTHS])
CONTEXT = 6


@pytest.fixture(autouse=True, scope="module")
def two_streams() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        guests.add(patch, "two_streams")
        yield


@pytest.fixture(scope="module")
def run(wikitext: Any, cache_dir: Any, tmp_path_factory: Any) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("two_streams") / "run"
    return tiny.write_run(folder, "two_streams", wikitext, cache_dir, spread=0.5)


def by_hand(opened: pretrained.Pretrained, tokens: np.ndarray) -> np.ndarray:
    """A document at a time, in windows without padding, behind one another."""
    found = np.full(len(tokens), np.nan)
    for start, stop in zip(STARTS, STARTS[1:], strict=False):
        carried: Any = {}
        for first in range(start, stop, CONTEXT):
            row = tokens[first : min(first + CONTEXT, stop)]
            lengths, examples = np.array([len(row)]), np.zeros(1, np.int32)
            batch = {"tokens": row[None], "lengths": lengths, "examples": examples}
            states, changed = opened.net.apply(
                {"params": opened.params, "carried": carried}, batch, train=False,
                method="token_states", mutable=["carried"],
            )  # fmt: skip
            carried = changed["carried"]
            chances = jax.nn.log_softmax(tied_logits(*features(opened, states[0])))
            for place, token in enumerate(tokens[first + 1 : min(first + CONTEXT + 1, stop)]):
                found[first + 1 + place] = -chances[place, token]
    return found


def features(opened: pretrained.Pretrained, states: Any) -> Any:
    return opened.net.apply({"params": opened.params}, states, method="token_features")


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
