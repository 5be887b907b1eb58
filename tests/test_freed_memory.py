"""What glibc does with a process's freed memory once it was told."""

import platform
import subprocess
import sys

import jax
import pytest
import tiny

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


THREAD = """
import resource, sys, threading
from scalelab.resources import malloc
malloc.keep_freed()
if sys.argv[1] == "without padding":
    malloc._set_options(top_pad=2**17)
def fill():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    bytearray(b"x") * 40_000_000
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
def work():
    first = bytearray(b"x") * 40_000_000  # so that what follows needs a second heap
    print(fill(), fill(), fill())
thread = threading.Thread(target=work)
thread.start()
thread.join()
"""


@pytest.mark.parametrize(
    ("how", "least", "most"), [("kept", 0, 50), ("without padding", 5000, 9e9)]
)
def test_a_thread_keeps_its_second_heap(how: str, least: float, most: float) -> None:
    done = subprocess.run(
        [sys.executable, "-c", THREAD, how], capture_output=True, text=True, check=True
    )
    assert least <= int(done.stdout.split()[-1]) <= most


TRAINING = """
import resource, statistics, sys
from scalelab.resources import malloc
malloc.keep_freed()
import tiny
from scalelab.objectives import xent
from scalelab.resources import blueprint
if sys.argv[1] == "whole":
    xent.MOST_ROWS.clear()
sizes = dict(short__max_len=128, long__max_len=128, net__max_len=128, short__batch_size=64)
config = tiny.config("bert", tokenizer__vocab_size=30_000, net__width=128, **sizes)
import jax, numpy as np
plan, mesh = blueprint.draw(config), tiny.one_device()
run, state, batch = plan.compile(128, 64, mesh), plan.start(mesh), plan.random_batch(128, 64)
def step():
    global state
    state, metrics = run(state, batch, np.float32(1e-4))
    jax.block_until_ready((state, metrics))
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    step()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(statistics.median([faults() for _ in range(12)][3:]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("table", "least", "most"), [("in blocks", 0, 500), ("whole", 9e3, 9e9)])
def test_a_step_of_training_meets_no_new_pages(table: str, least: float, most: float) -> None:
    """With the table in one piece a product packs 115 MB in a thread, which is handed back."""
    done = subprocess.run(
        [sys.executable, "-c", TRAINING, table],
        capture_output=True, text=True, check=True, cwd=tiny.ROOT / "tests",
    )  # fmt: skip
    assert least <= float(done.stdout) <= most


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


def test_it_looks_five_times_a_second(told: list, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(malloc.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(malloc, "available", lambda: 99)
    malloc.keep_freed()
    assert not malloc.release_if_low()
    monkeypatch.setattr(malloc, "available", lambda: 0)
    now[0] += 0.1
    assert not malloc.release_if_low()
    now[0] += 0.2
    assert malloc.release_if_low()


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


def test_what_is_available_is_what_the_system_says() -> None:
    psutil = pytest.importorskip("psutil")
    free = malloc.available()  # a control group may leave less
    assert free is not None and 0 < free < 1.1 * psutil.virtual_memory().available
