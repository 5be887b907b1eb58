"""The parts of preparation: worker processes, arrays that grow, the memory of words."""

import os
import pathlib
import subprocess
import sys
import time

import pytest

from scalelab.data import parallel, sentences


def paragraph(i):
    return f"Section {i} is about the number {i * i}. It isn't long, as Dr. Smith said! 漢字  here."


def test_workers_give_what_one_process_gives(monkeypatch):
    documents = [("valid" if i % 7 == 0 else "train", paragraph(i)) for i in range(200)]
    documents += [("train", " \n "), ("valid", "\n".join(map(paragraph, range(30))))]
    monkeypatch.setattr(parallel, "CHUNK_CHARS", 700)
    serial, several = (
        list(parallel.work(parallel.segment, parallel.chunks(documents), n)) for n in (0, 2)
    )
    assert len(serial) > 10 and several == serial
    expected = [sentences.split(text) for split, text in documents if split == "train"]
    text = b"".join(chunk.get("train", b"") for chunk in serial).decode()
    assert text == "".join("\n".join(found) + "\n\n" for found in expected if found)


def test_a_worker_that_dies_is_reported():
    with pytest.raises(OSError, match="num_workers=1"):
        list(parallel.work(os._exit, range(9), 2))


def test_workers_end_with_a_parent_that_is_killed():
    code = """
import os, signal
from scalelab.data import parallel
if __name__ == "__main__":
    answers = parallel.work(str.upper, ["text"] * 9, 2)
    next(answers)
    import multiprocessing
    print(*(child.pid for child in multiprocessing.active_children()), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    killed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    workers = [pathlib.Path("/proc", pid) for pid in killed.stdout.split()]
    assert workers, killed.stderr
    for _ in range(100):
        if not any(path.exists() for path in workers):
            return
        time.sleep(0.1)
    raise AssertionError("a worker is still there")
