"""Beam search on chains whose best texts can be counted out; tests/interop has the other oracle."""

import itertools

import numpy as np
import pytest
import small

from scalelab.decode import beam, loop, stepper
from scalelab.decode.choose import Rules

SIZES = {"max_new_tokens": 4, "max_len": 99, "end_token": None}


def random_chain(vocab_size: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).dirichlet(np.full(vocab_size, 0.5), vocab_size)


def by_hand(chances: np.ndarray, start: int, num_beams: int, length: int) -> list[tuple]:
    """The best texts and their log chances, all of one length, kept step by step."""
    logs = np.log(chances + 1e-9)
    open_texts = [((start,), 0.0)]
    for _ in range(length):
        longer = [
            ((*text, token), score + logs[text[-1], token])
            for text, score in open_texts
            for token in range(len(chances))
        ]
        open_texts = sorted(longer, key=lambda pair: -pair[1])[:num_beams]
    return [(list(text[1:]), score / length) for text, score in open_texts]


@pytest.mark.parametrize("num_beams", [1, 2, 3])
def test_without_an_end_it_keeps_the_best(num_beams: int) -> None:
    chances = random_chain(6, 0)
    prompts = [np.array([start]) for start in range(6)]
    found = beam.search(small.chain(chances), prompts, num_beams=num_beams, **SIZES)
    for start, texts in enumerate(found):
        expected = by_hand(chances, start, num_beams, 4)
        assert [text.tokens.tolist() for text in texts] == [tokens for tokens, _ in expected]
        np.testing.assert_allclose([t.score for t in texts], [s for _, s in expected], rtol=1e-4)
        assert all(text.ended_by == "length" for text in texts)


def test_scores_are_divided_by_the_length() -> None:
    """0 ends at once (0.4) or goes on to 1 (0.6), 2 (0.6 of that), and then the end, 3."""
    chances = [[0, 0.6, 0, 0.4], [0.2, 0, 0.6, 0.2], [0, 0, 0, 1.0], [1.0, 0, 0, 0]]
    sizes = SIZES | {"max_new_tokens": 6, "end_token": 3}
    ((best, _),) = beam.search(small.chain(chances), [np.array([0])], num_beams=2, **sizes)
    assert best.tokens.tolist() == [1, 2] and best.ended_by == "end"
    assert best.score == pytest.approx(np.log(0.36) / 3, rel=1e-4)


@pytest.mark.parametrize(("penalty", "first"), [(0.0, []), (1.0, [1, 2]), (2.0, [1, 2])])
def test_a_power_of_the_length_divides(penalty: float, first: list[int]) -> None:
    """The texts "end" (0.4) and "1 2 end" (0.36): without a penalty the likelier one is best."""
    chances = [[0, 0.6, 0, 0.4], [0.2, 0, 0.6, 0.2], [0, 0, 0, 1.0], [1.0, 0, 0, 0]]
    sizes = SIZES | {"max_new_tokens": 6, "end_token": 3, "length_penalty": penalty}
    ((best, _),) = beam.search(small.chain(chances), [np.array([0])], num_beams=2, **sizes)
    assert best.tokens.tolist() == first
    length = len(first) + 1
    total = np.log(0.36) if first else np.log(0.4)
    assert best.score == pytest.approx(total / length**penalty, rel=1e-4)


def test_an_open_text_is_given_up_by_the_same_power() -> None:
    """After two tokens "1 2" (0.18) beats "end" (0.55) by the square of its length alone."""
    chances = [[0, 0.45, 0, 0.55], [0, 0, 0.4, 0.6], [0, 0, 0, 1.0], [1.0, 0, 0, 0]]
    sizes = SIZES | {"max_new_tokens": 6, "end_token": 3, "length_penalty": 2.0}
    ((best, _),) = beam.search(small.chain(chances), [np.array([0])], num_beams=2, **sizes)
    assert best.tokens.tolist() == [1, 2]
    assert best.score == pytest.approx(np.log(0.18) / 9, rel=1e-4)


def exhaustive(
    chances: np.ndarray, start: int, length: int, end: int | None, penalty: float
) -> dict[tuple[int, ...], float]:
    """The score of each text of at most `length` tokens; a shorter one ends with `end`."""
    logs, found = np.log(chances + 1e-9), {}
    for tokens in itertools.product(range(len(chances)), repeat=length):
        text = tokens[: tokens.index(end) + 1] if end in tokens else tokens
        total = sum(logs[pair] for pair in itertools.pairwise([start, *text]))
        found[text] = total / len(text) ** penalty
    return found


@pytest.mark.parametrize(("usual", "length", "end"), [(4, 2, None), (2, 3, None), (3, 2, 2)])
@pytest.mark.parametrize("penalty", [0.0, 1.0, 2.0])
def test_a_wide_beam_is_the_exhaustive_search(
    usual: int, length: int, end: int | None, penalty: float
) -> None:
    """Four beams hold all texts of usual tokens; the others only widen the vocabulary to 2 K."""
    narrow = []
    sizes = SIZES | {"max_new_tokens": length, "end_token": end, "length_penalty": penalty}
    for seed in range(4):
        chances = np.full((8, 8), 1e-7)
        chances[:usual, :usual] += random_chain(usual, seed)
        chances /= chances.sum(axis=1, keepdims=True)
        given = small.chain(chances), [np.array([start]) for start in range(2)]
        for start, texts in enumerate(beam.search(*given, num_beams=4, **sizes)):
            scores = exhaustive(chances, start, length, end, penalty)
            own = [(*t.tokens.tolist(), *[end] * (t.ended_by == "end")) for t in texts]
            assert len({*own}) == 4  # texts of one score may change places
            expected = sorted(scores.values(), reverse=True)[:4]
            np.testing.assert_allclose([text.score for text in texts], expected, rtol=1e-4)
            np.testing.assert_allclose([scores[text] for text in own], expected, rtol=1e-4)
            ((one,),) = beam.search(given[0], given[1][start : start + 1], num_beams=1, **sizes)
            narrow.append(one.score < expected[0] - 1e-3)
    assert any(narrow)


@pytest.mark.parametrize("system", ["gpt2", "transformer_xl"])
def test_one_beam_is_greedy(system: str) -> None:
    made = stepper.prepare(*small.net(system))
    sizes = SIZES | {"max_new_tokens": 8, "max_len": small.MAX_LEN}
    free = [t.tokens for t in loop.generate(made, small.PROMPTS, Rules(), **sizes)]
    sizes["end_token"] = int(free[0][4])
    greedy = loop.generate(made, small.PROMPTS, Rules(), **sizes)
    found = beam.search(made, small.PROMPTS, num_beams=1, **sizes)
    assert [t.tokens.tolist() for (t,) in found] == [t.tokens.tolist() for t in greedy]
    assert {text.ended_by for (text,) in found} == {"length", "end"}


def scores_of(system: str, prompt: np.ndarray, tokens: np.ndarray) -> float:
    """Log probability of tokens behind a prompt, by forward passes without a cache."""
    text, total = prompt.tolist(), 0.0
    for token in tokens:
        scores = small.next_scores(system, text).astype(np.float64)
        total += scores[token] - np.log(np.exp(scores - scores.max()).sum()) - scores.max()
        text.append(int(token))
    return total


@pytest.mark.parametrize("system", small.SYSTEMS)
def test_scores_are_those_of_the_net_without_a_cache(system: str) -> None:
    """Which they are only if each text's cache goes with it when texts change places."""
    made = stepper.prepare(*small.net(system))
    sizes = {"max_new_tokens": 8, "max_len": small.MAX_LEN, "end_token": None}
    found = beam.search(made, small.PROMPTS, num_beams=4, **sizes)
    for prompt, texts in zip(small.PROMPTS, found, strict=True):
        assert len({tuple(text.tokens.tolist()) for text in texts}) == 4
        for text in texts:
            expected = scores_of(system, prompt, text.tokens) / 8
            assert text.score == pytest.approx(expected, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("num_beams", [0, 4])
def test_refused(num_beams: int) -> None:
    with pytest.raises(ValueError, match=f"num_beams = {num_beams}: .* 6"):
        beam.search(small.chain(np.eye(6)), [np.array([0])], num_beams=num_beams, **SIZES)
