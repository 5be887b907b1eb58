"""What glibc does with a process's freed memory once it was told."""

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource
import numpy as np
from scalelab.resources import host
host.{setting}()
def fill(size):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.empty(size, np.uint8).fill(1)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(fill({size}), fill({size}), host.status_bytes("VmRSS"))
"""

pytestmark = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="mallopt is glibc's; elsewhere nothing is told"
)


def twice(setting: str, size: int) -> tuple[int, int, int]:
    """Page faults of filling an array, of doing so again, and what is resident after both."""
    program = PROGRAM.format(setting=setting, size=size)
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
from scalelab.resources import host
if sys.argv[1] == "kept":
    host.keep_freed()
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
    ("call", "least", "most", "ready"), [("kept", 0, 50, True), ("left alone", 5000, 10**9, False)]
)
def test_steps_meet_no_new_pages(call: str, least: int, most: int, ready: bool) -> None:
    done = subprocess.run(
        [sys.executable, "-c", STEPS, call], capture_output=True, text=True, check=True
    )
    each, at_once = done.stdout.splitlines()
    later = sorted(map(int, each.split()[3:]))
    assert least <= later[len(later) // 2] <= most
    assert at_once == str(ready)  # the thread that asked took it


RELEASE = """
import numpy as np
from scalelab.resources import host
resident, host.status_bytes = host.status_bytes, lambda field: 10
def fill():
    np.empty(200_000_000, np.uint8).fill(1)
    return resident("VmRSS")
def release(free, soon):
    host.available = lambda: free
    return host.release_if_low(soon)
assert not release(0, 1)  # nothing is kept
for free, soon, low in (9, 0, 1), (10, 0, 0), (11, 2, 1), (12, 2, 0), (None, 9, 0):
    host.keep_freed()
    assert release(free, soon) == low
    assert not release(free, soon)
kept = fill()
assert release(0, 1)
assert resident("VmRSS") < kept - 190_000_000
assert fill() < kept - 190_000_000
"""


def test_memory_is_kept_while_as_much_is_left_and_then_goes_back() -> None:
    subprocess.run([sys.executable, "-c", RELEASE], check=True)
