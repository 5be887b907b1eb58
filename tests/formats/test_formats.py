"""What every format module owes, and how they are found."""

import numpy as np
import pytest

from scalelab import formats
from scalelab.formats import Documents, Specials
from scalelab.helpers.names import module_names


@pytest.mark.parametrize("name", ["doc_sentence", "draws"])
def test_unknown_format_names_the_valid_ones(name):
    assert "doc_sentences" in module_names("formats") and name not in module_names("formats")
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
    specials = Specials((1,), (2,), (3,))
    chunks = list(form.build(Documents(**arrays), specials=specials, max_len=12, seed=0))
    plain = list(form.build(made, specials=specials, max_len=12, seed=0))
    assert {*formats.COMMON} <= {*form.ARRAYS}
    for chunk, same in zip(chunks, plain, strict=True):
        rows = chunk.ragged["tokens"]
        assert rows.values.dtype == dtype
        assert rows.starts.dtype == np.int64
        assert (rows.values == same.ragged["tokens"].values).all()
        assert (np.diff(rows.starts) <= 12).all()
        assert {*chunk.flat, *chunk.ragged} == {array.name for array in form.ARRAYS}
        assert all(values.shape == (len(chunk),) for values in chunk.flat.values())


def test_sentinels_are_numbered_roles():
    ids = {"pad": 0, "sentinel_1": 4, "sentinel_0": 9, "sentinel_3": 5, "sentinels": 6}
    assert Specials(ids=ids).sentinels == (9, 4)
    assert Specials().sentinels == ()
