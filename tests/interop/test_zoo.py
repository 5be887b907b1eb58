"""The checkpoints that come with the project load, and know English."""

import json
import math
import pathlib

import in_process
import pytest
import tiny

from scalelab.eval import lm
from scalelab.interop import importing, output_folder

FOLDERS = sorted(path.parent for path in (tiny.ROOT / "zoo").glob("*/config.json"))


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_an_export_may_be_made_over_it(folder: pathlib.Path) -> None:
    there = {path.name for path in folder.iterdir()} - {output_folder.MARKER}
    assert set(output_folder.list_exported(folder) or ()) == there


@pytest.mark.slow
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_bits_per_byte_of_a_text_that_it_has_not_seen(
    folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """Random weights take log2(30,000) bits a token, above 3 bits a byte: a fifth less at least."""
    importing.run(str(folder), tmp_path / "run")
    text = tmp_path / "text.txt"
    text.write_text((tiny.ROOT / "LICENSE").read_text())
    in_process.run(lm, [
        f"--run={tmp_path}/run", f"--corpus=text:{text}", "--split=train",
        f"--workdir={tmp_path}/found",
    ])  # fmt: skip
    found = json.loads((tmp_path / "found/result.json").read_text())
    random = math.log2(30_000) * found["tokens"] / found["bytes"]
    assert random > 3 and found["bits_per_byte"] < 0.8 * random
