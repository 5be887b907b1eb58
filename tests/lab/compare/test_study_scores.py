"""Scores of a study's rows: as the bootstrap by hand gives them, found where planted, or None."""

import dataclasses
import json
import zlib

import numpy as np
import pytest
import scipy.stats
import study_folders
import task_folders
from planted import two_sided

from scalelab.eval.score_names import LARGE, SCORES
from scalelab.lab.compare import bootstrap, estimates, run_points
from scalelab.lab.compare.study_scores import StudyScores
from scalelab.lab.load import study_runs
from scalelab.lab.show import figures


def seeds(*wrong: int) -> dict[int, int]:
    return dict(enumerate(wrong))


def large(*wrong: int) -> dict[str, dict[int, int]]:
    return {task: seeds(*wrong) for task in ("mnli", "qqp", "qnli")}


def read(workdir, runs, **fields) -> StudyScores:
    study_folders.write_study(workdir, runs)
    return StudyScores(study_runs.read(workdir), **fields)


def stacked(task: str, wrong: list[list[int]], split: str = "dev"):
    """Gold [60] and predictions [P, F, 60] as the folders hold them."""
    _, gold = task_folders.dev_set(task, split)
    outputs = [[task_folders.outputs_of(task, gold, w) for w in row] for row in wrong]
    return gold.astype(np.int32), np.argmax(outputs, axis=-1)


RUNS = [
    {"system": "bert", "shape": "2x32x2", "seed": 0, "loss": 3.0, "tasks": large(10, 12)},
    {"system": "bert", "shape": "2x32x2", "seed": 1, "loss": 3.4, "tasks": large(11, 14)},
    {"system": "gpt2", "shape": "2x32x2", "seed": 0, "loss": 5.0, "tasks": large(28, 30)},
    {"system": "gpt2", "shape": "2x32x2", "seed": 1, "loss": 5.6, "tasks": large(31, 29)},
]
BERT, GPT2 = [[10, 12], [11, 14]], [[28, 30], [31, 29]]


def test_a_value_is_the_bootstraps_with_the_seeds_of_all_rows(tmp_path) -> None:
    scores = read(tmp_path, RUNS)
    row = scores.rows[0]
    gold, predicted = stacked("qqp", BERT)
    table = zip(["bert", "gpt2"], 1 - np.mean([BERT, GPT2], axis=-1) / 60, strict=True)
    theirs = bootstrap.mean_score(
        [(gold, [(1.0, predicted)], "accuracy")],
        num_resamples=2000,
        seed=zlib.crc32(b"bert 2x32x2"),
        pooled=estimates.pooled_variances(table, [("bert", 1.0)]),
    )
    ours = scores.value(row, "qqp")
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high))
    np.testing.assert_allclose(ours.resamples, theirs.resamples)
    assert scores.value(row, "qqp") is ours  # worked out once


def test_tables_figures_verdicts_and_laws_have_one_number(tmp_path) -> None:
    study_folders.write_study(tmp_path, [run | {"curve": [(1.0, 3.0)]} for run in RUNS])
    points, _ = run_points.make(run_points.load([tmp_path]), "qnli")
    numbers = points.groupby("system")["value"].mean().to_list()
    assert numbers == pytest.approx([1 - np.mean(wrong) / 60 for wrong in (BERT, GPT2)])
    scores = StudyScores(study_runs.read(tmp_path))
    a, b = scores.rows
    (axis,) = figures.draw_cost(scores, "qnli").axes
    assert [bar[0].get_ydata()[0] / 100 for bar in axis.containers] == pytest.approx(numbers)
    assert [scores.value(row, "qnli").value for row in (a, b)] == pytest.approx(numbers)
    assert scores.difference(a, b, "qnli").value == pytest.approx(numbers[1] - numbers[0])


def test_a_planted_difference_is_found_and_is_the_bootstraps(tmp_path) -> None:
    scores = read(tmp_path, RUNS)
    a, b = scores.rows
    gold, predicted = stacked("qnli", BERT)
    theirs = bootstrap.mean_score(
        [(gold, [(-1.0, predicted), (1.0, stacked("qnli", GPT2)[1])], "accuracy")],
        num_resamples=2000, seed=zlib.crc32(b"bert 2x32x2 gpt2 2x32x2"),
    )  # fmt: skip
    ours = scores.difference(a, b, "qnli")
    np.testing.assert_allclose(ours.resamples, theirs.resamples)
    assert ours.value == pytest.approx((np.mean(BERT) - np.mean(GPT2)) / 60)
    assert ours.high < 0 and two_sided(ours) < 0.05
    back = scores.difference(b, a, "qnli")
    assert back.value == pytest.approx(-ours.value)
    none = scores.difference(a, a, "qnli")  # the same runs are paired: no chance is left
    assert none.value == 0 and np.isnan([none.low, none.high]).all()


def test_glue_large_is_the_mean_of_three_that_share_their_pretrainings(tmp_path) -> None:
    """Seeds alone vary, alike in all tasks: the mean varies as one task does, not by 1/sqrt(3)."""
    runs = [{"system": "bert", "shape": "2x32x2", "seed": s, "tasks": large(60 * (s % 2))}
            for s in range(6)]  # fmt: skip
    scores = read(tmp_path, runs)
    row = scores.rows[0]
    parts = [scores.value(row, name) for name in LARGE]
    whole = scores.value(row, "large")
    assert whole.value == pytest.approx(np.mean([part.value for part in parts])) == 0.5
    assert whole.standard_error == pytest.approx(parts[0].standard_error, rel=0.05)
    assert whole.degrees == pytest.approx(5)


def test_loss_and_seconds_have_students_interval(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(study_folders.OBJECTIVES, "gpt2", "mlm+nsp")  # losses compare
    runs = [{"system": "bert", "shape": "2x32x2", "seed": i, "loss": loss, "seconds": 10.0 * i}
            for i, loss in enumerate((3.0, 3.2, 3.7))]  # fmt: skip
    runs += [{"system": "gpt2", "shape": "2x32x2", "seed": i, "loss": loss}
             for i, loss in enumerate((5.0, 5.3))]  # fmt: skip
    scores = read(tmp_path, runs)
    bert, gpt2 = scores.rows
    found = scores.value(bert, "loss")
    error = scipy.stats.sem([3.0, 3.2, 3.7])
    low, high = scipy.stats.t.interval(0.95, 2, 3.3, error)
    assert (found.value, found.low, found.high) == pytest.approx((3.3, low, high))
    assert np.quantile(found.resamples, 0.975) == pytest.approx(high, rel=0.01)
    apart = scores.difference(bert, gpt2, "loss")  # over the seeds that both have
    paired = scipy.stats.ttest_rel([5.0, 5.3], [3.0, 3.2])
    interval = paired.confidence_interval()
    assert apart.degrees == paired.df
    assert (apart.low, apart.high) == pytest.approx((interval.low, interval.high))
    assert scores.value(bert, "seconds").value == 10


@pytest.mark.parametrize("score", ["loss", "qqp"])
def test_the_shapes_of_a_system_may_share_what_a_seed_does(score, tmp_path, monkeypatch) -> None:
    """Over two seeds, six rows of two systems give differences of shapes 6 - 2 degrees, those of
    systems only the 1 degree of the systems' own seeds."""
    monkeypatch.setitem(study_folders.OBJECTIVES, "roberta", "mlm+nsp")  # losses compare
    wrong = {"bert": (20, 30), "roberta": (24, 18)}
    runs = [
        {"system": system, "shape": f"2x32x{layers}", "seed": seed, "loss": 3 + (own + i) / 60,
         "tasks": {"qqp": {0: own + i}}}
        for system, moved in wrong.items() for layers in (1, 2, 3)
        for seed, own in enumerate(moved) for i in [(layers * (2 * seed - 1)) % 3]
    ]  # fmt: skip
    scores = read(tmp_path, runs)
    a, b, _, other, *_ = scores.rows
    shapes, systems = scores.difference(a, b, score), scores.difference(a, other, score)
    assert shapes.high - shapes.low < 0.1 and systems.high - systems.low > 1
    if score == "loss":
        assert shapes.degrees == 4 and systems.degrees == pytest.approx(1, abs=0.05)


def test_what_is_missing_is_none(tmp_path) -> None:
    runs = [
        {"system": "bert", "shape": "2x32x2", "seed": 0, "tasks": {"qqp": seeds(5)}},
        {"system": "gpt2", "shape": "2x32x2", "seed": 0, "finished": False},
        {"system": "gpt2", "shape": "2x32x2", "seed": 1, "finished": False},
    ]
    scores = read(tmp_path, runs)
    bert, gpt2 = scores.rows
    assert scores.value(bert, "large") is None
    assert scores.value(bert, "rte") is None
    assert scores.value(bert, "qqp") is not None
    for name in SCORES:
        assert scores.value(gpt2, name) is None
        assert scores.difference(bert, gpt2, name) is None
    with pytest.raises(ValueError, match="unknown score 'glue'"):
        scores.value(bert, "glue")


def test_a_study_under_way_uses_the_seeds_in_common(tmp_path) -> None:
    runs = [
        {"system": "bert", "shape": "2x32x2", "seed": 0, "tasks": {"rte": seeds(5, 6, 7)}},
        {"system": "bert", "shape": "2x32x2", "seed": 1, "tasks": {"rte": {0: 8, 2: 9}}},
        {"system": "bert", "shape": "2x32x2", "seed": 2},
    ]
    scores = read(tmp_path, runs)
    (row,) = scores.rows
    assert scores.value(row, "rte").value == pytest.approx(1 - np.mean([5, 7, 8, 9]) / 60)


def test_what_is_damaged_is_said(tmp_path) -> None:
    scores = read(tmp_path, RUNS)
    (tmp_path / "runs/bert-2x32x2-default-seed1/tasks/qqp/seed0/predictions.tsv").unlink()
    bert, gpt2 = scores.rows
    assert scores.value(bert, "qqp") is None
    assert scores.difference(bert, gpt2, "qqp") is None
    assert scores.value(gpt2, "qqp") is not None
    (note,) = scores.notes
    assert note.startswith("bert 2x32x2, qqp: ") and "predictions.tsv" in note


def test_dev_sets_must_be_the_same(tmp_path, monkeypatch) -> None:
    run = {"system": "bert", "shape": "2x32x2", "seed": 0, "tasks": {"qqp": seeds(5)}}
    study_folders.write_study(tmp_path / "one", [run])
    shorter = task_folders.dev_set("qqp", "dev", 50)
    monkeypatch.setattr(task_folders, "dev_set", lambda *_: shorter)
    study_folders.write_study(tmp_path, [run | {"tasks": {}}, run | {"system": "gpt2"}])
    (tmp_path / "one/runs/bert-2x32x2-default-seed0/tasks").rename(
        tmp_path / "runs/bert-2x32x2-default-seed0/tasks"
    )
    scores = StudyScores(study_runs.read(tmp_path))
    assert scores.difference(*scores.rows, "qqp") is None
    assert "gpt2 2x32x2" in scores.notes[0] and "qqp" in scores.notes[0]


def test_contrasts_are_over_the_seeds_that_all_rows_have(tmp_path, monkeypatch) -> None:
    """One shape has three seeds, the other two of them; the third system a single one."""
    monkeypatch.setitem(study_folders.OBJECTIVES, "gpt2", "mlm+nsp")  # losses compare
    have = {"2x32x2": 3, "2x64x2": 2}
    runs = [
        {"system": system, "shape": shape, "seed": s, "loss": loss + s,
         "tasks": large(wrong + s, wrong + s)}
        for system, wrong, loss in (("bert", 10, 3.0), ("gpt2", 30, 5.0))
        for shape, num in have.items() for s in range(num)
    ]  # fmt: skip
    runs.append({"system": "roberta", "shape": "2x32x2", "seed": 0, "tasks": large(20, 20)})
    scores = read(tmp_path, runs)
    rows = {row.label: row for row in scores.rows}
    weights = {
        rows[f"{x} {shape}"]: w for shape in have for x, w in (("bert", 0.5), ("gpt2", -0.5))
    }
    found = scores.contrast(weights, "large")
    assert found.value == pytest.approx(20 / 60) and found.low > 0
    assert scores.contrast(weights, "loss").value == pytest.approx(-2)
    single = scores.contrast({rows["bert 2x32x2"]: 1.0, rows["roberta 2x32x2"]: -1.0}, "large")
    assert single.value == pytest.approx(10 / 60)
    assert not len(single.resamples)
    assert scores.contrast(weights, "rte") is None


def test_curves_are_apart_by_length(tmp_path) -> None:
    run = {"system": "bert", "shape": "2x32x2", "seed": 0, "curve": [(1.0, 9.0), (2.0, 8.0)]}
    scores = read(tmp_path, [run])
    path = tmp_path / "runs/bert-2x32x2-default-seed0/metrics.jsonl"
    now = {"step": 2, "tokens": 20, "flops": 2e7}
    longer = now | {"seconds": 3.0, "eval/loss": 7.0, "eval/max_len": 512}
    trained = now | {"seconds": 2, "train/loss": 1}
    path.write_text(path.read_text() + f"{json.dumps(longer)}\n{json.dumps(trained)}\n")
    scores = StudyScores(study_runs.read(tmp_path))
    found = scores.curves(scores.rows[0])[0]
    np.testing.assert_array_equal(found[128], [[1.0, 9.0], [2.0, 8.0]])
    np.testing.assert_array_equal(found[512], [[3.0, 7.0]])
    assert found.keys() == {128, 512}


def test_seconds_of_different_machines_are_named(tmp_path) -> None:
    runs = [{"system": "bert", "shape": "2x32x2", "seed": s} for s in range(3)]
    study_folders.write_study(tmp_path, runs)
    for seed, device in enumerate(("cpu:cpu", "cpu:cpu", "gpu:H100")):
        path = tmp_path / f"runs/bert-2x32x2-default-seed{seed}/environment.json"
        path.write_text(json.dumps({"cpus": 2, "devices": [device]}))
    scores = StudyScores(study_runs.read(tmp_path))
    (remark,) = scores.remarks(["seconds"])
    assert "2 CPUs, cpu:cpu; 2 CPUs, gpu:H100" in remark
    assert scores.remarks(["loss"]) == []


# --- Whether the treatment took -------------------------------------------------------------------

# That of `nsp` may be another number, by an option; that of `mlm` is what a metric says.
BASELINES = {
    "nsp": lambda options: ("accuracy", options.get("chance", 0.5), 0.05, None),
    "mlm": lambda options: ("loss", None, 0.5, None),
    "rtd": lambda options: ("loss", lambda metrics: metrics.get("rate"), 0.02, None),
}


def treated(
    workdir, nsp: float, mlm: float, wrong: int, scratch: int | None = None, score: str = "qnli"
) -> str:
    """Why a study of two seeds tests nothing: unigram entropy 7 nats, best constant answer 0.5."""
    run = {"system": "bert", "shape": "2x32x2", "tasks": large(wrong, wrong + 1)}
    if scratch is not None:
        run["scratch"] = large(scratch, scratch)
    study_folders.write_study(workdir, [run | {"seed": s} for s in range(2)])
    for path in workdir.glob("runs/*/result.json"):
        result = json.loads(path.read_text())
        result["eval"]["512"] |= {"nsp_accuracy": nsp, "mlm_loss": mlm}
        path.write_text(json.dumps(result | {"unigram_nats": 7.0}))
    scores = StudyScores(study_runs.read(workdir), baselines=BASELINES)
    return scores.check_treatment(scores.rows, score).untestable


@pytest.mark.parametrize(("fields", "names"), [
    ({}, []),
    ({"nsp": 0.51, "score": "loss"}, ["nsp of bert 2x32x2", "nsp_accuracy 0.51"]),
    ({"mlm": 6.8, "nsp": 0.5, "score": "loss"}, ["mlm_loss 6.8", "nsp_accuracy 0.5"]),
    ({"mlm": 6.8}, ["mlm_loss 6.8"]),
    ({"nsp": 0.51}, []),  # all rows share it, and QNLI rests on masked tokens
    ({"wrong": 28}, ["QNLI", "trivial"]),
    ({"scratch": 5}, ["from random weights"]),
    ({"scratch": 20}, []),
])  # fmt: skip
def test_what_makes_scores_untestable(fields, names, tmp_path) -> None:
    given = {"nsp": 0.8, "mlm": 5.0, "wrong": 10} | fields
    why = treated(tmp_path, **given)
    assert all(name in why for name in names) and bool(why) == bool(names)


def test_time_needs_no_treatment(tmp_path) -> None:
    treated(tmp_path, 0.5, 7.0, 30)
    scores = StudyScores(study_runs.read(tmp_path), baselines=BASELINES)
    assert not any(scores.check_treatment(scores.rows, "seconds"))
    assert "nsp_accuracy" in scores.check_treatment(scores.rows, "loss").untestable


@pytest.mark.parametrize(
    ("config", "metrics", "why", "unchecked"),
    [
        ({"objective": "mlm+50*nsp"}, {"nsp_accuracy": 0.51}, "nsp_accuracy 0.51", ""),
        ({"objective_options": {"chance": 0.7}}, {"nsp_accuracy": 0.7}, "against 0.7", ""),
        ({"objective": "mlm+50*rtd"}, {"rtd_loss": 0.4, "rate": 0.4}, "rtd_loss 0.4", ""),
        ({"objective": "mlm+50*rtd"}, {"rtd_loss": 0.3, "rate": 0.4}, "", ""),
        ({"objective": "mlm+50*rtd"}, {"rtd_loss": 0.3}, "", "the trivial rtd_loss"),
    ],
)
def test_each_loss_of_a_weighted_sum_has_the_baseline_of_its_options(
    config, metrics, why, unchecked, tmp_path
) -> None:
    treated(tmp_path, 0.8, 5.0, 10)
    study = study_runs.read(tmp_path)
    points = []
    for point in study.points:
        runs = [dataclasses.replace(run, config=run.config | config) for run in point.runs]
        for run in runs:
            run.result.eval["512"].update(metrics)
        points.append(dataclasses.replace(point, runs=tuple(runs)))
    scores = StudyScores(dataclasses.replace(study, points=tuple(points)), baselines=BASELINES)
    found = scores.check_treatment(scores.rows, "loss")
    assert why in found.untestable and bool(why) == bool(found.untestable)
    assert unchecked in found.unchecked and bool(unchecked) == bool(found.unchecked)


def arms(workdir, *objectives: str, curve=(), valid_examples: int | None = None, **metrics):
    """The scores of a row for each objective, two seeds each, after 1,000 tokens.

    Validations before the last one are in `curve`, as {"tokens": 10, "mlm_loss": 6.0}.
    """
    shapes = [f"2x32x{layers}" for layers in range(1, len(objectives) + 1)]
    runs = [{"system": "bert", "shape": shape, "seed": seed, "tasks": large(5, 6)}
            for shape in shapes for seed in range(2)]  # fmt: skip
    study_folders.write_study(workdir, runs)
    (path,) = workdir.glob("studies/*.json")
    facts = json.loads(path.read_text())
    phase = {"max_len": 512, "examples": 9, "tokens": 9, "valid_examples": valid_examples}
    for run in facts["runs"]:
        run["config"]["objective"] = objectives[shapes.index(f"2x32x{run['shape']['L']}")]
        folder = workdir / "runs" / run["name"]
        result = json.loads((folder / "result.json").read_text()) | {"unigram_nats": 7.0}
        result["eval"]["512"] |= metrics
        lines = [
            {"step": 1, "flops": 1, "seconds": 1, "eval/loss": 3, "eval/max_len": 512}
            | {name if name == "tokens" else f"eval/{name}": x for name, x in line.items()}
            for line in [*curve, {"tokens": 1000, **metrics}]
        ]
        files = {"config": run["config"], "result": result | {"phases": [phase]}}
        task_folders.write_files(folder, lines, **files)
    path.write_text(json.dumps(facts))
    return StudyScores(study_runs.read(workdir), baselines=BASELINES)


@pytest.mark.parametrize(("objectives", "score", "metrics", "gates", "remark"), [
    (("mlm+nsp", "mlm+nsp"), "blimp", {"nsp_accuracy": 0.5}, "", "nsp_accuracy"),
    (("mlm+nsp", "mlm+nsp"), "loss", {"nsp_accuracy": 0.5}, "nsp_accuracy", ""),
    (("mlm+nsp", "mlm+nsp"), "bits_per_byte", {"nsp_accuracy": 0.5}, "", "nsp_accuracy"),
    (("mlm+nsp", "mlm"), "blimp", {"nsp_accuracy": 0.5}, "nsp_accuracy", ""),
    (("mlm+nsp", "mlm+9*nsp"), "blimp", {"nsp_accuracy": 0.5}, "nsp_accuracy", ""),
    (("mlm+nsp", "mlm+nsp"), "blimp", {"mlm_loss": 6.9}, "mlm_loss", ""),
    (("mlm+50*rtd",), "blimp", {"rtd_loss": 0.4}, "", "rtd_loss"),  # scored by the generator
    (("mlm+50*rtd",), "qnli", {"rtd_loss": 0.4}, "rtd_loss", ""),  # the model that is fine-tuned
    (("mlm+50*rtd",), "probes.pos", {"mlm_loss": 6.9}, "", "mlm_loss"),
    (("nsp",), "qnli", {"nsp_accuracy": 0.5}, "nsp_accuracy", ""),
])  # fmt: skip
def test_a_claim_asks_only_for_the_objectives_that_it_rests_on(
    objectives, score, metrics, gates, remark, tmp_path
) -> None:
    passed = {"nsp_accuracy": 0.9, "mlm_loss": 5.0, "rtd_loss": 0.2, "rate": 0.4}
    scores = arms(tmp_path, *objectives, **passed | metrics)
    found = scores.check_treatment(scores.rows, score)
    assert gates in found.untestable and bool(gates) == bool(found.untestable)
    assert remark in found.remark and bool(remark) == bool(found.remark)


def falling(slope: float, *tokens: int) -> list[dict[str, float]]:
    """Validations of a loss that is 6.8 at 1,000 tokens; `slope` is nats for a factor e."""
    return [{"tokens": x, "mlm_loss": 6.8 + slope * np.log(x / 1000)} for x in (0.001, *tokens)]


@pytest.mark.parametrize(("curve", "words"), [
    # From 6.8 to 7 - 0.5 = 6.5 nats at a slope of -0.3: e times the tokens.
    (falling(-0.3, 100, 300, 500, 700), "about 2.7 times the budget (2.7 K tokens)"),
    # The first half of a curve says nothing.
    ([{"tokens": x, "mlm_loss": 99.0} for x in (1, 2, 3)] + falling(-0.15, 500, 700)[1:],
     "about 7.4 times the budget (7.4 K tokens)"),
    (falling(-0.05, 100, 300, 500, 700), "more than 30 times the budget"),
    (falling(0.1, 100, 300, 500, 700), "the curve gives no budget: it does not clearly fall"),
    ([], ""),
])  # fmt: skip
def test_a_planted_curve_gives_the_budget_that_would_do(curve, words, tmp_path) -> None:
    scores = arms(tmp_path, "mlm", curve=curve, mlm_loss=6.8)
    why = scores.check_treatment(scores.rows, "qnli").untestable
    assert "mlm_loss 6.8 against 7" in why and words in why
    assert bool(words) == ("budget" in why)


def test_the_curve_of_the_most_validations_gives_the_slope(tmp_path) -> None:
    """A short second phase has a curve of its own, whose start is that of its length."""
    curve = falling(-0.3, 100, 300, 500, 700)
    scores = arms(tmp_path, "mlm", curve=curve, mlm_loss=6.8)
    for path in tmp_path.glob("runs/*/metrics.jsonl"):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        shorter = [line | {"eval/max_len": 128} for line in lines[:-1]]
        longer = [lines[-1] | {"tokens": 900, "eval/mlm_loss": 6.9}, lines[-1]]
        path.write_text("".join(json.dumps(line) + "\n" for line in [*shorter, *longer]))
    scores = StudyScores(study_runs.read(tmp_path), baselines=BASELINES)
    why = scores.check_treatment(scores.rows, "qnli").untestable
    assert "about 2.7 times the budget (2.7 K tokens)" in why


def test_an_accuracy_must_rise_to_give_a_budget(tmp_path) -> None:
    for place, slope in enumerate((0.01, -0.01)):
        curve = [{"tokens": x, "nsp_accuracy": 0.52 + slope * np.log(x / 1000)}
                 for x in (100, 300, 500, 700)]  # fmt: skip
        scores = arms(tmp_path / str(place), "nsp", curve=curve, nsp_accuracy=0.52)
        why = scores.check_treatment(scores.rows, "qnli").untestable
        assert ("about 20 times", "it does not clearly rise")[place] in why  # e^3


def test_a_score_at_its_floor_has_a_budget_where_it_was_measured_before(tmp_path) -> None:
    runs = [{"system": "bert", "shape": "2x32x2", "seed": s, "tasks": large(28, 29)}
            for s in range(2)]  # fmt: skip
    scores = read(tmp_path, runs)
    assert "budget" not in scores.check_treatment(scores.rows, "qnli").untestable
    for run in tmp_path.glob("runs/*"):
        for share, wrong in ((0.25, 30), (0.5, 29)):
            task_folders.write_run(run / f"early/{share}/qnli", "qnli", 0, wrong, system="bert")
    scores = StudyScores(study_runs.read(tmp_path))
    why = scores.check_treatment(scores.rows, "qnli").untestable
    assert "at most 52.5" in why and " times the budget" in why


@pytest.mark.parametrize(("num", "names"), [(7, "7 validation examples"), (200, ""), (None, "")])
def test_gates_need_validation_examples(num, names, tmp_path) -> None:
    scores = arms(tmp_path, "mlm+nsp", mlm_loss=5.0, nsp_accuracy=0.9, valid_examples=num)
    why = scores.check_treatment(scores.rows, "qnli").untestable
    assert names in why and bool(names) == bool(why)
    assert "200" in why or not why


def test_an_undefined_score_is_missing_and_named(tmp_path) -> None:
    scores = read(tmp_path, [run | {"tasks": {"cola": seeds(9)}} for run in RUNS])
    for path in tmp_path.rglob("cola/seed0/result.json"):
        values = json.loads(path.read_text())
        values |= {"eval": {"dev": {"matthews": None}}, "undefined": {"dev": {"matthews": "flat"}}}
        path.write_text(json.dumps(values))
    scores = StudyScores(study_runs.read(tmp_path))
    assert scores.value(scores.rows[0], "cola") is None
    assert any("undefined: flat" in remark for remark in scores.remarks(["cola"]))
