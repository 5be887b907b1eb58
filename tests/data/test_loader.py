"""Both loaders give what the plain loop gives, and stop cleanly."""

import subprocess
import sys
import time

import numpy as np
import pytest

from scalelab.data import batches

LOADERS = ["numpy", "tf"]


def batch_at(step):
    tokens = np.random.default_rng(step).integers(0, 99, (4, 6)).astype(np.int32)
    return {"tokens": tokens, "lengths": np.full(4, step, np.int32)}


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("prefetch", [0, 5])
def test_equals_the_loop(loader, prefetch):
    assert list(batches.iterate(batch_at, 5, 5, loader, prefetch)) == []
    found = list(batches.iterate(batch_at, 3, 40, loader, prefetch))
    assert len(found) == 37
    for step, batch in enumerate(found, start=3):
        assert set(batch) == {"tokens", "lengths"}
        for name, values in batch_at(step).items():
            np.testing.assert_array_equal(batch[name], values, strict=True)


@pytest.mark.parametrize("loader", LOADERS)
def test_errors_arrive_after_the_batches_before_them(loader):
    def failing(step):
        if step == 7:
            raise OSError("gone")
        return batch_at(step)

    seen = []
    with pytest.raises(OSError, match="gone"):
        for batch in batches.iterate(failing, 4, 100, loader):
            seen.append(int(batch["lengths"][0]))
    assert seen == [4, 5, 6]


@pytest.mark.parametrize("loader", LOADERS)
def test_leaving_early_stops_the_reading_ahead(loader):
    made = []

    def counting(step):
        made.append(step)
        return batch_at(step)

    stream = batches.iterate(counting, 0, 2**31, loader, prefetch=3)
    for _ in range(5):
        next(stream)
    stream.close()
    count = len(made)
    assert len(set(made)) <= 5 + 3 + 2 + batches.TF_THREADS
    time.sleep(0.1)
    assert len(made) == count


@pytest.mark.slow
def test_a_program_that_leaves_early_ends():
    code = """
import numpy as np
from scalelab.data import batches
stream = batches.iterate(lambda t: dict(a=np.full(3, t, np.int32)), 0, 2**31, "tf", 8)
print(next(stream)["a"].tolist(), next(stream)["a"].tolist())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[0] == "[0, 0, 0] [1, 1, 1]"
    assert "Traceback" not in done.stderr


def test_without_tensorflow_a_thread_makes_the_batches(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "tensorflow", None)  # makes its import fail
    assert len(list(batches.iterate(batch_at, 0, 3, "tf"))) == 3
    assert "a thread makes the batches" in caplog.text
