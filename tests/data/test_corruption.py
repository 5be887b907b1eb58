"""Corruption that changes lengths: from the declaration of a scratch format to its batches."""

import collections
import dataclasses
import functools
import types
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scratch
import tiny

from scalelab import formats, objectives, systems
from scalelab.config import pretraining as config_lib
from scalelab.data.batches import Batches, evaluation_batches, iterate
from scalelab.data.loading import Data, load_data
from scalelab.data.phases import PhaseData
from scalelab.formats import (
    COMMON,
    Array,
    Examples,
    Ragged,
    Specials,
    denoising,
    doc_sentences,
    draws,
    text_noise,
)
from scalelab.objectives import Baseline, mlm
from scalelab.training.blueprint import Blueprint

SENTINELS = tuple((f"sentinel_{i}", f"<extra_{i}>") for i in range(5))
SEED, B = 3, 12

# A scratch format: sentinels replace random spans of the text, anew in each epoch (Raffel et al.
# 2020, 3.1.4, in its simplest form: each token is dropped with one probability).
# The first tokens of each example, a second text on disk.
STORED = (*COMMON, Array("summary", "ragged", None, lambda max_len, _: max_len // 2))
# Each sentinel, and what it stands for.
ARRAYS = (
    *STORED,
    Array("targets", "ragged", None, lambda max_len, options: options.room * max_len),
)


@dataclasses.dataclass(frozen=True)
class Options:
    rate: float = 0.15  # share of dropped tokens
    room: int = 2  # tokens of a target for each of the text


def build(documents: Any, *, max_len: int, options: Any = None, **given: Any) -> Iterator[Examples]:
    del options
    for chunk in doc_sentences.build(documents, max_len=max_len, **given):
        values, starts = chunk.ragged["tokens"]
        rows = [values[a:b][: max_len // 2] for a, b in zip(starts[:-1], starts[1:], strict=True)]
        ends = np.cumsum([0, *map(len, rows)], dtype=np.int64)
        chunk.ragged["summary"] = Ragged(np.concatenate([values[:0], *rows]), ends)
        yield chunk


def corrupt(
    batch: dict[str, np.ndarray],
    *,
    seed: int,
    epochs: np.ndarray,
    examples: np.ndarray,
    specials: Specials,
    options: Options,
    max_len: int,
) -> dict[str, np.ndarray]:
    tokens, places = batch["tokens"], np.arange(max_len)
    # A stream for each row; an address in it for each place.
    rows = draws.bits(draws.key(seed, 0), examples) ^ draws.bits(draws.key(seed, 1), epochs)
    chances = draws.uniform(rows[:, None], places)
    is_text = places < batch["lengths"][:, None]
    dropped = is_text & (chances < options.rate)
    opens = dropped.copy()
    opens[:, 1:] &= ~dropped[:, :-1]
    span = np.cumsum(opens, axis=1, dtype=np.int32)
    sentinels = np.asarray(specials.sentinels, np.int32)
    dropped &= span <= len(sentinels)  # what has no sentinel stays
    opens &= dropped
    marks = sentinels[np.clip(span, 1, len(sentinels)) - 1]
    kept = opens | (is_text & ~dropped)
    pairs = np.stack([marks, tokens], -1), np.stack([opens, dropped], -1)
    made = dict(batch)
    made["tokens"], made["lengths"] = _pack(np.where(opens, marks, tokens), kept, max_len)
    wide = (x.reshape(len(tokens), -1) for x in pairs)
    made["targets"], made["targets_lengths"] = _pack(*wide, options.room * max_len)
    return made


def _pack(values: np.ndarray, taken: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Moves the values that are taken to the left: [B, width], and their number [B]."""
    lengths = taken.sum(1, dtype=np.int32)
    rows = np.zeros((len(values), width), np.int32)
    rows[np.arange(width) < lengths[:, None]] = values[taken]
    return rows, lengths


@dataclasses.dataclass(frozen=True)
class Prepared:
    config: config_lib.Config
    data: Data
    folder: Path

    @property
    def phase(self) -> PhaseData:
        return self.data.phases[0]


@pytest.fixture(scope="module", autouse=True)
def spans() -> Iterator[None]:
    """The format `spans` is found by name, and a system has sentinels."""
    system = systems.load("roberta")
    exports = {"VERSION": 1, "STORED": STORED, "ARRAYS": ARRAYS, "Options": Options}
    with pytest.MonkeyPatch.context() as patch:
        scratch.add(patch, "formats", "spans", build=build, corrupt=corrupt, **exports)
        patch.setattr(system, "SPECIAL_TOKENS", (*system.SPECIAL_TOKENS, *SENTINELS))
        yield


CHOICES: dict[str, Any] = dict(
    data__format="spans", format_options={"rate": 0.3}, long__example_rate=0.0
)


@pytest.fixture(scope="module")
def prepared(spans: None, wikitext: Path, tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    folder = tmp_path_factory.mktemp("cache")
    small = tiny.small(folder) | dict(tokenizer__vocab_size=400, short__batch_size=B)
    arguments = f"system=roberta,corpus=wikitext:{wikitext}"
    config = config_lib.resolve(tiny.values(arguments, **(small | CHOICES)))
    return Prepared(config, load_data(config, systems.load("roberta"), progress=False), folder)


def test_the_declaration_is_read_everywhere(prepared: Prepared) -> None:
    assert formats.declarations("targets") == {"spans": ARRAYS[-1]}
    phase, folder = prepared.phase, next(prepared.folder.glob("examples-*"))
    files = {path.stem for path in folder.glob("*.npy")}
    ragged = {f"{name}{end}" for name in ("tokens", "summary") for end in ("", "_starts")}
    assert files == ragged | {"num_bytes", "num_text_tokens"}  # and no targets
    for loader in ("numpy", "tf"):
        (batch,) = iterate(Batches(phase.train, B, 32, SEED, corrupt=phase.corrupt), 0, 1, loader)
        shapes = {name: (values.shape, values.dtype) for name, values in batch.items()}
        assert shapes.pop("num_tokens") == ((), np.int32)
        abstract = Blueprint.batch(types.SimpleNamespace(config=prepared.config), 32, B)
        assert shapes == {name: (array.shape, array.dtype) for name, array in abstract.items()}
        assert shapes["targets"][0] == (B, 64) and shapes["summary"][0] == (B, 16)


def test_the_tokens_that_the_net_reads_are_counted(prepared: Prepared) -> None:
    """Whatever the rows of this process; and the padding that is paid for beside them."""
    phase = prepared.phase
    given: Any = dict(corrupt=phase.corrupt, counted_arrays=phase.counted_arrays)
    parts = [Batches(phase.train, B, 32, SEED, rows=slice(*s), **given) for s in ((0, 5), (5, B))]
    whole = Batches(phase.train, B, 32, SEED, **given)
    found = [int(whole(step)["num_tokens"]) for step in range(8)]
    for part in parts:
        assert [int(part(step)["num_tokens"]) for step in range(8)] == found
        np.testing.assert_array_equal(part(3)["targets"], whole(3)["targets"][part.rows])
    assert phase.step_tokens == pytest.approx(np.mean(found), rel=0.1)
    width = 32 + 16 + 64
    assert phase.padding_share == pytest.approx(1 - np.mean(found) / (B * width), abs=0.03)


def test_the_length_of_an_array_sees_the_options_of_the_format() -> None:
    for room in (1, 3):
        targets = formats.arrays_of("spans", {"room": room})[-1]
        assert targets.shape(32, B) == (B, room * 32)
        setting = objectives.Setting(9, {}, 0.1, format="spans", format_options={"room": room})
        assert objectives._declared("targets", setting).shape(32, B) == (B, room * 32)


def restored(batch: dict[str, np.ndarray], row: int, sentinels: tuple[int, ...]) -> list[int]:
    """The text of a row before its corruption: each sentinel replaced by what its target says."""
    found, stands_for = [], {}
    for token in batch["targets"][row, : batch["targets_lengths"][row]].tolist():
        if token in sentinels:
            stands_for[token] = latest = []
        else:
            latest.append(token)
    for token in batch["tokens"][row, : batch["lengths"][row]].tolist():
        found += stands_for.pop(token) if token in sentinels else [token]
    assert not stands_for
    return found


def test_sentinels_stand_for_what_was_dropped(prepared: Prepared) -> None:
    """Nothing of it is on disk, where the whole text is."""
    phase, ids = prepared.phase, prepared.data.tokenizer.special_ids
    sentinels = tuple(ids[role] for role, _ in SENTINELS)
    assert not np.isin(phase.train.arrays["tokens"], sentinels).any()
    before = digests(prepared.folder)
    batches = Batches(
        phase.train, B, 32, SEED, corrupt=phase.corrupt, counted_arrays=phase.counted_arrays
    )
    num_dropped = num_tokens = 0
    for step in range(8):
        batch, stored = batches(step), phase.train.gather(batches.address(step)[0])
        read = ("lengths", "summary_lengths", "targets_lengths")  # not what is on disk
        assert batch["num_tokens"] == sum(batch[name].sum() for name in read)
        for row, length in enumerate(stored["lengths"]):
            assert restored(batch, row, sentinels) == stored["tokens"][row, :length].tolist()
            spans_ = np.isin(batch["tokens"][row], sentinels).sum()
            if spans_ < len(sentinels):  # else what follows the last one stays
                num_tokens += length
                num_dropped += batch["targets_lengths"][row] - spans_
    assert (batch["lengths"] < stored["lengths"]).any()
    assert 0.15 < num_dropped / num_tokens < 0.35  # rows with many spans are left out
    assert digests(prepared.folder) == before


def test_a_corruption_makes_what_the_format_declares(
    prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    form = formats.load("spans")

    def wrong(batch: Any, **given: Any) -> Any:
        return corrupt(batch, **given) | {"targets": batch["tokens"] / 2}

    monkeypatch.setattr(form, "corrupt", wrong)
    data = load_data(prepared.config, systems.load("roberta"), progress=False)
    with pytest.raises(ValueError, match="array 'targets': .*float64"):
        next(evaluation_batches(data.phases[0].valid, B, 1, data.phases[0].corrupt))


def digests(folder: Path) -> dict[str, int]:
    return {str(path): zlib.crc32(path.read_bytes()) for path in folder.rglob("*.npy")}


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
            found[place] = batch["tokens"][row].tobytes() + batch["targets"][row].tobytes()
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
            found += [row.tobytes() for row in np.hstack([batch["tokens"], batch["targets"]])]
            for i in np.flatnonzero(batch["lengths"] == 0):
                assert not batch["tokens"][i].any() and batch["targets_lengths"][i] == 0
        return found[: len(valid)]

    assert rows(8) == rows(8) == rows(5)


def test_unigrams_are_of_what_is_predicted(prepared: Prepared) -> None:
    """The entropy of the targets, sentinels and all, of the first draw of each example."""
    train, corrupt = prepared.phase.train, prepared.phase.corrupt
    counts = collections.Counter[int]()
    for batch in evaluation_batches(train, 1, None, corrupt):
        counts.update(batch["targets"][0, : batch["targets_lengths"][0]].tolist())
    shares = np.array(list(counts.values())) / counts.total()
    expected = -(shares * np.log(shares)).sum()
    assert prepared.data.unigram_nats_of("targets") == pytest.approx(expected)
    assert abs(expected - prepared.data.unigram_nats) > 0.1


def test_a_training_that_was_killed_sees_the_same_rows(
    lab: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mlm, "BASELINE", Baseline("loss", None, 0.5, "targets"))
    config = lab.config("system=roberta,steps=9", **CHOICES)
    whole = lab.run(tmp_path / "whole", config)
    _, resumed = lab.killed(tmp_path / "killed", config, at=8)
    assert min(resumed.batches) > 1 and "targets" in resumed.batches[8]
    resumed.assert_equal(whole)
    assert resumed.result["eval"] == whole.result["eval"]
    (name,), (nats,) = zip(*whole.result["unigrams"].items(), strict=True)
    assert name == "targets_unigram_nats" and 0 < nats < whole.result["unigram_nats"]


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
