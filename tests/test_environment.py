"""What glibc does with freed memory once it was told."""

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
