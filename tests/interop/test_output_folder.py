"""Imports and exports lose no file of others, and leave no part of a folder after an error."""

import json
import pathlib

import pytest

from scalelab.interop import output_folder


def fill(path: pathlib.Path, replace: bool = True, **files: str) -> None:
    """An export of some files."""
    place = output_folder.check(path, "--to", replace=replace)
    with output_folder.filling(place, output_folder.list_exported(place) or ()) as partial:
        for name, text in files.items():
            (partial / name).write_text(text)
        names = [p.name for p in partial.iterdir()]
        (partial / output_folder.MARKER).write_text(json.dumps({"files": names}))


def content(path: pathlib.Path) -> dict[str, str]:
    return {p.name: p.read_text() for p in path.iterdir() if p.name != output_folder.MARKER}


def test_what_others_put_beside_an_export_stays(tmp_path: pathlib.Path) -> None:
    out = tmp_path / "out"
    fill(out, a="1", b="1")
    (out / "mine.txt").write_text("thesis")
    (out / ".git").mkdir()
    (out / ".git/HEAD").write_text("main")
    fill(out, a="2", c="2")
    assert (out / ".git/HEAD").read_text() == "main"
    (out / ".git/HEAD").unlink()
    (out / ".git").rmdir()
    assert content(out) == {"a": "2", "c": "2", "mine.txt": "thesis"}


def test_a_file_of_others_in_the_way(tmp_path: pathlib.Path) -> None:
    out = tmp_path / "out"
    fill(out, a="1")
    (out / "b").write_text("mine")
    with pytest.raises(ValueError, match="files of others .* .b."):
        fill(out, a="2", b="2")
    assert content(out) == {"a": "1", "b": "mine"}
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize(
    "mark",
    ['{"files": ["../mine"]}', "[]", "{", "{}", '{"step": 3}', '{"files": [1]}', "[" * 99999],
)
def test_a_mark_that_lies_is_none(tmp_path: pathlib.Path, mark: str) -> None:
    (tmp_path / "mine").touch()
    out = tmp_path / "out"
    out.mkdir()
    (out / output_folder.MARKER).write_text(mark)
    with pytest.raises(ValueError, match="no export of ours"):
        fill(out, a="2")
    assert (tmp_path / "mine").exists() and (out / output_folder.MARKER).read_text() == mark


def test_what_fails_leaves_no_folder(tmp_path: pathlib.Path) -> None:
    for path in (tmp_path / "deep/a/b", tmp_path / "there"):
        with pytest.raises(KeyboardInterrupt), output_folder.filling(path) as partial:
            (partial / "file").touch()
            (tmp_path / "there").mkdir(exist_ok=True)
            raise KeyboardInterrupt
    assert [p.name for p in tmp_path.iterdir()] == ["there"]
    assert not any((tmp_path / "there").iterdir())


def test_links(tmp_path: pathlib.Path) -> None:
    (tmp_path / "nowhere").symlink_to(tmp_path / "gone")
    with pytest.raises(ValueError, match="nowhere is a link to .*gone"):
        output_folder.check(tmp_path / "nowhere", "--to", replace=True)
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    fill(tmp_path / "link", a="1")
    assert (tmp_path / "link").is_symlink() and content(tmp_path / "real") == {"a": "1"}


def test_places_that_cannot_be(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="--to=.*file is in use"):
        output_folder.check(tmp_path / "file", "--to", replace=False)
    with pytest.raises(ValueError, match="cannot be made: .*file is a file"):
        output_folder.check(tmp_path / "file/below/it", "--to", replace=False)
    fill(tmp_path / "out", a="1")
    with pytest.raises(ValueError, match="--workdir=.*out is in use .a, scalelab.json"):
        output_folder.check(tmp_path / "out", "--workdir", replace=False)


def test_a_folder_where_a_file_of_ours_was(tmp_path: pathlib.Path) -> None:
    """Nothing is deleted before it is known that everything can be written."""
    out = tmp_path / "out"
    fill(out, a="1", b="1")
    (out / "b").unlink()
    (out / "b").mkdir()
    with pytest.raises(ValueError, match=r"files of others.*\(b\)"):
        fill(out, a="2", b="2")
    assert (out / "a").read_text() == "1" and (out / "b").is_dir()
