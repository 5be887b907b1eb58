"""How far a study is, what a study that cannot go on says, and that nothing finished is lost."""

import functools
import io
import json
import re

import a_study
import pytest
from test_jobs import finish, invented, states, tune

from scalelab.lab.load import study_runs
from scalelab.studies import expand, jobs, pool, progress
from scalelab.studies.progress import PlanEntry

GRID = ("2x8x1", "2x10x1", "2x20x1")
BAD = "bert-2x10x1-seed0"


def staged(shapes=GRID, **changes):
    grid = a_study.stage(systems=("bert",), shapes=shapes, finetune="best:2")
    up = a_study.stage(systems=("bert",), shapes=("compound:1",))
    return a_study.make(finetune__tasks=("wnli",), stages={"grid": grid, "up": up}, **changes)


def write(made, workdir) -> list[str]:
    expand.write(made, expand.expand_runs(made, workdir), workdir, "")
    return [run.name for run in study_runs.read(workdir).runs]


def ends(workdir) -> str:
    study, found = jobs.read(workdir, None)
    return progress.describe_end(study, found, pool.read_failures(workdir, found))


def test_a_failed_run_of_a_grid_is_told_with_what_waits_for_it(tmp_path) -> None:
    name = staged().name
    write(staged(), tmp_path)
    job_pool = invented(tmp_path, name)
    job_pool.failing = BAD
    assert list(job_pool.run()) == [f"{BAD}.pretrain"]
    text = ends(tmp_path)
    assert f"{BAD}.pretrain" in text and "it went wrong" in text
    assert re.search("stage grid: .*bert-2x8x1-seed0", text)
    assert "stage up: compound:1" in text
    assert """--config.stages.grid.shapes="('2x8x1', '2x20x1')\"""" in text
    # The way out that it tells: without the shape the two others are the best.
    assert BAD not in write(staged(("2x8x1", "2x20x1")), tmp_path)
    for shape in ("2x8x1", "2x20x1"):
        finish(tmp_path, f"bert-{shape}-seed0")
    assert states(tmp_path)["bert-2x8x1-seed0.finetune"] == jobs.READY


def test_a_failure_is_forgotten_once_it_is_tried_again(tmp_path) -> None:
    name = a_study.make().name
    write(a_study.make(), tmp_path)
    job_pool = invented(tmp_path, name)
    job_pool.failing = "bert-2x8x1-seed0"
    job_pool.run()
    assert "failed: bert-2x8x1-seed0.pretrain" in ends(tmp_path)
    assert not invented(tmp_path, name).run()
    assert "nothing left" in ends(tmp_path)
    assert not list((tmp_path / "logs").glob("*.failed"))


def finish_all(workdir, names, tuned: bool = True) -> None:
    for name in names:
        finish(workdir, name, loss=5.0)
        if tuned and not (workdir / "runs" / name / "tasks").exists():
            tune(workdir / "runs" / name, 3)


def test_a_terminal_has_a_table_of_running_jobs_and_a_log_has_lines(tmp_path) -> None:
    """By hand: 3 of 6 steps in 90 s leave 90 s, also beside a half-written line."""
    write(a_study.make(), tmp_path)
    folder = tmp_path / "runs" / "bert-2x8x1-seed0"
    folder.mkdir(parents=True)
    line = {"step": 2, "tokens": 9, "flops": 9.0, "seconds": 60.0, "train/loss": 3.25,
            "train/tokens_per_sec": 1234.0}  # fmt: skip
    later = {"step": 3, "tokens": 9, "flops": 9.0, "seconds": 90.0, "eval/loss": 4.0}
    written = f'{json.dumps(line)}\n{json.dumps(later)}\n{{"step": 4, "tok'
    (folder / "metrics.jsonl").write_text(written)
    for terminal in (True, False):
        stream = io.StringIO()
        stream.isatty = lambda terminal=terminal: terminal
        study, found = jobs.read(tmp_path, None)
        working = [found[0].name, found[1].name]
        with progress.Screen(stream, 2, {}) as screen:
            screen(study, found, working, {})
            screen(study, found, working, {})
        row = re.search(r"bert-2x8x1-seed0.pretrain +50% +3.2500 +1,234 +1m30s", stream.getvalue())
        assert bool(row) == terminal and "gpt2-2x8x1-seed0" in stream.getvalue()
        assert terminal or stream.getvalue().count("\n") == 1


# --- The time left --------------------------------------------------------------------------------


def entry(stage: str, n_model: int, foreseen: bool = False, share: float = 1.0) -> PlanEntry:
    secs = {"secs": 9.0, "start_secs": 1.0, "finetune_secs": 6.0, "finetune_share": share}
    return PlanEntry("", stage, n_model, foreseen, peak_bytes=1e9, **secs)


PLAN = {f"bert-{s}-seed0": entry("grid", 1, share=2 / 3) for s in GRID} | {
    "bert-compound:1-seed0": entry("up", 3000, foreseen=True),
    "bert-compound:2-seed0": entry("up", 6000, foreseen=True),
}


def test_a_later_run_is_found_in_the_plan_by_its_size() -> None:
    found = functools.partial(progress.planned, PLAN)
    assert found("bert-2x20x1-seed0", "grid", 1) is PLAN["bert-2x20x1-seed0"]
    assert found("bert-2x17x1-seed0", "up", 3500) is PLAN["bert-compound:1-seed0"]
    assert found("bert-2x17x1-seed0", "up", 5000) is PLAN["bert-compound:2-seed0"]
    assert found("bert-2x17x1-seed1", "up", 3500) is None
    assert found("bert-2x17x1-wide-seed0", "up", 3500) is None


def test_the_time_left_counts_what_will_be_chosen_and_later_stages(tmp_path) -> None:
    """By hand, with seconds as planned: 3 x 10 + 2 of 3 x 6 + (10 + 6)."""

    def secs() -> float | None:
        study, found = jobs.read(tmp_path, None)
        return progress.secs_left(study, found, {name: PLAN[name] for name in list(PLAN)[:4]})

    names = write(staged(), tmp_path)
    assert secs() == pytest.approx(30 + 12 + 16)
    finish_all(tmp_path, names, tuned=False)  # in 2 s each, of 9 planned
    assert secs() == pytest.approx(2 / 9 * (12 + 16))
    finish_all(tmp_path, names)
    assert write(staged(), tmp_path) != names
    assert secs() == pytest.approx(2 / 9 * 16)
    study, found = jobs.read(tmp_path, None)
    assert progress.secs_left(study, found, {}) is None
    assert "ETA" in progress.summary(study, found, [], {}, PLAN, 1)
    text = progress.describe_runs(study, found, [], {}, PLAN)
    assert "memory GiB" in text and "0.93" in text  # planned: 1e9 bytes
