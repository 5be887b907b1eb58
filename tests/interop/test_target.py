"""Where an import and an export write: nothing of others is lost, nothing half-made stays."""

import json
import pathlib

import pytest

from scalelab.interop import target


def fill(path: pathlib.Path, again: bool = True, **files: str) -> None:
    """An export of some files."""
    place = target.check(path, "--to", again=again)
    with target.filling(place, target.files_of_ours(place) or ()) as partial:
        for name, text in files.items():
            (partial / name).write_text(text)
        names = [p.name for p in partial.iterdir()]
        (partial / target.MARK).write_text(json.dumps({"files": names}))


def content(path: pathlib.Path) -> dict[str, str]:
    return {p.name: p.read_text() for p in path.iterdir() if p.name != target.MARK}


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
    with pytest.raises(ValueError, match="files of others where an export writes its own .b."):
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
    (out / target.MARK).write_text(mark)
    with pytest.raises(ValueError, match="no export of ours"):
        fill(out, a="2")
    assert (tmp_path / "mine").exists() and (out / target.MARK).read_text() == mark


def test_an_export_from_before_the_list(tmp_path: pathlib.Path) -> None:
    """Its mark names no files; what it wrote is known."""
    out = tmp_path / "out"
    out.mkdir()
    for name in ("config.json", "README.md", "tokenizer_config.json", "pytorch_model.bin"):
        (out / name).write_text("1")
    (out / target.MARK).write_text('{"system": "bert", "step": 3300, "git_commit": null}')
    fill(out, **{"config.json": "2", "README.md": "2"})
    expected = {"config.json": "2", "README.md": "2", "pytorch_model.bin": "1"}
    assert content(out) == expected  # what this one does not write went, others' files stay
    (out / target.MARK).write_text('{"system": "bert", "step": 3300, "git_commit": null}')
    (out / "new").write_text("mine")
    with pytest.raises(ValueError, match="files of others .*.new."):
        fill(out, new="2")
    assert content(out) == expected | {"new": "mine"}


def test_what_fails_leaves_no_folder(tmp_path: pathlib.Path) -> None:
    for path in (tmp_path / "deep/a/b", tmp_path / "there"):
        with pytest.raises(KeyboardInterrupt), target.filling(path) as partial:
            (partial / "file").touch()
            (tmp_path / "there").mkdir(exist_ok=True)
            raise KeyboardInterrupt
    assert [p.name for p in tmp_path.iterdir()] == ["there"]
    assert not any((tmp_path / "there").iterdir())


def test_links(tmp_path: pathlib.Path) -> None:
    (tmp_path / "nowhere").symlink_to(tmp_path / "gone")
    with pytest.raises(ValueError, match="nowhere is a link to .*gone, which is not there"):
        target.check(tmp_path / "nowhere", "--to", again=True)
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    fill(tmp_path / "link", a="1")
    assert (tmp_path / "link").is_symlink() and content(tmp_path / "real") == {"a": "1"}


def test_places_that_cannot_be(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="--to=.*file is in use .it is a file.; choose another"):
        target.check(tmp_path / "file", "--to", again=False)
    with pytest.raises(ValueError, match="cannot be made: .*file is a file"):
        target.check(tmp_path / "file/below/it", "--to", again=False)
    fill(tmp_path / "out", a="1")
    with pytest.raises(ValueError, match="--workdir=.*out is in use .a, scalelab.json"):
        target.check(tmp_path / "out", "--workdir", again=False)


def test_a_folder_where_a_file_of_ours_was(tmp_path: pathlib.Path) -> None:
    """Nothing is deleted before it is known that everything can be written."""
    out = tmp_path / "out"
    fill(out, a="1", b="1")
    (out / "b").unlink()
    (out / "b").mkdir()
    with pytest.raises(ValueError, match=r"in the way|files of others.*\(b\)"):
        fill(out, a="2", b="2")
    assert (out / "a").read_text() == "1" and (out / "b").is_dir()
