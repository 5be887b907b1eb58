"""Scores of sentences: against loops written out, a token at a time."""

import functools
import itertools
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from flax import linen as nn

from scalelab.eval import sentence_scores, token_scores
from scalelab.eval.evaluation import Asked
from scalelab.nn import heads
from scalelab.objectives import Pass
from scalelab.training import pretrained

TEXTS = ["One small house.", "The unbelievably long river, again!", "a", "Seven words are in it."]
opened_run = functools.cache(pretrained.load)


@functools.cache
def runner(run: pathlib.Path, method: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    opened = opened_run(run)
    apply = nn.apply(lambda m, batch: method(m, batch, Pass(jax.random.key(0))), opened.net)
    return jax.jit(lambda batch: apply({"params": opened.params}, batch))


def logits(opened: Any, row: list[int], method: Callable[..., jax.Array]) -> np.ndarray:
    """The model's own scores of one row, padded to its longest."""
    batch = token_scores.pad([np.asarray(row)], opened.config.model.max_len, 1)
    return np.asarray(runner(opened.path, method)(batch), np.float64)[0, : len(row)]


def token_logits(model: Any, batch: Any, ctx: Pass) -> jax.Array:
    return heads.token_logits(model, ctx.token_hidden(model, batch))


def token_logits_of_all(model: Any, batch: Any, ctx: Pass) -> jax.Array:
    """With every token seen by every state."""
    num_rows, length = batch["tokens"].shape
    stops = jax.numpy.array([0, length], jax.numpy.int32)
    visible = jax.numpy.broadcast_to(stops, (num_rows, length, 2))
    return token_logits(model, batch | {"visible": visible}, ctx)


def replaced_logits(model: Any, batch: Any, ctx: Pass) -> jax.Array:
    return model.replaced_logits(ctx.hidden(model, batch))


def log_softmax(scores: np.ndarray) -> np.ndarray:
    return scores - np.log(np.exp(scores - scores.max()).sum()) - scores.max()


def naive(
    opened: Any, text: str, rule: str, shift: int = 0, method: Callable[..., Any] = token_logits
) -> list[float]:
    """One row for each token, as the definition says; None of the program's own code."""
    backend = opened.tokenizer._backend
    encoded = backend.encode(text, add_special_tokens=False)
    frame, found = opened.tokenizer.frame(), []
    begin, end = list(frame.begin), list(frame.end)
    for t, token in enumerate(encoded.ids):
        if rule == "log_likelihood":
            seen = begin + encoded.ids[:t]
            if seen:
                found.append(log_softmax(logits(opened, seen, token_logits)[-1])[token])
        elif rule == "discriminator":
            score = logits(opened, begin + encoded.ids + end, replaced_logits)[len(begin) + t]
            found.append(-np.log1p(np.exp(score)))
        else:
            masked, word = list(encoded.ids), encoded.word_ids[t]
            for other in range(t, len(masked)):
                if other == t or (rule == "pll_word" and encoded.word_ids[other] == word):
                    masked[other] = opened.tokenizer.special_ids["mask"]
            place = len(begin) + t - shift
            if place >= 0:
                scores = logits(opened, begin + masked + end, method)[place]
                found.append(log_softmax(scores)[token])
    return found


def score_all(opened: Any, rule: str, texts: list[str], spans: Any = None) -> tuple[Any, ...]:
    """The texts as tokens, minus their nats, and the texts' sums and numbers of scores."""
    encoded = sentence_scores.encode(opened.tokenizer, texts, spans)
    asked = Asked(None, pathlib.Path(), {}, batch_tokens=128)
    made = -sentence_scores.score(opened, encoded, rule, asked)
    return encoded, made, encoded.add_up(made), encoded.add_up(~np.isnan(made) + 0.0)


CASES = [
    ("gpt2", "log_likelihood"), ("bert", "pll"), ("bert", "pll_word"), ("roberta", "pll_word"),
    ("electra", "discriminator"), ("electra", "pll"), ("gpt_bert", "pll"), ("gpt_bert", "pll_word"),
]  # fmt: skip
SHOWN = (CASES[0], CASES[2], CASES[4])  # one of each way to read


@pytest.mark.parametrize(("system", "rule"), CASES)
def test_each_rule_is_its_definition(pretrained_runs, system: str, rule: str) -> None:
    opened = opened_run(pretrained_runs(system))
    assert rule in sentence_scores.rules(opened)
    _, _, sums, counts = score_all(opened, rule, TEXTS)
    shift = int(system == "gpt_bert")
    for text, found, count in zip(TEXTS, sums, counts, strict=True):
        expected = naive(opened, text, rule, shift, token_logits_of_all if shift else token_logits)
        assert count == len(expected)
        assert found == pytest.approx(sum(expected), rel=1e-5)
    if shift:  # predicted at the mask itself, and without the tokens behind it
        wrong = [sum(naive(opened, text, rule, 0, token_logits_of_all)[1:]) for text in TEXTS]
        left = [sum(naive(opened, text, rule, 1)) for text in TEXTS]
        assert min(np.abs(sums - wrong).max(), np.abs(sums - left).max()) > 0.05


def test_a_net_is_scored_by_what_it_predicts(pretrained_runs) -> None:
    default = {"bert": "pll", "gpt2": "log_likelihood", "electra": "discriminator"}
    for system, rule in default.items():
        opened = opened_run(pretrained_runs(system))
        assert sentence_scores.choose_rule(opened, None) == rule
    with pytest.raises(ValueError, match="discriminator, pll, pll_word"):
        sentence_scores.choose_rule(opened, "log_likelihood")


def test_spans_count_the_tokens_that_end_in_them(pretrained_runs) -> None:
    opened = opened_run(pretrained_runs("bert"))
    text = TEXTS[1]
    edges = [0, text.index(" "), text.index(","), len(text)]
    spans = [((a, b),) for a, b in itertools.pairwise(edges)]
    parts = [score_all(opened, "pll", [text], [span])[2:] for span in spans]
    whole = score_all(opened, "pll", [text])[2:]
    np.testing.assert_allclose(np.sum(parts, axis=0), whole, rtol=1e-6)
    pieces = opened.tokenizer.encode(text[: edges[1]])
    assert parts[0][1] == len(pieces)


@pytest.mark.parametrize(("system", "rule"), [
    *(case for case in CASES if case in SHOWN),
    *(pytest.param(*case, marks=pytest.mark.slow) for case in CASES if case not in SHOWN),
])  # fmt: skip
def test_only_what_spans_need_is_scored(pretrained_runs, system: str, rule: str) -> None:
    opened = opened_run(pretrained_runs(system))
    encoded, made, sums, _ = score_all(
        opened, rule, TEXTS, [None, ((4, 16), (27, 32)), (), ((6, 9),)]
    )
    _, whole, *_ = score_all(opened, rule, TEXTS)
    np.testing.assert_allclose(sums, encoded.add_up(whole), rtol=1e-5)
    assert np.isnan(made).sum() > np.isnan(whole).sum()


@pytest.mark.parity
@pytest.mark.parametrize("system", ["gpt", "gpt2", "bert", "roberta", "albert", "electra"])
def test_transformers_gives_the_same_scores(pretrained_runs, exported, system: str) -> None:
    """BabyLM's way: the classes that `Auto...` finds, one text at a time, completions by offsets.

    ELECTRA's generator is what `AutoModelForMaskedLM` can load.
    """
    torch = pytest.importorskip("torch")
    opened = opened_run(pretrained_runs(system))
    tokenizer, net = exported(system, part="generator" if system == "electra" else None)
    is_masked = opened.predicts == "masked"

    def total(text: str, begin: int) -> float:
        """The scores of the tokens that end after the character `begin`."""
        encoded = tokenizer(text, return_offsets_mapping=True)
        ids = torch.tensor(encoded["input_ids"])
        places = [t for t, (_, stop) in enumerate(encoded["offset_mapping"]) if stop > begin]
        if not is_masked:
            with torch.no_grad():
                found = torch.log_softmax(net(ids[None]).logits[0], -1)
            return float(sum(found[t - 1, ids[t]] for t in places if t))
        rows = ids.repeat(len(places), 1)
        rows[range(len(places)), places] = tokenizer.mask_token_id
        with torch.no_grad():
            found = torch.log_softmax(net(rows).logits, -1)
        return float(sum(found[k, t, ids[t]] for k, t in enumerate(places)))

    rule = sentence_scores.BY_PREDICTION[opened.predicts][0]
    for begins in ([0, 0, 0, 0], [4, 17, 0, 6]):
        spans = [((a, len(text)),) for a, text in zip(begins, TEXTS, strict=True)]
        sums = score_all(opened, rule, TEXTS, spans)[2]
        expected = [total(text, a) for a, text in zip(begins, TEXTS, strict=True)]
        np.testing.assert_allclose(sums, expected, atol=1e-4)
        assert (np.abs(sums[:2]) > 1).all()


@pytest.mark.parity
@pytest.mark.parametrize(
    ("system", "rule"),
    [("gpt2", "log_likelihood"), ("bert", "pll"), ("bert", "pll_word"), ("roberta", "pll")],
)
def test_minicons_gives_the_same_scores(
    pretrained_runs, tmp_path, monkeypatch, system, rule
) -> None:
    """minicons (Misra 2022) scores the exported checkpoint with torch."""
    import transformers
    from minicons import scorer as peers

    from scalelab.interop import exporting

    # minicons 0.3.39 still calls it; transformers 5 has dropped it.
    monkeypatch.setattr(
        transformers.PreTrainedTokenizerFast, "batch_encode_plus",
        lambda self, *given, **more: self(*given, **more), raising=False,
    )  # fmt: skip
    run = pretrained_runs(system)
    exporting.run(run, tmp_path / "out")
    opened = opened_run(run)
    sums = score_all(opened, rule, TEXTS)[2]
    if rule == "log_likelihood":
        peer = peers.IncrementalLMScorer(str(tmp_path / "out"), "cpu")
        expected = peer.sequence_score(TEXTS, reduction=lambda x: x.sum(0).item())
    else:
        metric = "within_word_l2r" if rule == "pll_word" else "original"
        peer = peers.MaskedLMScorer(str(tmp_path / "out"), "cpu")
        given = {"reduction": lambda x: x.sum(0).item(), "PLL_metric": metric}
        expected = peer.sequence_score(TEXTS, **given)
    np.testing.assert_allclose(sums, expected, atol=1e-4)
