"""What is left of a study, read from folders; and the pool that does it, with invented jobs."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import a_study
import pytest
import task_folders

from scalelab import cli
from scalelab.lab import shape_rules, study_runs
from scalelab.studies import derive, expand, jobs, pool

DONE, READY, WAITING = jobs.DONE, jobs.READY, jobs.WAITING


def planned(workdir: pathlib.Path, **changes) -> str:
    made = a_study.make(**changes)
    expand.write(made, expand.runs(made, workdir), workdir, "")
    return made.name


def finish(workdir: pathlib.Path, run: str, loss: float = 5.0, checkpoint: bool = True) -> None:
    folder = workdir / "runs" / run
    folder.mkdir(parents=True, exist_ok=True)
    result = {"status": "completed", "seconds": 2.0, "eval": {"32": {"loss": loss}}}
    (folder / "result.json").write_text(json.dumps(result))
    if checkpoint:
        (folder / "checkpoints/6").mkdir(parents=True)


def states(workdir: pathlib.Path) -> dict[str, str]:
    return {job.name: job.state for job in jobs.read(workdir, None)[1]}


def test_states(tmp_path) -> None:
    planned(tmp_path, finetune__tasks=("wnli", "rte"), finetune__seeds=2)
    bert, gpt = "bert-2x8x1-seed0", "gpt2-2x8x1-seed0"
    assert states(tmp_path) == {
        f"{bert}.pretrain": READY, f"{gpt}.pretrain": READY,
        f"{bert}.finetune": WAITING, f"{gpt}.finetune": WAITING,
    }  # fmt: skip
    finish(tmp_path, bert)
    for task in ("wnli", "rte"):
        assert states(tmp_path)[f"{bert}.finetune"] == READY
        for seed in (0, 1):
            folder = tmp_path / "runs" / bert / "tasks" / task
            task_folders.write_run(folder, task, seed, 3)
    assert states(tmp_path)[f"{bert}.finetune"] == DONE
    assert states(tmp_path)[f"{gpt}.finetune"] == WAITING


def test_a_finished_run_without_its_checkpoint(tmp_path) -> None:
    """It is done where nothing is left to be made of it, and repeated where something is."""
    planned(tmp_path, finetune__tasks=("wnli",))
    bert = "bert-2x8x1-seed0"
    finish(tmp_path, bert, checkpoint=False)
    _, found = jobs.read(tmp_path, None)
    (job,) = [j for j in found if j.name == f"{bert}.pretrain"]
    assert (job.state, job.again) == (READY, True)
    assert states(tmp_path)[f"{bert}.finetune"] == WAITING
    task_folders.write_run(tmp_path / "runs" / bert / "tasks/wnli", "wnli", 0, 3)
    assert states(tmp_path)[f"{bert}.pretrain"] == states(tmp_path)[f"{bert}.finetune"] == DONE


def test_from_scratch_is_the_first_seeds(tmp_path) -> None:
    planned(tmp_path, finetune__tasks=("wnli",), finetune__scratch=True, seeds=2)
    study, found = jobs.read(tmp_path, None)
    tasks = {j.name: j.tasks for j in found}
    assert tasks["bert-2x8x1-seed0.finetune"] == ("wnli", "scratch/wnli")
    assert tasks["bert-2x8x1-seed1.finetune"] == ("wnli",)
    assert len(study.runs) == 4


def test_the_best_are_fine_tuned(tmp_path) -> None:
    stage = a_study.stage(
        systems=("bert",), shapes=("2x8x1", "2x12x1", "2x16x1"), finetune="best:2"
    )
    planned(tmp_path, finetune__tasks=("wnli",), stages={"main": stage})
    names = ["bert-2x8x1-seed0", "bert-2x12x1-seed0", "bert-2x16x1-seed0"]
    finish(tmp_path, names[0], 5.0)
    finish(tmp_path, names[1], 4.0)
    assert {states(tmp_path)[f"{n}.finetune"] for n in names} == {WAITING}
    finish(tmp_path, names[2], 6.0)
    found = states(tmp_path)
    assert found[f"{names[0]}.finetune"] == found[f"{names[1]}.finetune"] == READY
    assert f"{names[2]}.finetune" not in found


def test_a_shape_comes_out_of_the_grid(tmp_path) -> None:
    """The best of the three of least loss is scaled: known once its fine-tunings are."""
    grid = a_study.stage(systems=("bert",), shapes=("2x8x1", "2x12x1"), finetune="best:2")
    up = a_study.stage(systems=("bert",), shapes=("compound:1",))
    changes = dict(finetune__tasks=("wnli",), stages={"grid": grid, "up": up})
    made = a_study.make(**changes)
    for name, loss, wrong in (("bert-2x8x1-seed0", 5.0, 30), ("bert-2x12x1-seed0", 5.5, 3)):
        assert len(expand.runs(made, tmp_path)) == 2
        finish(tmp_path, name, loss)
        task_folders.write_run(tmp_path / "runs" / name / "tasks/wnli", "wnli", 0, wrong)
    *_, last = expand.runs(made, tmp_path)
    assert last.stage == "up"
    scaling = shape_rules.Scaling(study_runs.Shape(2, 12, 1))
    assert last.shape == scaling.at(scaling.phi + 1)
    assert last.shape.n_model == pytest.approx(2 * 12 * 12**2, rel=0.2)  # whole heads
    assert derive.scaled([], 1.0, (), 1) is None


def test_damage_is_seen(tmp_path) -> None:
    planned(tmp_path)
    finish(tmp_path, "bert-2x8x1-seed0")
    (tmp_path / "runs/bert-2x8x1-seed0/result.json").write_text("{")
    run = study_runs.read(tmp_path).runs[0]
    assert not run.finished
    assert run.damaged
    assert jobs.read(tmp_path, None)[1][0].damaged


SCRIPT = """
import json, pathlib, sys, time
folder, log, secs, code = pathlib.Path(sys.argv[1]), sys.argv[2], float(sys.argv[3]), sys.argv[4]
with open(log, "a") as file:
    file.write(folder.name + "\\n")
time.sleep(secs)
if code != "0":
    print("error: it went wrong")
    sys.exit(int(code))
folder.mkdir(parents=True, exist_ok=True)
(folder / "result.json").write_text(json.dumps({"status": "completed", "seconds": 1, "eval": {}}))
"""


class Invented(pool.Pool):
    """A pool whose jobs leave a result after a while, or fail."""

    secs, failing = 0.2, ""

    def command(self, job: jobs.Job) -> list[str]:
        code = "2" if job.run == self.failing else "0"
        folder = self.workdir / "runs" / job.run
        log = self.workdir / "started"
        return [sys.executable, "-c", SCRIPT, str(folder), str(log), str(self.secs), code]


def invented(workdir: pathlib.Path, name: str, workers: int = 2) -> Invented:
    return Invented(workdir, name, workers, lambda: None, lambda *_: None)


def started(workdir: pathlib.Path) -> list[str]:
    return sorted((workdir / "started").read_text().split())


def test_one_failure_does_not_stop_the_rest(tmp_path) -> None:
    name = planned(tmp_path, seeds=2)
    one = invented(tmp_path, name)
    one.failing = "bert-2x8x1-seed0"
    failed = one.run()
    assert list(failed) == ["bert-2x8x1-seed0.pretrain"]
    assert "exit code 2: it went wrong" in failed["bert-2x8x1-seed0.pretrain"]
    assert len(started(tmp_path)) == 4
    assert sorted(states(tmp_path).values()) == [DONE, DONE, DONE, READY]
    assert not invented(tmp_path, name).run()  # started again, it retries
    assert set(states(tmp_path).values()) == {DONE}


def test_two_processes_share_the_work(tmp_path) -> None:
    """The second joins in: nothing runs twice, and both end when all is done."""
    name = planned(tmp_path, seeds=3)
    code = (
        "import pathlib, sys, test_jobs as t; w = pathlib.Path(sys.argv[1]);"
        "print(t.invented(w, sys.argv[2], 1).run())"
    )
    here = pathlib.Path(__file__).parent
    env = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (here, here.parent)))}
    both = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path), name], env=env)
        for _ in range(2)
    ]
    assert [p.wait(120) for p in both] == [0, 0]
    assert started(tmp_path) == sorted(r.name for r in study_runs.read(tmp_path).runs)
    assert set(states(tmp_path).values()) == {DONE}


def test_interrupted(tmp_path) -> None:
    """The processes are stopped before the pool leaves, and the claims are free again."""
    name = planned(tmp_path)
    one = invented(tmp_path, name)
    one.secs = 60.0
    timer = threading.Timer(1.5, lambda: os.kill(os.getpid(), signal.SIGTERM))
    timer.start()
    begun = time.monotonic()
    with pytest.raises(cli.Stopped, match="start the same command again") as caught:
        one.run()
    assert caught.value.exit_code == cli.PREEMPTED
    assert time.monotonic() - begun < 30
    assert not one.working
    for run in ("bert-2x8x1-seed0", "gpt2-2x8x1-seed0"):
        lock = pool.claim(tmp_path / "locks" / f"{run}.pretrain")
        assert lock is not None
        lock.close()


def test_a_claim_outlives_whoever_made_it(tmp_path) -> None:
    """It is the job's process that holds it, so an orphan keeps others away."""
    lock = pool.claim(tmp_path / "job")
    assert lock is not None
    child = subprocess.Popen(["sleep", "30"], pass_fds=[lock.fileno()])
    lock.close()
    assert pool.claim(tmp_path / "job") is None
    child.kill()
    child.wait()
    again = pool.claim(tmp_path / "job")
    assert again is not None
    again.close()


def test_cores_are_divided() -> None:
    mine = sorted(os.sched_getaffinity(0))
    if len(mine) > 1:
        parts = [pool.cores(slot, 2)[0] for slot in (0, 1)]
        assert parts[0] | parts[1] == set(mine)
        assert not parts[0] & parts[1]
    assert pool.cores(0, 1) == pool.cores(0, len(mine) + 1) == []
