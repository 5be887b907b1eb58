"""The plan of a study: shapes that are not known yet, chosen fine-tunings, time left, memory."""

import dataclasses
import json
import pathlib
import sys
import types

import a_study
import numpy as np
import pytest
from test_jobs import complete, finish, tune

from scalelab.data import probe_rows, probes
from scalelab.lab.load import study_runs
from scalelab.studies import (
    cost,
    cost_steps,
    expand,
    footprint,
    jobs,
    plan,
    planning,
    status,
    tasks,
)  # fmt: skip

GRID = ("2x8x1", "2x10x1", "2x20x1")


def staged(rule: str = "best:2", shapes=GRID, **changes):
    """A grid, and one shape that comes out of it."""
    grid = a_study.stage(systems=("bert",), shapes=shapes, finetune=rule)
    up = a_study.stage(systems=("bert",), shapes=("compound:1",))
    return a_study.make(finetune__tasks=("wnli",), stages={"grid": grid, "up": up}, **changes)


def write(made, workdir: pathlib.Path) -> None:
    """Writes the study's file, as `run` does."""
    expand.write(made, expand.runs(made, workdir), workdir, "")


def trained(workdir: pathlib.Path, shape: str, loss: float) -> pathlib.Path:
    """Finishes a run of the grid, in 2 s."""
    name = f"bert-{shape}-seed0"
    (file,) = (workdir / "studies").glob("*.json")
    (facts,) = (run for run in json.loads(file.read_text())["runs"] if run["name"] == name)
    finish(workdir, name, loss)
    complete(workdir / "runs" / name, facts)
    return workdir / "runs" / name


def test_a_shape_that_is_not_known_is_foreseen_by_its_size(tmp_path) -> None:
    made = staged()
    write(made, tmp_path)
    assert [r.name for r in expand.runs(made, tmp_path)] == [f"bert-{s}-seed0" for s in GRID]
    *_, last = expand.runs(made, tmp_path, foreseen=True)
    assert (last.name, last.stage) == ("bert-compound:1-seed0", "up")
    assert last.shape.n_model == pytest.approx(2 * 12 * 10**2, rel=0.1)
    assert last.config.net.width == last.shape.width
    for shape, loss, wrong in zip(GRID, (5.0, 5.5, 6.0), (30, 3, 0), strict=True):
        run = trained(tmp_path, shape, loss)
        if loss < 6:
            tune(run, wrong)
    tune(tmp_path / "runs/bert-2x20x1-seed0", 20)
    *_, last = expand.runs(made, tmp_path, foreseen=True)
    assert ":" not in last.name and last.stage == "up"


def entry(stage: str, n_model: float, foreseen: bool = False, share: float = 1.0) -> dict:
    secs = {"secs": 9.0, "start_secs": 1.0, "finetune_secs": 6.0, "finetune_share": share}
    return {"stage": stage, "n_model": n_model, "foreseen": foreseen, "peak_bytes": 1e9, **secs}


PLAN = {f"bert-{s}-seed0": entry("grid", 1.0, share=2 / 3) for s in GRID} | {
    "bert-compound:1-seed0": entry("up", 3000.0, foreseen=True),
    "bert-compound:2-seed0": entry("up", 6000.0, foreseen=True),
    "gpt2-compound:1-seed0": entry("up", 3000.0, foreseen=True),
}


def test_a_later_run_is_found_in_the_plan_by_its_size() -> None:
    def found(*run):
        return study_runs.planned(PLAN, *run)

    assert found("bert-2x20x1-seed0", "grid", 1) is PLAN["bert-2x20x1-seed0"]
    assert found("bert-2x17x1-seed0", "up", 3500) is PLAN["bert-compound:1-seed0"]
    assert found("bert-2x17x1-seed0", "up", 5000) is PLAN["bert-compound:2-seed0"]
    assert found("bert-2x17x1-seed1", "up", 3500) is None
    assert found("bert-2x17x1-seed0", "grid", 3500) is None
    assert found("bert-2x17x1-wide-seed0", "up", 3500) is None


def left(workdir) -> status.Left:
    known = {name: PLAN[name] for name in list(PLAN)[:4]}
    return status.left(*jobs.read(workdir, None), known)


def test_the_time_left_counts_what_will_be_chosen_and_later_stages(tmp_path) -> None:
    """By hand, with seconds as planned: 3 x 10 + 2 of 3 x 6 + (10 + 6)."""
    made = staged()
    write(made, tmp_path)
    assert left(tmp_path).secs == pytest.approx(30 + 12 + 16)
    for shape, loss in zip(GRID, (5.0, 5.5, 6.0), strict=True):
        trained(tmp_path, shape, loss)  # in 2 s each, of 9 planned
    assert left(tmp_path).ratio == pytest.approx(2 / 9)
    assert left(tmp_path).secs == pytest.approx(2 / 9 * (12 + 16))
    for shape in GRID:
        tune(tmp_path / f"runs/bert-{shape}-seed0", 3)
    write(made, tmp_path)
    assert [run.stage for run in study_runs.read(tmp_path).runs][-1] == "up"
    assert left(tmp_path).secs == pytest.approx(2 / 9 * 16)
    assert left(tmp_path).unplanned == 0
    study, found = jobs.read(tmp_path, None)
    unknown = status.left(study, found, {"another": PLAN["bert-2x8x1-seed0"]})
    assert unknown.unplanned == 1
    assert "ETA" in status.summary(study, found, [], {}, unknown, 1)
    assert "1 runs that the plan does not know" in status.summary(study, found, [], {}, unknown, 1)


def test_only_the_chosen_are_charged() -> None:
    made = staged()
    planned = expand.runs(made, pathlib.Path("/nowhere"), foreseen=True)
    shares = planning.finetune_shares(made, planned)
    assert shares == {"grid": pytest.approx(2 / 3), "up": 1.0}
    one = plan.Expected("a", "grid", False, 1, 1, 1, 1.0, 1.0, 10.0, 3.0, 6.0, 2 / 3, 1.0)
    assert one.total_secs == pytest.approx(3 + 10 + 4)
    two = dataclasses.replace(one, name="b-compound:1-seed0", stage="up", foreseen=True,
                              finetune_share=1.0)  # fmt: skip
    zero = np.zeros(7)
    model = cost.CostModel(zero, zero, 0.0, 0.0, 0.0, 0.08, 0.35, {})
    said = planning.show([one, one, one, two], model, 2)
    assert "fits to 8% and, each left out in turn, foretells to 35%;" in said
    assert "b-compound:1-seed0 ~" in said and "\n~ the shape comes out of the stage" in said
    assert "* stage grid: 2 of its 3 runs will be fine-tuned" in said


def made_data(num_phases: int = 1) -> types.SimpleNamespace:
    """Stands for prepared data: 20 tokens an example."""

    class Store(list):
        meta = {"num_tokens": 2000.0}

    phase = types.SimpleNamespace(train=Store(range(100)), steps_per_epoch=12)
    return types.SimpleNamespace(phases=[phase] * num_phases)


def test_a_plan_of_steps_counts_what_training_would(tmp_path) -> None:
    run = expand.runs(a_study.make(), tmp_path)[0]
    built = cost_steps.build_run(run.config)
    secs, memory = cost.GUESS, cost.MEMORY_GUESS
    model = cost.CostModel(secs, memory, 5.0, 2.0, 3.0, 0.0, None, {})
    found = plan.expect(run, built, model, made_data())
    counts = built.phases[0][3]
    assert found.steps == 6
    assert found.flops == pytest.approx(6 * built.phases[0][2].train)
    assert found.secs == pytest.approx(6 * counts @ secs)
    assert found.tokens == pytest.approx(6 * 8 * 20)
    assert found.start_secs == 2.0 + 3.0
    assert found.peak_bytes == pytest.approx(5.0 + 24 * built.num_params + counts @ memory)


def test_a_short_training_is_the_same_run_but_for_its_budget(tmp_path) -> None:
    run = expand.runs(a_study.make(pretrain__optim__warmup_steps=5), tmp_path)[0]
    short = footprint.shortened(run.config)
    assert (short.optim.total_steps, short.optim.warmup_steps) == (footprint.TRAINED_STEPS, None)
    assert (short.net, short.short, short.data) == (
        run.config.net, run.config.short, run.config.data,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_memory_is_planned_within_a_quarter(tmp_path, wikitext, cache_dir) -> None:
    """Measured on one net, planned for another, and measured on that."""
    made = a_study.make(
        pretrain__data__corpus=f"wikitext:{wikitext}", pretrain__machine__cache_dir=str(cache_dir),
        stages={"main": a_study.stage(shapes=("2x8x1", "2x32x2"))},
    )  # fmt: skip
    runs = expand.runs(made, tmp_path)
    builts = [cost_steps.build_run(run.config) for run in runs]
    said: list[str] = []
    model = plan.calibrate(made, runs, builts, tmp_path / "calibration.json", said.append)
    assert said[-1].startswith("measured bert-2x8x1-seed0, 4 steps of it: ")
    assert model.start_secs > 0 and model.compile_secs > 0
    planned = model.beside_bytes + plan.net_bytes(model, builts[-1])
    assert runs[-1].name == "gpt2-2x32x2-seed0"
    assert planned == pytest.approx(footprint.measure(made, runs[-1]).peak_bytes, rel=0.25)


def test_a_step_that_would_outlast_the_minute_is_left_out_and_a_cheaper_one_taken(
    tmp_path, monkeypatch
) -> None:
    """On a clock of its own: each compiles for 10 s and takes a step, then all three in turn."""
    made = a_study.make(stages={"main": a_study.stage(shapes=("2x8x1", "2x12x1", "2x16x1"))})
    runs = expand.runs(made, tmp_path)[:3]
    builts = [cost_steps.build_run(run.config) for run in runs]
    counts = np.array([b.phases[0][3] for b in builts])
    secs = dict(zip(map(id, builts), (1.0, 12.0, 2.0), strict=True))
    now, taken = [0.0], []

    class Timed(cost_steps.Stepper):
        def __init__(self, built: cost_steps.Built, phase: int) -> None:
            now[0] += 10
            self.built, self.label = built, cost_steps.label(built, phase)

        def __call__(self) -> float:
            taken.append(builts.index(self.built))
            now[0] += secs[id(self.built)] * (2 if taken.count(taken[-1]) == 1 else 1)
            return secs[id(self.built)] * (2 if taken.count(taken[-1]) == 1 else 1)

        def measurement(self, times) -> cost.Measurement:
            return cost.Measurement(self.label, counts[0], float(np.median(times)), 1.0, 1)

    monkeypatch.setattr(cost_steps.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(cost_steps, "Stepper", Timed)
    monkeypatch.setattr(cost_steps, "choose", lambda given: [(b, 0) for b in given])
    monkeypatch.setattr(cost, "fit", lambda found: types.SimpleNamespace(
        step_secs=lambda c: secs[id(builts[int(np.abs(counts - c).sum(axis=1).argmin())])],
        net_bytes=lambda *_: 1.0))  # fmt: skip
    monkeypatch.setattr(footprint, "measure", lambda *_: footprint.Footprint(9.0, 1.0, 1.0))
    monkeypatch.setattr(plan.dataclasses, "replace", lambda model, **_: model)
    monkeypatch.setattr(cost, "save", lambda *_: None)
    said: list[str] = []
    plan.calibrate(made, runs, builts, tmp_path / "calibration.json", said.append)
    assert taken == [0, 2] + [0, 2] * (cost_steps.UNTIMED + cost_steps.ROUNDS)
    measured = [line for line in said if "ms a step" in line]
    assert [line.rpartition(": ")[2] for line in measured] == ["1,000 ms a step", "2,000 ms a step"]
    assert any("1 steps more are left to the model" in line for line in said)


def test_every_evaluation_of_a_fine_tuning_is_foreseen(tmp_path) -> None:
    """With multiplications alone: a step costs three passes of a batch, dev one an evaluation."""
    made = a_study.make(finetune__tasks=("wnli",), finetune__seeds=2)
    (run, *_) = expand.runs(made, tmp_path)
    only = cost.CostModel(
        np.array([1e-9, 0, 0, 0, 0, 0, 0]), np.zeros(7), 0.0, 0.0, 0.0, 0.0, None, {}
    )

    def secs(**values: float) -> float:
        values = {"batch_size": 10, "max_len": 128, "max_train_examples": None} | values
        return plan.finetune_secs(made, run, only, {"wnli": (60, 90, 20.0)}, {"wnli": values})

    once, thrice = (secs(epochs=3.0, eval_every_epochs=every) for every in (3.0, 1.0))
    assert thrice / once == pytest.approx((3 * 60 * 3 + 3 * 90) / (3 * 60 * 3 + 90))


# --- Tasks without data ---------------------------------------------------------------------------


def test_a_study_without_data_names_the_argument_before_anything_is_written(
    tmp_path, monkeypatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)  # as if not installed
    made = a_study.make(finetune__tasks=("wnli",), finetune__data=None)
    workdir = tmp_path / "w"
    with pytest.raises(ValueError, match=r"--config=FILE.py:data=DIR .* does not have them here"):
        planning.make(made, workdir, "", 1)
    assert not workdir.exists()


def test_a_folder_that_lacks_the_task_is_named(tmp_path) -> None:
    with pytest.raises(ValueError, match=f"expected the folder {tmp_path}/WNLI"):
        tasks.load("wnli", str(tmp_path), tmp_path)


def test_probes_are_made_from_the_studys_own_corpus(tmp_path, monkeypatch) -> None:
    """Once, into the study's folder, and read as tasks; any data else is left alone."""
    asked = []

    def make(given) -> None:
        asked.append(given)
        rows = [probe_rows.Row((f"a sentence {i}",), i % 2) for i in range(8)]
        made = {"swapped_words": {"train": rows, "dev": rows[:4]}}
        probes.write(given.to, made, {})

    monkeypatch.setattr(probes, "run", make)
    config = expand.runs(a_study.make(pretrain__data__corpus="text:x"), tmp_path)[0].config
    tasks.prepare("probes", config, tmp_path)
    assert (asked[0].corpus, asked[0].to) == ("text:x", tmp_path / "probes")
    assert asked[0].cache_dir == config.machine.cache_dir
    splits = tasks.load("swapped_words", "probes", tmp_path)
    assert (len(splits.train), len(splits.dev["dev"])) == (8, 4)
    tasks.prepare(str(tmp_path), config, tmp_path)
    tasks.prepare(None, config, tmp_path)
    assert len(asked) == 1
