"""Corruption that changes lengths: from the declaration of a format to its batches."""

import collections
import dataclasses
import functools
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny

from scalelab import systems
from scalelab.config import pretraining as config_lib
from scalelab.data.batches import Batches, evaluation_batches, iterate
from scalelab.data.loading import Data, load_data
from scalelab.data.phases import PhaseData
from scalelab.formats import denoising, span_corruption, text_noise
from scalelab.training.blueprint import Blueprint

SEED, B = 3, 12
OPTIONS = span_corruption.Options(noise_rate=0.3)
WIDTH = span_corruption.target_length(32, OPTIONS)


@dataclasses.dataclass(frozen=True)
class Prepared:
    config: config_lib.Config
    data: Data
    folder: Path

    @property
    def phase(self) -> PhaseData:
        return self.data.phases[0]


@pytest.fixture(scope="module")
def prepared(wikitext: Path, tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    folder = tmp_path_factory.mktemp("cache")
    small = tiny.small(folder) | dict(tokenizer__vocab_size=400, short__batch_size=B)
    small |= dict(format_options=dataclasses.asdict(OPTIONS), long__example_rate=0.0)
    config = config_lib.resolve(tiny.values(f"system=t5,corpus=wikitext:{wikitext}", **small))
    return Prepared(config, load_data(config, systems.load("t5"), progress=False), folder)


def test_the_declaration_is_read_everywhere(prepared: Prepared) -> None:
    phase, folder = prepared.phase, next(prepared.folder.glob("examples-*"))
    files = {path.stem for path in folder.glob("*.npy")}
    assert files == {"tokens", "tokens_starts", "num_bytes", "num_text_tokens"}  # and no source
    for loader in ("numpy", "tf"):
        (batch,) = iterate(Batches(phase.train, B, 32, SEED, corrupt=phase.corrupt), 0, 1, loader)
        shapes = {name: (values.shape, values.dtype) for name, values in batch.items()}
        assert shapes.pop("num_tokens") == ((), np.int32)
        abstract = Blueprint.batch(types.SimpleNamespace(config=prepared.config), 32, B)
        assert shapes == {name: (array.shape, array.dtype) for name, array in abstract.items()}
        assert shapes["source"][0] == (B, 32) and shapes["tokens"][0] == (B, WIDTH)


def test_the_tokens_that_the_net_reads_are_counted(prepared: Prepared) -> None:
    """Whatever the rows of this process; and the padding that is paid for beside them."""
    phase = prepared.phase
    given: Any = dict(corrupt=phase.corrupt, counted_arrays=phase.counted_arrays)
    parts = [Batches(phase.train, B, 32, SEED, rows=slice(*s), **given) for s in ((0, 5), (5, B))]
    whole = Batches(phase.train, B, 32, SEED, **given)
    steps = range(len(phase.train) // B)
    found = [int(whole(step)["num_tokens"]) for step in steps]
    for part in parts:
        assert [int(part(step)["num_tokens"]) for step in steps] == found
        np.testing.assert_array_equal(part(3)["source"], whole(3)["source"][part.rows])
    assert phase.step_tokens == pytest.approx(np.mean(found), rel=0.1)
    padding = 1 - np.mean(found) / (B * (32 + WIDTH))
    assert phase.padding_share == pytest.approx(padding, abs=0.03)


def test_a_corruption_makes_what_the_format_declares(
    prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    corrupt = span_corruption.corrupt

    def wrong(batch: Any, **given: Any) -> Any:
        return corrupt(batch, **given) | {"source": batch["tokens"] / 2}

    monkeypatch.setattr(span_corruption, "corrupt", wrong)
    data = load_data(prepared.config, systems.load("t5"), progress=False)
    with pytest.raises(ValueError, match="array 'source': .*float64"):
        next(evaluation_batches(data.phases[0].valid, B, 1, data.phases[0].corrupt))


Rows = dict[tuple[int, int], bytes]


def rows_of(phase: PhaseData, start: int, stop: int, corrupt: Any, **changed: Any) -> Rows:
    """The rows of stream positions [start, stop), by (epoch, example)."""
    size = changed.pop("batch_size", B)
    batches = Batches(phase.train, size, 32, **{"seed": SEED, "corrupt": corrupt} | changed)
    found: Rows = {}
    for step in range(batches.first_step + start // size, batches.first_step + stop // size):
        batch, (ids, epochs) = batches(step), batches.address(step)
        where = zip(epochs[batches.rows].tolist(), ids[batches.rows].tolist(), strict=True)
        for row, place in enumerate(where):
            found[place] = batch["tokens"][row].tobytes() + batch["source"][row].tobytes()
    return found


def test_rows_are_a_function_of_seed_epoch_and_example(prepared: Prepared) -> None:
    """The same (seed, epoch, example) gives the same row, however it is come by."""
    phase = prepared.phase
    end = 2 * (len(phase.train) // B) * B
    rows = functools.partial(rows_of, phase, corrupt=phase.corrupt)
    whole = rows(0, end)
    assert rows(0, end) == whole
    assert rows(0, end, batch_size=4) == whole
    assert rows(0, end, rows=slice(0, 5)) | rows(0, end, rows=slice(5, B)) == whole
    assert rows(0, end, first_step=100) == whole
    late = rows(end - 5 * B, end)
    assert late.items() <= whole.items() and len(late) == 5 * B
    # Other rows in another epoch, and of another seed.
    examples = {example for epoch, example in whole if epoch == 1}
    same = [whole[0, example] == whole[1, example] for example in examples]
    assert np.mean(same) < 0.1 and len(same) > B
    others = rows(0, end, seed=SEED + 1)
    assert np.mean([others[place] == whole[place] for place in others.keys() & whole]) < 0.1


def test_every_evaluation_sees_the_same_rows(prepared: Prepared) -> None:
    """In whatever batches: validation losses compare."""
    valid, corrupt = prepared.phase.valid, prepared.phase.corrupt

    def rows(batch_size: int) -> list[bytes]:
        found = []
        for batch in evaluation_batches(valid, batch_size, None, corrupt):
            found += [row.tobytes() for row in np.hstack([batch["tokens"], batch["source"]])]
            for i in np.flatnonzero(batch["lengths"] == 0):
                assert not batch["tokens"][i].any() and batch["source_lengths"][i] == 0
        return found[: len(valid)]

    assert rows(8) == rows(8) == rows(5)


def test_unigrams_are_of_what_is_predicted(prepared: Prepared) -> None:
    """The entropy of the targets, sentinels and all, of the first draw of each example."""
    train, corrupt = prepared.phase.train, prepared.phase.corrupt
    counts = collections.Counter[int]()
    for batch in evaluation_batches(train, 1, None, corrupt):
        counts.update(batch["tokens"][0, : batch["lengths"][0]].tolist())
    shares = np.array(list(counts.values())) / counts.total()
    expected = -(shares * np.log(shares)).sum()
    assert prepared.data.unigram_nats_of("tokens") == pytest.approx(expected)
    assert abs(expected - prepared.data.unigram_nats) > 0.1


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus of pages of very different lengths, in sentences of 4 to 24 words."""
    rng, folder = np.random.default_rng(0), tmp_path_factory.mktemp("text")
    words = ["".join(rng.choice([*"aeioubdgkm"], rng.integers(2, 7))) for _ in range(200)]

    def sentence() -> str:
        return " ".join(rng.choice(words, rng.integers(4, 25))).capitalize() + " ."

    for split, count in (("train", 120), ("valid", 8), ("test", 8)):
        pages = (" ".join(sentence() for _ in range(rng.integers(4, 64))) for _ in range(count))
        text = "".join(f" = Page {k} = \n\n {page}\n\n" for k, page in enumerate(pages))
        (folder / f"wiki.{split}.raw").write_text(text)
    return folder


@pytest.mark.parametrize(("system", "options"), [
    ("t5", {}), ("mass", {}), ("palm", {}), ("pegasus", {}), ("pegasus", {"choose": "random"}),
    *(("prefix_lm", {"style": style}) for style in denoising.STYLES if style != "prefix"),
    *(("bart", {"noise": noise}) for noise in ("infilling+permutation", *text_noise.NOISES)),
])  # fmt: skip
def test_a_tenth_is_padding_at_most(system: str, options: dict, pages: Path) -> None:
    """Texts that go on in the next document fill sources and targets, which have what they need."""
    fields = {"model__max_len": 512} | ({"data__format": "denoising"} if "style" in options else {})
    options = {"across_documents": True} | options
    fields |= {f"format_options__{name}": value for name, value in options.items()}
    fields |= {"short__max_len": 512, "long__example_rate": 0.0, "tokenizer__vocab_size": 400}
    fields |= {"tokenizer__kind": "bytebpe"}
    small = tiny.small(pages / "cache") | fields
    config = config_lib.resolve(tiny.values(f"system={system},corpus=wikitext:{pages}", **small))
    phase = load_data(config, systems.load(system), progress=False).phases[0]
    assert phase.padding_share < 0.1
