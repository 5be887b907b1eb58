"""What every format module owes, and how they are found."""

import numpy as np
import pytest

from scalelab import formats
from scalelab.formats import Documents, Specials, assembly
from scalelab.helpers.names import module_names

SENTINELS = {f"sentinel_{i}": 60_000 + i for i in range(32)}
IDS = {"eos": 3, "mask": 4} | SENTINELS
SPECIALS = Specials((1,), (2,), (3,), ids=IDS, vocab_size=60_032)


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
    form, given = formats.load(name), {"specials": SPECIALS, "max_len": 12, "seed": 0}
    chunks, plain = (list(form.build(x, **given)) for x in (Documents(**arrays), made))
    stored = getattr(form, "STORED", form.ARRAYS)
    assert {array.name for array in formats.COMMON} <= {array.name for array in stored}
    for chunk, same in zip(chunks, plain, strict=True):
        rows = chunk.ragged["tokens"]
        assert rows.values.dtype == dtype
        assert rows.starts.dtype == np.int64
        assert (rows.values == same.ragged["tokens"].values).all()
        assert (np.diff(rows.starts) <= 12).all() or hasattr(form, "STORED")
        assert {*chunk.flat, *chunk.ragged} == {array.name for array in stored}
        assert all(values.shape == (len(chunk),) for values in chunk.flat.values())


@pytest.mark.parametrize(
    "name", [name for name in module_names("formats") if hasattr(formats.load(name), "corrupt")]
)
def test_corruption_depends_on_epoch_and_example_alone(name, documents_of, corrupted):
    """The other rows of the batch do not matter; `corrupted` checks shapes and types."""
    given = documents_of([[5, 8, 2, 9, 4, 6] * 3] * 8), SPECIALS
    options = {"choose": "random"} if name == "gap_sentences" else {}
    for max_len in (16, 40, 129):
        before, made = corrupted(name, *given, max_len, **options)
        _, again = corrupted(name, *given, max_len, rows=[3, 2], **options)
        for array, values in made.items():
            assert (values[[3, 2]] == again[array]).all()
        assert all((before[x] == made[x]).all() for x in ("num_bytes", "num_text_tokens"))
    _, later = corrupted(name, *given, 129, epoch=1, **options)
    assert (made["source"] != later["source"]).any(axis=1).all()


@pytest.mark.parametrize(
    "name", ["doc_sentences", "full_sentences", "segment_pair", "sentence_order"]
)
def test_chunks_do_not_show(name, documents_of, listed, monkeypatch):
    rng = np.random.default_rng(0)
    documents = documents_of([rng.integers(1, 9, rng.integers(1, 8)).tolist() for _ in range(300)])

    def chunks():
        build = formats.load(name).build
        return list(build(documents, specials=SPECIALS, max_len=20, seed=7))

    whole = listed(chunks())
    for sentences, tokens in ((50, 300), (7, 40), (1, 10)):
        monkeypatch.setattr(assembly, "SENTENCES_PER_CHUNK", sentences)
        monkeypatch.setattr(assembly, "TOKENS_PER_CHUNK", tokens)
        assert len(chunks()) > 20
        assert listed(chunks()) == whole


@pytest.mark.parametrize(("name", "lengths", "max_len", "message"), [
    ("doc_sentences", [[1]], 2, "max_len = 2 .*3 "),
    ("segment_pair", [[1, 2, 3]], 20, "only 1 "),
    ("segment_pair", [[1], [2], [3]], 20, "two sentences"),
    ("segment_pair", [[1, 2], [3, 4]], 4, "max_len = 4 .*5 "),
    ("sentence_order", [[3], [4]], 24, "two sentences"),
    ("sentence_order", [[1, 2], [3, 4]], 4, "max_len = 4 .*5 "),
])  # fmt: skip
def test_what_gives_no_example_is_refused(name, documents_of, lengths, max_len, message):
    build = formats.load(name).build
    with pytest.raises(ValueError, match=message):
        list(build(documents_of(lengths), specials=SPECIALS, max_len=max_len, seed=0))


@pytest.mark.parametrize(("name", "num_alone"), [
    *(("segment_pair", num) for num in (0, 300, 1500, 2700)),
    ("sentence_order", 0), ("sentence_order", 1500),
])  # fmt: skip
def test_labels_of_pairs_are_balanced(name, num_alone, documents_of, listed):
    """Documents of one sentence have no label 0 in segment_pair, and none in sentence_order."""
    rng = np.random.default_rng(0)
    counts = np.concatenate([np.ones(num_alone, int), rng.integers(2, 20, 3000 - num_alone)])
    rng.shuffle(counts)
    documents = documents_of([rng.integers(2, 20, count).tolist() for count in counts])
    build = formats.load(name).build
    rows, dropped = listed(build(documents, specials=SPECIALS, max_len=64, seed=1))
    labels = np.array([row[4] for row in rows])
    bound = 0.01 if name == "segment_pair" else 3 * 0.5 / np.sqrt(len(labels))
    assert len(labels) > 500 and dropped > 0
    assert abs(labels.mean() - 0.5) < bound


def test_sentinels_are_numbered_roles():
    ids = {"pad": 0, "sentinel_1": 4, "sentinel_0": 9, "sentinel_3": 5, "sentinels": 6}
    assert Specials(ids=ids).sentinels == (9, 4)
    assert Specials().sentinels == ()


FILLED = ("span_corruption", "denoising", "text_noise", "masked_fragment")


@pytest.mark.parametrize("name", FILLED)
def test_texts_go_on_in_the_next_document(name, documents_of, corrupted):
    """All texts but the last are as long as they can be; without the option, as documents are."""
    documents, sizes = documents_of([[3, 4, 2]] * 40), {}
    for across in (False, True):
        before, made = corrupted(name, documents, SPECIALS, 40, across_documents=across)
        text = before["tokens"]
        sizes[across] = before["lengths"]
        array = formats.arrays_of(name, {"across_documents": across})[0]
        share = made["lengths"][:-1].sum() / (len(text) - 1) / array.shape(40, 1)[1]
        assert (share > 0.9) == across
        read = text[(text >= 100) & (text < 60_000)]
        assert (np.diff(read.astype(int)) > 0).all()  # nothing is moved or read twice
    assert len({*sizes[True][:-1].tolist()}) == 1 and sizes[True][0] > sizes[False].max()
