"""The example store and the batches of it, against lists in memory and brute force."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from scalelab.data import batches as batches_lib
from scalelab.data import store as store_lib
from scalelab.data.batches import Batches, evaluation_batches
from scalelab.data.store import ExampleStore
from scalelab.formats import Examples


def make_examples(count, *, has_pairs=False, seed=0, dtype=np.uint16):
    """Random examples of 1 to 12 tokens."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 13, count)
    return Examples(
        tokens=rng.integers(1, 60_000, lengths.sum()).astype(dtype),
        starts=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        boundaries=rng.integers(0, lengths + 1).astype(np.int32),
        num_bytes=rng.integers(1, 99, count).astype(np.int32),
        num_text_tokens=rng.integers(0, lengths + 1).astype(np.int32),
        nsp_labels=rng.integers(0, 2, count).astype(np.int32) if has_pairs else None,
        dropped_tokens=int(rng.integers(0, 100)),
    )


def opened(tmp_path, *chunks):
    tmp_path.mkdir(exist_ok=True)
    store_lib.write(iter(chunks), tmp_path)
    return ExampleStore.open(tmp_path)


@pytest.fixture(scope="module")
def numbered(tmp_path_factory):
    """count -> a store whose example i is the one token i + 1."""

    def make(count):
        ones = np.ones(count, np.int32)
        examples = Examples(
            tokens=np.arange(1, count + 1).astype(np.uint16),
            starts=np.arange(count + 1).astype(np.int64),
            boundaries=ones,
            num_bytes=ones,
            num_text_tokens=ones,
            nsp_labels=None,
            dropped_tokens=0,
        )
        return opened(tmp_path_factory.mktemp("numbered"), examples)

    return make


@pytest.mark.parametrize("has_pairs", [False, True])
@pytest.mark.parametrize("dtype", [np.uint16, np.uint32])
def test_gather_equals_a_loop(tmp_path, has_pairs, dtype):
    chunks = [make_examples(n, has_pairs=has_pairs, seed=n, dtype=dtype) for n in (7, 0, 1, 30)]
    store = opened(tmp_path, *chunks)
    assert len(store) == 38
    rows = [(chunk, i) for chunk in chunks for i in range(len(chunk))]
    ids = np.array([3, 37, 0, -1, 3, 8])
    batch = store.gather(ids, 12)
    fields = {"boundaries", "num_bytes", "num_text_tokens"} | (
        {"nsp_labels"} if has_pairs else set()
    )
    assert set(batch) == {"tokens", "lengths"} | fields
    assert all(values.dtype == np.int32 for values in batch.values())
    for row, example in enumerate(ids):
        expected = np.zeros(12, np.int64)
        if example < 0:
            assert all(batch[name][row] == 0 for name in fields | {"lengths"})
        else:
            chunk, i = rows[example]
            tokens = chunk.tokens[chunk.starts[i] : chunk.starts[i + 1]]
            expected[: len(tokens)] = tokens
            assert batch["lengths"][row] == len(tokens)
            assert all(batch[name][row] == getattr(chunk, name)[i] for name in fields)
        assert (batch["tokens"][row] == expected).all()


def test_meta_counts(tmp_path):
    chunks = [make_examples(n, has_pairs=True, seed=n) for n in (70, 30)]
    meta = opened(tmp_path / "a", *chunks).meta
    lengths = np.concatenate([np.diff(chunk.starts) for chunk in chunks])
    assert meta["num_examples"] == 100
    assert meta["num_tokens"] == lengths.sum()
    assert meta["dropped_tokens"] == sum(chunk.dropped_tokens for chunk in chunks)
    assert meta["num_bytes"] == sum(chunk.num_bytes.sum() for chunk in chunks)
    assert meta["num_text_tokens"] == sum(chunk.num_text_tokens.sum() for chunk in chunks)
    assert sum(meta["label_counts"]) == 100
    assert meta["label_counts"][1] == sum(chunk.nsp_labels.sum() for chunk in chunks)
    assert meta["length_histogram"] == [100]  # all are shorter than a bin
    lengths = np.array([1, 16, 17, 32, 33, 80])
    ones = np.ones(6, np.int32)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    examples = Examples(np.ones(lengths.sum(), np.uint16), starts, ones, ones, ones, None, 0)
    assert opened(tmp_path / "b", examples).meta["length_histogram"] == [2, 2, 1, 0, 1]


def test_empty_store(tmp_path):
    store = opened(tmp_path / "a")
    assert len(store) == 0
    assert list(evaluation_batches(store, 4, 8)) == []
    assert len(opened(tmp_path / "b", make_examples(0, has_pairs=True))) == 0


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
    for num_hosts in (1, 2, 3, 8):
        size = 24 // num_hosts
        parts = [
            Batches(store, 24, 4, seed=0, rows=slice(host * size, (host + 1) * size))
            for host in range(num_hosts)
        ]
        for step in (0, 9, 41, 42):  # step 41 crosses into the next epoch
            rows = [part(step) for part in parts]
            for name, values in whole(step).items():
                if name != "num_tokens":
                    assert (np.concatenate([row[name] for row in rows]) == values).all()
        assert all(part(9)["num_tokens"] == 24 for part in parts)


def test_what_does_not_fit_is_refused(tmp_path):
    with pytest.raises(ValueError, match="12 .* 5"):
        opened(tmp_path, make_examples(40)).gather(np.arange(40), 5)


def test_evaluation_sees_every_example_once(numbered):
    found = list(evaluation_batches(numbered(21), 8, 4))
    assert [batch["tokens"].shape for batch in found] == [(8, 4)] * 3
    tokens = np.concatenate([batch["tokens"][:, 0] for batch in found])
    lengths = np.concatenate([batch["lengths"] for batch in found])
    assert tokens.tolist() == [*range(1, 22), 0, 0, 0]
    assert lengths.tolist() == [1] * 21 + [0] * 3
    assert all(batch["examples"].tolist() == list(range(8)) for batch in found)


def test_a_limited_evaluation_is_spread_over_the_store(numbered):
    store = numbered(1000)
    found = list(evaluation_batches(store, 10, 4, max_batches=4))
    tokens = np.concatenate([batch["tokens"][:, 0] for batch in found])
    assert tokens.tolist() == list(range(1, 1001, 25))
    assert len(list(evaluation_batches(store, 300, 4, max_batches=9))) == 4
