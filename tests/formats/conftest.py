"""Small corpora in which every token is unique, and examples as plain lists."""

import numpy as np
import pytest

from scalelab.formats import Documents

FLAT = ("second_starts", "num_bytes", "num_text_tokens")
FIRST_TOKEN = 100  # smaller ids are free for special tokens


@pytest.fixture(scope="session")
def documents_of():
    """[[tokens of each sentence, ...] of each document, ...] -> Documents; tokens 100, 101, ..."""

    def make(lengths, bytes_per_token=3):
        flat = np.array([n for document in lengths for n in document], np.int64)
        return Documents(
            tokens=np.arange(FIRST_TOKEN, FIRST_TOKEN + flat.sum(), dtype=np.uint32),
            sentence_starts=np.cumsum([0, *flat], dtype=np.int64),
            sentence_bytes=(bytes_per_token * flat + 1).astype(np.int32),
            document_starts=np.cumsum([0, *map(len, lengths)], dtype=np.int64),
        )

    return make


@pytest.fixture(scope="session")
def listed():
    """Chunks -> ([(tokens, second start, bytes, text tokens, label), ...], dropped tokens)."""

    def make(chunks):
        rows, dropped = [], 0
        for chunk in chunks:
            dropped += chunk.dropped_tokens
            tokens, starts = chunk.ragged["tokens"].values, chunk.ragged["tokens"].starts
            assert starts[0] == 0
            assert starts[-1] == len(tokens)
            for i in range(len(chunk)):
                facts = [chunk.flat[name][i] if name in chunk.flat else None for name in FLAT]
                labels = [chunk.flat[x][i] for x in ("random_second", "swapped") if x in chunk.flat]
                row = tokens[starts[i] : starts[i + 1]].tolist()
                rows.append((row, *facts, labels[0] if labels else None))
        return rows, dropped

    return make
