"""Runs in one small file: all that tables and curves need, safely unpacked."""

import io
import json
import pathlib
import tarfile

import pytest
import run_folders

from scalelab.lab.load import task_runs
from scalelab.records import archive, run_files


@pytest.fixture
def run(tmp_path):
    made = run_folders.write(tmp_path / "runs/a", steps=4000)
    run_folders.add_tasks(made, ("rte", "mnli"))
    run_folders.add_tasks(run_folders.write(tmp_path / "runs/b"), ("stsb",))
    return made


def test_scores_and_curves_stay(run, tmp_path) -> None:
    assert archive.pack({"a": run}, tmp_path / "kept") == (1, 0)
    assert [path.name for path in (tmp_path / "kept").iterdir()] == [archive.NAME]
    found = archive.find_run(tmp_path / "kept", "a")
    whole, packed = run_files.read_run(run), run_files.read_run(found)
    assert packed.config == whole.config and packed.result.eval == whole.result.eval
    assert run_files.validations(packed.lines) == run_files.validations(whole.lines)
    assert len(packed.lines) < len(whole.lines) and packed.lines[-1] == whole.lines[-1]
    for name, task in task_runs.read(run / "tasks").items():
        for ours, theirs in zip(task.runs, task_runs.read(found / "tasks")[name].runs, strict=True):
            assert ours.scores == theirs.scores
            for split in {split for split, _ in ours.scores}:
                a, b = ours.predictions(split), theirs.predictions(split)
                assert task_runs.differ(a, b) is None and b.texts is None
                assert (a.predicted == b.predicted).all()
    names = {path.name for path in found.rglob("*") if path.is_file()}
    assert not any(name.endswith((".tsv", ".png", "large")) for name in names)


def test_packing_adds_and_gives_the_same_bytes(run, tmp_path) -> None:
    runs = {name: tmp_path / "runs" / name for name in "ab"}
    archive.pack(runs, tmp_path / "once")
    archive.pack({"a": run}, tmp_path / "twice")
    assert archive.pack(runs, tmp_path / "twice") == (1, 1)
    once, twice = ((tmp_path / name / archive.NAME).read_bytes() for name in ("once", "twice"))
    assert once == twice
    packed = archive.find_run(tmp_path / "once", "b")
    archive.pack({"b": packed, "a": run}, tmp_path / "again")
    assert (tmp_path / "again" / archive.NAME).read_bytes() == once


def test_unfinished_runs_are_refused_and_nothing_is_left(run, tmp_path) -> None:
    (run / "tasks/rte/seed1/result.json").unlink()
    with pytest.raises(ValueError, match="seed1"):
        archive.pack({"a": run}, tmp_path / "kept")
    with pytest.raises(ValueError, match="pre-training"):
        archive.pack({"a": run / "tasks/rte/seed0"}, tmp_path / "kept")
    assert not list((tmp_path / "kept").iterdir())


EVIL = "../evil", "runs/../../evil", "/tmp/evil", "runs/a/../../../evil"


@pytest.mark.parametrize("name", EVIL)
def test_paths_that_lead_out_are_refused_or_stay_inside(tmp_path, name: str) -> None:
    workdir = tmp_path / "w"
    workdir.mkdir()
    with tarfile.open(workdir / archive.NAME, "w:xz") as made:
        member = tarfile.TarInfo(name)
        member.size = 4
        made.addfile(member, io.BytesIO(b"evil"))
    if ".." in name:
        with pytest.raises(ValueError, match="evil"):
            archive.find_run(workdir, "a")
    else:
        assert archive.find_run(workdir, "a") == workdir / "runs/a"
    assert not (tmp_path / "evil").exists() and not pathlib.Path("/tmp/evil").exists()


def test_links_are_refused(tmp_path) -> None:
    with tarfile.open(tmp_path / archive.NAME, "w:xz") as made:
        member = tarfile.TarInfo("runs/link")
        member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
        made.addfile(member)
    with pytest.raises(ValueError, match=archive.NAME):
        archive.unpacked(tmp_path)


def test_thinning_keeps_evaluations_and_the_last_line() -> None:
    lines = [json.dumps({"step": k}) + "\n" for k in range(1, 9)]
    lines.insert(3, json.dumps({"step": 3, "eval/loss": 1.0}) + "\n")
    kept = [line["step"] for line in archive.thin([json.loads(line) for line in lines], 3)]
    assert kept == [2, 3, 5, 8]


def test_a_pattern_with_a_slash_matches_folders_alone(tmp_path: pathlib.Path) -> None:
    (tmp_path / "bert-1").mkdir()
    (tmp_path / "bert-2.txt").touch()
    assert archive.find_runs(f"{tmp_path}/bert-*/") == [tmp_path / "bert-1"]
    assert len(archive.find_runs(f"{tmp_path}/bert-*")) == 2
