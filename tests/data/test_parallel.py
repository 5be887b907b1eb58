"""The parts of preparation: worker processes, arrays that grow, the memory of words."""

import subprocess
import sys

import numpy as np
import pytest

from scalelab.data import parallel, sentences
from scalelab.data.parallel import DocumentEncoder
from scalelab.data.store import ArrayWriter, load_array


def paragraph(i):
    return f"Section {i} is about the number {i * i}. It isn't long, as Dr. Smith said! 漢字  here."


def test_workers_give_what_one_process_gives():
    documents = [("valid" if i % 7 == 0 else "train", paragraph(i)) for i in range(200)]
    documents += [("train", " \n "), ("valid", "\n".join(map(paragraph, range(30))))]

    def joined(results):
        made = {"train": [b"", 0, 0], "valid": [b"", 0, 0]}
        for result in results:
            for split, found in result.items():
                made[split][0] += found.text
                made[split][1] += found.num_documents
                made[split][2] += found.num_sentences
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parallel, "CHUNK_CHARS", 700)
        one = joined(parallel.segment_all(documents, 0))
        assert joined(parallel.segment_all(documents, 3)) == one
    text, num_documents, num_sentences = one["train"]
    expected = [sentences.split(text) for split, text in documents if split == "train"]
    expected = [found for found in expected if found]
    assert text.decode() == "".join("\n".join(found) + "\n\n" for found in expected)
    assert (num_documents, num_sentences) == (len(expected), sum(map(len, expected)))


def test_a_worker_that_dies_is_reported(monkeypatch):
    monkeypatch.setattr(parallel, "CHUNK_CHARS", 10)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(OSError, match="ended with code 1; .*num_workers=1"):
        list(parallel.segment_all([("train", "Some text.")] * 9, 2))


def test_a_worker_imports_little():
    code = "import sys; import scalelab.data.parallel; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert not {"jax", "flax", "tensorflow", "tokenizers", "transformers"} & set(
        loaded.stdout.split()
    )


@pytest.mark.parametrize("pieces", [[], [0], [3], [5, 0, 7], [1] * 50])
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
    asked = []

    def encode(texts):
        asked.append(len(texts))
        lengths = [len(text) for text in texts]
        ids = np.array([ord(c) for text in texts for c in text], np.int32)
        return ids, np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)

    encoder = DocumentEncoder(encode, max_words=20)
    for i in range(10):
        document = [f"w{i} w{i}x{j}" for j in range(8)]
        ids, lengths = encoder([document])
        assert "".join(map(chr, ids)) == " ".join(document)
        assert lengths.tolist() == [len(s) + (k > 0) for k, s in enumerate(document)]
        assert len(encoder._number) <= 20 + 10
