"""The run table: every run in whatever state, filters, sorts, CSV; two runs; a card."""

import csv
import fcntl
import io
import json
import os
import pathlib
import threading

import law_folders
import pytest
import run_folders

from scalelab.lab import runs
from scalelab.lab.load import run_table
from scalelab.lab.show import card
from scalelab.records import archive, run_files, run_folder
from scalelab.records.run_files import RunRecord


def table(*folders: pathlib.Path) -> dict[str, run_table.Row]:
    """Rows by the folder's path below the first one."""
    return {os.path.relpath(str(r["run"]), folders[0]): r for r in rows_of(*folders)}


def rows_of(*folders: pathlib.Path) -> list[run_table.Row]:
    return [run.row for run in run_table.load_runs(folders)]


def output(capsys, *arguments) -> list[str]:
    return law_folders.output(capsys, runs, *arguments).splitlines()


def fails(capsys, *arguments) -> str:
    return law_folders.fails(capsys, runs, *arguments)


# --- States ---------------------------------------------------------------------------------------


def test_a_finished_and_a_stopped_run(tmp_path) -> None:
    config = run_folders.config_of("gpt2", "4x64x3", seed=7)
    run_folders.write(tmp_path / "deep/down/a", config=config)
    run_folders.write(tmp_path / "b", steps=250, finished=False)
    found = table(tmp_path)
    a, b = found["deep/down/a"], found["b"]
    assert len(found) == 2
    expected = {"system": "gpt2", "shape": "4x64x3", "width": 64, "seed": 7, "status": "completed"}
    expected |= {"steps": 400, "tokens": 40_000, "flops": 4e11, "seconds": 200.0, "loss": 6.5}
    expected |= {"n_model": 12 * 3 * 64**2, "params": 4321, "task": None, "numerics": 1}
    assert {name: a[name] for name in expected} == expected
    assert a["model.max_len"] == 512 and a["commit"] == "c0ffee"
    assert (b["status"], b["note"], b["steps"], b["tokens"]) == (
        "stopped", "at step 250", 250, 25_000,
    )  # fmt: skip
    assert b["loss"] == pytest.approx(run_folders.loss_at(200) + 0.5)  # its last validation


def test_a_run_is_running_while_its_lock_is_held(tmp_path) -> None:
    run = run_folders.write(tmp_path / "a", finished=False)
    with run_folder.locked(run):
        assert table(tmp_path)["a"]["status"] == "running"
        assert table(run)["."]["status"] == "running"
    assert table(tmp_path)["a"]["status"] == "stopped"
    (run / ".lock").unlink()
    assert table(tmp_path)["a"]["status"] == "stopped"


def test_a_look_at_a_lock_stops_no_run_from_starting(tmp_path) -> None:
    run = run_folders.write(tmp_path / "a", finished=False)
    with (run / ".lock").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        look = threading.Timer(run_folder.LOOK_SECS / 4, fcntl.flock, (file, fcntl.LOCK_UN))
        look.start()
        with run_folder.locked(run):
            assert run_folder.is_locked(run / ".lock")
        look.join()


def test_a_run_that_prepares_its_data_has_only_a_lock(tmp_path) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "new/.lock").touch()
    (tmp_path / "rte/seed0").mkdir(parents=True)  # a task's folder is no run of its own
    (tmp_path / "rte/.lock").touch()
    assert not table(tmp_path)
    with run_folder.locked(tmp_path / "new"), run_folder.locked(tmp_path / "rte"):
        found = table(tmp_path)
    assert list(found) == ["new"]
    assert (found["new"]["status"], found["new"]["note"]) == ("running", "starting")


def test_a_seed_runs_while_its_task_is_locked(tmp_path) -> None:
    tasks = run_folders.add_tasks(run_folders.write(tmp_path / "a"), ("rte",), num_seeds=2)
    (tasks / "rte/seed1/result.json").unlink()
    (tasks / "rte/.lock").touch()
    with run_folder.locked(tasks / "rte"):
        assert table(tasks)["rte/seed1"]["status"] == "running"
        assert table(tasks)["rte/seed0"]["status"] == "completed"
    assert table(tasks)["rte/seed1"]["note"] == "at step 2000"


def test_fine_tunings_and_their_means(tmp_path) -> None:
    run = run_folders.write(tmp_path / "a")
    run_folders.add_tasks(run, ("mnli", "mrpc"), num_wrong=10)
    path = run / "tasks/mrpc/seed2/result.json"
    failed = json.loads(path.read_text()) | {"status": "failed", "degenerate": "not finite"}
    path.write_text(json.dumps(failed | {"eval": {"dev": {"accuracy": None, "f1": None}}}))
    found = table(tmp_path)
    assert list(found) == [
        "a",
        *(f"a/tasks/{t}/seed{k}" for t in ("mnli", "mrpc") for k in range(3)),
    ]
    seed = found["a/tasks/mrpc/seed1"]
    assert (seed["task"], seed["score"], seed["mrpc"]) == ("mrpc", 48 / 59, 48 / 59)
    # 11 wrong: 6 of class 1 missed, 5 taken for it; F1 = 48 / (48 + 11)
    assert seed["scores"] == "accuracy 81.7 f1 81.4" and seed["init"] == "runs/bert"
    assert seed["loss"] is None and seed["seconds"] == 60.5
    assert found["a/tasks/mrpc/seed2"]["status"] == "failed"
    assert found["a/tasks/mrpc/seed2"]["note"] == "not finite"
    assert found["a"]["mrpc"] == pytest.approx((50 / 60 + 48 / 59) / 2)
    assert found["a"]["mnli"] == pytest.approx((50 + 49 + 48) / 180)  # matched, the main split
    assert found["a"]["scores"] == "mnli 81.7 mrpc 82.3" and found["a"]["score"] is None


# --- Damage ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content"),
    [("config.json", None), ("metrics.jsonl", '{"step": 1}\n{"step"\n{"step": 3}\n')],
)
def test_damage_is_listed(tmp_path, capsys, name: str, content: str | None) -> None:
    """What else can be wrong with a file: tests/records/test_run_files.py."""
    run = run_folders.write(tmp_path / "a")
    run_folders.write(tmp_path / "b")
    (run / name).unlink()
    if content is not None:
        (run / name).write_text(content)
    found = table(tmp_path)
    assert found["b"]["status"] == "completed"
    assert found["a"]["status"] == "damaged" and name in str(found["a"]["note"])
    lines = output(capsys, tmp_path, "--sort=system,-width", f"--csv={tmp_path / 'x.csv'}")
    assert any("damaged" in line and name in line for line in lines)
    assert name in fails(capsys, "card", run)


def test_what_is_no_run_is_left_out(tmp_path) -> None:
    """Exports, evaluations, what lies inside of a run, hidden folders."""
    run = run_folders.write(tmp_path / "a")
    for name in ("checkpoints/0", "tokenizer"):
        (run / name / "config.json").write_text('{"system": "bert"}')
    run_folders.write(tmp_path / ".trash/b")
    (tmp_path / "export").mkdir()
    (tmp_path / "export/config.json").write_text('{"model_type": "bert"}')
    (tmp_path / "lm").mkdir()
    (tmp_path / "lm/result.json").write_text('{"status": "completed", "task": "lm"}')
    (tmp_path / "checkpoints").mkdir()  # the name alone says nothing
    run_folders.write(tmp_path / "checkpoints/c")
    assert list(table(tmp_path)) == ["a", "checkpoints/c"]


# --- Filters, sorts, what is shown ----------------------------------------------------------------

ROWS = [
    {"run": "r1", "system": "bert", "width": 128, "loss": 5.5, "seed": 0, "model.max_len": 512},
    {"run": "r10", "system": "bert", "width": 64, "loss": None, "seed": 1, "rte": 0.5},
    {"run": "r2", "system": "roberta", "width": 128, "loss": float("nan"), "seed": 2},
    {"run": "r3", "system": "gpt2", "width": 1024, "loss": 6.5, "seed": 10, "model.max_len": 64},
]

FRAME = run_table.as_frame([run_table.LoadedRun(row, None) for row in ROWS])


@pytest.mark.parametrize(("conditions", "expected"), [
    ("", "r1 r10 r2 r3"),
    ("system=bert", "r1 r10"),
    ("system!=bert", "r2 r3"),
    ("system=*bert*", "r1 r10 r2"),
    ("width>=128", "r1 r2 r3"),  # as texts 1024 would be less than 128
    ("width<=128,seed<2", "r1 r10"),
    ("loss=none", "r10 r2"),
    ("run<r3", "r1 r2"),  # r10 comes after r3
    ("model.max_len<512", "r3"),
])  # fmt: skip
def test_conditions(conditions: str, expected: str) -> None:
    assert list(run_table.where(FRAME, conditions)["run"]) == expected.split()


@pytest.mark.parametrize(("by", "expected"), [
    ("", "r1 r10 r2 r3"),
    ("-run", "r10 r3 r2 r1"),
    ("-width", "r3 r1 r2 r10"),
    ("-loss", "r3 r1 r10 r2"),  # what is not known is last either way
    ("system,-seed", "r10 r1 r3 r2"),
])  # fmt: skip
def test_sorts(by: str, expected: str) -> None:
    assert list(runs.sort(FRAME, by)["run"]) == expected.split()


@pytest.mark.parametrize(("arguments", "words"), [
    (["--where=widht>3"], "'width'"),
    (["--where=width"], "= != < <= > >="),
    (["--where=width>none"], "no order"),
    (["--where=system=bart"], "'bert'"),
    (["absent"], "absent"),
    ([], "DIR"),
])  # fmt: skip
def test_mistakes_are_one_message(tmp_path, capsys, arguments: list[str], words: str) -> None:
    run_folders.write(tmp_path / "a")
    folders = [tmp_path] if arguments else ["list"]
    assert words in fails(capsys, *folders, *arguments)


def test_csv_has_all_digits(tmp_path, capsys) -> None:
    run = run_folders.write(tmp_path / "a", seconds=1 / 3, flops=1e20 / 7)
    run_folders.add_tasks(run, ("rte",), num_seeds=1)
    output(capsys, tmp_path, "--sort=run", f"--csv={tmp_path / 'runs.csv'}")
    a, seed = csv.DictReader(io.StringIO((tmp_path / "runs.csv").read_text()))
    assert float(a["seconds"]) == 1 / 3 and float(a["flops"]) == 1e20 / 7
    assert float(seed["rte"]) == 50 / 60 == float(a["rte"])
    assert a["task"] == "" and seed["task"] == "rte" and "model.width" not in a
    columns = ["run", "model.width", "loss"]
    output(capsys, tmp_path, f"--columns={','.join(columns)}", f"--csv={tmp_path / 'runs.csv'}")
    assert (tmp_path / "runs.csv").read_text().splitlines()[0] == "run,model.width,loss"


# --- Two runs -------------------------------------------------------------------------------------


def pair(tmp_path: pathlib.Path, **fields) -> tuple[RunRecord, RunRecord]:
    """A, and B whose steps cost twice as many FLOPs and whose losses are 1 higher."""
    a = run_folders.write(tmp_path / "a")
    b = run_folders.write(tmp_path / "b", offset=1.0, **fields)
    lines = [json.loads(line) for line in (b / "metrics.jsonl").read_text().splitlines()]
    lines = [line | {"flops": 2 * line["flops"]} for line in lines]
    (b / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return run_files.read_run(a), run_files.read_run(b)


def test_losses_at_matched_points_by_hand(tmp_path) -> None:
    """At the same step B is 1 higher; at the same FLOPs it is half as far, a straight line."""
    a, b = pair(tmp_path)
    header, rows = runs.losses([a], [b], "step", 3)
    assert header == ["step", "training A", "B", "B - A", "valid 128 A", "B", "B - A"]
    assert [row[0] for row in rows] == ["140", "270", "400"]  # thirds of 10 to 400
    assert rows[0][1:4] == ["8.6000", "9.6000", "+1.0000"]
    assert rows[2][1:4] == ["6.0000", "7.0000", "+1.0000"]
    assert rows[1][4:] == ["7.8000", "8.8000", "+1.0000"]
    _, rows = runs.losses([a], [b], "seconds", 500)  # 40 s
    assert len({row[0] for row in rows}) == 500
    header, rows = runs.losses([a], [b], "flops", 1)
    (row,) = rows
    assert row[0] == "400,000,000,000"
    assert row[1:4] == ["6.0000", f"{11 - 2:.4f}", "+3.0000"]  # B has taken 200 steps
    assert row[4:] == ["6.5000", "9.5000", "+3.0000"]


def test_all_seeds_of_two_variants(tmp_path, capsys) -> None:
    """B is 1, 1.2 and 1.1 higher: Student's interval is 1.1 +- 4.303 * 0.1 / sqrt(3)."""
    for seed, offset in enumerate((1.0, 1.2, 1.1)):
        config = run_folders.config_of("bert", seed=seed)
        run_folders.write(tmp_path / f"a-seed{seed}", config=config)
        run_folders.write(tmp_path / f"b-seed{seed}", config=config, offset=offset)
    lines = output(capsys, "compare", tmp_path / "a-seed*", tmp_path / "b-seed*", "--points=1")
    assert sum(line.startswith(("A: ", "B: ")) for line in lines) == 6
    (row,) = [line for line in lines if line.split()[:1] == ["400"]]
    half = 4.302653 * 0.1 / 3**0.5
    assert row.split()[1:6] == [
        "6.0000", "7.1000", "+1.1000", f"[{1.1 - half:+.4f},", f"{1.1 + half:+.4f}]",
    ]  # fmt: skip


def test_a_side_of_several_systems_is_refused(tmp_path, capsys) -> None:
    for name in ("gpt", "gpt2"):
        run_folders.write(tmp_path / name, config=run_folders.config_of(name))
    line = fails(capsys, "compare", tmp_path / "gpt", tmp_path / "gpt*")
    assert "system: 'gpt' -> 'gpt2'" in line


@pytest.mark.parametrize(("fields", "compare"), [
    ({"tokenizer__vocab_size": 500, "data__format": "full_sentences"}, True),
    ({"tokenizer__vocab_size": 500, "mask_rate": 0.4}, False),
    ({"tokenizer__vocab_size": 500, "data__corpus": "text:other"}, False),
    ({}, False),
])  # fmt: skip
def test_bits_per_byte_stand_in_for_losses_of_one_objective(
    tmp_path, fields: dict, compare: bool
) -> None:
    sides = []
    for name, own in (("a", {}), ("b", fields)):
        run = run_folders.write(tmp_path / name, config=run_folders.config_of("bert", **own))
        path = run / "metrics.jsonl"
        path.write_text(
            path.read_text().replace('"eval/loss"', '"eval/bits_per_byte": 2, "eval/loss"')
        )
        sides.append([run_files.read_run(run)])
    header, _ = runs.losses(*sides, "step", 1)
    assert ("bits/byte 128 A" in header) == compare
    assert ("B - A" in header) == (compare or not fields)
    assert ("bits per byte if" in runs.compare(*sides)) == bool(fields)


def test_what_must_agree_beside_the_config(tmp_path) -> None:
    a, b = pair(tmp_path, data_hash="cd" * 32)
    assert "  the same" in runs.compare([a], [a])
    assert "  data: abababababab -> cdcdcdcdcdcd" in runs.compare([a], [b])
    for starts, words in (
        ({"numerics": 2}, "1 -> 2"),
        ({"numerics": 2, "earlier_starts": [{"numerics": 1}]}, "1 -> 1 and 2"),
        ({}, "1 -> not recorded"),
    ):
        (b.folder / "environment.json").write_text(json.dumps(starts | {"git_dirty": True}))
        text = runs.compare([a], [run_files.read_run(b.folder)])
        assert f"  numerics version: {words}" in text
        assert "  code: committed -> uncommitted" in text


def test_the_program_compares(tmp_path, capsys) -> None:
    config = run_folders.config_of("bert", seed=3, machine__prefetch=9)
    a = run_folders.write(tmp_path / "a")
    b = run_folders.write(tmp_path / "b", config=config, offset=0.25, steps=350, finished=False)
    lines = output(capsys, "compare", a, b, "--points=4")
    assert lines[0] == f"A: {a}: bert 2x128x2 seed 0"
    assert lines[1].startswith(f"B: {b}: bert 2x128x2 seed 3 ") and "350" in lines[1]
    assert lines[lines.index("Config, A -> B") + 1 :][:2] == [
        "  seed: 0 -> 3", "  data: abababababab -> not recorded",
    ]  # fmt: skip
    for clock in ("steps", "tokens", "training FLOPs", "seconds of training"):
        start = lines.index(f"Losses by {clock}")
        assert lines[start + 6].split()[3] == "+0.2500"
    assert "Config, A -> B\n  the same" in "\n".join(output(capsys, "compare", a, a))
    assert "--points" in fails(capsys, "compare", a, b, "--points=0")
    assert f"{tmp_path}/config.json" in fails(capsys, "compare", tmp_path, b)
    line = fails(capsys, "compare", tmp_path / "aa", b)
    assert f"did you mean '{a}'" in line


# --- A card ---------------------------------------------------------------------------------------


def test_the_card_of_a_finished_run(tmp_path, capsys) -> None:
    departure = {"field": "objective", "value": "mlm+nsp", "source": "Devlin et al. 2019, 3.1"}
    run = run_folders.write(tmp_path / "a", departures=[departure])
    run_folders.add_tasks(run, ("mnli", "stsb"))
    text = "\n".join(output(capsys, "card", run))
    for expected in (
        "# a\n\nA bert ",
        "| shape (heads x width x layers) | 2x128x2 |",
        "| parameters | 4,321 |",
        "| corpus sha256 | abababababab |",
        "| `objective` | mlm+nsp (Devlin et al. 2019, 3.1) |",
        "| steps | 400 |\n| tokens | 40,000 |\n| flops | 4e+11 |\n| seconds | 200 |",
        "| 128 loss | 6.5 |",
        "| MNLI | accuracy (matched) 81.7, accuracy (mismatched) 81.7; 3 of 3 seeds finished |",
        "| command | `python -m scalelab.train --x\\|y` |",
        "| commit | c0ffee |",
        "| numerics version | 1 |",
    ):
        assert expected in text, expected
    assert output(capsys, "card", run, f"--to={tmp_path / 'card.md'}") == [
        f"wrote {tmp_path}/card.md"
    ]
    assert (tmp_path / "card.md").read_text().rstrip() == text.rstrip()


def test_the_card_of_a_run_on_its_way_and_of_a_fine_tuning(tmp_path) -> None:
    run = run_folders.write(tmp_path / "a", steps=250, finished=False)
    text = card.write(run)
    assert "| steps | 250, " in text and "| tokens | 25,000 |" in text
    assert "| 128 loss | 8.5 |" in text and "| 128 step | 200 |" in text
    tasks = run_folders.add_tasks(run_folders.write(tmp_path / "b"), ("mrpc",))
    text = card.write(tasks / "mrpc/seed0")
    assert " mrpc." in text and "| dev accuracy | 0.8333 |" in text


# --- Packed ---------------------------------------------------------------------------------------


def test_a_packed_run_is_listed_like_the_whole(tmp_path, capsys) -> None:
    run = run_folders.write(tmp_path / "w/runs/a")
    run_folders.add_tasks(run, ("rte",))
    archive.pack({"a": run}, tmp_path / "kept")
    output(capsys, "pack", run, f"--to={tmp_path / 'alone/runs/a'}")
    whole = table(tmp_path / "w")
    for packed in (table(tmp_path / "kept"), table(tmp_path / "alone")):
        assert list(whole) == list(packed) and len(whole) == 4
        for name in whole:
            assert whole[name] | {"run": ""} == packed[name] | {"run": ""}
    assert "  the same" in output(capsys, "compare", tmp_path / "kept/runs/*", run)
    (run / "tasks/rte/seed1/result.json").unlink()
    assert "seed1" in fails(capsys, "pack", run, f"--to={tmp_path / 'none'}")
    assert not (tmp_path / "none").exists()
