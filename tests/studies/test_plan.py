"""The plan of a study: shapes that are not known yet, chosen fine-tunings, what steps add up to."""

import pathlib
import re
import sys
import types

import a_study
import pytest

from scalelab.resources.blueprint import StepTime
from scalelab.studies import expand, finetunings, plan
from scalelab.tasks import self_supervised

GRID = ("2x8x1", "2x10x1", "2x20x1")


def staged(**changes):
    """A grid, and one shape that comes out of it."""
    grid = a_study.stage(systems=("bert",), shapes=GRID, finetune="best:2")
    up = a_study.stage(systems=("bert",), shapes=("compound:1",))
    return a_study.make(finetune__tasks=("wnli",), stages={"grid": grid, "up": up}, **changes)


def test_a_shape_that_is_not_known_is_foreseen_by_its_size(tmp_path) -> None:
    made = staged()
    assert [r.name for r in expand.expand_runs(made, tmp_path)] == [f"bert-{s}-seed0" for s in GRID]
    *_, last = expand.expand_runs(made, tmp_path, foreseen=True)
    assert (last.name, last.stage) == ("bert-compound:1-seed0", "up")
    assert last.shape.n_model == pytest.approx(2 * 12 * 10**2, rel=0.1)
    assert last.config.net.width == last.shape.width


TASK = plan.TaskSize(batch_size=10, length=20.0, steps=30.0, evaluated=90.0)


class FakeClock(plan.Clock):
    """A step takes 2 s, its compilation 5 s, a fine-tuning step 0.001 s a token.

    Examples have 20 tokens.
    """

    def pretraining(self, run):
        return [StepTime(2.0, 5.0, 100) for _ in self.draw(run).phases]

    def finetuning(self, run):
        return 0.001

    def data(self, run):
        class Store(list):
            meta = {"num_tokens": 2000.0}

        phase = types.SimpleNamespace(train=Store(range(100)), steps_per_epoch=12)
        return types.SimpleNamespace(phases=[phase])


def test_a_plan_adds_up_what_training_would_do(tmp_path) -> None:
    made = a_study.make(seeds=2, finetune__seeds=3)
    first, _, second, _ = expand.expand_runs(made, tmp_path)
    clock = FakeClock([TASK])
    found = plan.expect(made, first, clock, 0.5)
    assert (found["steps"], found["secs"], found["start_secs"]) == (6, 12.0, 5.0)
    assert found["tokens"] == pytest.approx(6 * 8 * 20)
    assert found["flops"] == pytest.approx(6 * clock.draw(first).phases[0].forward.train)
    assert found["finetune_secs"] == pytest.approx(3 * 0.001 * 20 * (300 + 30))
    assert found["peak_bytes"] > 100
    secs = {"pretrain__optim__total_steps": None, "pretrain__optim__warmup_steps": None}
    secs |= {"pretrain__optim__total_secs": 9.0, "pretrain__optim__warmup_secs": 1.0}
    timed = expand.expand_runs(a_study.make(matched="secs", **secs), tmp_path)[0]
    assert plan.expect(made, timed, clock, 0.0)["steps"] == 5
    kept = "pretrain__machine__compile_cache_dir"
    again = expand.expand_runs(a_study.make(seeds=2, **{kept: str(tmp_path)}), tmp_path)[2]
    assert plan.expect(made, again, clock, 0.0)["start_secs"] == 0


def test_a_net_that_cannot_fit_is_refused_before_steps_are_timed(tmp_path) -> None:
    made = a_study.make(fields=("tokenizer.vocab_size=1000000000",))
    with pytest.raises(ValueError, match="GB are free"):
        plan.Clock([]).pretraining(expand.expand_runs(made, tmp_path)[0])


def test_only_the_chosen_are_counted() -> None:
    made = staged()
    planned = expand.expand_runs(made, pathlib.Path("/nowhere"), foreseen=True)
    shares = plan.finetune_shares(made, planned)
    assert shares == {"grid": pytest.approx(2 / 3), "up": 1.0}
    clock = FakeClock([TASK])
    expected = [
        plan.expect(made, run, clock, shares[run.stage]) | {"foreseen": run.stage == "up"}
        for run in planned
    ]
    text = plan.describe(expected, 2)
    assert "bert-compound:1-seed0 ~" in text and re.search(r"bert-2x8x1-seed0 .* \* ", text)


@pytest.mark.slow
def test_steps_are_timed_once_for_each_net(tmp_path, capsys) -> None:
    runs = expand.expand_runs(a_study.make(seeds=2), tmp_path)
    clock = plan.Clock([TASK])
    found = [(clock.pretraining(run), clock.finetuning(run)) for run in runs]
    assert found[0] == found[2] and found[1] == found[3]
    assert all(steps[0].secs > 0 and steps[0].num_bytes > 0 and per > 0 for steps, per in found)
    assert capsys.readouterr().err.count("timing steps") == 4


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
    run = expand.expand_runs(a_study.make(pretrain__data__corpus="text:x"), tmp_path)[0]
    finetunings.prepare("probes", run.config, tmp_path)
    assert (asked[0].corpus, asked[0].to) == ("text:x", tmp_path / "probes")
    splits = finetunings.load("swapped_words", "probes", tmp_path)
    assert (len(splits.train), len(splits.dev["dev"])) == (8, 4)
    finetunings.prepare(str(tmp_path), run.config, tmp_path)
    assert len(asked) == 1
