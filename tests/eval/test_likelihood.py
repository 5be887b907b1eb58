"""Tokens are scored once each, and right: against loops written out, training, transformers."""

import math
from typing import Any

import declared
import jax
import numpy as np
import pytest
import tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from test_sentence_scores import log_softmax, logits, opened_run, token_logits

from scalelab import objectives as objectives_lib
from scalelab import systems
from scalelab.eval import likelihood, placement, token_scores
from scalelab.eval.likelihood import Reading
from scalelab.objectives import Pass

CONTEXT, STRIDE = 12, 5
LENGTHS = (1, 2, 7, 12, 13, 31, 0, 22)  # tokens of documents
STARTS = np.cumsum([0, *LENGTHS])


def tokens_of(opened: Any) -> np.ndarray:
    lowest = len(opened.system.SPECIAL_TOKENS)
    return np.random.default_rng(0).integers(lowest, 300, STARTS[-1]).astype(np.int32)


def reading_of(opened: Any, context: int = CONTEXT, stride: int = STRIDE) -> Reading:
    frame, ids = opened.tokenizer.frame(), opened.tokenizer.special_ids
    if opened.predicts == "next":
        return Reading((), (), None, context, stride)
    return Reading(frame.begin, frame.end, ids["mask"], context, stride)


def nats_of(opened: Any, tokens: np.ndarray, starts: np.ndarray, reading: Reading) -> np.ndarray:
    """What the program computes."""
    return likelihood.score(placement.place(opened), tokens, starts, reading, batch_size=2)


def one_by_one(opened: Any) -> np.ndarray:
    """The same as the program, a token at a time, no cache, no batch, windows found by search."""
    tokens, reading = tokens_of(opened), reading_of(opened)
    causal = reading.mask_id is None
    expected = []
    for begin, end in zip(STARTS, STARTS[1:], strict=False):
        document = tokens[begin:end].tolist()
        for t, target in enumerate(document):
            start = 0
            ahead = 0 if causal else (CONTEXT - STRIDE) // 2
            while t >= start + CONTEXT - ahead and start + CONTEXT < len(document):
                start += STRIDE
            seen = document[start : start + CONTEXT]
            if len(document) > CONTEXT and t >= CONTEXT:
                assert t - start >= (CONTEXT - STRIDE - ahead)
            if causal:
                scores = logits(opened, seen[: t - start], token_logits)[-1] if t > start else None
            else:
                seen[t - start] = reading.mask_id
                row = [*reading.begin, *seen, *reading.end]
                scores = logits(opened, row, token_logits)[len(reading.begin) + t - start]
            expected.append(math.nan if scores is None else -log_softmax(scores)[target])
    return np.array(expected)


ONE_TEXT = [x for x in tiny.SYSTEMS if (m := systems.load(x)).PREDICTS and not m.HAS_SOURCE]


@pytest.mark.parametrize("system", declared.marked(ONE_TEXT))
def test_each_token_is_scored_once_as_a_loop_does_it(pretrained_runs, system: str) -> None:
    opened = opened_run(pretrained_runs(system))
    found = nats_of(opened, tokens_of(opened), STARTS, reading_of(opened))
    np.testing.assert_allclose(found, one_by_one(opened), rtol=1e-4, atol=1e-5)
    unknown = np.isnan(found).nonzero()[0].tolist()
    firsts = [s for s, n in zip(STARTS, LENGTHS, strict=False) if n]
    assert unknown == (firsts if (opened.predicts == "next") else [])


@pytest.mark.parametrize("system", ["gpt", "gpt2"])
def test_documents_that_fit_have_the_loss_of_training(pretrained_runs, system: str) -> None:
    opened = opened_run(pretrained_runs(system))
    rng = np.random.default_rng(1)
    rows = [rng.integers(9, 300, n).astype(np.int32) for n in (3, 9, 16, 30)]
    net = opened.net
    objectives = opened.terms

    @jax.jit
    def terms(batch: Any) -> Any:
        return net.apply(
            {"params": opened.params}, batch, objectives, Pass(jax.random.key(0)),
            method=objectives_lib.apply_objectives,
        )  # fmt: skip

    expected, weight = terms(token_scores.pad(rows, 32, 4))["clm"]["loss"]
    starts = np.cumsum([0, *map(len, rows)])
    found = nats_of(opened, np.concatenate(rows), starts, reading_of(opened, 32, 16))
    assert np.nansum(found, dtype=np.float64) == pytest.approx(float(expected), rel=1e-5)
    assert (~np.isnan(found)).sum() == float(weight)


def test_equal_prefixes_are_one() -> None:
    texts = [[1, 2, 3], [1, 2], [], [1, 2, 4, 3], [2, 2], [1, 2, 3]]
    starts = np.cumsum([0, *map(len, texts)])
    made = likelihood.first_with_prefix(np.array(sum(texts, []), np.int32), starts)
    prefixes = [tuple(text[: k + 1]) for text in texts for k in range(len(text))]
    assert all(prefixes[k] == own for k, own in zip(made, prefixes, strict=True))
    assert len(set(made)) == len(set(prefixes)) == 7


@pytest.mark.parametrize("system", ["gpt2", "bert"])
def test_texts_with_a_common_prefix_score_as_alone(pretrained_runs, system: str) -> None:
    opened = opened_run(pretrained_runs(system))
    tokens, lengths = tokens_of(opened)[:6], (6, 6, 4, 5)
    texts = [np.append(tokens[: n - 1], 40 + k) for k, n in enumerate(lengths)]
    alone = [nats_of(opened, t, np.array([0, len(t)]), reading_of(opened)) for t in texts]
    made = nats_of(opened, np.concatenate(texts), np.cumsum([0, *lengths]), reading_of(opened))
    np.testing.assert_allclose(made, np.concatenate(alone), rtol=1e-5)


def as_lists(made: likelihood.Windows) -> list[tuple[int, ...]]:
    return [tuple(map(int, row)) for row in zip(*made[:4], strict=True)]


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_each_token_once_with_enough_around_it(data) -> None:
    num_tokens, context = (data.draw(st.integers(1, most)) for most in (200, 40))
    stride = data.draw(st.integers(1, context))
    ahead = data.draw(st.integers(0, context - stride))
    made = likelihood.slide(num_tokens, context, stride, ahead)
    scored = []
    for start, stop, first, last in as_lists(made):
        assert 0 <= start <= first < last <= stop <= num_tokens and stop - start <= context
        scored += range(first, last)
        assert start == 0 or first - start >= context - stride - ahead
        assert stop == num_tokens or stop - last >= ahead
    assert scored == list(range(num_tokens))
    assert np.all(np.diff(made.starts) == stride)


@pytest.mark.parity
@pytest.mark.parametrize("system", ["gpt2", "bert"])
def test_transformers_computes_the_same(pretrained_runs, exported, system: str) -> None:
    torch = pytest.importorskip("torch")
    theirs, model = exported(system)
    opened = opened_run(pretrained_runs(system))
    text = "Bada gedu dodo . Gedu bada dodo bada ."
    ids = opened.tokenizer.encode(text)
    reading = reading_of(opened, 32, 16)
    found = nats_of(opened, ids, np.array([0, len(ids)]), reading)
    row = torch.tensor([theirs(text)["input_ids"]])
    with torch.no_grad():
        if system == "gpt2":
            expected = float(model(input_ids=row, labels=row).loss) * (len(ids) - 1)
        else:
            expected = 0.0
            for place in range(1, row.shape[1] - 1):
                masked = row.clone()
                masked[0, place] = theirs.mask_token_id
                scores = model(input_ids=masked).logits[0, place]
                expected -= float(scores.log_softmax(-1)[row[0, place]])
    assert row.numel() == len(ids) + (0 if system == "gpt2" else 2)
    assert float(np.nansum(found, dtype=np.float64)) == pytest.approx(expected, rel=1e-5)
