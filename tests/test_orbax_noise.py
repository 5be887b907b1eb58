"""What orbax's background writes leave in a terminal."""

import asyncio
import gc
import logging
import sys

import pytest

from scalelab.runs import orbax_noise

FAILS = """
async def write():
    raise ValueError("the disk is full")
"""

ABANDONED = """
import types

@types.coroutine
def forever():
    yield

async def read():
    try:
        await forever()
    finally:
        raise ValueError("damaged")
"""


def siblings_that_fail(filename: str) -> None:
    """Two writes of code from `filename` fail at once; the first is caught, as a caller can."""
    names: dict = {}
    exec(compile(FAILS, filename, "exec"), names)

    async def both() -> None:
        first, second = (asyncio.ensure_future(names["write"]()) for _ in range(2))
        await asyncio.wait([second])
        await first

    with pytest.raises(ValueError, match="the disk is full"):
        asyncio.run(both())
    gc.collect()


@pytest.mark.parametrize(
    ("filename", "told"),
    [("/site-packages/orbax/checkpoint/serialization.py", 0), ("/site-packages/other.py", 1)],
)
def test_siblings_of_a_failed_write(
    filename: str, told: int, caplog: pytest.LogCaptureFixture
) -> None:
    orbax_noise.silence()
    siblings_that_fail(filename)
    assert len([r for r in caplog.records if "never retrieved" in r.message]) == told


def test_other_lines_of_asyncio_stay(caplog: pytest.LogCaptureFixture) -> None:
    orbax_noise.silence()
    logging.getLogger("asyncio").error("something else")
    assert "something else" in caplog.text


@pytest.mark.parametrize(("filename", "told"), [("/lib/orbax/reading.py", 0), ("/lib/other.py", 1)])
def test_reads_that_end_when_they_are_collected(
    filename: str, told: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A coroutine that is thrown away raises what nobody can catch."""
    names: dict = {}
    exec(compile(ABANDONED, filename, "exec"), names)
    found: list = []
    monkeypatch.setattr(sys, "unraisablehook", found.append)
    orbax_noise.silence()
    reading = names["read"]()
    reading.send(None)
    del reading
    gc.collect()
    assert len(found) == told
