"""Findings of studies of folders: planted truths, treatments that did not take, collapsed rows."""

import json
import pathlib
from dataclasses import replace

import pytest
import study_folders

from scalelab import objectives
from scalelab.lab.compare import claims, hypotheses, scores
from scalelab.lab.compare.scores import load_comparison
from scalelab.lab.compare.study_scores import StudyScores
from scalelab.lab.load import study_runs
from scalelab.lab.load.study_runs import Study

THESIS = load_comparison("scalelab.thesis.comparison")
TASKS = ("mnli", "qqp", "qnli")
BASELINES = objectives.load_baselines()


BEST = {"bert": 5, "roberta": 12, "gpt2": 25}
WORST = {"bert": 25, "roberta": 12, "gpt2": 5}


def write(
    workdir: pathlib.Path, wrong: dict[str, int], nsp: float = 0.8, num_seeds: int = 3
) -> Study:
    """Systems on two shapes; `wrong` of 60 answers; losses of 5 nats, unigrams have 7."""
    runs = [
        {"system": system, "shape": shape, "seed": seed,
         "tasks": {task: {0: wrong[system] + seed} for task in TASKS}}
        for system in wrong for shape in ("2x32x2", "2x64x2") for seed in range(num_seeds)
    ]  # fmt: skip
    study_folders.write_study(workdir, runs, tasks=list(TASKS), hypotheses=["1a", "1b"])
    for path in workdir.glob("runs/*/result.json"):
        result = json.loads(path.read_text()) | {"unigram_nats": 7.0}
        for name in study_folders.OBJECTIVES[result["system"]].split("+"):
            readings = {"nsp_accuracy": nsp} if name == "nsp" else {f"{name}_loss": 5.0}
            result["eval"]["512"] |= readings
        path.write_text(json.dumps(result))
    return study_runs.read(workdir)


def evaluate(study: Study, comparison=THESIS) -> list[claims.Finding]:
    return hypotheses.judge(study, StudyScores(study, baselines=BASELINES), comparison)


def test_a_planted_truth_is_confirmed_and_its_opposite_refuted(tmp_path) -> None:
    best = {f.id: f for f in evaluate(write(tmp_path / "a", BEST))}
    assert [best[x].verdict for x in ("1a", "1b", "bert/roberta")] == ["confirmed"] * 3
    assert best["1a"].claims[0].effect == pytest.approx(7 / 60)
    worst = {f.id: f for f in evaluate(write(tmp_path / "b", WORST))}
    assert [worst[x].verdict for x in ("1a", "1b", "bert/gpt2")] == ["refuted"] * 3
    stated = {(c.what, c.region) for name in ("1a", "1b") for c in best[name].claims}
    pairs = [f for f in best.values() if "/" in f.id]
    assert {(c.what, c.region) for f in pairs for c in f.claims} == stated  # corrected for once


def test_nsp_at_chance_is_not_testable_and_never_refuted(tmp_path) -> None:
    found = {f.id: f for f in evaluate(write(tmp_path, WORST, 0.5))}
    assert found["1a"].verdict == found["bert/gpt2"].verdict == claims.NOT_TESTABLE
    assert "nsp_accuracy 0.5" in found["1a"].why
    assert found["roberta/gpt2"].verdict == "refuted"  # neither has NSP


def test_a_study_without_comparison_checks_objectives_too(tmp_path) -> None:
    study = write(tmp_path, WORST, 0.5)
    study = replace(study, facts=replace(study.facts, comparison=None, hypotheses=()))
    found = {f.id: f for f in evaluate(study, load_comparison(None))}
    assert found["bert/gpt2"].verdict == claims.NOT_TESTABLE
    assert "nsp_accuracy 0.5" in found["bert/gpt2"].why


def test_bias_is_no_score_and_rows_that_are_not_finished_make_no_finding(tmp_path) -> None:
    study = write(tmp_path, {"bert": 5, "roberta": 12}, num_seeds=1)
    facts = replace(study.facts, hypotheses=(), evaluations=("copa", "crows_pairs", "winogender"))
    study = replace(study, facts=facts)
    (finding,) = evaluate(study)
    names = [claim.what.partition(",")[2] for claim in finding.claims]
    assert ["COPA" in name for name in names] == [False, True], names  # GLUE-Large, COPA
    for path in tmp_path.glob("runs/roberta*/result.json"):
        path.unlink()
    assert evaluate(replace(study_runs.read(tmp_path), facts=facts)) == []


@pytest.mark.parametrize("missing", ["nsp_accuracy", "unigram_nats"])
def test_missing_numbers_are_named_in_the_remarks(missing: str, tmp_path) -> None:
    write(tmp_path, BEST)
    for path in tmp_path.glob("runs/*/result.json"):
        result = json.loads(path.read_text())
        (result if missing in result else result["eval"]["512"]).pop(missing, None)
        path.write_text(json.dumps(result))
    found = {f.id: f for f in evaluate(study_runs.read(tmp_path))}
    (remark,) = (x for x in found["bert/gpt2"].remarks if x.startswith("Not checked: "))
    assert missing in remark and "random weights" in remark  # no model was trained from scratch
    assert found["bert/gpt2"].verdict == "confirmed"


def test_scores_on_their_floor_are_not_testable(tmp_path) -> None:
    found = evaluate(write(tmp_path, {"bert": 36, "roberta": 36, "gpt2": 36}))
    assert {f.verdict for f in found} == {claims.NOT_TESTABLE}


def test_a_single_seed_decides_nothing(tmp_path) -> None:
    study = write(tmp_path, BEST, num_seeds=1)
    found = evaluate(study)
    assert {f.verdict for f in found} == {"undecided"}
    assert all(c.estimate is None for f in found for c in f.claims)


def test_comparisons_are_loaded_by_name() -> None:
    assert THESIS.CAPTIONS and "1a" in THESIS.HYPOTHESES
    assert not load_comparison(None).HYPOTHESES
    with pytest.raises(ValueError, match="scalelab.thesys"):
        load_comparison("scalelab.thesys")
    with pytest.raises(ValueError, match="HYPOTHESES"):
        load_comparison("scalelab.thesis.select")
    with pytest.raises(ValueError, match="--comparison=this"):
        load_comparison("this")  # a module outside scalelab runs only if the user names it
    assert set(scores.REQUIRED) <= set(dir(THESIS))


def masked(workdir: pathlib.Path, **facts) -> Study:
    """Two systems x default and two variants: `mask_40` is better and `half_rate` is alike."""
    wrong = {"default": 20, "mask_40": 5, "half_rate": 20}
    runs = [
        {"system": system, "shape": "2x32x2", "seed": seed, "variant": variant,
         "loss": 3.0 - 0.5 * (variant == "half_rate") + 0.01 * seed,
         "tasks": {"sst2": {0: wrong[variant] + (system == "gpt2")}},
         "scratch": {"sst2": {0: 30}}}
        for system in ("bert", "gpt2") for variant in wrong for seed in range(3)
    ]  # fmt: skip
    variants = {"default": [], "mask_40": ["mask_rate=0.4"], "half_rate": ["optim.x=1"]}
    study_folders.write_study(workdir, runs, tasks=["sst2"], variants=variants, **facts)
    for path in workdir.glob("runs/*-mask_40-*/config.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"mask_rate": 0.4}))
    path = workdir / "studies/invented.json"
    values = json.loads(path.read_text())
    for run in values["runs"]:
        run["config"] |= {"mask_rate": 0.4} if run["variant"] == "mask_40" else {}
    path.write_text(json.dumps(values))
    return study_runs.read(workdir)


def test_claims_of_a_config(tmp_path) -> None:
    stated = [
        ("mask_40 > baseline", "sst2"),  # 25 points in truth
        ("bert mask_40 > bert", "sst2", 24), ("mask_40 > baseline", "sst2", 26),
        ("gpt2 ~ bert", "sst2", 3), ("gpt2 > bert", "sst2"),  # 1.7 points less
        ("half_rate < baseline", "loss", 0.4), ("mask_40 < baseline", "loss"),
    ]  # fmt: skip
    found = evaluate(masked(tmp_path, hypotheses=stated), load_comparison(None))
    assert [f.id for f in found] == [f"hypothesis {k}" for k in range(1, 8)]  # and no others
    effects = [f.claims[0].effect for f in found]
    assert effects[:5] == pytest.approx([15 / 60, 15 / 60, 15 / 60, -1 / 60, -1 / 60])
    assert effects[5] == pytest.approx(-0.5)
    verdicts = [f.verdict for f in found]
    assert verdicts[0] == verdicts[5] == "confirmed"
    assert "refuted" not in (verdicts[1], verdicts[3])
    assert "confirmed" not in (verdicts[2], verdicts[4])
    lost = found[6].claims[0]  # a loss at another mask rate is another loss
    assert lost.effect is None
    assert any("mask_rate" in remark for remark in found[6].remarks)


def test_a_shared_objective_that_failed_stops_only_the_claims_on_it(tmp_path) -> None:
    """NSP is at chance in all arms: mask rates are compared, NSP is not."""
    stated = [("mask_40 > baseline", "sst2"), ("half_rate > baseline", "sst2")]
    study = masked(tmp_path, hypotheses=stated)
    points = []
    for point in study.points:
        objective = "mlm" if point.variant == "half_rate" else "mlm+nsp"
        runs = tuple(replace(r, config=r.config | {"objective": objective}) for r in point.runs)
        for run in runs:
            run.result.eval["512"].update(mlm_loss=5.0, nsp_accuracy=0.5)
            object.__setattr__(run.result, "unigram_nats", 7.0)
        points.append(replace(point, runs=runs))
    found = evaluate(replace(study, points=tuple(points)), load_comparison(None))
    assert [f.verdict for f in found] == ["confirmed", claims.NOT_TESTABLE]
    assert "nsp" in found[0].claims[0].checks.remark and "nsp_accuracy 0.5" in found[1].why


def test_without_claims_every_variant_is_tested_beside_the_default(tmp_path) -> None:
    found = {f.id: f for f in evaluate(masked(tmp_path), load_comparison(None))}
    assert [*found] == ["bert/gpt2", "mask_40/default", "half_rate/default"]
    assert found["mask_40/default"].verdict == "confirmed"
    scores_of = {k: [c.what.partition(", ")[2] for c in f.claims] for k, f in found.items()}
    assert len(scores_of["mask_40/default"]) == 1  # its loss is another loss
    assert "validation loss" in scores_of["half_rate/default"][1]
