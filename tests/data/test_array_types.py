"""Arrays of every declared type and shape, from a format to the model's batches, by every path."""

import types
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import scratch

from scalelab import formats
from scalelab.data import batches as batches_lib
from scalelab.data import inspect, store
from scalelab.data.batches import Batches, evaluation_batches
from scalelab.data.store import ExampleStore
from scalelab.formats import COMMON, Array, Examples, Ragged
from scalelab.training import feeding
from scalelab.training.blueprint import Blueprint

N, B, T, K = 7, 4, 6, 3
LENGTHS = np.array([1, 6, 3, 2, 5, 4, 6])
STARTS = np.cumsum([0, *LENGTHS])

# name, type on disk, shape of an item, type in a batch
FLAT = [
    ("score", "float32", (), np.float32),
    ("wide", "float64", (), np.float32),
    ("half", "float16", (), np.float32),
    ("is_title", "bool", (), np.bool_),
    ("label", "int8", (), np.int32),
    ("image", "float32", (5,), np.float32),
    ("patches", "float16", (2, 5), np.float32),
    ("documents", "uint16", (K, 5), np.int32),
    ("many", "int64", (), np.int32),
]
RAGGED = [
    ("weights", "float32", (), np.float32),
    ("is_name", "bool", (), np.bool_),
    ("features", "float64", (3,), np.float32),
    ("targets", "uint32", (), np.int32),
]
ARRAYS = (
    *COMMON,
    *(Array(name, "flat", dtype, item=item) for name, dtype, item, _ in FLAT),
    *(Array(name, "ragged", dtype, item=item) for name, dtype, item, _ in RAGGED),
)
TYPES = {name: dtype for name, _, _, dtype in FLAT + RAGGED}


def random(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    made = rng.random(shape) * 2 if dtype.startswith("float") else rng.integers(0, 100, shape)
    return made % 2 == 1 if dtype == "bool" else made.astype(dtype)


def examples(**changed: Any) -> Examples:
    rng = np.random.default_rng(0)
    flat = {name: random(rng, dtype, (N, *item)) for name, dtype, item, _ in FLAT}
    flat |= {"num_bytes": LENGTHS * 4, "num_text_tokens": LENGTHS}
    ragged = {"tokens": Ragged(rng.integers(1, 99, STARTS[-1]).astype(np.uint16), STARTS)}
    for name, dtype, item, _ in RAGGED:
        ragged[name] = Ragged(random(rng, dtype, (STARTS[-1], *item)), STARTS)
    flat |= {name: value for name, value in changed.items() if name in flat}
    ragged |= {name: value for name, value in changed.items() if name in ragged}
    return Examples(ragged, flat, 0)


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> ExampleStore:
    folder = tmp_path_factory.mktemp("store")
    store.write(iter([examples()]), folder, ARRAYS, T)
    return ExampleStore.open(folder)


def equal(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values, strict=True, err_msg=name)


def test_a_batch_has_what_the_format_made(opened: ExampleStore) -> None:
    ids, made = np.array([3, -1, 0, 6]), examples()
    batch = opened.gather(ids)
    for name, dtype in TYPES.items():
        assert batch[name].dtype == dtype, name
        for row, example in enumerate(ids):
            if name in made.flat:
                expected = made.flat[name][example]
            else:
                expected = np.zeros_like(batch[name][row])
                rows = made.ragged[name].values[STARTS[example] : STARTS[example + 1]]
                expected[: len(rows)] = rows
            expected = expected if example >= 0 else np.zeros_like(batch[name][row])
            np.testing.assert_array_equal(batch[name][row], expected.astype(dtype), err_msg=name)


@pytest.mark.parametrize("loader", ["tf", "numpy", "device"])
def test_every_path_gives_the_same_batches(opened: ExampleStore, loader: str) -> None:
    batches = Batches(opened, B, T, seed=0)
    if loader == "device":
        source = feeding.resident(batches, feeding.stored_arrays(opened))
    else:
        source = feeding.packed(batches, loader, prefetch=2)
    found = list(source.stream(0, 3))
    assert len(found) == 3
    for step, (_, row) in enumerate(found):
        expected = batches(step)
        del expected["num_tokens"]
        equal(jax.device_get(jax.jit(source.batch)(source.arrays, row)), expected)


def test_the_loader_keeps_types(opened: ExampleStore) -> None:
    batches = Batches(opened, B, T, seed=0)
    found = list(batches_lib.iterate(batches, 0, 3, "tf"))
    assert len(found) == 3
    for step, batch in enumerate(found):
        equal(batch, batches(step))


@pytest.fixture
def blueprint(monkeypatch: pytest.MonkeyPatch) -> Any:
    scratch.add(monkeypatch, "formats", "typed", ARRAYS=ARRAYS, VERSION=1)
    data, tokenizer = types.SimpleNamespace(format="typed"), types.SimpleNamespace(vocab_size=99)
    config = types.SimpleNamespace(data=data, tokenizer=tokenizer, format_options={})
    stub = types.SimpleNamespace(config=config, system=types.SimpleNamespace(SPECIAL_TOKENS=()))
    stub.batch = lambda *sizes: Blueprint.batch(stub, *sizes)
    return stub


def test_the_abstract_batch_is_that_of_the_data(opened: ExampleStore, blueprint: Any) -> None:
    (batch, *_) = evaluation_batches(opened, B)
    expected = {name: (values.shape, values.dtype) for name, values in batch.items()}
    for made in (blueprint.batch(T, B), Blueprint.random_batch(blueprint, T, B)):
        assert {name: (x.shape, x.dtype) for name, x in made.items()} == expected


def test_inspect_shows_them(opened: ExampleStore) -> None:
    (batch, *_), made = evaluation_batches(opened, B), examples()
    tokenizer: Any = types.SimpleNamespace(decode=lambda ids: "text")
    shown = inspect.example(batch, 1, tokenizer, ARRAYS)
    assert f"score {made.flat['score'][1]:.4g}" in shown
    assert f"image float32 [5], mean {made.flat['image'][1].mean():.4g}" in shown
    assert f"is_title {made.flat['is_title'][1]}" in shown
    summary = inspect.summarize_arrays(opened)
    assert summary["mean score"] == f"{made.flat['score'].mean():.2f}"
    assert summary["is_title = 1"] == f"{made.flat['is_title'].mean():.2%}"


@pytest.mark.parametrize(("name", "values", "says"), [
    ("tokens", Ragged(np.ones(STARTS[-1]) / 2, STARTS), "float64"),
    ("targets", Ragged(np.ones(STARTS[-1]) / 2, STARTS), "float64"),
    ("label", np.full(N, 0.25), "float64"),
    ("label", np.full(N, 300), "int8"),
    ("many", np.full(N, 2**40), "int32"),
    ("targets", Ragged(np.full(STARTS[-1], 2**31, np.uint32), STARTS), "int32"),
    ("half", np.full(N, 1e5), "float16"),
    ("wide", np.full(N, 1e300), "float32"),
    ("is_title", np.arange(N), "bool"),
    ("image", np.ones((N, 4), np.float32), r"\[5\]"),
    ("features", Ragged(np.ones(STARTS[-1]), STARTS), r"\[3\]"),
    ("score", np.ones(N - 1, np.float32), f"{N}"),
    ("weights", Ragged(np.ones(STARTS[-1], np.float32), STARTS[:-1]), f"{N}"),
])  # fmt: skip
def test_what_a_format_makes_is_what_it_declares(
    name: str, values: Any, says: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=f"array '{name}'.*{says}"):
        store.write(iter([examples(**{name: values})]), tmp_path, ARRAYS, T)


def test_undeclared_and_missing_arrays(tmp_path: Path) -> None:
    more = (*ARRAYS, Array("absent"))
    with pytest.raises(ValueError, match="'absent'"):
        store.write(iter([examples()]), tmp_path, more, T)
    with pytest.raises(ValueError, match="'image'"):
        fewer = [array for array in ARRAYS if array.name != "image"]
        store.write(iter([examples()]), tmp_path, fewer, T)


@pytest.mark.parametrize(("change", "says"), [
    ({"score": np.zeros(B, np.int32)}, "'score'.*int32.*float32"),
    ({"targets": np.zeros((B, T + 1), np.int32)}, r"'targets'.*4, 7.*4, 6"),
    ({"extra": np.zeros(B, np.int32)}, "'extra'"),
    ({"image": None}, "'image'"),
])  # fmt: skip
def test_corrupted_batches_are_what_the_format_declares(
    change: dict[str, Any], says: str, opened: ExampleStore
) -> None:
    batch = opened.gather(np.arange(B))
    formats.check_batch(ARRAYS, batch, T)
    batch = {name: value for name, value in (batch | change).items() if value is not None}
    with pytest.raises(ValueError, match=says):
        formats.check_batch(ARRAYS, batch, T)


def test_only_rows_of_tokens_count_on_the_token_clock() -> None:
    assert Array("source", "ragged", None, counts=True).is_counted
    with pytest.raises(ValueError, match="'image': only rows of a ragged array count as tokens"):
        Array("image", dtype="float32", item=(4,), counts=True)
