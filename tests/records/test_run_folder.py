"""A folder whose files are damaged, or wrong in type, is refused with the file's name."""

import json
import pathlib

import pytest

from scalelab.finetuning import progress
from scalelab.finetuning.plan import read_choice
from scalelab.helpers import files
from scalelab.records import run_folder


@pytest.mark.parametrize(("name", "content"), [
    ("result", {}), ("result", {"eval": 3}), ("result", {"status": 7}), ("config", {"seed": "x"}),
    ("environment", {"earlier_starts": 5}), ("grid", {"chosen": 3}),
])  # fmt: skip
def test_a_file_of_another_form_is_named(tmp_path: pathlib.Path, name: str, content) -> None:
    (tmp_path / f"{name}.json").write_text(json.dumps(content))
    readers = {"environment": run_folder.write_description, "grid": read_choice}
    with pytest.raises(ValueError, match=rf"{name}\.json"):
        readers.get(name, run_folder.claim)(tmp_path, {})


def test_an_equal_file_is_not_written_again(tmp_path: pathlib.Path) -> None:
    files.write_json(path := tmp_path / "grid.json", {"a": 1})
    before = path.stat().st_ino
    files.write_json(path, {"a": 1})
    assert path.stat().st_ino == before
    files.write_json(path, {"a": 2})
    assert json.loads(path.read_text()) == {"a": 2}


def test_steps_that_another_config_loses_are_named(tmp_path: pathlib.Path) -> None:
    for name in (".resume-0.aaaa/6", ".resume-2.aaaa/4", ".resume-0.bbbb"):
        (tmp_path / name).mkdir(parents=True)
    (note,) = progress.describe_unused(tmp_path, 0, tmp_path / ".resume-0.bbbb")
    assert ".resume-0.aaaa" in note and "step 6" in note
