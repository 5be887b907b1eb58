"""The plan of a study: what steps add up to, and data that tasks lack."""

import sys
import types
from typing import Any

import a_study
import pytest
import tiny
from task_folders import write_rows

from scalelab import train
from scalelab.helpers.files import write_json
from scalelab.studies import expand, finetunings, plan, progress, spec
from scalelab.tasks import self_supervised
from scalelab.training import blueprint

TOKENS = 20.0 * (300 + 30)  # tokens of a fine-tuning


def expect(made: spec.StudySpec, run: expand.PlannedRun, **texts: list[float]) -> dict[str, Any]:
    """A step takes 2 s, its compilation 5 s. Examples have 20 tokens."""
    drawn = blueprint.draw(run.config)
    phase = types.SimpleNamespace(step_tokens=160.0, steps_per_epoch=12)
    data = types.SimpleNamespace(phases=[phase] * len(drawn.costs))
    steps = [blueprint.StepTime(2.0, 5.0, 100) for _ in drawn.costs]
    return plan.expect(made, run, plan.Measured(drawn, steps, data), TOKENS, texts)


def test_a_plan_adds_up_what_training_would_do(tmp_path) -> None:
    made = a_study.make(seeds=2, finetune__seeds=3)
    first, _, second, _ = expand.expand_runs(made)
    found = expect(made, first)
    assert (found["steps"], found["secs"], found["start_secs"]) == (6, 12.0, 5.0 + plan.START_SECS)
    assert found["tokens"] == pytest.approx(6 * 8 * 20)
    forward = blueprint.draw(first.config).costs[0]
    assert found["flops"] == pytest.approx(6 * forward.train)
    share = (forward.body + forward.attention) / forward.forward
    assert found["finetune_secs"] == pytest.approx(3 * TOKENS * share * 2.0 / (8 * 32))
    assert found["peak_bytes"] == 100
    secs = {"pretrain__optim__total_steps": None, "pretrain__optim__warmup_steps": None}
    secs |= {"pretrain__optim__total_secs": 9.0, "pretrain__optim__warmup_secs": 1.0}
    timed = expand.expand_runs(a_study.make(matched="secs", **secs))[0]
    assert expect(made, timed)["steps"] == 5
    kept = "pretrain__machine__compile_cache_dir"
    again = expand.expand_runs(a_study.make(seeds=2, **{kept: str(tmp_path)}))[2]
    assert expect(made, again)["start_secs"] == plan.START_SECS


@pytest.mark.slow
@pytest.mark.parametrize(("name", "small"), [("t5_architectures", ""), ("t5_scaling", "base")])
def test_the_arms_of_a_study_have_equal_flops(name: str, small: str) -> None:
    """Within 5% of each other and of the study's budget; not so after equally many steps."""
    made = spec.resolve(tiny.config_module(f"studies/{name}").get_config("seeds=1").to_dict())
    found = [(expect(made, run), run) for run in expand.expand_runs(made)]
    budget = tiny.config_module("studies/t5_architectures").FLOPS["synthetic"]
    if name == "t5_scaling":
        budget *= 4 * tiny.config_module(f"studies/{name}").SHARE
    for each, run in found:
        share = 4 if run.variant == small else 1
        assert share * each["flops"] == pytest.approx(budget, rel=0.05), run.name
    costs = [each["flops"] / each["steps"] for each, _ in found]
    assert max(costs) > 1.5 * min(costs)


def test_evaluations_are_planned(tmp_path) -> None:
    """GPT-2 reads a text once, BERT once for each token: two texts of 10 and 30 tokens."""
    write_rows(tmp_path / "lambada/lambada_test.jsonl", {"text": "a b c"}, {"text": "d e"})
    shares = {"evaluation_data": str(tmp_path), "evaluation_shares": (0.5,)}
    made = a_study.make(evaluations=("lambada",), finetune__seeds=1, **shares)
    pieces, frame = plan.WORD_PIECES, plan.FRAME_TOKENS
    assert plan.read_lengths(made, "lambada") == [3 * pieces + frame, 2 * pieces + frame]
    bert, gpt2 = expand.expand_runs(made)
    forward = 2.0 / (8 * 32) / 3
    for run, passes in ((bert, 10**2 + 30**2), (gpt2, 10 + 30)):
        plain, found = expect(made, run), expect(made, run, lambada=[10.0, 30.0])
        more = found["finetune_secs"] - plain["finetune_secs"] - plan.START_SECS
        assert more == pytest.approx(2 * (plan.EVALUATION_SECS + passes * forward))


def test_a_plan_says_whether_the_runs_fit() -> None:
    """Weights and two moments of float32; of 0.5 GiB each, three fit in 2 GiB and five do not."""
    made = a_study.make(seeds=1)
    found = expect(made, expand.expand_runs(made)[0])
    assert found["state_bytes"] == pytest.approx(12 * found["num_params"], rel=0.01)
    row = {"peak_bytes": 2**29, "state_bytes": 2**27}
    text = plan.describe_memory([row, row | {"peak_bytes": 1}], 2**28, 3, 2**31)
    assert text.startswith(
        "memory: at most 0.50 GiB of a run (0.12 parameters and optimizer, 0.12 batch, gradients"
        " and activations, 0.25 libraries and data); 1.50 GiB with 3 at a time fits in 2.0 GiB"
    )
    assert "5 at a time does NOT fit in 2.0 GiB" in plan.describe_memory([row], 2**28, 5, 2**31)
    card = plan.describe_memory([row], 0, 1, None)
    assert "libraries" not in card and "at a time" not in card


@pytest.mark.slow
def test_the_planned_flops_are_those_of_the_run(wikitext, cache_dir, tmp_path) -> None:
    """Of two mask rates, whose heads run on different numbers of positions."""
    variants = {"default": (), "rate_40": ("mask_rate=0.4",)}
    stage = a_study.stage(systems=("bert",), variants=tuple(variants))
    made = a_study.make(
        variants=variants, stages={"main": stage}, pretrain__optim__total_steps=2,
        pretrain__optim__warmup_steps=1, pretrain__eval__every_steps=2,
        pretrain__data__corpus=f"wikitext:{wikitext}", pretrain__machine__cache_dir=str(cache_dir),
    )  # fmt: skip
    known, planned = {}, []
    for run in expand.expand_runs(made):
        found = plan.expect(made, run, plan.measure(run, known), 0.0)
        done = train.train(train.pretraining(run.config, tmp_path / run.name))
        assert (found["steps"], found["flops"]) == (done["steps"], pytest.approx(done["flops"]))
        planned.append(found["flops"] / found["steps"])
    assert planned[1] > 1.1 * planned[0]


def test_a_net_that_cannot_fit_is_refused_before_steps_are_timed(tmp_path) -> None:
    made = a_study.make(fields=("tokenizer.vocab_size=1000000000",))
    with pytest.raises(ValueError, match="GB are free"):
        plan.measure(expand.expand_runs(made)[0], {})


def test_arms_that_differ_in_fine_tuning_alone_train_once(tmp_path) -> None:
    made = a_study.make(
        seeds=2, variants={"default": (), "long": ("finetune.epochs=9",)},
        stages={"main": a_study.stage(variants=("default", "long"))},
    )  # fmt: skip
    runs = expand.expand_runs(made)
    plan.count_twins_once(rows := [expect(made, run) for run in runs], runs)
    trains = [run.variant == "default" for run in runs]
    assert [row["secs"] > 0 for row in rows] == [row["flops"] > 0 for row in rows] == trains
    (tmp_path / "plans").mkdir()
    write_json(tmp_path / "plans/a.json", {"runs": rows})
    assert len(progress.read_plan(tmp_path, "a")) == 2 * sum(trains) == 8


def test_a_stage_without_fine_tunings_has_none(tmp_path) -> None:
    made = a_study.make(stages={"main": a_study.stage(finetune="none")})
    found = [expect(made, run) for run in expand.expand_runs(made)]
    assert [run["finetune_secs"] for run in found] == [0.0, 0.0]
    assert "2 runs, " in plan.describe(found, 2)


@pytest.mark.slow
def test_steps_are_timed_once_for_each_net(monkeypatch, capsys) -> None:
    runs = expand.expand_runs(a_study.make(seeds=2))
    monkeypatch.setattr("scalelab.data.loading.load_data", lambda config, system: system)
    known: dict[str, Any] = {}
    found = [plan.measure(run, known) for run in runs]
    assert found[0] == found[2] and found[1] == found[3] and found[0] != found[1]
    assert all(one.steps[0].secs > 0 and one.steps[0].num_bytes > 0 for one in found)
    assert capsys.readouterr().err.count("timing steps") == 2


# --- Tasks without data ---------------------------------------------------------------------------


def test_a_study_without_data_names_the_argument_before_anything_is_written(
    tmp_path, monkeypatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)  # as if not installed
    made = a_study.make(finetune__tasks=("wnli",), finetune__data=None)
    workdir = tmp_path / "w"
    with pytest.raises(ValueError, match="data=DIR"):
        plan.make(made, workdir, "", 1)
    assert not workdir.exists()


def test_probes_are_made_from_the_studys_own_corpus(tmp_path, monkeypatch) -> None:
    """Into the study's folder, and read as tasks; any other data is left alone."""
    asked = []

    def make(given) -> None:
        asked.append(given)
        rows = [self_supervised.Row((f"a sentence {i}",), i % 2) for i in range(8)]
        self_supervised.write(given.to, {"swapped_words": {"train": rows, "dev": rows[:4]}}, {})

    monkeypatch.setattr(self_supervised, "run", make)
    run = expand.expand_runs(a_study.make(pretrain__data__corpus="text:x"))[0]
    finetunings.prepare("probes", run.config, tmp_path)
    assert (asked[0].corpus, asked[0].to) == ("text:x", tmp_path / "probes")
    splits = finetunings.load("swapped_words", "probes", tmp_path)
    assert (len(splits.train), len(splits.dev["dev"])) == (8, 4)
    finetunings.prepare(str(tmp_path), run.config, tmp_path)
    assert len(asked) == 1
