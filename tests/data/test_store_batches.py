"""The example store and the batches of it, against lists in memory and brute force."""

import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from scalelab.data import batches as batches_lib
from scalelab.data import store as store_lib
from scalelab.data.batches import Batches, evaluation_batches
from scalelab.data.store import ExampleStore
from scalelab.formats import COMMON, Array, Documents, Examples, Ragged, Specials, draws, load
from scalelab.training.feeding import resident, stored_arrays

MORE = (
    Array("label", dtype="int8"),
    Array("place"),
    Array("targets", "ragged", "uint32", lambda max_len, _: max_len // 2),
)


def rows_of(lengths, values, dtype=np.uint16):
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return Ragged(np.asarray(values).astype(dtype), starts)


def make_examples(count, *, seed=0, dtype=np.uint16):
    """Random examples of 1 to 12 tokens and 0 to 6 targets."""
    rng = np.random.default_rng(seed)
    lengths, targets = rng.integers(1, 13, count), rng.integers(0, 7, count)
    ragged = {
        "tokens": rows_of(lengths, rng.integers(1, 60_000, lengths.sum()), dtype),
        "targets": rows_of(targets, rng.integers(1, 90_000, targets.sum()), np.uint32),
    }
    most = {"num_bytes": 99, "num_text_tokens": lengths + 1, "label": 2, "place": 9}
    flat = {name: rng.integers(0, limit, count) for name, limit in most.items()}
    return Examples(ragged, flat, dropped_tokens=int(rng.integers(0, 100)))


def opened(tmp_path, *chunks, arrays=COMMON + MORE, max_len=12):
    tmp_path.mkdir(exist_ok=True)
    store_lib.write(iter(chunks), tmp_path, arrays, max_len)
    return ExampleStore.open(tmp_path)


def plain(lengths, values):
    ones = np.ones(len(lengths), np.int32)
    return Examples({"tokens": rows_of(lengths, values)}, dict.fromkeys(COUNTS, ones), 0)


COUNTS = ("num_bytes", "num_text_tokens")


@pytest.fixture(scope="module")
def numbered(tmp_path_factory):
    """count -> a store whose example i is the one token i + 1."""

    def make(count):
        examples = plain(np.ones(count, int), np.arange(1, count + 1))
        folder = tmp_path_factory.mktemp("numbered")
        return opened(folder, examples, arrays=COMMON, max_len=4)

    return make


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32])
def test_gather_equals_a_loop(tmp_path, dtype):
    chunks = [make_examples(n, seed=n, dtype=dtype) for n in (7, 0, 1, 30)]
    store = opened(tmp_path, *chunks)
    assert len(store) == 38
    assert (store.arrays["tokens"].dtype, store.arrays["label"].dtype) == (dtype, np.int8)
    places = [(chunk, i) for chunk in chunks for i in range(len(chunk))]
    places.append((chunks[1], None))  # -1: no example
    ids = np.array([3, 37, 0, -1, 3, 8])
    batch = store.gather(ids)
    flat = {*COUNTS, "label", "place"}
    assert set(batch) == {"tokens", "lengths", "targets", "targets_lengths"} | flat
    assert all(values.dtype == np.int32 for values in batch.values())
    for row, example in enumerate(ids):
        chunk, i = places[example]
        for name, lengths, width in (("tokens", "lengths", 12), ("targets", "targets_lengths", 6)):
            made = chunk.ragged[name]
            values = [] if i is None else made.values[made.starts[i] : made.starts[i + 1]].tolist()
            assert batch[lengths][row] == len(values)
            assert batch[name][row].tolist() == values + [0] * (width - len(values))
        for name in flat:
            assert batch[name][row] == (0 if i is None else chunk.flat[name][i])
    assert (store.gather(ids, 20)["tokens"][:, :12] == batch["tokens"]).all()
    assert store.gather(ids, 20)["targets"].shape == (6, 6)


def test_counts(tmp_path):
    chunks = [make_examples(n, seed=n) for n in (70, 30)]
    store = opened(tmp_path / "a", *chunks)
    assert len(store) == 100
    assert store.meta["dropped_tokens"] == sum(chunk.dropped_tokens for chunk in chunks)


@pytest.mark.parametrize("chunks", [(), (make_examples(0),)])
def test_empty_store(tmp_path, chunks):
    store = opened(tmp_path / "a", *chunks)
    assert len(store) == 0 and list(evaluation_batches(store, 4)) == []


def fixed_documents():
    """Documents that depend on nothing but `draws`."""
    counts = 1 + draws.below(1, np.arange(400), 12)
    lengths = 1 + draws.below(2, np.arange(counts.sum()), 25)
    tokens = (10 + draws.below(3, np.arange(lengths.sum()), 900)).astype(np.uint16)
    starts = np.cumsum([0, *lengths]), np.cumsum([0, *counts])
    return Documents(tokens, starts[0], (4 * lengths).astype(np.int32), starts[1])


@pytest.mark.parametrize(("name", "digest"), [
    ("doc_sentences", "f7f2006f"),
    ("full_sentences", "9a6fe1ba"),
    ("segment_pair", "c72b42ad"),
])  # fmt: skip
def test_batches_hold_the_numbers_of_store_version_2(name, digest, tmp_path):
    """Digests of commit 46e2154f, its arrays under their new names."""
    form, specials = load(name), Specials((1,), (2,), (3,))
    made = form.build(fixed_documents(), specials=specials, max_len=64, seed=5)
    store = opened(tmp_path, *made, arrays=form.ARRAYS, max_len=64)
    batches = Batches(store, 16, 64, seed=3)
    found = [batches(t) for t in (0, 7, len(store) // 8)] + list(evaluation_batches(store, 16, 3))
    crc = 0
    for name, values in (item for batch in found for item in sorted(batch.items())):
        assert values.dtype == np.int32
        crc = zlib.crc32(name.encode() + np.ascontiguousarray(values, "<i4").tobytes(), crc)
    assert f"{crc:08x}" == digest


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 3000), st.integers(0, 2**64 - 1))
def test_permute_is_a_permutation(size, key):
    places = batches_lib.permute(np.arange(size), size, np.full(size, key, np.uint64))
    assert sorted(places.tolist()) == list(range(size))


def test_permutations_look_random():
    size, num_keys = 50, 4000
    keys = np.repeat(np.arange(num_keys, dtype=np.uint64) * np.uint64(977), size)
    found = batches_lib.permute(np.tile(np.arange(size), num_keys), size, keys)
    found = found.reshape(num_keys, size)
    table = np.stack([np.bincount(found[:, place], minlength=size) for place in range(size)])
    assert stats.chisquare(table, axis=None).pvalue > 1e-3  # every place to every place
    steps = (found[:, 1:] - found[:, :-1]) % size  # neighbours do not stay together
    assert stats.chisquare(np.bincount(steps.ravel(), minlength=size)[1:]).pvalue > 1e-3


@pytest.mark.parametrize(("count", "batch_size"), [(64, 16), (103, 16), (17, 16), (16, 16), (5, 2)])
def test_every_example_once_an_epoch(numbered, count, batch_size):
    batches = Batches(numbered(count), batch_size, 4, seed=3)
    stream = np.concatenate([batches(step)["tokens"][:, 0] for step in range(4 * count)])
    epochs = stream[: 4 * count].reshape(4, count)
    for epoch in epochs:
        assert sorted(epoch.tolist()) == list(range(1, count + 1))
    if count > 5:
        assert len({tuple(epoch) for epoch in epochs.tolist()}) == 4


def test_hosts_share_one_global_batch(numbered):
    store = numbered(1000)
    whole = Batches(store, 24, 4, seed=0)
    assert (Batches(store, 24, 4, seed=1)(7)["tokens"] != whole(7)["tokens"]).any()
    assert whole(9)["examples"].tolist() == list(range(24))
    for size in (24, 12, 8, 3):
        slices = [slice(start, start + size) for start in range(0, 24, size)]
        parts = [Batches(store, 24, 4, seed=0, rows=rows) for rows in slices]
        for step in (0, 9, 41, 42):  # step 41 crosses into the next epoch
            rows = [part(step) for part in parts]
            for name, values in whole(step).items():
                if name != "num_tokens":
                    assert (np.concatenate([row[name] for row in rows]) == values).all()
        assert all(part(9)["num_tokens"] == 24 for part in parts)


@pytest.mark.parametrize(("count", "lanes"), [(64, 16), (103, 16), (17, 16), (16, 16), (5, 2)])
def test_contiguous_lanes_continue_and_an_epoch_holds_every_example_once(numbered, count, lanes):
    store = numbered(count)
    batches = Batches(store, lanes, 4, seed=3, first_step=5, order="contiguous")
    numbers = np.stack([batches(5 + t)["tokens"][:, 0] - 1 for t in range(2 * count)])
    assert numbers[0].tolist() == [lane * count // lanes for lane in range(lanes)]
    assert (numbers[1:] == (numbers[:-1] + 1) % count).all()
    epochs = np.stack([batches.address(5 + t)[1] for t in range(2 * count)])
    assert (np.diff(epochs, axis=0) >= 0).all()
    assert (np.ptp(epochs, axis=1) <= 1).all()
    for epoch in range(lanes):
        assert sorted(numbers[epochs == epoch]) == list(range(count))
    half = slice(lanes // 2, lanes)
    part = Batches(store, lanes, 4, seed=3, rows=half, first_step=5, order="contiguous")(9)
    assert (part["tokens"][:, 0] - 1 == numbers[4, half]).all()


def test_what_does_not_fit_is_refused(tmp_path, numbered):
    with pytest.raises(ValueError, match="12 .* 5"):
        opened(tmp_path, make_examples(40)).gather(np.arange(40), 5)
    with pytest.raises(AssertionError):
        Batches(numbered(3), 4, 4, seed=0, order="contiguous")


def test_evaluation_sees_every_example_once(numbered):
    found = list(evaluation_batches(numbered(21), 8))
    assert [batch["tokens"].shape for batch in found] == [(8, 4)] * 3
    tokens, lengths = (np.concatenate([b[name] for b in found]) for name in ("tokens", "lengths"))
    assert tokens[:, 0].tolist() == [*range(1, 22), 0, 0, 0]
    assert lengths.tolist() == [1] * 21 + [0] * 3
    assert all(batch["examples"].tolist() == list(range(8)) for batch in found)
    store = numbered(1000)  # a limited evaluation is spread over the store
    found = list(evaluation_batches(store, 10, max_batches=4))
    tokens = np.concatenate([batch["tokens"][:, 0] for batch in found])
    assert tokens.tolist() == list(range(1, 1001, 25))
    assert len(list(evaluation_batches(store, 300, max_batches=9))) == 4


@pytest.mark.parametrize(("size", "most", "expected"), [
    (10, None, [[1, 3, 6, 8], [2, 4, 7, 9], [0, 5, 0, 10]]),
    (10, 2, [[1, 3, 6, 8], [2, 4, 7, 9]]),
    (3, None, [[0, 1, 2, 3]]),
])  # fmt: skip
def test_evaluation_in_contiguous_order_reads_lanes(numbered, size, most, expected):
    """A row continues that of the batch before; every example is read once."""
    found = list(evaluation_batches(numbered(size), 4, most, order="contiguous"))
    assert [batch["tokens"][:, 0].tolist() for batch in found] == expected
    assert [(batch["lengths"] > 0).tolist() for batch in found] == [
        [token > 0 for token in row] for row in expected
    ]


def test_arrays_that_the_net_reads_are_counted(tmp_path):
    """Resident and made by the host."""
    store = opened(tmp_path, make_examples(40))
    batches = Batches(store, 8, 12, seed=0, counted_arrays=("tokens", "targets"))
    stream = resident(batches, stored_arrays(store)).stream(0, 4)
    for step, (count, _) in enumerate(stream):
        batch = batches(step)
        assert count == batch["num_tokens"]
        assert count == batch["lengths"].sum() + batch["targets_lengths"].sum()


@pytest.mark.parametrize("order", ["shuffled", "contiguous"])
def test_an_evaluation_of_whole_batches(numbered, order):
    found = list(evaluation_batches(numbered(21), 8, None, None, order, whole=True))
    assert len(found) == 2 and all((batch["lengths"] > 0).all() for batch in found)
    assert len({*np.concatenate([b["tokens"][:, 0] for b in found])}) == 16
    with pytest.raises(ValueError, match="7 .* batch of 8"):
        list(evaluation_batches(numbered(7), 8, None, None, order, whole=True))
