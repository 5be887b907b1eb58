"""What is told of a study that cannot go on, and that nothing finished is ever lost from it."""

import json

import a_study
import pytest
from test_jobs import complete, finish, invented, states, tune

from scalelab.lab.load import study_runs
from scalelab.studies import ending, expand, jobs, pool

GRID = ("2x8x1", "2x10x1", "2x20x1")
BAD = "bert-2x10x1-seed0"


def staged(shapes=GRID, **changes):
    grid = a_study.stage(systems=("bert",), shapes=shapes, finetune="best:2")
    up = a_study.stage(systems=("bert",), shapes=("compound:1",))
    return a_study.make(finetune__tasks=("wnli",), stages={"grid": grid, "up": up}, **changes)


def write(made, workdir) -> list[str]:
    expand.write(made, expand.runs(made, workdir), workdir, "")
    return [run.name for run in study_runs.read(workdir).runs]


def ends(workdir) -> str:
    study, found = jobs.read(workdir, None)
    return ending.text(study, found, pool.failures(workdir, found))


def test_a_failed_run_of_a_grid_is_told_with_what_waits_for_it(tmp_path) -> None:
    name = staged().name
    write(staged(), tmp_path)
    one = invented(tmp_path, name)
    one.failing = BAD
    assert list(one.run()) == [f"{BAD}.pretrain"]
    said = ends(tmp_path)
    assert "2 of 6 jobs are done" in said
    assert f"failed: {BAD}.pretrain: exit code 2: it went wrong (see " in said
    assert "stage grid: 3 fine-tunings, as best:2 needs the losses of all its runs" in said
    assert f"not finished: {BAD}" in said
    assert "stage up: compound:1 comes out of all runs" in said
    assert """--config.stages.grid.shapes="('2x8x1','2x20x1',)\"""" in said
    assert "nothing left to do" not in said
    # The way out that it tells: without the shape the two others are the best.
    assert BAD not in write(staged(("2x8x1", "2x20x1")), tmp_path)
    for shape in ("2x8x1", "2x20x1"):
        finish(tmp_path, f"bert-{shape}-seed0")
    assert states(tmp_path)["bert-2x8x1-seed0.finetune"] == jobs.READY


def test_a_failure_is_forgotten_once_it_is_tried_again(tmp_path) -> None:
    name = a_study.make().name
    write(a_study.make(), tmp_path)
    one = invented(tmp_path, name)
    one.failing = "bert-2x8x1-seed0"
    one.run()
    assert "failed: bert-2x8x1-seed0.pretrain" in ends(tmp_path)
    assert not invented(tmp_path, name).run()
    assert ends(tmp_path) == f"two: nothing left to do in {tmp_path}"
    assert not list((tmp_path / "logs").glob("*.failed"))


def test_a_failed_pretraining_keeps_its_own_finetuning_alone(tmp_path) -> None:
    made = a_study.make(finetune__tasks=("wnli",))
    write(made, tmp_path)
    finish(tmp_path, "gpt2-2x8x1-seed0")
    said = ends(tmp_path)
    assert "waiting: stage main: the fine-tuning of bert-2x8x1-seed0, after the" in said


def finish_all(workdir, names) -> None:
    (file,) = (workdir / "studies").glob("*.json")
    facts = {run["name"]: run for run in json.loads(file.read_text())["runs"]}
    for name in names:
        finish(workdir, name, loss=5.0)
        complete(workdir / "runs" / name, facts[name])
        if not (workdir / "runs" / name / "tasks").exists():
            tune(workdir / "runs" / name, 3)


def test_what_is_finished_stays_in_the_studys_file(tmp_path) -> None:
    """The grid loses a run, or gets a seed: the scaled run that is finished is still there."""
    finish_all(tmp_path, write(staged(), tmp_path))
    names = write(staged(), tmp_path)
    (scaled,) = set(names) - {f"bert-{shape}-seed0" for shape in GRID}
    finish_all(tmp_path, [scaled])
    (tmp_path / f"runs/{BAD}/result.json").unlink()
    assert expand.runs(staged(), tmp_path)[-1].stage == "grid"  # the spec alone has lost it
    assert write(staged(), tmp_path) == names
    assert scaled in write(staged(seeds=2), tmp_path)
    study, found = jobs.read(tmp_path, None)
    assert study.facts["stages"].keys() == {"grid", "up"}
    assert {job.name: job.state for job in found}[f"{scaled}.pretrain"] == jobs.DONE
    # What is planned no longer and not finished goes: it can be left out.
    assert BAD not in write(staged(("2x8x1", "2x20x1")), tmp_path)


@pytest.mark.parametrize("changes", [{"stages": {"other": a_study.stage(systems=("gpt2",))}}])
def test_a_finished_run_keeps_what_the_file_says_of_it(tmp_path, changes) -> None:
    finish(tmp_path, write(a_study.make(), tmp_path)[0])
    assert write(a_study.make(**changes), tmp_path) == ["gpt2-2x8x1-seed0", "bert-2x8x1-seed0"]
    facts = json.loads((tmp_path / "studies/two.json").read_text())
    assert facts["stages"].keys() == {"main", "other"}
    assert facts["departures"].keys() == {"bert", "gpt2"}
    assert jobs.read(tmp_path, None)[1]
