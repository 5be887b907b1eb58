"""The loop: the model's forward pass without a cache says what every token must be."""

import dataclasses
import functools
from typing import Any

import declared
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small

from scalelab.decode import loop, stepper
from scalelab.decode.choose import Rules
from scalelab.nn.attention import KeyValueCache
from scalelab.nn.masks import Mask

NEW = 12
SIZES = {"max_new_tokens": NEW, "max_len": small.MAX_LEN, "end_token": None}


def greedy(system: str, prompts: Any = small.PROMPTS, **changed: Any) -> list[list[int]]:
    made = stepper.prepare(*small.net(system))
    found = loop.generate(made, prompts, Rules(), **SIZES | changed)
    return [text.tokens.tolist() for text in found]


@functools.cache
def step_by_step(system: str) -> list[list[int]]:
    texts = [prompt.tolist() for prompt in small.PROMPTS]
    for text in NEW * texts:
        text.append(int(small.next_scores(system, text).argmax()))
    return [text[len(prompt) :] for text, prompt in zip(texts, small.PROMPTS, strict=True)]


@pytest.mark.parametrize("system", small.SYSTEMS)
def test_the_cache_changes_nothing(system: str) -> None:
    expected = step_by_step(system)
    assert len({tuple(row) for row in expected}) == len(expected)
    assert min(len(set(row)) for row in expected) > 3  # else anything would pass
    assert greedy(system) == expected


def shifted_write(
    self: KeyValueCache, keys: jax.Array, values: jax.Array, positions: jax.Array
) -> KeyValueCache:
    return WRITE(self, keys, values, positions + 1)


def shifted_lengths(self: stepper.Stepper, tokens: Any, lengths: Any, cache: Any) -> Any:
    """As if tokens stood one place further to the right from the second call on."""
    if tokens.shape[1] == 1:
        cache = cache.replace(lengths=cache.lengths + 1)
    return CALL(self, tokens, lengths, cache)


def padding_read(self: stepper.Stepper, tokens: Any, lengths: Any, cache: Any) -> Any:
    """As if the padding behind prompts were text."""
    return CALL(self, tokens, jnp.full_like(lengths, tokens.shape[1]), cache)


WRITE, CALL = KeyValueCache.write, stepper.Stepper.__call__
FAULTS = {
    "written one place off": (KeyValueCache, "write", shifted_write),
    "read one place off": (stepper.Stepper, "__call__", shifted_lengths),
    "padding is text": (stepper.Stepper, "__call__", padding_read),
    "no mask": (Mask, "dense", lambda self, t, s: np.ones((1, 1, 1, 1), bool)),
    "no lengths": (Mask, "dense", lambda self, t, s: DENSE(self.replace(lengths=None), t, s)),
    "no order": (Mask, "dense", lambda self, t, s: DENSE(self.replace(causal=False), t, s)),
}
DENSE = Mask.dense
# To a causal query the padding behind it is in the future: lengths add nothing.
HARMLESS = {"no lengths"}


@pytest.mark.parametrize("fault", FAULTS)
def test_wrong_variants_are_noticed(fault: str, monkeypatch) -> None:
    expected = step_by_step("gpt2")
    jax.clear_caches()
    monkeypatch.setattr(*FAULTS[fault])
    try:
        assert (greedy("gpt2") == expected) == (fault in HARMLESS)
    finally:
        jax.clear_caches()


@pytest.mark.parametrize("system", declared.marked(small.SYSTEMS))
def test_neighbours_and_place_do_not_matter(system: str) -> None:
    together = greedy(system)
    assert greedy(system, small.PROMPTS[::-1]) == together[::-1]
    assert [*greedy(system, small.PROMPTS[:1]), *greedy(system, small.PROMPTS[3:])] == together[::3]


def sampled(prompts: Any, samples: Any, seed: int = 3, **fields: Any) -> list[list[int]]:
    made = stepper.prepare(*small.net("gpt2"))
    rules = Rules(temperature=2.0, **fields)
    keys = loop.text_keys(seed, prompts, samples)
    return [c.tokens.tolist() for c in loop.generate(made, prompts, rules, keys=keys, **SIZES)]


def test_what_is_drawn_belongs_to_the_prompt_and_the_sample() -> None:
    prompts = [*small.PROMPTS, small.PROMPTS[0]]
    together = sampled(prompts, [0, 0, 0, 0, 1])
    assert together[0] != together[4]
    assert sampled(prompts[::-1], [1, 0, 0, 0, 0]) == together[::-1]
    assert [*sampled(prompts[:1], [0]), *sampled(prompts[:1], [1])] == together[::4]
    assert sampled(prompts, [0, 0, 0, 0, 1], seed=4) != together


def test_a_penalty_sees_the_prompt_and_what_was_written() -> None:
    made = stepper.prepare(*small.net("gpt2"))
    rules = Rules(repetition_penalty=1e6)
    for prompt, text in zip(
        small.PROMPTS, loop.generate(made, small.PROMPTS, rules, **SIZES), strict=True
    ):
        whole = [*prompt.tolist(), *text.tokens.tolist()]
        expected = list(prompt)
        for _ in range(NEW):
            scores = small.next_scores("gpt2", expected).astype(np.float64)
            seen = list(set(map(int, expected)))
            scores[seen] = np.where(scores[seen] > 0, scores[seen] / 1e6, scores[seen] * 1e6)
            expected.append(int(scores.argmax()))
        assert whole == list(map(int, expected))
    assert [c.tokens.tolist() for c in loop.generate(made, small.PROMPTS, rules, **SIZES)] != (
        greedy("gpt2")
    )


# 0 -> 1 -> 2 -> 3 -> 0, and 4 -> 5 -> 6 -> 6 ...
AFTER = [1, 2, 3, 0, 5, 6, 6]
CHAIN = np.eye(7)[AFTER]


def from_chain(starts: list[int], rules: Rules, note: Any = None, **sizes: Any) -> list[Any]:
    prompts = [np.array([start]) for start in starts]
    sizes = {"max_new_tokens": 9, "max_len": 99, "end_token": None} | sizes
    found = loop.generate(small.chain(CHAIN, note), prompts, rules, **sizes)
    return [(text.tokens.tolist(), text.ended_by) for text in found]


def test_texts_end_at_the_end_token_without_it() -> None:
    assert from_chain([0, 2, 4], Rules(), end_token=3) == [
        ([1, 2], "end"),
        ([], "end"),
        ([5, 6, 6, 6, 6, 6, 6, 6, 6], "length"),
    ]


def test_texts_end_where_they_repeat_themselves() -> None:
    assert from_chain([0, 4, 6], Rules(repetition_stop=2)) == [
        ([1, 2, 3, 0, 1, 2], "repetition"),
        ([5, 6, 6, 6], "repetition"),
        ([6, 6, 6], "repetition"),
    ]
    # The end token comes before the repetition.
    assert from_chain([6], Rules(repetition_stop=1), end_token=6) == [([], "end")]
    for length, ended_by in ((5, "repetition"), (6, "length"), (20, "length")):
        assert from_chain([0], Rules(repetition_stop=length))[0][1] == ended_by


def test_the_loop_stops_when_all_have_ended() -> None:
    calls = []
    from_chain([0, 1], Rules(), note=lambda: calls.append(1), end_token=3, max_new_tokens=50)
    jax.effects_barrier()
    assert len(calls) == 3  # the prompts, then 1 and 2; 3 is the end


def test_few_shapes_are_compiled(monkeypatch) -> None:
    made, traces, call = stepper.prepare(*small.net("gpt")), [], stepper.Stepper.__call__
    monkeypatch.setattr(stepper.Stepper, "__call__", lambda *a: traces.append(1) or call(*a))
    sizes = SIZES | {"max_new_tokens": NEW - 1}  # no other test compiles it
    counts = set()
    for length in (1, 5, 16):
        loop.generate(made, [np.ones(length, np.int32)], Rules(), **sizes)
        counts.add(len(traces))
    assert len(counts) == 1 and counts != {0}


@pytest.mark.parametrize("system", declared.marked(small.SYSTEMS))
def test_with_and_without_blocks(system: str) -> None:
    made = stepper.prepare(*small.net(system))
    assert made.blocks is not None
    plain = dataclasses.replace(made, blocks=None)
    tokens, lengths = np.ones((2, 4), np.int32), np.array([4, 2], np.int32)
    read = jax.jit(lambda made: made(tokens, lengths, made.init_cache(2, 8)))
    (found, _), (expected, cache) = read(made), read(plain)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(
        expected[0], small.next_scores(system, [1] * 4), rtol=1e-4, atol=1e-4
    )
    np.testing.assert_allclose(
        expected[1], small.next_scores(system, [1] * 2), rtol=1e-4, atol=1e-4
    )
    assert cache.lengths.tolist() == [4, 2]
    assert not declared.get(system).transformer or len(cache.layers.keys.parts) == 2


@pytest.mark.parametrize(
    ("longest", "max_len", "expected"),
    [(1, 99, 16), (16, 99, 16), (17, 99, 32), (33, 99, 64), (65, 99, 99), (90, 99, 99), (5, 9, 9)],
)
def test_few_lengths(longest: int, max_len: int, expected: int) -> None:
    prompts = [np.arange(1, n + 1, dtype=np.int32) for n in (1, longest)]
    tokens, lengths = loop.fill(prompts, max_len)
    assert tokens.shape == (2, expected) and lengths.tolist() == [1, longest]
    assert tokens[1, :longest].tolist() == list(range(1, longest + 1))
    assert not tokens[1, longest:].any() and tokens.dtype == lengths.dtype == np.int32


@pytest.mark.parametrize(
    ("lengths", "max_new_tokens", "message"),
    [((3, 10), 7, "10 .* 7 .* 16"), ((3, 0), 7, "empty"), ((), 7, "empty")],
)
def test_refused(lengths: tuple[int, ...], max_new_tokens: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        loop.check([np.zeros(n, np.int32) for n in lengths], max_new_tokens, 16)
