"""How far a study is, what a study that cannot go on says, and that nothing finished is lost."""

import io
import json
import re

import a_study
import pytest
from test_jobs import finish, invented, tune

from scalelab.lab.load import study_runs
from scalelab.studies import expand, jobs, pool, progress

BAD = "bert-2x8x1-seed0"


def write(made, workdir) -> list[str]:
    expand.write(made, expand.expand_runs(made), workdir, "")
    return [run.name for run in study_runs.read(workdir).runs]


def ends(workdir) -> str:
    now = status(workdir)
    return progress.describe_end(now._replace(failed=pool.read_failures(workdir, now.jobs)))


def status(workdir, working=()) -> progress.Status:
    return progress.Status(*jobs.read(workdir, None), working, {})


def test_a_failed_run_is_told_with_what_waits_for_it(tmp_path) -> None:
    made = a_study.make(finetune__tasks=("wnli",))
    write(made, tmp_path)
    job_pool = invented(tmp_path, made.name)
    job_pool.failing = BAD
    assert f"{BAD}.pretrain" in job_pool.run()
    text = ends(tmp_path)
    assert f"failed: {BAD}.pretrain" in text and "it went wrong" in text
    assert f"waiting for their pre-training: fine-tuning of {BAD}\n" in text


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
    facts = json.loads((tmp_path / "studies/two.json").read_text())["runs"][0]
    (folder / "config.json").write_text(json.dumps(facts["config"]))
    for terminal in (True, False):
        stream = io.StringIO()
        stream.isatty = lambda terminal=terminal: terminal
        _, found = jobs.read(tmp_path, None)
        now = status(tmp_path, [found[0].name, found[1].name])
        with progress.screen(stream, 2, {}) as show:
            show(now)
            show(now)
        row = re.search(r"bert-2x8x1-seed0.pretrain +50% +3.2500 +1,234 +1m30s", stream.getvalue())
        assert bool(row) == terminal and "gpt2-2x8x1-seed0" in stream.getvalue()
        assert terminal or stream.getvalue().count("\n") == 1


# --- The time left --------------------------------------------------------------------------------


def test_the_time_left_is_corrected_by_the_pace_and_never_stands_still() -> None:
    """By hand: 40 s are planned for one process, and two work."""
    assert progress.correct(40.0, 40.0, 0.0) == 40.0
    assert progress.correct(40.0, 40.0, 16.0) == 40 * (20 + 16) / 20  # nothing in 8 s
    assert progress.correct(20.0, 40.0, 40.0) == 20 * (20 + 40) / (20 + 20)  # half took as all
    assert progress.correct(0.0, 40.0, 40.0) == 0 == progress.correct(0.0, 0.0, 8.0)


def test_no_time_is_left_only_when_all_is_done(tmp_path) -> None:
    names = write(a_study.make(), tmp_path)
    assert "ETA 1s" in progress.summary(status(tmp_path), 0.0)
    finish_all(tmp_path, names)
    assert "ETA 0s" in progress.summary(status(tmp_path), 0.0)


def test_the_time_left(tmp_path) -> None:
    """By hand, with seconds as planned: two runs, each of 10 and 6."""
    secs = {"secs": 9.0, "start_secs": 1.0, "finetune_secs": 6.0}
    known = {
        f"{name}-2x8x1-seed0": progress.PlanEntry("", **secs, peak_bytes=1e9)
        for name in ("bert", "gpt2")
    }

    def left() -> float | None:
        return progress.secs_left(status(tmp_path), known)

    names = write(a_study.make(finetune__tasks=("wnli",)), tmp_path)
    assert left() == pytest.approx(20 + 12)
    finish_all(tmp_path, names, tuned=False)  # in 2 s each, of 9 planned
    assert left() == pytest.approx(2 / 9 * 12)
    known["gpt2-2x8x1-seed0"] = progress.PlanEntry("", 0.0, 6.0, 6.0, 1e9)  # a copy's seconds
    assert left() == pytest.approx(2 / 9 * 12)
    finish_all(tmp_path, names)
    assert left() == 0
    now = status(tmp_path)
    assert progress.secs_left(now, {}) is None
    assert "ETA 5s" in progress.summary(now, 5.0)
    text = progress.describe_runs(now, known)
    assert "memory GiB" in text and "0.93" in text  # planned: 1e9 bytes
