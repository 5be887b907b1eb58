"""Every kind of file that a run or a study leaves, damaged: one error, which names the file.

Checkpoints: tests/training/test_checkpoint.py; prepared data: tests/data/test_cache.py.
"""

import os
import pathlib
from collections.abc import Callable

import numpy as np
import predicted
import pytest
import run_folders
import study_folders

from scalelab.data import tokenizers
from scalelab.eval import likelihood
from scalelab.finetuning import plan
from scalelab.helpers import files
from scalelab.records import archive, predictions, run_files, study_file
from scalelab.studies import progress

Reader = Callable[[pathlib.Path], object]  # reads a file of the folder
FILES: dict[str, Reader] = {
    **dict.fromkeys(
        ("config.json", "environment.json", "result.json", "metrics.jsonl"), run_files.read_run
    ),
    "predictions.tsv": lambda folder: predictions.read(folder / "predictions.tsv"),
    "predictions.npz": lambda folder: predictions.read(folder / "predictions.npz"),
    "scores.npz": lambda folder: likelihood.load_partial(folder / "scores.npz"),
    "tokenizer.json": tokenizers.Tokenizer.load,
    "special_tokens_map.json": tokenizers.Tokenizer.load,
    "grid.json": plan.read_grid,
    "invented.json": lambda folder: study_file.read(folder / "invented.json"),
    "plans/invented.json": lambda folder: progress.read_plan(folder, "invented"),
    archive.NAME: archive.unpacked,
}


def replace_by_folder(path: pathlib.Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGES: dict[str, Callable[[pathlib.Path], object]] = {
    "half": lambda path: os.truncate(path, path.stat().st_size // 2),
    "empty": lambda path: os.truncate(path, 0),
    "zeros": lambda path: path.write_bytes(bytes(99) + b"\n"),
    "bytes": lambda path: path.write_bytes(b"\xff\xfe\n" * 30),
    "deep": lambda path: path.write_text('{"a":' + "[" * 100_000 + "\n\n"),
    "folder": replace_by_folder,
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The content of a sound file of each name."""
    folder = tmp_path_factory.mktemp("whole")
    run = run_folders.write(folder / "runs/a")
    archive.pack({"a": run}, folder)
    outputs = np.eye(2, dtype=np.float32)
    table = folder / "predictions.tsv"
    given = dict(texts=[["a", "b"]], gold=np.array([0, 1]), outputs=outputs, labels="01")
    predicted.write(table, **given)
    predictions.pack(folder / "predictions.npz", predictions.read(table))
    likelihood.save_partial(folder / "scores.npz", scores=np.arange(9))
    special = (("pad", "[PAD]"), ("unk", "[UNK]"), ("cls", "[CLS]"), ("sep", "[SEP]"))
    spec = tokenizers.TokenizerSpec("wordpiece", 30, True, special)
    tokenizers.train(spec, ["a few words are enough"] * 9, folder)
    plan.write_choice(folder, [({"epochs": 1.0}, 0.5), ({"epochs": 2.0}, 0.6)], 0)
    study_folders.write_study(folder, [{"system": "bert", "shape": "2x8x2", "seed": 0}])
    (folder / "studies/invented.json").rename(folder / "invented.json")
    entry = {name: 1.0 for name in ("secs", "start_secs", "finetune_secs", "peak_bytes")}
    (folder / "plans").mkdir()
    files.write_json(folder / "plans/invented.json", {"runs": [entry | {"name": "a"}]})
    places = {name: (run if (run / name).is_file() else folder) / name for name in FILES}
    return {name: path.read_bytes() for name, path in places.items()}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_is_named(name: str, damage: str, whole, tmp_path: pathlib.Path) -> None:
    (tmp_path / "plans").mkdir()
    for other, content in whole.items():
        (tmp_path / other).write_bytes(content)
    FILES[name](tmp_path)
    DAMAGES[damage](tmp_path / name)
    try:
        FILES[name](tmp_path)
    except ValueError as error:
        assert str(tmp_path / name) in str(error) and "\n" not in str(error)
    else:  # a last line may be one that is being written
        assert name == "metrics.jsonl" and damage in ("half", "empty")
