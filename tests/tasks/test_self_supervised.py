"""The program that makes the probe tasks: its folder, read as tasks are read; what it refuses."""

import re

import in_process
import numpy as np
import pytest

from scalelab.data import probes
from scalelab.tasks import self_supervised
from scalelab.tasks.task import load, load_task, remarks

TASKS = ("same_document", "swapped_words")


@pytest.fixture
def start(wikitext, cache_dir, tmp_path, capsys):
    """start(*arguments) -> exit code, stdout, stderr; later arguments win."""

    def run(*arguments):
        small = [
            f"--corpus=wikitext:{wikitext}",
            f"--to={tmp_path}/out",
            f"--cache_dir={cache_dir}",
        ]
        code = in_process.code(
            self_supervised, [*small, "--num_train=80", "--num_dev=40", *arguments]
        )
        return code, *capsys.readouterr()

    return run


def content(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_the_folder_is_read_as_tasks(start, tmp_path):
    code, out, errors = start()
    assert code == 0, errors
    assert "dev 40, train 80" in out
    assert set(content(tmp_path / "out")) == {
        "SameDocument/dev.tsv", "SameDocument/train.tsv", "SwappedWords/dev.tsv",
        "SwappedWords/train.tsv", "probes.json",
    }  # fmt: skip
    for name in TASKS:
        task = load_task(name)
        splits = load(task, tmp_path / "out")
        dev = splits.dev["dev"]
        assert dev is not None and dev.labels is not None and splits.train.labels is not None
        assert (len(splits.train), len(dev)) == (80, 40)
        assert np.bincount(splits.train.labels).tolist() == [40, 40]
        assert np.bincount(dev.labels).tolist() == [20, 20]
        assert not remarks(task, splits)
    lines = (tmp_path / "out/SameDocument/dev.tsv").read_text().splitlines()
    assert lines[0] == "index\tpassage1\tpassage2\tdocuments"
    assert [line.split("\t")[0] for line in lines[1:]] == [str(i) for i in range(40)]
    assert {line.split("\t")[3] for line in lines[1:]} == {"different", "same"}


def test_the_old_name_warns(capsys):
    with pytest.raises(SystemExit):
        in_process.run(probes, ["--help"])
    out, errors = capsys.readouterr()
    assert "--corpus" in out and "scalelab.tasks.self_supervised" in errors


def test_the_same_again_is_the_same_bytes(start, tmp_path):
    start()
    made = content(tmp_path / "out")
    assert start(f"--to={tmp_path}/deep/again")[0] == 0
    again = content(tmp_path / "deep/again")
    assert again == made
    assert start("--seed=1", f"--to={tmp_path}/other")[0] == 0
    other = content(tmp_path / "other")
    assert all(other[name] != made[name] for name in made)
    start("--num_train=40", f"--to={tmp_path}/fewer")
    fewer = content(tmp_path / "fewer")
    assert all((fewer[name] == made[name]) == name.endswith("dev.tsv") for name in made)
    assert {p.name for p in tmp_path.iterdir()} == {"out", "deep", "other", "fewer"}


def test_what_is_there_is_kept(start, tmp_path, wikitext):
    (tmp_path / "out").mkdir()  # empty
    start()
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "out").rglob("*")}
    code, out, _ = start()
    assert code == 0 and f"{tmp_path}/out" in out
    code, _, errors = start("--seed=1")
    assert code == 2 and "--to=" in errors
    assert before == {p: p.stat().st_mtime_ns for p in (tmp_path / "out").rglob("*")}
    (tmp_path / "moved").symlink_to(wikitext)
    assert start(f"--corpus=wikitext:{tmp_path}/moved")[0] == 0


def test_the_training_documents_alone_are_used(start, tmp_path, wikitext):
    start()
    held_out = (wikitext / "wiki.valid.raw").read_text() + (wikitext / "wiki.test.raw").read_text()
    train = " ".join((wikitext / "wiki.train.raw").read_text().split())
    splits = load(load_task("swapped_words"), tmp_path / "out")
    written = [t for t, c in zip(splits.train.texts[0], splits.train.labels, strict=True) if c == 0]
    assert all(text in train and text not in held_out for text in written)


@pytest.mark.parametrize(("arguments", "message"), [
    (["--num_train=81"], "num_train: .*4.* 81"),
    (["--num_train=2000"], "same_document: .* 2,000"),
    (["--seed=99999999999999999999"], "argument --seed: "),
    (["--to=FULL"], "--to=.*full"),
    (["--to=FILE"], "--to=.*file"),
    (["--to=FILE/below"], "[Nn]ot a directory|File exists"),
    (["--cache_dir=FILE"], "with --cache_dir=DIR"),
    (["--corpus=text:ONE"], "split.* --valid_rate"),
    (["--corpus=text:BYTES"], "UTF-8 .* 4 .*--errors=replace"),
])  # fmt: skip
def test_what_is_refused(start, tmp_path, arguments, message):
    (tmp_path / "full").mkdir()
    (tmp_path / "full/notes.txt").write_text("mine")
    (tmp_path / "file").write_text("One document .\n")
    (tmp_path / "bytes").write_bytes(b"One \xff .\n")
    for name, path in (("FULL", "full"), ("FILE", "file"), ("ONE", "file"), ("BYTES", "bytes")):
        arguments = [argument.replace(name, str(tmp_path / path)) for argument in arguments]
    before = content(tmp_path)
    code, out, errors = start(*arguments)
    last = errors.replace("\r", "\n").strip().splitlines()[-1]
    assert code == 2 and not out and "Traceback" not in errors
    assert last.startswith("error: ")
    assert re.search(message, last), last
    assert content(tmp_path) == before
