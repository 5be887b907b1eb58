"""What every format module owes, and how they are found."""

import numpy as np
import pytest

from scalelab import formats
from scalelab.formats import Documents, Frame
from scalelab.helpers.names import module_names


@pytest.mark.parametrize("name", ["doc_sentence", "draws"])
def test_unknown_format_names_the_valid_ones(name):
    assert module_names("formats") == ["doc_sentences", "full_sentences", "segment_pair"]
    with pytest.raises(ValueError, match=f"unknown format '{name}'.*doc_sentences"):
        formats.load(name)


@pytest.mark.parametrize("name", module_names("formats"))
@pytest.mark.parametrize("dtype", [np.uint16, np.uint32])
def test_types_and_mapped_arrays(name, dtype, documents_of, tmp_path):
    """Documents may be memory-mapped, and ids keep the corpus's type."""
    made = documents_of([[3, 4, 5]] * 20)
    arrays = {"tokens": made.tokens.astype(dtype)}
    for field in ("sentence_starts", "sentence_bytes", "document_starts"):
        arrays[field] = getattr(made, field)
    for field, values in arrays.items():
        np.save(tmp_path / f"{field}.npy", values)
        arrays[field] = np.load(tmp_path / f"{field}.npy", mmap_mode="r")
    form = formats.load(name)
    frame = Frame((1,), (2,), (3,))
    chunks = list(form.build(Documents(**arrays), frame=frame, max_len=12, seed=0))
    plain = list(form.build(made, frame=frame, max_len=12, seed=0))
    for chunk, same in zip(chunks, plain, strict=True):
        assert chunk.tokens.dtype == dtype
        assert chunk.starts.dtype == np.int64
        assert (chunk.tokens == same.tokens).all()
        for field in ("boundaries", "num_bytes", "num_text_tokens"):
            assert getattr(chunk, field).dtype == np.int32
        assert (chunk.nsp_labels is not None) == form.HAS_PAIRS
        if form.HAS_PAIRS:
            assert chunk.nsp_labels.dtype == np.int32
        assert (np.diff(chunk.starts) <= 12).all()
