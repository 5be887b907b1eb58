"""Memory of a process: what glibc does with it once it was told, and the maps of programs."""

import pathlib
import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource
import numpy as np
from scalelab import environment
environment.{told}()
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
    first, second, resident = twice("keep_freed_memory", size)
    assert first > 40 and second < first / 40
    assert resident > size


def test_freed_memory_goes_back() -> None:
    size = 20_000_000  # which malloc would keep, left alone
    first, second, resident = twice("return_freed_memory", 10 * size)
    assert second > first / 2
    assert resident < 5 * size


PROGRAMS = """
from scalelab import environment
import jax, jax.numpy as jnp

@jax.jit
def program(x):
    for k in range(30):
        x = jnp.sin(x @ x) + k
    return x

def maps():
    return open("/proc/self/maps").read().count("\\n")

program(jnp.ones((2, 2)))
first, before = program(jnp.ones((3, 3))), maps()
assert not environment.drop_programs_if_many()
assert maps() == before
assert environment.drop_programs_if_many(before / 2 / MOST)
assert maps() < before - 100
assert (program(jnp.ones((3, 3))) == first).all()
"""


@pytest.mark.skipif(platform.system() != "Linux", reason="counts the maps of Linux")
def test_programs_are_dropped_where_they_take_too_many_maps() -> None:
    most = pathlib.Path("/proc/sys/vm/max_map_count").read_text().strip()
    subprocess.run([sys.executable, "-c", PROGRAMS.replace("MOST", most)], check=True)
