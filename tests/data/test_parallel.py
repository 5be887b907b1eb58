"""The parts of preparation: worker processes, arrays that grow, the memory of words."""

import os
import pathlib
import subprocess
import sys
import time

import numpy as np
import pytest

from scalelab.data import parallel, sentences
from scalelab.data.parallel import DocumentEncoder
from scalelab.data.store import ArrayWriter, load_array


def paragraph(i):
    return f"Section {i} is about the number {i * i}. It isn't long, as Dr. Smith said! 漢字  here."


def test_workers_give_what_one_process_gives(monkeypatch):
    documents = [("valid" if i % 7 == 0 else "train", paragraph(i)) for i in range(200)]
    documents += [("train", " \n "), ("valid", "\n".join(map(paragraph, range(30))))]
    monkeypatch.setattr(parallel, "CHUNK_CHARS", 700)
    serial = list(parallel.segment_all(documents, 0))
    assert len(serial) > 10 and list(parallel.segment_all(documents, 2)) == serial
    expected = [sentences.split(text) for split, text in documents if split == "train"]
    text = b"".join(chunk.get("train", b"") for chunk in serial).decode()
    assert text == "".join("\n".join(found) + "\n\n" for found in expected if found)


def dying():
    return os._exit


def test_a_worker_that_dies_is_reported():
    with pytest.raises(OSError, match="num_workers=1"):
        list(parallel.work(dying, range(9), 2))


def test_workers_end_with_a_parent_that_is_killed():
    code = """
import functools, operator, os, signal
from scalelab.data import parallel
if __name__ == "__main__":
    answers = parallel.work(functools.partial(operator.itemgetter, 0), ["text"] * 9, 2)
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


@pytest.mark.parametrize("pieces", [[], [0], [5, 0, 7], [1] * 50])
@pytest.mark.parametrize("dtype", [np.uint16, np.int64])
def test_array_writer(tmp_path, pieces, dtype):
    values = [np.arange(n) * 7 % 65_000 for n in pieces]
    with ArrayWriter(tmp_path / "x.npy", dtype) as writer:
        for piece in values:
            writer.append(piece)
    for array in (load_array(tmp_path / "x.npy"), np.load(tmp_path / "x.npy")):
        assert array.dtype == dtype
        assert array.tolist() == [v for piece in values for v in piece]


def test_memory_of_words_is_bounded():
    seen = []

    def encode(texts):
        seen.extend(texts)
        ids = np.array([ord(c) for text in texts for c in text], np.int32)
        return ids, np.cumsum([0, *map(len, texts)])

    encoder = DocumentEncoder(encode, max_words=20)
    for i in range(10):
        document = [f"w{i} w{i}x{j}" for j in range(8)]
        ids, lengths = encoder([document])
        assert "".join(map(chr, ids)) == " ".join(document)
        assert lengths.tolist() == [len(s) + (k > 0) for k, s in enumerate(document)]
    encoder([["w0"]])
    assert seen.count("w0") == 2
