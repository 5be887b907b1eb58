"""What glibc does with a process's freed memory once it was told."""

import platform
import subprocess
import sys

import jax
import pytest

from scalelab.resources import malloc
from scalelab.runs import environment

PROGRAM = """
import resource
import numpy as np
from scalelab.resources import malloc
from scalelab.runs import environment
malloc.{told}()
def fill(size):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.empty(size, np.uint8).fill(1)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(fill({size}), fill({size}), environment.status_bytes("VmRSS"))
"""

pytestmark = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="mallopt is glibc's; elsewhere nothing is told"
)


def twice(told: str, size: int) -> tuple[int, int, int]:
    """Page faults of filling an array, of doing so again, and what is resident after both."""
    program = PROGRAM.format(told=told, size=size)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    first, second, resident = map(int, done.stdout.split())
    return first, second, resident


# A step's buffers at 2x256x9 and 64 x 128 are 2.5 GB: more than an int of malloc's could say.
@pytest.mark.parametrize("size", [100_000_000, pytest.param(2_300_000_000, marks=pytest.mark.slow)])
def test_freed_memory_is_kept(size: int) -> None:
    first, second, resident = twice("keep_freed", size)
    assert first > 40 and second < first / 40
    assert resident > size


STEPS = """
import resource, sys
from scalelab.resources import malloc
if sys.argv[1] == "kept":
    malloc.keep_freed()
import jax
import jax.numpy as jnp
@jax.jit
def step(x):
    made = [x]
    for i in range(6):  # each an array of its own
        made.append(jax.lax.optimization_barrier(jnp.abs(made[-1][::-1] + i)))
    return sum(made)
x = jnp.ones(10_000_000)  # 40 MB: more than malloc keeps, left alone
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    step(x).block_until_ready()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(*[faults() for _ in range(12)])
print(step(x).is_ready())
"""


@pytest.mark.parametrize(
    ("told", "least", "most", "ready"), [("kept", 0, 50, True), ("left alone", 5000, 10**9, False)]
)
def test_steps_meet_no_new_pages(told: str, least: int, most: int, ready: bool) -> None:
    done = subprocess.run(
        [sys.executable, "-c", STEPS, told], capture_output=True, text=True, check=True
    )
    each, at_once = done.stdout.splitlines()
    later = sorted(map(int, each.split()[3:]))
    assert least <= later[len(later) // 2] <= most
    assert at_once == str(ready)  # the thread that asked took it


def test_freed_memory_goes_back() -> None:
    size = 20_000_000  # which malloc would keep, left alone
    first, second, resident = twice("return_freed", 10 * size)
    assert second > first / 2
    assert resident < 5 * size


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, int]]:
    """What malloc is told of this process, which holds 10 bytes; it is told nothing in truth."""
    heard: list[dict[str, int]] = []
    monkeypatch.setattr(malloc, "_kept", {"still": False, "looked": 0.0})
    monkeypatch.setattr(malloc, "_set_options", lambda **options: heard.append(options))
    monkeypatch.setattr(environment, "status_bytes", lambda field: 10)
    monkeypatch.setattr(jax.config, "update", lambda *_: None)
    return heard


@pytest.mark.parametrize(
    ("free", "soon", "ends"), [(10, 0, False), (9, 0, True), (12, 2, False), (11, 2, True),
                               (None, 99, False)],
)  # fmt: skip
def test_memory_is_kept_while_as_much_is_left(
    free: int | None, soon: int, ends: bool, told: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(malloc, "available", lambda: free)
    assert not malloc.release_if_low(soon) and not told  # nothing is kept
    malloc.keep_freed()
    del told[:]
    assert malloc.release_if_low(soon) == ends == bool(told)
    assert not malloc.release_if_low(soon)


RELEASE = """
import numpy as np
from scalelab.resources import malloc
from scalelab.runs import environment
malloc.keep_freed()
def fill():
    np.empty(200_000_000, np.uint8).fill(1)
    return environment.status_bytes("VmRSS")
kept = fill()
malloc.available = lambda: 0
assert malloc.release_if_low()
assert environment.status_bytes("VmRSS") < kept - 190_000_000
assert fill() < kept - 190_000_000
"""


def test_what_was_kept_goes_back_where_memory_is_scarce() -> None:
    subprocess.run([sys.executable, "-c", RELEASE], check=True)
