"""Imports and exports lose no file of others, and leave no part of a folder after an error."""

import json
import pathlib

import pytest

from scalelab.interop import output_folder


def fill(path: pathlib.Path, **files: str) -> None:
    """An export of some files."""
    with output_folder.filling(output_folder.check(path, "--to", replace=True)) as partial:
        for name, text in files.items():
            (partial / name).write_text(text)
        (partial / output_folder.MARKER).write_text(json.dumps({"files": list(files)}))


def content(path: pathlib.Path) -> dict[str, str]:
    return {p.name: p.read_text() for p in path.iterdir() if p.name != output_folder.MARKER}


def test_what_others_put_beside_an_export_stays(tmp_path: pathlib.Path) -> None:
    out = tmp_path / "out"
    fill(out, a="1", b="1")
    (out / "mine.txt").write_text("thesis")
    fill(out, a="2", c="2")
    assert content(out) == {"a": "2", "c": "2", "mine.txt": "thesis"}
    with pytest.raises(ValueError, match="other files .*mine.txt"):
        fill(out, **{"a": "3", "mine.txt": "3"})
    assert content(out) == {"a": "2", "c": "2", "mine.txt": "thesis"}
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("mark", ['{"files": ["../mine"]}', "[]", "{}", '{"files": [1]}'])
def test_a_damaged_marker_marks_no_export(tmp_path: pathlib.Path, mark: str) -> None:
    (tmp_path / output_folder.MARKER).write_text(mark)
    with pytest.raises(ValueError, match="not an export"):
        fill(tmp_path, a="2")
    assert (tmp_path / output_folder.MARKER).read_text() == mark


def test_what_fails_leaves_no_folder(tmp_path: pathlib.Path) -> None:
    with pytest.raises(KeyboardInterrupt), output_folder.filling(tmp_path / "out") as partial:
        (partial / "file").touch()
        raise KeyboardInterrupt
    assert not list(tmp_path.iterdir())


def test_places_that_cannot_be(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").touch()
    for name in ("file", "file/below/it"):
        with pytest.raises(ValueError, match="--to=.*file is"):
            output_folder.check(tmp_path / name, "--to", replace=True)
    fill(tmp_path / "out", a="1")
    with pytest.raises(ValueError, match="--workdir=.*out"):
        output_folder.check(tmp_path / "out", "--workdir", replace=False)
