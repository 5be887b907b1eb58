"""Rows in parts, each in a thread: the same texts as all rows at once."""

import threading
from typing import Any

import jax
import numpy as np
import pytest
import small_encdec as small
from test_source import NET, SIZES

from scalelab.decode import beam, loop, stepper
from scalelab.decode.choose import Rules
from scalelab.resources import host

RNG = np.random.default_rng(5)
COUNT = 2 * loop.ROWS + 3  # no multiple of the parts


def texts(longest: int) -> list[np.ndarray]:
    lengths = RNG.integers(1, longest, COUNT)
    return [RNG.integers(0, small.VOCAB, n).astype(np.int32) for n in lengths]


SOURCES, PROMPTS = texts(20), texts(8)


@pytest.fixture
def cores(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Says that the machine has so many cores; returns the thread of each part."""
    used: list[str] = []
    device_get = jax.device_get

    def seen(x: Any) -> Any:
        used.append(threading.current_thread().name)
        return device_get(x)

    def make(number: int) -> list[str]:
        monkeypatch.setattr(host, "cores", lambda: list(range(number)))
        monkeypatch.setattr(jax, "device_get", seen)
        used.clear()
        return used

    return make


def decode(kind: str, sources: Any, prompts: Any) -> list[Any]:
    made, given = stepper.prepare(NET, small.parameters(NET)), {"sources": sources, **SIZES}
    if kind == "beams":
        found = beam.search(made, prompts, num_beams=3, end_token=5, **given)
        return [(text.tokens.tolist(), text.ended_by) for best in found for text in best]
    keys = loop.text_keys(7, prompts, [0] * len(prompts))
    rules = Rules(temperature=1.0 if kind == "drawn" else 0.0)
    found = loop.generate(made, prompts, rules, keys=keys, end_token=5, **given)
    return [(text.tokens.tolist(), text.ended_by) for text in found]


@pytest.mark.parametrize("kind", ["greedy", "drawn", "beams"])
def test_parts_are_the_whole(cores, kind: str) -> None:
    threads = cores(1)
    expected = decode(kind, SOURCES, PROMPTS)
    assert len(set(map(str, expected))) > 5 and threads == ["MainThread"]
    threads = cores(4)
    assert decode(kind, SOURCES, PROMPTS) == expected
    assert "MainThread" not in threads and len(threads) == (4 if kind == "beams" else 2)
    assert decode(kind, SOURCES[::-1], PROMPTS) != expected


def test_few_rows_are_one_part(cores) -> None:
    threads = cores(4)
    decode("greedy", SOURCES[: 2 * loop.ROWS - 1], PROMPTS[: 2 * loop.ROWS - 1])
    assert threads == ["MainThread"]
