"""Corruption that changes lengths: from the declaration of a scratch format to its batches."""

import dataclasses
import functools
import sys
import types
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import spans
import tiny

from scalelab import formats, systems
from scalelab.config import pretraining as config_lib
from scalelab.data import Data, load_data
from scalelab.data.batches import Batches, evaluation_batches, iterate
from scalelab.data.phases import PhaseData
from scalelab.helpers import names
from scalelab.resources.blueprint import Blueprint

SENTINELS = tuple((f"sentinel_{i}", f"<extra_{i}>") for i in range(5))
SEED, B = 3, 12


@dataclasses.dataclass(frozen=True)
class Prepared:
    config: config_lib.Config
    data: Data
    folder: Path

    @property
    def phase(self) -> PhaseData:
        return self.data.phases[0]


@pytest.fixture(scope="module", autouse=True)
def scratch() -> Iterator[None]:
    """The format `spans` is found by name, and a system has sentinels."""
    system, listed = systems.load("roberta"), names.module_names
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "scalelab.formats.spans", spans)
        patch.setattr(names, "module_names", lambda r: listed(r) + ["spans"] * (r == "formats"))
        patch.setattr(system, "SPECIAL_TOKENS", (*system.SPECIAL_TOKENS, *SENTINELS))
        yield


CHOICES: dict[str, Any] = dict(
    data__format="spans", format_options={"rate": 0.3}, long__example_rate=0.0
)


@pytest.fixture(scope="module")
def prepared(scratch: None, wikitext: Path, tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    folder = tmp_path_factory.mktemp("cache")
    small = dict(
        tokenizer__vocab_size=400, short__max_len=32, short__batch_size=B,
        machine__cache_dir=str(folder), machine__num_workers=1,
    )  # fmt: skip
    arguments = f"system=roberta,corpus=wikitext:{wikitext}"
    config = config_lib.resolve(tiny.values(arguments, **(small | CHOICES)))
    return Prepared(config, load_data(config, systems.load("roberta"), progress=False), folder)


def test_the_declaration_is_read_everywhere(prepared: Prepared) -> None:
    assert formats.declarations("targets") == {"spans": spans.ARRAYS[-1]}
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
    assert not np.isin(phase.train.array("tokens"), sentinels).any()
    before = digests(prepared.folder)
    batches = Batches(phase.train, B, 32, SEED, corrupt=phase.corrupt)
    num_dropped = num_tokens = 0
    for step in range(8):
        batch, stored = batches(step), phase.train.gather(batches.address(step)[0])
        assert batch["num_tokens"] == stored["lengths"].sum()
        for row, length in enumerate(stored["lengths"]):
            assert restored(batch, row, sentinels) == stored["tokens"][row, :length].tolist()
            spans_ = np.isin(batch["tokens"][row], sentinels).sum()
            if spans_ < len(sentinels):  # else what follows the last one stays
                num_tokens += length
                num_dropped += batch["targets_lengths"][row] - spans_
    assert (batch["lengths"] < stored["lengths"]).any()
    assert 0.15 < num_dropped / num_tokens < 0.35  # rows with many spans are left out
    assert digests(prepared.folder) == before


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


def test_a_training_that_was_killed_sees_the_same_rows(lab: Any, tmp_path: Path) -> None:
    config = lab.config("system=roberta,steps=9", **CHOICES)
    whole = lab.run(tmp_path / "whole", config)
    train_lab = sys.modules["train_lab"]
    lab.run(tmp_path / "killed", config, before=train_lab.kill_at(8))
    resumed = lab.run(tmp_path / "killed", config)
    assert min(resumed.batches) > 1 and "targets" in resumed.batches[8]
    for step, batch in resumed.batches.items():
        for name, values in batch.items():
            np.testing.assert_array_equal(values, whole.batches[step][name])
    assert resumed.result["eval"] == whole.result["eval"]
