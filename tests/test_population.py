"""Runs that train together leave what each leaves alone, wherever they are stopped."""

import dataclasses
import itertools
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from typing import Any

import jax
import numpy as np
import pytest
import tiny
from train_lab import Lab, fields, kill_at, signal_at

from scalelab.config import cli
from scalelab.config.pretraining import Config
from scalelab.runs import checkpoint, compatibility, pretrained

Runs = list[tuple[Config, pathlib.Path]]
TOLERANCE = dict(rtol=1e-5, atol=1e-5)
STEPS = 12
SHARED = ("seconds", "train/tokens_per_sec")  # what time it takes is not a run's own


def runs_of(
    lab: Lab, folder: pathlib.Path, arguments: str = f"system=bert,steps={STEPS}", **fields: Any
) -> Runs:
    """Two seeds, and one of them at another rate; one phase, if nothing else is said."""
    config = lab.config(arguments, **({"long__example_rate": 0.0} | fields))
    runs = compatibility.expand_runs(config, folder, ["0", "1"], ["3e-3", "1e-3"])
    return [run for run in runs if run[1].name != "seed0-rate0.001"]


@pytest.fixture(scope="module")
def single_runs(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """The runs, one by one."""
    runs = runs_of(lab, tmp_path_factory.mktemp("alone"))
    for config, folder in runs:
        lab.run(folder, config)
    return runs


def lines(folder: pathlib.Path) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k not in SHARED} for line in found]


def files(folder: pathlib.Path) -> set[str]:
    return {path.name for path in folder.iterdir()} - {"curves.png"}  # the lab draws it once


def params(folder: pathlib.Path) -> Any:
    kept = checkpoint.Checkpoints(folder / "checkpoints", None)
    found = kept.restore(None)
    kept.close()
    assert found is not None
    return found[0]


def assert_close(ours: Any, theirs: Any) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **TOLERANCE), ours, theirs)


def assert_same_run(ours: pathlib.Path, theirs: pathlib.Path) -> None:
    """Files, metrics, results, and the whole state of the last checkpoint."""
    assert files(ours) == files(theirs)
    for name in ("config.json", "tokenizer/tokenizer.json"):
        assert (ours / name).read_bytes() == (theirs / name).read_bytes()
    assert_close(lines(ours), lines(theirs))
    kept = [{p.name for p in (folder / "checkpoints").iterdir()} for folder in (ours, theirs)]
    assert kept[0] == kept[1]
    assert_close(params(ours), params(theirs))
    first, second = (json.loads((f / "result.json").read_text()) for f in (ours, theirs))
    timed = {name for name in second if name.endswith("_secs") or name == "seconds"}
    timed |= {"peak_memory_bytes"}
    assert first.keys() == second.keys()
    differing = {k for k in first if first[k] != second[k]} - timed - {"eval"}
    assert not differing
    assert_close(first["eval"], second["eval"])


# --- The same runs --------------------------------------------------------------------------------


def test_together_they_leave_what_each_leaves_alone(
    lab: Lab, single_runs: Runs, tmp_path: pathlib.Path
) -> None:
    runs, begun = runs_of(lab, tmp_path), time.perf_counter()
    results = lab.run_together(runs)
    seconds = [result["seconds"] for result in results]  # shares of the time
    assert max(seconds) < 1.2 * min(seconds) and sum(seconds) < time.perf_counter() - begun
    for (_, ours), (_, theirs), result in zip(runs, single_runs, results, strict=True):
        assert_same_run(ours, theirs)
        assert result == json.loads((ours / "result.json").read_text())
    first, second, third = (params(folder)["params"] for _, folder in runs)
    assert not np.allclose(first["embed"]["tokens"]["table"], second["embed"]["tokens"]["table"])
    assert not np.allclose(second["embed"]["tokens"]["table"], third["embed"]["tokens"]["table"])
    opened = pretrained.load(runs[1][1])
    assert opened.finished and opened.step == STEPS


def test_pairs_by_words_seen(lab: Lab, tmp_path: pathlib.Path) -> None:
    """The scores of each run alone, at its own steps; its checkpoints by words stay."""
    path = tmp_path / "pairs.jsonl"
    rows = [{"good": a, "bad": b} for a, b in itertools.combinations("bdfgklmnprst", 2)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    asked = dict(eval__pairs=str(path), eval__pairs_every_words=300, machine__num_checkpoints=1)
    alone, together = (
        runs_of(lab, tmp_path / name, "system=bert,steps=5", **asked)
        for name in ("alone", "together")
    )
    lab.run_together(together)
    scores = []
    for (_, ours), (config, theirs) in zip(together, alone, strict=True):
        lab.run(theirs, config)
        assert_same_run(ours, theirs)
        scores.append([line.get("eval/pairs_accuracy") for line in lines(ours)])
    assert scores[0] != scores[1] and all(map(any, scores))


@pytest.mark.slow
def test_order_alone_may_vary(lab: Lab, single_runs: Runs, tmp_path: pathlib.Path) -> None:
    """They begin from seed 0's parameters; in its own order, one of them is seed 0's run."""
    given = lab.config(f"system=bert,steps={STEPS}", long__example_rate=0.0)
    runs, single = (
        compatibility.expand_runs(given, tmp_path / name, rates=["3e-3"], orders=["0", "7"])
        for name in ("together", "single")
    )
    names = [folder.name for _, folder in runs]
    assert names == ["seed0-order0-rate0.003", "seed0-order7-rate0.003"]
    lab.run_together(runs)
    config, folder = single[1]
    lab.run(folder, config)
    assert_same_run(runs[1][1], folder)
    assert_close(lines(runs[0][1]), lines(single_runs[0][1]))
    with pytest.raises(AssertionError):
        assert_close(lines(runs[0][1]), lines(runs[1][1]))


@pytest.mark.slow
def test_a_budget_in_tokens_which_they_reach_at_different_steps(
    lab: Lab, tmp_path: pathlib.Path
) -> None:
    """One is over a step before the others, which go on in the same program."""
    given = dict(arguments="system=bert,tokens=3674", long__example_rate=0.1)  # two phases
    single, runs = (runs_of(lab, tmp_path / name, **given) for name in ("alone", "together"))
    for config, folder in single:
        lab.run(folder, config)
    results = lab.run_together(runs)
    assert [result["steps"] for result in results] == [15, 16, 16]
    for (_, ours), (_, theirs) in zip(runs, single, strict=True):
        assert_same_run(ours, theirs)


# --- Stopping and going on ------------------------------------------------------------------------


@pytest.mark.slow
def test_killed_one_goes_on_alone_and_the_others_join_it(
    lab: Lab, single_runs: Runs, tmp_path: pathlib.Path
) -> None:
    """All stop at 8 and keep step 6; the second alone is killed at 11, after 10; all go on."""
    runs = runs_of(lab, tmp_path)
    assert not lab.run_together(runs, before_step=lambda step, _: kill_at(8)(step))
    config, folder = runs[1]
    record = lab.run(folder, config, before=kill_at(11))
    assert min(record.states) == 7 and max(record.states) == 11
    steps = []
    note = lambda step, batch: steps.append((step, len(batch["lengths"])))  # noqa: E731
    lab.run_together(runs, before_step=note)
    assert steps == [(k, 2) for k in range(6, 10)] + [(k, 3) for k in range(10, STEPS)]
    for (_, ours), (_, theirs) in zip(runs, single_runs, strict=True):
        assert_same_run(ours, theirs)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM])
def test_a_signal_saves_all_and_each_alone_ends_the_same(
    number: int, lab: Lab, single_runs: Runs, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture
) -> None:
    runs = runs_of(lab, tmp_path)
    with pytest.raises(cli.Stopped, match="SIGTERM.* 10") as stopped:
        lab.run_together(runs, before_step=lambda step, _: signal_at(9, number)(step))
    assert stopped.value.exit_code == cli.PREEMPTED
    for (config, ours), (_, theirs) in zip(runs, single_runs, strict=True):
        assert str(ours) in str(stopped.value) and not (ours / "result.json").exists()
        lab.run(ours, config)
        assert_same_run(ours, theirs)
    capsys.readouterr()
    assert len(lab.run_together(runs)) == 3
    assert capsys.readouterr().out.count("finished (12 steps)") == 3


# --- What goes wrong ------------------------------------------------------------------------------


def test_a_loss_that_is_not_finite_ends_that_run_alone(
    lab: Lab, single_runs: Runs, tmp_path: pathlib.Path
) -> None:
    runs = runs_of(lab, tmp_path)
    config = dataclasses.replace(
        runs[1][0], optim=dataclasses.replace(runs[1][0].optim, learning_rate=1e30)
    )
    runs[1] = config, tmp_path / "lost"
    with pytest.raises(cli.Stopped, match="not finite: step .*lost/checkpoints") as stopped:
        lab.run_together(runs)
    assert stopped.value.exit_code == cli.FAILED and "stopped" not in str(stopped.value)
    for k in (0, 2):
        assert_same_run(runs[k][1], single_runs[k][1])
    with pytest.raises(cli.Stopped, match="not finite") as refused:
        lab.run(tmp_path / "lost-alone", config)
    assert str(refused.value) == str(stopped.value).replace("/lost/", "/lost-alone/")
    ours, theirs = tmp_path / "lost", tmp_path / "lost-alone"
    assert files(ours) == files(theirs)
    assert lines(ours) == lines(theirs) and len(lines(ours)) == 1  # of the untrained net
    assert_close(params(ours), params(theirs))


def test_fields_that_must_not_differ_are_named(lab: Lab) -> None:
    first = lab.config()
    other = lab.config(
        "system=roberta,steps=25,seed=1", net__width=16, short__batch_size=4,
        tokenizer__vocab_size=290, optim__learning_rate=3e-4,
    )  # fmt: skip
    with pytest.raises(ValueError, match="seed, data.order_seed, optim.learning_rate") as refused:
        compatibility.check([first, other, first])
    found = {line.split(":")[0].strip() for line in str(refused.value).splitlines()[1:]}
    assert found == {
        "net.width", "short.batch_size", "tokenizer.vocab_size", "optim.total_steps",
    }  # fmt: skip
    compatibility.check([first, lab.config("system=roberta,steps=24,seed=1")])


@pytest.mark.parametrize(("arguments", "changes", "message"), [
    ("system=roberta,secs=10", {}, "optim.total_secs"),
    ("system=roberta,steps=24", {"machine__distributed": True}, "machine.distributed"),
])  # fmt: skip
def test_what_several_cannot_do(arguments: str, changes: dict, message: str, lab: Lab) -> None:
    config = lab.config(arguments, **changes)
    compatibility.check([config])
    with pytest.raises(ValueError, match=message):
        compatibility.check([config, dataclasses.replace(config, seed=1)])


def test_the_members_and_their_folders(lab: Lab, tmp_path: pathlib.Path) -> None:
    config = lab.config("system=roberta,steps=24,seed=5")
    made = compatibility.expand_runs(config, tmp_path, ["0", "3"], ["1e-3", ".002"])
    assert [(c.seed, c.optim.learning_rate, f.name) for c, f in made] == [
        (0, 1e-3, "seed0-rate0.001"), (0, 2e-3, "seed0-rate0.002"),
        (3, 1e-3, "seed3-rate0.001"), (3, 2e-3, "seed3-rate0.002"),
    ]  # fmt: skip
    assert compatibility.expand_runs(config, tmp_path, [], []) == [(config, tmp_path / "seed5")]
    for seeds, rates, message in (
        (["0", "1.5"], [], "--seeds=0,1.5: expected whole numbers"),
        (["0"], ["fast"], "--learning_rates=fast: expected numbers"),
        (["0"], ["nan"], "learning_rate = nan"),
        (["0"], ["-1"], "learning_rate = -1"),
        (["0"], ["0"], "rate of 0"),
        (["1", "0", "1"], [], "twice: seed1"),
    ):
        with pytest.raises(ValueError, match=message):
            compatibility.expand_runs(config, tmp_path, seeds, rates)


# --- The real program -----------------------------------------------------------------------------


@pytest.mark.slow
def test_the_program_on_two_devices(
    lab: Lab, wikitext: pathlib.Path, cache_dir: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """Each of them shares the examples, or the width of the nets, of every run."""
    settings = {k.replace("__", "."): v for k, v in fields(cache_dir).items() if v is not None}
    command = [
        sys.executable, "-m", "scalelab.population", f"--workdir={tmp_path}", "--seeds=0,1",
        f"--config=configs/pretrain.py:system=bert,shape=2x8x1,steps=8,corpus=wikitext:{wikitext}",
        *(f"--config.{k}={v}" for k, v in settings.items()), "--config.machine.fsdp_parallel=2",
    ]  # fmt: skip
    env = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}

    def run(*more: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [*command, *more], cwd=tiny.ROOT, capture_output=True, text=True, timeout=500, env=env
        )

    done = run()
    assert done.returncode == 0, done.stderr
    lab.run(tmp_path / "alone", lab.config("system=bert,steps=8,seed=1"))
    assert_close(lines(tmp_path / "seed1"), lines(tmp_path / "alone"))
    assert json.loads((tmp_path / "seed0/result.json").read_text())["steps"] == 8
    assert (tmp_path / "seed0/curves.png").is_file()
    done = run("--config.seed=7", "--config.optim.learning_rate=1")
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "optim.learning_rate: 0.01 -> 1.0" in done.stderr
