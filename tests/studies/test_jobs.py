"""What is left of a study, read from folders; and the pool that does it, with invented jobs."""

import inspect
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

from scalelab.config import exits
from scalelab.eval import evaluation
from scalelab.lab.load import study_runs
from scalelab.resources import host
from scalelab.studies import expand, finetunings, jobs, pool

DONE, READY, WAITING = jobs.DONE, jobs.READY, jobs.WAITING


def planned(workdir: pathlib.Path, **changes) -> str:
    made = a_study.make(**changes)
    expand.write(made, expand.expand_runs(made), workdir, "")
    return made.name


def finish(workdir: pathlib.Path, run: str, loss: float = 5.0, checkpoint: bool = True) -> None:
    """Writes the folder of a finished run, as a study of the folder plans it."""
    folder = workdir / "runs" / run
    folder.mkdir(parents=True, exist_ok=True)
    files = (json.loads(path.read_text()) for path in (workdir / "studies").glob("*.json"))
    facts = next(facts for file in files for facts in file["runs"] if facts["name"] == run)
    clocks = {"tokens": 1000, "flops": 1e9, "seconds": 2.0}
    result = {"status": "completed", "eval": {"32": {"loss": loss, "step": 6}}, "steps": 6}
    result |= clocks | {name: facts[name] for name in ("system", "shape", "seed")}
    result |= {"n_model": 12 * facts["shape"]["L"] * facts["shape"]["H"] ** 2}
    line = clocks | {"step": 6, "eval/max_len": 32, "eval/loss": loss}
    (folder / "config.json").write_text(json.dumps(facts["config"]))
    (folder / "result.json").write_text(json.dumps(result))
    (folder / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    if checkpoint:
        (folder / "checkpoints/6").mkdir(parents=True, exist_ok=True)


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
    """It is done where nothing is left to be made of it; else its job fails with the reason."""
    planned(tmp_path, finetune__tasks=("wnli",))
    bert = "bert-2x8x1-seed0"
    finish(tmp_path, bert, checkpoint=False)
    _, found = jobs.read(tmp_path, None)
    (job,) = [j for j in found if j.name == f"{bert}.pretrain"]
    assert job.state == READY and "checkpoint" in (job.damaged or "")
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


def test_the_stages_rule_says_what_is_fine_tuned(tmp_path) -> None:
    """Older files have best:k: the runs that were chosen have scores."""
    stage = a_study.stage(systems=("bert",), shapes=("2x8x1", "2x12x1"))
    planned(tmp_path, finetune__tasks=("wnli",), stages={"main": stage})
    names, path = ["bert-2x8x1-seed0", "bert-2x12x1-seed0"], tmp_path / "studies/two.json"
    for name in names:
        finish(tmp_path, name)
    tune(tmp_path / "runs" / names[0], 3)
    for rule, expected in (("all", {0: DONE, 1: READY}), ("none", {}), ("best:1", {0: DONE})):
        facts = json.loads(path.read_text())
        facts["stages"]["main"]["finetune"] = rule
        path.write_text(json.dumps(facts))
        found = states(tmp_path)
        assert {k: found.pop(f"{names[k]}.finetune") for k in expected} == expected
        assert found == {f"{name}.pretrain": DONE for name in names}


def tune(folder: pathlib.Path, wrong: int) -> None:
    """Adds a fine-tuning on WNLI."""
    task_folders.write_run(folder / "tasks/wnli", "wnli", 0, wrong)


SCRIPT = f"""
import json, pathlib, sys, time
{inspect.getsource(finish)}
workdir, secs, code, name = pathlib.Path(sys.argv[1]), *sys.argv[2:]
with open(workdir / "started", "a") as file:
    file.write(name + "\\n")
time.sleep(float(secs))
if code != "0":
    print("error: it went wrong")
    sys.exit(int(code))
finish(workdir, name, checkpoint=False)
"""


class Invented(pool.Pool):
    """A pool whose jobs leave a result after a while, or fail."""

    secs, failing = 0.2, ""

    def command(self, job: jobs.Job) -> list[str]:
        code = "2" if job.run == self.failing else "0"
        return [sys.executable, "-c", SCRIPT, str(self.workdir), str(self.secs), code, job.run]


def invented(workdir: pathlib.Path, name: str, workers: int = 2) -> Invented:
    return Invented(workdir, name, workers, lambda *_: None)


def started(workdir: pathlib.Path) -> list[str]:
    return sorted((workdir / "started").read_text().split())


def test_one_failure_does_not_stop_the_rest(tmp_path) -> None:
    name = planned(tmp_path, seeds=2)
    job_pool = invented(tmp_path, name)
    job_pool.failing = "bert-2x8x1-seed0"
    failed = job_pool.run()
    assert list(failed) == ["bert-2x8x1-seed0.pretrain"]
    assert "it went wrong" in failed["bert-2x8x1-seed0.pretrain"]
    assert len(started(tmp_path)) == 4
    assert sorted(states(tmp_path).values()) == [DONE, DONE, DONE, READY]
    assert not invented(tmp_path, name).run()  # started again, it retries
    assert set(states(tmp_path).values()) == {DONE}


def test_a_damaged_run_is_not_tried_for_ever(tmp_path) -> None:
    """Its training would find a finished run, and the pool a damaged one, again and again."""
    name = planned(tmp_path)
    finish(tmp_path, "bert-2x8x1-seed0")
    (tmp_path / "runs/bert-2x8x1-seed0/result.json").write_text("{")
    failed = invented(tmp_path, name).run()
    assert list(failed) == ["bert-2x8x1-seed0.pretrain"]
    assert "runs/bert-2x8x1-seed0" in failed["bert-2x8x1-seed0.pretrain"]
    assert started(tmp_path) == ["gpt2-2x8x1-seed0"]


def test_a_job_that_another_process_did_has_not_failed(tmp_path) -> None:
    """It failed here, and another process, which tried again, finished it."""
    name = planned(tmp_path)
    job_pool = invented(tmp_path, name, workers=1)
    job_pool.failing = "bert-2x8x1-seed0"

    def finish_elsewhere(*_: object) -> None:
        if job_pool.failed:
            finish(tmp_path, "bert-2x8x1-seed0", checkpoint=False)

    job_pool.show = finish_elsewhere
    assert job_pool.run() == {} and job_pool.failed
    assert set(states(tmp_path).values()) == {DONE}


@pytest.mark.parametrize(("run", "message"), [
    ("bert-2x8x1-seed0", "pre-training is unfinished"), ("bert-2x8x1-seed7", "no job .*seed7"),
])  # fmt: skip
def test_jobs_that_cannot_be_done(tmp_path, run: str, message: str) -> None:
    planned(tmp_path, finetune__tasks=("rte",))
    words = [f"--workdir={tmp_path}", "--study=two", "--kind=finetune", f"--run={run}"]
    with pytest.raises(ValueError, match=message):
        jobs.main(jobs.parser().parse_args(words))


def test_evaluations_are_measured_after_the_tasks(tmp_path, monkeypatch) -> None:
    """Once for each pre-training; with random weights only where that says something."""
    chosen = {"evaluations": ("blimp", "copa"), "evaluation_data": str(tmp_path / "sets"),
              "evaluation_fields": ("blimp.per_group=2",), "evaluation_shares": (0.5,)}  # fmt: skip
    planned(tmp_path, finetune__seeds=2, finetune__scratch=True, **chosen)
    finish(tmp_path, name := "bert-2x8x1-seed0")
    study, found = jobs.read(tmp_path, None)
    job = next(job for job in found if job.name == f"{name}.finetune")
    assert (job.state, job.tasks) == (READY, ("blimp", "copa", "early/0.5/blimp", "early/0.5/copa"))
    asked = []
    monkeypatch.setattr(finetunings, "prepare", lambda *_: None)
    monkeypatch.setattr(
        evaluation, "evaluate", lambda *given, step, random, peers: asked.append((*given[2:], step))
    )
    run = next(run for run in study.runs if run.name == name)
    assert run.config["machine"]["kept_shares"] == [0.5]
    with pytest.raises(ValueError, match="no checkpoint at 0.5 of its budget, only at none"):
        jobs.finetune(study, run, job.tasks)
    line = {"step": 3, "tokens": 500, "flops": 5e8, "seconds": 1.0, "eval/share": 0.5}
    with (run.folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")
    asked.clear()
    study = jobs.read(tmp_path, None)[0]
    jobs.finetune(study, next(run for run in study.runs if run.name == name), job.tasks)
    blimp, copa = tmp_path / "sets/blimp", tmp_path / "sets/superglue"
    assert asked == [
        (blimp, run.folder / "tasks/blimp", {"per_group": 2}, None),
        (copa, run.folder / "tasks/copa", {}, None),
        (blimp, run.folder / "early/0.5/blimp", {"per_group": 2}, 3),
        (copa, run.folder / "early/0.5/copa", {}, 3),
    ]


def test_arms_that_differ_in_fine_tuning_alone_train_once(tmp_path, monkeypatch) -> None:
    variants = {"default": (), "long": ("finetune.epochs=5", "finetune.head.kind=words"),
                "high": ("mask_rate=0.4",)}  # fmt: skip
    stage = a_study.stage(systems=("bert",), variants=tuple(variants))
    planned(tmp_path, finetune__tasks=("wnli",), variants=variants, stages={"main": stage})
    states = {job.run: job.state for job in jobs.read(tmp_path, None)[1] if job.kind == "pretrain"}
    assert [x for x, state in states.items() if state == jobs.WAITING] == ["bert-2x8x1-long-seed0"]
    finish(tmp_path, "bert-2x8x1-seed0")
    tune(tmp_path / "runs/bert-2x8x1-seed0", 3)
    study, ready = jobs.read(tmp_path, None)
    assert [job.state for job in ready if job.kind == "pretrain"].count(jobs.READY) == 2
    default, long, high = sorted(study.runs, key=lambda run: list(variants).index(run.variant))
    assert [jobs.copy_twin(study, run) for run in (default, high, long)] == [False, False, True]
    copied = jobs.read(tmp_path, None)[0]
    assert [run.finished for run in copied.runs if run.variant == "long"] == [True]
    assert (long.folder / "checkpoints/6").exists() and not (long.folder / "tasks").exists()
    assert not jobs.copy_twin(copied, long)  # it is there
    asked = []
    monkeypatch.setattr("scalelab.finetuning.warm_start.open_start", lambda *given: given)
    monkeypatch.setattr("scalelab.finetune.fine_tune", lambda *given: asked.append(given))
    for run in (default, long):
        jobs.finetune(copied, run, ("wnli",))
    fields = [request.overrides["wnli"] for _, request, _ in asked]
    assert fields == [{}, {"epochs": 5, "head.kind": "words"}]
    assert [given[0].kind for given in asked] == ["classify", "words"]


def test_a_net_for_each_way_to_read(tmp_path, monkeypatch) -> None:
    """Seeds, shapes and rates read alike; systems and tokenizers do not. No run exists yet."""
    planned(
        tmp_path, seeds=2, stages={"main": a_study.stage(
            shapes=("2x8x1", "2x16x1"), variants=("default", "fast", "small"))},
        variants={"default": (), "fast": ("optim.learning_rate=x2",),
                  "small": ("tokenizer.vocab_size=290",)},
    )  # fmt: skip
    monkeypatch.setattr(jobs, "untrained", lambda folder, config: config)
    found = [(c.system, c.tokenizer.vocab_size) for c in jobs.peers(jobs.read(tmp_path, None)[0])]
    assert sorted(found) == [("bert", 290), ("bert", 300), ("gpt2", 290), ("gpt2", 300)]


@pytest.mark.parametrize(("gpus", "set_before", "workers", "share"), [
    (1, None, 4, "0.225"), (1, None, 1, None), (0, None, 4, None), (1, "0.5", 4, None),
])  # fmt: skip
def test_processes_share_the_memory_of_a_gpu(
    monkeypatch, gpus: int, set_before: str | None, workers: int, share: str | None
) -> None:
    """The first one would take three quarters of it, and the second find none."""
    name, preallocate = "XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_PREALLOCATE"
    monkeypatch.setattr(host, "num_gpus", lambda: gpus)
    monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv(preallocate, raising=False)
    if set_before:
        monkeypatch.setenv(name, set_before)
    expected = {} if share is None else {name: share}
    if gpus and workers > 1:
        expected[preallocate] = "false"
    assert host.memory_share(workers) == expected


@pytest.mark.parametrize(("gpus", "tpu", "cores", "changes", "expected"), [
    (0, False, 2, {}, 2),
    (0, False, 16, {}, 4),
    (0, True, 16, {}, 1),
    (1, False, 16, {}, 8),
    (1, False, 6, {}, 3),
    (1, False, 1, {}, 1),
    (1, False, 16, {"seeds": 1}, 2),  # as many as there are runs
    (2, False, 16, {}, 1),
    (1, False, 16, {"stages": {"main": a_study.stage(shapes=("2x8x1", "2x208x1"))}}, 1),
    (1, False, 16, {"pretrain__optim__total_steps": None, "pretrain__optim__total_secs": 9.0,
                    "pretrain__optim__warmup_steps": None, "pretrain__optim__warmup_secs": 1.0}, 1),
])  # fmt: skip
def test_processes_at_a_time(
    monkeypatch, gpus: int, tpu: bool, cores: int, changes: dict, expected: int
) -> None:
    """On one GPU several of small models, unless the budget is in seconds."""
    monkeypatch.setattr(host, "num_gpus", lambda: gpus)
    monkeypatch.setattr(host, "has_accelerator", lambda: gpus > 0 or tpu)
    monkeypatch.setattr(host, "cores", lambda: [*range(cores)])
    assert pool.default_workers(a_study.make(**{"seeds": 5} | changes)) == expected


def test_two_processes_share_the_work(tmp_path) -> None:
    """The second joins in: nothing runs twice, and both end when all is done."""
    name = planned(tmp_path, seeds=3)
    code = (
        "import pathlib, sys, test_jobs as t; w = pathlib.Path(sys.argv[1]);"
        "print(t.invented(w, sys.argv[2], 1).run())"
    )
    here = pathlib.Path(__file__).parent
    env = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (here, here.parent / "support")))}
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
    job_pool = invented(tmp_path, name)
    job_pool.secs = 60.0
    timer = threading.Timer(1.5, lambda: os.kill(os.getpid(), signal.SIGTERM))
    timer.start()
    begun = time.monotonic()
    with pytest.raises(exits.Stopped) as caught:
        job_pool.run()
    assert caught.value.exit_code == exits.PREEMPTED
    assert time.monotonic() - begun < 30
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
