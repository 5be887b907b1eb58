"""Small corpora in which every token is unique, and examples as plain lists."""

import numpy as np
import pytest

from scalelab import formats
from scalelab.config.fields import make_options
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


@pytest.fixture(scope="session")
def corrupted():
    """Builds a format's examples and corrupts the first of them: stored batch, corrupted batch."""

    def make(name, documents, specials, max_len, *, epoch=0, rows=None, **options):
        form = formats.load(name)
        given = make_options(form, options)
        (chunk,) = form.build(documents, specials=specials, max_len=max_len, seed=0, options=given)
        ids = np.arange(len(chunk)) if rows is None else np.asarray(rows)
        batch = {name: values[ids].astype(np.int32) for name, values in chunk.flat.items()}
        for array in formats.arrays_of(name, options, stored=True):
            if array.kind == "ragged":
                values, starts = chunk.ragged[array.name]
                lengths, width = np.diff(starts)[ids], array.shape(max_len, 1)[1]
                at = starts[ids][:, None] + np.minimum(np.arange(width), lengths[:, None] - 1)
                row = np.where(np.arange(width) < lengths[:, None], values[at], 0)
                batch[array.name] = row.astype(np.int32)
                batch[formats.lengths_name(array.name)] = lengths.astype(np.int32)
        made = batch
        if hasattr(form, "corrupt"):
            address = {"seed": 3, "epochs": np.full_like(ids, epoch), "examples": ids}
            given = {"specials": specials, "options": given, "max_len": max_len}
            made = form.corrupt(dict(batch), **address, **given)
        formats.check_batch(formats.arrays_of(name, options), made, max_len)
        return batch, made

    return make


@pytest.fixture(scope="session")
def row_of():
    """(batch, name of a ragged array, row) -> its items, without padding."""

    def make(batch, name, row):
        length = batch[formats.lengths_name(name)][row]
        assert not batch[name][row, length:].any()
        return batch[name][row, :length].tolist()

    return make
