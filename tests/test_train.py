"""Whole runs at a tiny shape: what they leave, and that stopping them anywhere changes nothing."""

import dataclasses
import functools
import json
import math
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import types
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
import tiny
from train_lab import SHORT_STEPS, STEPS, Killed, Lab, Record, fields, kill_at

from scalelab import systems, train
from scalelab.config import exits
from scalelab.config import pretraining as config_lib
from scalelab.data import tokenizers
from scalelab.data.loading import load_data
from scalelab.eval import evaluation, pairs, suites
from scalelab.helpers import progress
from scalelab.optim import adamw
from scalelab.records import metrics, plots, run_folder
from scalelab.resources import flops
from scalelab.training import checkpoint, feeding, pretrained


@pytest.fixture(scope="module")
def whole(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Record:
    """The run that nothing stops."""
    return lab.run(tmp_path_factory.mktemp("whole") / "run")


def assert_continues(whole: Record, stopped: Record, resumed: Record) -> None:
    """Every step of both parts is bit for bit that of the whole run, and so is what they leave."""
    assert resumed.result is not None
    done = {**stopped.states, **resumed.states}
    assert done.keys() == whole.states.keys()
    for part in (stopped, resumed):
        part.assert_equal(whole)
        assert all(whole.best[k] == best for k, best in part.best.items())
    assert resumed.timeless() == whole.timeless()
    same = ("steps", "tokens", "flops", "eval", "params", "status", "n_model", "shape", "seed")
    assert {k: resumed.result[k] for k in same} == {k: whole.result[k] for k in same}


def assert_last_parameters(workdir: pathlib.Path, whole: Record) -> None:
    found, expected = pretrained.load(workdir).params, whole.states[STEPS].params
    jax.tree.map(np.testing.assert_array_equal, found, expected)


@pytest.mark.usefixtures("whole")  # the first run of a lab draws its curves
def test_pairs_by_words_seen(lab: Lab, tmp_path) -> None:
    """A line every N words, and checkpoints that stay; a stop in between changes nothing."""
    rows = [{"good": "The man of lake", "bad": f"man the {k} lake of"} for k in range(5)]
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    probe = load_data(lab.config(), systems.load("roberta"), progress=False)
    every = int(150 * probe.words_per_token)
    config = lab.config(eval__pairs=str(path), eval__pairs_every_words=every,
                        machine__num_checkpoints=1)  # fmt: skip
    whole = lab.run(tmp_path / "whole", config)
    lines = [line for line in whole.lines() if "eval/pairs_accuracy" in line]
    tokens = np.cumsum([0, *(int(whole.batches[k]["lengths"].sum()) for k in range(STEPS))])
    reached = (tokens * probe.words_per_token).astype(int) // every
    steps = [k for k in range(1, STEPS + 1) if reached[k] > reached[k - 1]]
    assert [line["step"] for line in lines] == steps and len(steps) > 11
    assert [line["eval/words"] for line in lines] == [int(reached[k]) * every for k in steps]
    marks = {n * 10**power for n in range(1, 10) for power in range(3)}
    kept = [k for k in steps if marks & {*range(reached[k - 1] + 1, reached[k] + 1)}]
    there = {int(p.name) for p in (tmp_path / "whole/checkpoints").iterdir()}
    assert {*kept} <= there and len(there - {*kept}) <= 2 and len(kept) < len(steps)
    # The same numbers as the program of pairs has from that checkpoint.
    at = kept[3]
    opened = pretrained.load(tmp_path / "whole", at)
    asked = evaluation.Asked(None, path, {"rule": None, "per_group": 0})
    score = pairs.measure(opened, suites.read_pairs(path), asked).scores["accuracy"]
    assert next(line for line in lines if line["step"] == at)["eval/pairs_accuracy"] == score
    assert_continues(whole, *lab.killed(tmp_path / "cut", config, at=kept[2] + 1))
    assert there == {int(p.name) for p in (tmp_path / "cut/checkpoints").iterdir()}


def test_checkpoints_at_shares_of_the_budget(lab: Lab, whole: Record, tmp_path) -> None:
    """They stay, each has a line with its step, and the run is bit for bit the one without them."""
    shares = (0.2, 0.5, 0.51)
    config = lab.config(machine__kept_shares=shares, machine__num_checkpoints=1)
    kept = [5, 12, 13]  # 24 steps in all
    stopped, resumed = lab.killed(tmp_path / "cut", config, at=13)
    lines = [(x["step"], x["eval/share"]) for x in resumed.lines() if "eval/share" in x]
    assert lines == [*zip(kept, shares, strict=True)]
    there = {int(p.name) for p in (tmp_path / "cut/checkpoints").iterdir()}
    assert {*kept} <= there and len(there) <= len(kept) + 2
    for part in (stopped, resumed):
        part.assert_equal(whole)
    opened = pretrained.load(tmp_path / "cut", 5)
    jax.tree.map(np.testing.assert_array_equal, opened.params, whole.states[5].params)
    with pytest.raises(ValueError, match="of step 6; it keeps those of steps .*5, 12, 13"):
        pretrained.load(tmp_path / "cut", 6)


# --- What a run leaves ----------------------------------------------------------------------------


def test_the_run_folder(whole: Record, lab: Lab) -> None:
    names = {path.name for path in whole.workdir.iterdir()}
    assert names == {
        "config.json", "environment.json", "tokenizer", "metrics.jsonl",
        "checkpoints", "tensorboard", "curves.png", "result.json", ".lock",
    }  # fmt: skip
    assert (whole.workdir / "curves.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert (whole.workdir / "tokenizer/tokenizer.json").is_file()
    assert list((whole.workdir / "tensorboard").glob("*events*"))
    assert sorted(int(p.name) for p in (whole.workdir / "checkpoints").iterdir())[-1] == STEPS
    config, environment = (
        json.loads((whole.workdir / name).read_text())
        for name in ("config.json", "environment.json")
    )
    assert config_lib.resolve(config) == lab.config()
    wanted = {"packages", "devices", "host", "git_commit", "git_dirty", "command", "python"}
    assert wanted <= environment.keys() and environment["packages"]["jax"] == jax.__version__
    opened = pretrained.load(whole.workdir)
    assert opened.finished and opened.step == STEPS
    assert_last_parameters(whole.workdir, whole)


def test_result_json(whole: Record, lab: Lab) -> None:
    result = json.loads((whole.workdir / "result.json").read_text())
    assert result == whole.result
    assert result["status"] == "completed" and result["task"] is None
    assert result["system"] == "roberta" and result["shape"] == {"A": 2, "H": 8, "L": 1}
    assert result["n_model"] == 12 * 8 * 8 and result["seed"] == 0
    data = load_data(lab.config(), systems.load("roberta"), progress=False)
    lengths = [np.diff(phase.train.arrays["tokens_starts"]) for phase in data.phases]
    assert result["phases"] == [  # an epoch of each phase
        {
            "max_len": max_len,
            "examples": len(ours),
            "tokens": int(ours.sum()),
            "padding_share": pytest.approx(1 - ours.mean() / max_len),
            "valid_examples": min(len(phase.valid), 32),
        }
        for max_len, ours, phase in zip((32, 64), lengths, data.phases, strict=True)
    ]
    held = {"documents": data.valid.num_documents, "tokens": len(data.valid.tokens)}
    assert result["validation"] == held | {"unknown": 0} and held["documents"] > 0
    assert result["corpus"]["tokens"] > 0 and result["corpus"]["documents"] > 0
    assert result["departures"] == []  # roberta is the base config
    assert result["steps"] == STEPS and result["seconds"] > 0
    final = whole.states[STEPS]
    assert result["params"] == sum(leaf.size for leaf in jax.tree.leaves(final.params))
    environment = json.loads((whole.workdir / "environment.json").read_text())
    assert environment["tokenizer_digest"] == tokenizers.digest(whole.workdir / "tokenizer")
    assert result["eval"].keys() == {"32", "64"}
    for length, at in (("32", SHORT_STEPS), ("64", STEPS)):
        assert result["eval"][length]["step"] == at
        wanted = {"loss", "mlm_loss", "mlm_accuracy", "perplexity", "bits_per_byte"}
        assert wanted <= result["eval"][length].keys()
    unlearned = result["eval"]["64"]["mlm_loss"] > result["unigram_nats"]
    assert [remark.partition(" ")[0] for remark in result["remarks"]] == ["mlm"] * unlearned


def test_metrics_have_the_clocks_and_the_losses(whole: Record) -> None:
    lines = whole.lines()
    trained = [line for line in lines if "train/loss" in line]
    evaluated = [line for line in lines if "eval/loss" in line]
    assert [line["step"] for line in trained] == [4, 8, 12, 16, 20, 24]
    assert [line["step"] for line in evaluated] == [0, 10, 20, 24]
    assert [line["eval/max_len"] for line in evaluated] == [32, 32, 32, 64]
    for clock in ("step", "tokens", "flops", "seconds"):
        values = [line[clock] for line in lines]
        assert values == sorted(values) and values[-1] > values[1] > values[0] == 0
    for line in trained:  # the mean over steps, and over predictions
        assert line["train/loss"] == pytest.approx(line["train/mlm_loss"], rel=1e-2)
    assert trained[0]["train/loss"] > trained[-1]["train/loss"]
    # The phases are one run, whose tokens are not padding.
    counted = sum(int(batch["lengths"].sum()) for batch in whole.batches.values())
    assert whole.result["tokens"] == counted
    assert counted < sum(batch["tokens"].size for batch in whole.batches.values())
    shapes = [whole.batches[k]["tokens"].shape for k in range(STEPS)]
    assert shapes == [(8, 32)] * SHORT_STEPS + [(4, 64)] * (STEPS - SHORT_STEPS)


def test_a_weighted_sum_is_minimised_validated_and_ranked(lab: Lab, tmp_path: pathlib.Path) -> None:
    every = dict(eval__every_steps=1, machine__log_every_steps=1, long__example_rate=0.0)
    config = lab.config("system=bert,steps=2", objective="mlm+50*nsp", **every)
    record = lab.run(tmp_path / "run", config)
    losses = {}
    for kind in ("train", "eval"):
        lines = [line for line in record.lines() if f"{kind}/loss" in line]
        sums = [line[f"{kind}/mlm_loss"] + 50 * line[f"{kind}/nsp_loss"] for line in lines]
        losses[kind] = [line[f"{kind}/loss"] for line in lines]
        assert losses[kind] == pytest.approx(sums, rel=1e-5)
    assert (len(losses["train"]), len(losses["eval"])) == (2, 3)  # the untrained model too
    assert record.best[2] == min(losses["eval"])


# --- Stopping and going on ------------------------------------------------------------------------


slow = functools.partial(pytest.param, marks=pytest.mark.slow)


@pytest.mark.parametrize("k", [slow(0), slow(3), 7, slow(19), 20, slow(22)])
def test_a_killed_run_continues_bit_for_bit(k: int, lab, whole, tmp_path) -> None:
    """Before its first step, between checkpoints, at the last step of a phase and the first."""
    stopped = lab.run(tmp_path / "run", before=kill_at(k))
    assert stopped.result is None and not (tmp_path / "run/result.json").exists()
    resumed = lab.run(tmp_path / "run")
    saved = [0, *(s for s in range(1, STEPS) if s % 6 == 0 or s in (10, 20))]
    assert min(resumed.states) == max(s for s in saved if s <= k) + 1
    assert_continues(whole, stopped, resumed)
    starts = json.loads((tmp_path / "run/environment.json").read_text())
    assert len(starts["earlier_starts"]) == 1


def test_the_order_has_a_seed_of_its_own(lab: Lab, whole: Record, tmp_path: pathlib.Path) -> None:
    """It is the run's seed by default; the first parameters do not depend on it."""
    runs = [whole]
    for seed in (0, 7):
        given = lab.config(data__order_seed=seed)
        runs.append(lab.run(tmp_path / f"order{seed}", given, before=kill_at(1)))
    first, same, other = (run.batches[0]["tokens"] for run in runs)
    assert np.array_equal(first, same) and not np.array_equal(first, other)
    texts = [(run.workdir / "metrics.jsonl").read_text() for run in runs]
    assert len({json.loads(text.splitlines()[0])["eval/loss"] for text in texts}) == 1


def test_static_masks_continue_bit_for_bit(lab: Lab, tmp_path: pathlib.Path) -> None:
    config = lab.config(f"system=roberta,steps={STEPS}", mask_copies=2)
    whole = lab.run(tmp_path / "whole", config)
    assert_continues(whole, *lab.killed(tmp_path / "run", config, at=9))
    assert all("mask_ids" in batch for batch in whole.batches.values())


def test_blocks_loaders_and_a_resume_inside_a_block_do_not_move_a_bit(lab, whole, tmp_path) -> None:
    """Two phases of 20 and 4 steps, with nothing due between; and the run of single steps."""
    rarely = {"machine__log_every_steps": 24, "machine__checkpoint_every_steps": 24}
    rarely |= {"eval__every_steps": 24, "machine__loader": "device"}
    ways = {
        "one": {"machine__steps_per_dispatch": 1},
        "all": {"machine__steps_per_dispatch": 32},
        "timed": {},
        "host": {"machine__loader": "numpy", "machine__steps_per_dispatch": 7},
        "tf": {"machine__loader": "tf", "machine__steps_per_dispatch": 32},
    }
    # Killed at 15, saved at 12, in the middle of a block of 7 of the first 20 steps.
    often = {"machine__checkpoint_every_steps": 12}
    lab.run(tmp_path / "cut", lab.config(**(rarely | often)), before=kill_at(15))
    ways["cut"] = often | {"machine__steps_per_dispatch": 7}
    lines = {}
    for name, own in ways.items():
        lab.run(tmp_path / name, lab.config(**(rarely | own)), blocks=True)
        lines[name] = Record(tmp_path / name).timeless()
        assert lines[name] == lines["one"]
        assert_last_parameters(tmp_path / name, whole)


def test_examples_that_do_not_fit_on_the_device_are_sent(
    lab: Lab, whole: Record, tmp_path: pathlib.Path, monkeypatch, capsys
) -> None:
    """Said once a phase; the run is the same."""
    monkeypatch.setattr(feeding, "free_bytes", lambda mesh: 1000)
    lab.run(tmp_path / "run", lab.config(machine__loader="device"), blocks=True)
    assert capsys.readouterr().out.count("the host makes the batches") == 2
    assert_last_parameters(tmp_path / "run", whole)


@pytest.mark.parametrize(("k", "number"), [(8, signal.SIGINT), slow(19, signal.SIGTERM)])
def test_a_signal_saves_and_says_how_to_continue(k: int, number: int, lab, whole, tmp_path) -> None:
    name = signal.Signals(number).name
    handler = signal.getsignal(number)
    stopping = f"{name}: step {k + 1} is saved.*same command"
    with pytest.raises(exits.Stopped, match=stopping) as stopped:
        before = lambda step: signal.raise_signal(number) if step == k else None  # noqa: E731
        lab.run(tmp_path / "run", before=before)
    assert stopped.value.exit_code == (75 if number == signal.SIGTERM else 2)
    assert signal.getsignal(number) is handler
    assert not (tmp_path / "run/result.json").exists()
    resumed = lab.run(tmp_path / "run")
    assert min(resumed.states) == k + 2
    assert_continues(whole, Record(tmp_path, states={
        k: v for k, v in whole.states.items() if k < min(resumed.states)
    }, best=whole.best), resumed)  # fmt: skip


def test_two_runs_in_one_folder_at_once_are_refused(lab: Lab, tmp_path: pathlib.Path) -> None:
    with run_folder.locked(tmp_path), pytest.raises(ValueError, match="another process"):
        lab.run(tmp_path)
    assert lab.run(tmp_path, before=kill_at(1)).states


def test_a_run_killed_before_its_result_only_writes_that(lab, whole, tmp_path, monkeypatch) -> None:
    def killed(*_: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(plots, "draw_curves", killed)
        stopped = lab.run(tmp_path / "run")
    resumed = lab.run(tmp_path / "run")
    assert not resumed.states
    assert_continues(whole, stopped, resumed)


def test_a_finished_run_says_so_and_does_nothing(lab, whole, capsys) -> None:
    def stamps() -> dict[pathlib.Path, int]:
        files = (p for p in whole.workdir.rglob("*") if p.is_file())
        return {p: p.stat().st_mtime_ns for p in files}

    before = stamps()
    again = lab.run(whole.workdir)
    assert again.result == whole.result and not again.states
    assert "already finished (24 steps)" in capsys.readouterr().out
    assert stamps() == before


def test_a_finished_run_is_extended_as_if_it_had_the_budget_from_the_start(lab, tmp_path) -> None:
    own = {"optim__schedule": "constant", "optim__warmup_steps": 2, "long__example_rate": 0.0}
    configs = [lab.config(f"system=roberta,steps={n}", **own) for n in (20, STEPS)]
    straight = lab.run(tmp_path / "straight", configs[1])
    begun = lab.run(tmp_path / "run", configs[0])
    assert begun.result is not None
    extended = lab.run(tmp_path / "run", configs[1])
    assert min(extended.states) == 21
    assert_continues(straight, begun, extended)
    assert json.loads((tmp_path / "run/result-step20.json").read_text())["steps"] == 20
    with pytest.raises(ValueError, match="optim.total_steps: 24 -> 20"):
        lab.run(tmp_path / "run", configs[0])


def test_a_run_is_extended_although_its_validations_follow_the_budget(lab, tmp_path) -> None:
    """With pretrain:steps=N alone, where the config derives the validations from N."""

    def config(steps: int, **own: Any) -> config_lib.Config:
        plain = lab.config(f"system=roberta,steps={steps}", long__example_rate=0.0, **own)
        given = tiny.values(f"steps={steps}")
        values = dataclasses.asdict(plain)
        values["eval"], values["machine"]["log_every_steps"] = given["eval"], 1
        return config_lib.resolve(values)

    own = {"optim__schedule": "constant", "optim__warmup_steps": 1}
    straight, begun = (lab.run(tmp_path / str(steps), config(steps, **own)) for steps in (20, 10))
    with pytest.raises(ValueError, match="keep --config.optim.learning_rate=0.01"):
        lab.run(begun.workdir, config(20, **own, optim__learning_rate=0.02))
    extended = lab.run(begun.workdir, config(20, **own))
    assert extended.states.keys() == {*range(11, 21)}
    jax.tree.map(np.testing.assert_array_equal, extended.states[20], straight.states[20])
    assert extended.result and straight.result
    assert extended.result["eval"] == straight.result["eval"]


@pytest.mark.parametrize(("own", "message"), [
    ({}, "optim.schedule=constant"),
    ({"optim__schedule": "constant", "optim__warmup_steps": 2}, "one phase"),
    ({"optim__schedule": "constant", "long__example_rate": 0.0}, "keep .*optim.warmup_steps=2"),
    ({"long__example_rate": 0.0}, "optim.schedule=constant"),
])  # fmt: skip
def test_what_depends_on_the_budget_cannot_be_extended(own, message, lab, tmp_path) -> None:
    short, long = (lab.config(f"system=roberta,steps={steps}", **own) for steps in (20, 40))
    lab.run(tmp_path, short, before=kill_at(1))
    with pytest.raises(ValueError, match=message):
        lab.run(tmp_path, long)


def test_a_damaged_checkpoint_falls_back_and_the_run_continues(
    lab: Lab, whole: Record, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture
) -> None:
    stopped = lab.run(tmp_path / "run", before=kill_at(13))
    data = max((tmp_path / "run/checkpoints/12/state/d").iterdir(), key=lambda p: p.stat().st_size)
    data.write_bytes(data.read_bytes()[:100])
    resumed = lab.run(tmp_path / "run")
    assert "checkpoint 12" in capsys.readouterr().out
    assert min(resumed.states) == 11
    assert_continues(whole, stopped, resumed)


def test_a_budget_in_tokens_continues_after_the_last_step_of_a_phase(lab, tmp_path) -> None:
    """Where a phase ends is known only after its last step; the checkpoint there knows it too."""
    config = lab.config("system=roberta,tokens=3000")
    straight = lab.run(tmp_path / "straight", config)
    second_phase = min(n for n, b in straight.batches.items() if len(b["tokens"]) == 4)
    stopped, resumed = lab.killed(tmp_path / "run", config, at=second_phase)
    assert max(stopped.states) == second_phase
    assert_continues(straight, stopped, resumed)


@pytest.mark.parametrize("keep", [0, 2])
def test_a_cut_metrics_file_is_named_and_continued(keep: int, lab, whole, tmp_path, capsys) -> None:
    """At step 12 it has had five lines: of steps 0, 4, 8, 10 and 12."""
    lab.run(tmp_path / "run", before=kill_at(13))
    path = tmp_path / "run/metrics.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:keep]))
    capsys.readouterr()
    resumed = lab.run(tmp_path / "run")
    assert f"{keep} of the 5" in capsys.readouterr().out
    steps = [line["step"] for line in whole.lines()]
    assert [line["step"] for line in resumed.lines()] == steps[:keep] + steps[5:]
    lab.run(tmp_path / "run")
    assert "warning" not in capsys.readouterr().out


# --- Clocks ---------------------------------------------------------------------------------------


def own_clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """A clock that stands still but when it is told how many seconds have passed."""
    now = [0.0]
    ours = types.SimpleNamespace(
        perf_counter=lambda: now[0], time=time.time, monotonic=time.monotonic
    )
    for module in (metrics, train, progress):
        monkeypatch.setattr(module, "time", ours)

    def pass_time(secs: float) -> None:
        now[0] += secs

    return pass_time


@pytest.mark.parametrize("clock", ["tokens", "flops", "secs"])
def test_a_budget_on_each_clock(clock: str, lab, tmp_path, monkeypatch) -> None:
    """It ends with the step that reaches the budget, and the schedule runs on the same clock."""
    total = {"tokens": 4000, "flops": 3e7, "secs": 0.3}[clock]
    config = lab.config(f"system=roberta,{clock}={total}", machine__log_every_steps=1)
    pass_time = own_clock(monkeypatch)
    record = lab.run(tmp_path / "run", config, before=lambda step: pass_time(0.01))
    name = {"secs": "seconds"}.get(clock, clock)
    readings = {line["step"]: line for line in record.lines() if "train/learning_rate" in line}
    warmup = 0.1 if clock == "tokens" else 0.01
    steps = record.result["steps"]
    assert sorted(readings) == list(range(1, steps + 1))
    assert readings[steps - 1][name] < total <= record.result[name]
    for k in range(2, steps + 1):
        factor = adamw.linear(readings[k - 1][name], warmup * total, total)
        rate = readings[k]["train/learning_rate"] / 1e-2
        assert rate == pytest.approx(factor, rel=1e-6, abs=1e-8)
    lengths = [batch["tokens"].shape[1] for batch in record.batches.values()]
    assert lengths == sorted(lengths) and set(lengths) == {32, 64}


def after(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, do: Callable[[], None]) -> None:
    """Does something more at each call of a function."""
    plain = getattr(owner, name)

    def both(*args: Any, **kwargs: Any) -> Any:
        do()
        return plain(*args, **kwargs)

    monkeypatch.setattr(owner, name, both)


def test_seconds_are_of_training_alone_and_so_is_the_progress_line(
    lab: Lab, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    """Steps take 10 ms, a validation 100 s, a checkpoint 1,000 s, starting the pipeline 7 s."""
    pass_time = own_clock(monkeypatch)
    evaluations, saves = [], []
    after(monkeypatch, metrics, "summarize_eval", lambda: evaluations.append(pass_time(100)))
    after(monkeypatch, checkpoint, "checksums", lambda: saves.append(pass_time(1000)))
    after(monkeypatch, feeding, "iterate", lambda: pass_time(7))
    monkeypatch.setattr(flops, "device_peak", lambda kind: 1e9)
    record = lab.run(tmp_path / "run", before=lambda step: pass_time(0.01))
    result, lines = record.result, record.lines()
    assert result["seconds"] == pytest.approx(0.01 * STEPS)
    assert len(evaluations) == 4 and result["eval_secs"] == pytest.approx(400)
    assert len(saves) > 5 and result["save_secs"] == pytest.approx(1000 * len(saves))
    last = capsys.readouterr().err.strip().splitlines()[-1]
    a, b = [line for line in lines if "train/loss" in line][-2:]
    share = (b["flops"] - a["flops"]) / (b["step"] - a["step"]) * 100 / 1e9
    assert last.startswith(f"roberta 2x8x1 seed 0 | step {STEPS} (100%) | loss ")
    assert share > 0.01 and f"| MFU {share:.0%} | ETA 0s" in last


def test_a_cpu_has_no_mfu(lab: Lab, tmp_path: pathlib.Path, capsys) -> None:
    """No data sheet has its peak, and measured on a busy machine it is any number."""
    lab.run(tmp_path / "run")
    assert "tokens/s | ETA 0s" in capsys.readouterr().err.strip().splitlines()[-1]
    assert flops.device_peak("NVIDIA H100 80GB HBM3") == 989e12 and flops.device_peak("cpu") is None


def test_the_best_checkpoint_outlives_the_last_ones(lab, tmp_path, monkeypatch) -> None:
    losses = iter([9.0, 3.0, 1.0, 2.0, 2.5])
    monkeypatch.setattr(metrics, "summarize_eval", lambda *_: {"loss": next(losses)})
    config = lab.config(
        "system=roberta,steps=20", long__example_rate=0.0, eval__every_steps=5,
        machine__checkpoint_every_steps=6,
    )  # fmt: skip
    record = lab.run(tmp_path / "run", config)
    kept = {int(path.name) for path in (record.workdir / "checkpoints").iterdir()}
    assert kept == {10, 18, 20}


# --- What goes wrong ------------------------------------------------------------------------------


def test_a_loss_that_is_not_finite_stops_the_run_with_the_last_good_checkpoint(
    lab: Lab, tmp_path: pathlib.Path
) -> None:
    config = lab.config(optim__learning_rate=1e30, optim__clip_norm=None)
    with pytest.raises(exits.Stopped, match=r"step \d+ .* step (0|6)"):
        lab.run(tmp_path / "run", config)
    assert not (tmp_path / "run/result.json").exists()
    (last,) = {int(p.name) for p in (tmp_path / "run/checkpoints").iterdir()} & {0, 6}
    assert last in (0, 6)


@pytest.mark.parametrize(("fields", "named"), [
    (dict(tokenizer__vocab_size=10**9), "1,.* GB.*vocab_size"),
    (dict(model__num_layers=10**9), "GB"),
    (dict(model__width=10**9), "GB|out of range"),
    (dict(model__width=10**20), "model.width = 1.*: expected"),
    (dict(model__num_heads=7, model__width=2 * 10**9), "does not divide"),
])  # fmt: skip
def test_a_net_that_cannot_fit_is_refused_before_it_is_made(fields, named, lab, tmp_path) -> None:
    with pytest.raises(ValueError, match=named):
        lab.run(tmp_path / "run", lab.config(**fields))


def test_other_examples_than_the_run_was_begun_with_are_refused(lab, tmp_path) -> None:
    corpus = tiny.write_wikitext(tmp_path / "corpus")
    config = lab.config(f"system=roberta,steps=24,corpus=wikitext:{corpus}")
    lab.run(tmp_path / "run", config, before=kill_at(8))
    tiny.write_wikitext(corpus, seed=1)
    with pytest.raises(ValueError, match=f"{tmp_path}/run .*--workdir"):
        lab.run(tmp_path / "run", config)


def test_a_tokenizer_that_changed_since_the_run_began_is_refused(lab, tmp_path) -> None:
    lab.run(tmp_path / "run", before=kill_at(7))
    path = tmp_path / "run/tokenizer/tokenizer.json"
    path.write_text(path.read_text() + " ")
    with pytest.raises(ValueError, match=f"{tmp_path}/run/tokenizer has changed"):
        lab.run(tmp_path / "run")


# --- The real program -----------------------------------------------------------------------------


def final_state(workdir: pathlib.Path) -> dict[str, Any]:
    """Parameters and the rest of the last checkpoint, as it lies on disk."""
    import orbax.checkpoint as ocp

    last = max((workdir / "checkpoints").iterdir(), key=lambda path: int(path.name))
    with ocp.StandardCheckpointer() as reader:
        return reader.restore(last.absolute() / "state")


@pytest.mark.ci
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")  # orbax: restored as it lies, on one device
def test_the_program_killed_and_interrupted_at_any_moment_continues_bit_for_bit(
    wikitext, cache_dir, tmp_path
) -> None:
    given = fields(cache_dir) | {"machine__compile_cache_dir": cache_dir / "xla"}
    given |= {"long__example_rate": 0.1}

    def start(folder: pathlib.Path) -> subprocess.Popen:
        flags = tiny.train_flags(folder, wikitext, cache_dir, 60, **given)
        return subprocess.Popen(
            [sys.executable, "-m", "scalelab.train", *flags], cwd=tiny.ROOT, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=os.environ | {"PYTHONUNBUFFERED": "1", "JAX_DISABLE_MOST_OPTIMIZATIONS": "0"},
        )  # fmt: skip

    straight = start(tmp_path / "straight")
    out, errors = straight.communicate(timeout=300)
    assert straight.returncode == 0, errors
    workdir = tmp_path / "run"
    # Killed later at each start, somewhere on the way; then interrupted, once and twice.
    kills = [(0.0, signal.SIGKILL), (0.3, signal.SIGKILL)]
    interrupts = [(0.2, signal.SIGINT), (0.0, signal.SIGINT)]
    for place, (delay, number) in enumerate([*kills, *interrupts]):
        process = start(workdir)
        for line in process.stdout:
            if "compiled" in line:
                break
        time.sleep(delay)
        process.send_signal(number)
        if place == len(kills) + 1:
            time.sleep(0.02)
            process.send_signal(number)
        _, errors = process.communicate(timeout=120)
        if number == signal.SIGINT and process.returncode != 0:
            assert process.returncode == 2
            assert re.search("(?m)^interrupted.*same command", errors)
            assert "Traceback" not in errors and "error: " not in errors
    process = start(workdir)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    jax.tree.map(
        np.testing.assert_array_equal, final_state(workdir), final_state(tmp_path / "straight")
    )
    ours, theirs = (
        json.loads((folder / "result.json").read_text())
        for folder in (workdir, tmp_path / "straight")
    )
    for name in ("steps", "tokens", "flops", "eval"):
        assert ours[name] == theirs[name]
    assert math.isfinite(ours["eval"]["64"]["loss"])


def test_a_run_that_diverges_in_its_last_step_stops(lab: Lab, tmp_path: pathlib.Path) -> None:
    """Its loss and gradient were finite: only the parameters after it are not."""
    steep = dict(optim__learning_rate=1e30, optim__warmup_steps=0, long__example_rate=0.0)
    with pytest.raises(
        exits.Stopped, match="validation after step 1 has loss nan.*step 0 are kept"
    ):
        lab.run(tmp_path / "run", lab.config("system=gpt2,steps=1", **steep), blocks=True)
    assert not (tmp_path / "run/result.json").exists()
