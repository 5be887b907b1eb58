"""Texts behind a source: the whole forward pass for every prefix says what they must be."""

from typing import Any

import numpy as np
import pytest
import small_encdec as small

from scalelab.decode import beam, loop, stepper
from scalelab.decode.choose import Rules

START, END, NEW, K = 0, 5, 6, 3
RNG = np.random.default_rng(3)
SOURCES = [RNG.integers(0, small.VOCAB, n).astype(np.int32) for n in (4, 17, 1, 9)]
PROMPTS = [RNG.integers(0, small.VOCAB, n).astype(np.int32) for n in (3, 1, 6, 2)]
SIZES: dict[str, Any] = {"max_new_tokens": NEW, "max_len": small.MAX_LEN}
NET = small.build()
Texts = list[tuple[float, list[int]]]


def next_logs(source: Any, text: Any, net: Any = NET) -> np.ndarray:
    """Log chances [V] behind a text, by the whole pass; by hand from hidden states on."""
    rows = np.zeros((2, 1, small.MAX_LEN), np.int32)
    for row, ids in zip(rows, (source, text), strict=True):
        row[0, : len(ids)] = ids
    params = small.parameters(net)
    batch = small.batch(rows[0], [len(source)], rows[1], [len(text)])
    last = np.asarray(small.hidden(net, params, batch)[0])[0, len(text) - 1]
    scores = np.asarray(params["decoder"]["embed"]["tokens"]["table"], np.float64) @ last
    return scores - scores.max() - np.log(np.exp(scores - scores.max()).sum())


def greedy_by_hand(source: Any, prompt: Any, next_logs: Any = next_logs) -> list[int]:
    text = list(map(int, prompt))
    while len(text) < len(prompt) + NEW:
        text.append(int(next_logs(source, text).argmax()))
        if text[-1] == END:
            return text[len(prompt) : -1]
    return text[len(prompt) :]


def beams_by_hand(source: Any, prompt: Any, next_logs: Any = next_logs) -> Texts:
    """The K best (score, text): those that end among the K best of a step, the others go on."""
    going: Texts = [(0.0, [])]
    ended: Texts = []
    for count in range(1, NEW + 1):
        found = []
        for total, text in going:
            logs = next_logs(source, [*prompt, *text])
            found += [(total + logs[token], [*text, token]) for token in range(small.VOCAB)]
        found = sorted(found, reverse=True)[: 2 * K]
        is_over = [text[-1] == END or count == NEW for _, text in found]
        among_best = zip(found[:K], is_over[:K], strict=True)
        ended += [(total / count, text) for (total, text), over in among_best if over]
        ended = sorted(ended, reverse=True)[:K]
        going = [pair for pair, over in zip(found, is_over, strict=True) if not over][:K]
        if len(ended) == K and (not going or going[0][0] / count <= ended[-1][0]):
            break
    return [(score, text[:-1] if text[-1] == END else text) for score, text in ended]


def greedy(
    sources: Any, prompts: Any, start: int | None = START, made: Any = None
) -> list[list[int]]:
    made, given = made or stepper.prepare(NET, small.parameters(NET)), {"sources": sources, **SIZES}
    found = loop.generate(made, begun(prompts, sources, start), Rules(), **given, end_token=END)
    return [text.tokens.tolist() for text in found]


def beams(sources: Any, prompts: Any, made: Any = None, start: Any = START) -> list[list[Any]]:
    made, given = made or stepper.prepare(NET, small.parameters(NET)), {"sources": sources, **SIZES}
    return beam.search(made, begun(prompts, sources, start), num_beams=K, **given, end_token=END)


def begun(prompts: Any, sources: Any = SOURCES, start: int | None = START) -> list[np.ndarray]:
    first = [] if start is None else [start]
    return [np.array([*first, *prompt], np.int32) for prompt in prompts or [[]] * len(sources)]


@pytest.mark.parametrize("prompts", [None, PROMPTS], ids=["start", "prompts"])
def test_greedy_is_the_search_by_hand(prompts: Any) -> None:
    expected = list(map(greedy_by_hand, SOURCES, begun(prompts)))
    assert len(set(map(tuple, expected))) == len(expected)  # else any source would do
    assert len(set(map(len, expected))) > 1
    assert greedy(SOURCES, prompts) == expected
    reverse = prompts and prompts[::-1]
    assert greedy(SOURCES[::-1], reverse) == expected[::-1]
    assert greedy(SOURCES[:1], prompts and prompts[:1]) == expected[:1]  # and less padding
    assert greedy(SOURCES[::-1], prompts) != expected
    assert greedy(SOURCES, prompts, END) != expected  # another start token


@pytest.mark.parametrize("prompts", [None, PROMPTS], ids=["start", "prompts"])
def test_beams_are_the_search_by_hand(prompts: Any) -> None:
    endings = set()
    for texts, source, prompt in zip(beams(SOURCES, prompts), SOURCES, begun(prompts), strict=True):
        expected = beams_by_hand(source, prompt)
        assert [text.tokens.tolist() for text in texts] == [text for _, text in expected]
        np.testing.assert_allclose([t.score for t in texts], [s for s, _ in expected], rtol=1e-3)
        endings |= {(text.ended_by, len(text.tokens)) for text in texts}
    assert len(endings) > 1


def test_a_source_that_the_net_cannot_read_is_refused() -> None:
    length = small.MAX_LEN + 1
    with pytest.raises(ValueError, match=f"of {length} tokens"):
        greedy([*SOURCES[:3], np.zeros(length, np.int32)], None)


def test_each_text_needs_a_source() -> None:
    with pytest.raises(AssertionError, match="each text needs a source"):
        greedy(SOURCES[:1], PROMPTS)
