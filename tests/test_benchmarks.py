"""Benchmarks in --quick: that they measure and say what they measured, not how fast anything is."""

import dataclasses
import json
import pathlib
import sys
import types
from typing import Any

import jax
import numpy as np
import optax
import pytest
import tiny

from scalelab import formats
from scalelab.runs import environment
from scalelab.tasks import examples

sys.path.insert(0, str(tiny.ROOT))
from benchmarks import (  # noqa: E402
    accelerator,
    accelerator_report,
    cost,
    data,
    decode,
    finetune,
    finetune_floor,
    finetune_measure,
    floor,
    population,
    prepare,
    side_by_side,
    start,
)


@pytest.fixture(autouse=True)
def one_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiling takes longest."""
    monkeypatch.setattr(examples, "BUCKETS", (32,))


def measured(tmp_path: pathlib.Path, *arguments: str) -> dict:
    path = tmp_path / "found.json"
    finetune.main(finetune.parse(["--quick", f"--json={path}", *arguments]))
    return json.loads(path.read_text())


def test_finetune_without_peer(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(side_by_side, "peer_left_out", lambda: "PyTorch is not installed")
    found = measured(tmp_path, "--task=rte")
    assert "the peer is left out: PyTorch is not installed" in capsys.readouterr().out
    assert found["peer"] is None and "peer train" not in found
    assert found["train"]["examples_per_sec"] > 0 and len(found["train"]["each"]) == 2
    assert found["evaluate"]["examples_per_sec"] > 0
    assert found["compiled_lengths"] == [32] and found["positions_per_token"] > 1
    assert found["floor"]["examples_per_sec"] > found["train"]["examples_per_sec"]


def test_the_floor_of_a_fine_tuning_step_is_its_products() -> None:
    """Counted by XLA, beside the count by hand: six or so FLOPs a weight and position."""
    rows, length, width, layers = 16, 24, 40, 3
    sizes = floor.layer_sizes(width, layers)
    made = {name: jax.ShapeDtypeStruct(size, "float32") for name, size in sizes.items()}
    x = jax.ShapeDtypeStruct((rows, length, width), "float32")
    compiled = finetune_floor.products.lower(2, made, x).compile()
    projections = 2 * rows * length * 12 * width**2
    attention = 2 * 2 * rows * length**2 * width
    counted = (compiled.cost_analysis() or {})["flops"]
    assert counted == pytest.approx(3 * layers * (projections + attention), rel=0.02)


def test_the_floor_knows_lengths_that_the_first_epoch_lacks() -> None:
    config = types.SimpleNamespace(net=types.SimpleNamespace(width=8, num_layers=1, num_heads=2))
    run = types.SimpleNamespace(
        start=types.SimpleNamespace(opened=types.SimpleNamespace(config=config)),
        learner=types.SimpleNamespace(tx=optax.sgd(1.0)),
        config=types.SimpleNamespace(batch_size=2), steps_per_epoch=1,
    )  # fmt: skip
    group: Any = types.SimpleNamespace(
        length=lambda step: (16, 8, 8)[step],
        state=types.SimpleNamespace(params={"w": jax.numpy.ones(3)}),
    )
    made = finetune_floor.Floor(run, group)
    made([0, 1, 2])
    assert {n: x.shape for n, x in made.inputs.items()} == {16: (2, 16, 8), 8: (2, 8, 8)}
    np.testing.assert_allclose(made.params["w"], 1 - 3e-5, rtol=1e-6)  # three updates


def test_finetune_seeds_together(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = measured(tmp_path, "--seeds_together=2")
    assert "2 seeds in one program" in capsys.readouterr().out
    assert found["together"]["examples_per_sec"] > 0 and found["seeds_together"] == 2
    assert "train" not in found


@pytest.mark.parity
def test_finetune_beside_its_peer(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both see the same tokens, which the program checks, with as many parameters."""
    pytest.importorskip("torch")
    found = measured(tmp_path)
    assert found["peer_parameters"] == found["parameters"]
    assert found["peer train"]["examples_per_sec"] > 0
    out = capsys.readouterr().out
    assert "training, peer" in out and "torch" in out


@pytest.mark.slow
def test_a_given_shape_is_measured_in_quick(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(side_by_side, "peer_left_out", lambda: "PyTorch is not installed")
    assert measured(tmp_path, "--shape=1x4x1", "--repeats=1")["shape"] == "1x4x1"


def test_decode_without_peer(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(side_by_side, "peer_left_out", lambda: "PyTorch is not installed")
    path = tmp_path / "found.json"
    decode.main(decode.parse(["--quick", f"--json={path}"]))
    found = json.loads(path.read_text())
    assert "the peer is left out: PyTorch is not installed" in capsys.readouterr().out
    assert found["ours"]["tokens_per_sec"] > 0 and len(found["ours"]["each"]) == 2
    assert "peer" not in found and "ratio" not in found


@pytest.mark.parity
def test_decode_beside_its_peer(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    path = tmp_path / "found.json"
    decode.main(decode.parse(["--quick", f"--json={path}"]))
    found = json.loads(path.read_text())
    assert found["same_tokens"] == 1 and found["ratio"] > 0
    assert "equal tokens: 100.0%" in capsys.readouterr().out


@pytest.mark.slow
def test_population(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "found.json"
    population.main(population.parse(["--quick", f"--json={path}"]))
    found = json.loads(path.read_text())
    assert "in one program" in capsys.readouterr().out
    assert found["ratio"] > 0 and found["members"] == 2
    assert len(found["together"]["each"]) == len(found["one_by_one"]["each"]) == 2


def test_finetune_draws_whole_stretches() -> None:
    class Run:
        steps_per_epoch = 156

        class config:
            group_batches = 50

    assert [finetune_measure.num_steps(Run, n) for n in (0, 1, 50, 51, 120, 151, 999)] == [
        156, 50, 50, 100, 150, 156, 156,
    ]  # fmt: skip


@pytest.mark.slow
def test_accelerator_writes_as_it_goes(tmp_path: pathlib.Path) -> None:
    accelerator.main(accelerator.parse(["--quick", f"--out={tmp_path}"]))
    found = json.loads((tmp_path / "accelerator.json").read_text())
    assert [(r["dtype"], r["seeds"], r["block"]) for r in found["rows"]] == [
        ("bfloat16", 1, 1), ("bfloat16", 1, 2), ("bfloat16", 8, 2), ("float32", 1, 2),
    ]  # fmt: skip
    assert all(row["ms"] > 0 and row["share_of_product"] > 0 for row in found["rows"])
    table = (tmp_path / "accelerator.md").read_text()
    (said,) = (line for line in table.splitlines() if line.startswith("- "))
    assert "8 seeds of 2x8x1 together, 2 steps a dispatch" in said
    on_cpu = jax.default_backend() == "cpu"
    assert said.endswith("not judged on CPU") == on_cpu


def test_accelerator_cut_and_broken_lines(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line that fails leaves its reason; those for which there is no time are named."""

    def measure(case: accelerator.Case, *_: object) -> dict:
        raise RuntimeError("RESOURCE_EXHAUSTED: out of memory\nmore")

    monkeypatch.setattr(accelerator, "build", lambda *_: None)
    monkeypatch.setattr(accelerator, "measure", measure)
    given = ["--quick", f"--out={tmp_path}"]
    with pytest.raises(SystemExit) as ended:
        accelerator.main(accelerator.parse(given))
    assert ended.value.code == 1
    assert capsys.readouterr().err.startswith("error: no line was measured; ")
    table = (tmp_path / "accelerator.md").read_text()
    assert "RESOURCE_EXHAUSTED: out of memory |" in table and "- no line was measured" in table
    monkeypatch.setattr(environment, "cores", lambda: [0, 1, 2, 3])  # two lines at once
    with pytest.raises(SystemExit):
        accelerator.main(accelerator.parse([*given, "--minutes=1e-9"]))
    found = json.loads((tmp_path / "accelerator.json").read_text())
    assert (len(found["rows"]), len(found["left"])) == (2, 2)


def test_accelerator_with_one_broken_line(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others stand, and the program ends well."""

    def measure(case: accelerator.Case, *_: object) -> dict:
        if case.dtype == "float32":
            raise RuntimeError("broken")
        return MADE | dataclasses.asdict(case)

    monkeypatch.setattr(accelerator, "build", lambda *_: None)
    monkeypatch.setattr(accelerator, "measure", measure)
    accelerator.main(accelerator.parse(["--quick", f"--out={tmp_path}"]))
    found = json.loads((tmp_path / "accelerator.json").read_text())
    assert ["error" in row for row in found["rows"]] == [False, False, False, True]


def test_accelerator_goes_on_with_what_is_done_in_time() -> None:
    lines = accelerator.cases(accelerator.SHAPES, accelerator.BATCHES, 16)
    assert accelerator.in_time(lines, 8, 1.0, None) == lines[:8]
    later = accelerator.in_time(lines[8:], 8, 210.0, 264 / 9)  # as on an H100 after a round
    assert len(later) == 8 and {line.shape for line in later} <= {
        "13x832x5", "2x128x2", "7x448x4", "7x469x4", "2x128x36",
    }  # fmt: skip
    assert later[0] == next(line for line in lines[8:] if line.num_layers < 8)
    assert [line.num_layers for line in lines if line.shape == "2x128x36"][0] == 2
    assert accelerator.in_time(lines, 8, 58.0, 264 / 9) == []


def test_accelerator_lines() -> None:
    lines = accelerator.cases(accelerator.SHAPES, accelerator.BATCHES, 16)
    assert len(lines) == len(set(lines)) == 6 * 5 + 1
    # What the targets are judged by, and one in float32.
    assert [line.name for line in lines[:5]] == [
        "2x256x9 bfloat16 64 x 128 by 1",
        "13x832x5 bfloat16 64 x 128 by 1",
        "2x128x2 bfloat16 64 x 128 by 16",
        "2x128x2 bfloat16 64 x 128, 8 seeds by 16",
        "2x256x9 float32 64 x 128 by 16",
    ]


MADE = {
    "dtype": "bfloat16", "length": 128, "block": 1, "seeds": 1, "share_of_peak": 0.4,
    "share_of_product": 0.5, "tokens_per_sec": 1.0, "memory_bytes": 1, "compile_secs": 1.0,
    "ms": 1.0,
}  # fmt: skip


def test_accelerator_conclusions() -> None:
    """By the lines of one step a dispatch, as training runs."""
    rows = [
        MADE | {"shape": "2x256x9", "ms": 1.5, "block": 16},
        MADE | {"shape": "2x256x9", "ms": 2.5},
        MADE | {"shape": "13x832x5", "share_of_peak": 0.45},
        MADE | {"shape": "2x128x2", "ms": 1.0, "block": 16},
        MADE | {"shape": "2x128x2", "ms": 4.0, "block": 16, "seeds": 8},
        {"shape": "2x256x9", "error": "out of memory"},
    ]
    said = accelerator_report.conclusions(rows, "gpu")
    one, blocked, share, seeds = said
    assert one.endswith("under 2 ms a step: 2.5, not met")
    assert blocked.endswith("16 steps a dispatch would give 1.5") and "met" not in blocked
    assert share.endswith("0.45, met")
    assert "2.00x one after another" in seeds and seeds.endswith("not met")
    faster = [row | {"ms": row["ms"] - 1} for row in rows[1:2]]
    assert accelerator_report.conclusions(faster, "gpu")[0].endswith("1.5, met")
    assert accelerator_report.conclusions(rows[:1], "gpu") == [
        blocked
    ]  # blocked lines judge nothing
    assert accelerator_report.conclusions(rows[-1:], "gpu") == ["no line was measured"]


def test_accelerator_concludes_nothing_about_targets_on_cpu() -> None:
    rows = [
        MADE | {"shape": "2x256x9", "ms": 0.5},
        MADE | {"shape": "13x832x5", "share_of_peak": 0.1},
        MADE | {"shape": "2x128x2", "block": 16},
        MADE | {"shape": "2x128x2", "ms": 1.72, "block": 16, "seeds": 8},
    ]
    said = accelerator_report.conclusions(rows, "cpu")
    assert len(said) == 3 and all(line.endswith(", not judged on CPU") for line in said)
    assert "4.65x" in said[2]


@pytest.mark.slow
def test_data(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every format, and both loaders."""
    monkeypatch.setattr(side_by_side, "pin", lambda threads: None)
    path = tmp_path / "found.json"
    data.main(data.parse(["--quick", f"--json={path}"]))
    found = json.loads(path.read_text())
    names = {row["name"] for row in found}
    assert len(names) == len(found) == 2 * len(formats.format_names()) + 4
    assert {"format segment_pair 512", "batches doc_sentences 64x128 tf"} <= names
    assert all(row["tokens_per_sec"] > 0 and row["tokens_per_cpu_sec"] > 0 for row in found)
    ready = min(r["tokens_per_sec"] for r in found if r["name"].startswith("batches"))
    assert f"at least {ready:,.0f} tokens/s; target 2,000,000" in capsys.readouterr().out


@pytest.mark.slow
def test_prepare(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "found.json"
    prepare.main(prepare.parse(["--quick", "--sample=500", f"--json={path}"]))
    found = json.loads(path.read_text())
    assert found["tokenizer"] == "bytebpe 4000" and found["megabytes"] == pytest.approx(2, rel=0.1)
    assert found["total_secs"] >= max(found["secs"].values())
    assert found["tokens_per_sec"] == pytest.approx(found["tokens"] / found["total_secs"])
    out = capsys.readouterr().out
    assert "builtin (beginning)" in out and "peer: a call a sentence" in out


@pytest.mark.slow
def test_start(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Trainings from a cold cache and a warm one."""
    monkeypatch.setenv("HOME", str(tmp_path))
    path = tmp_path / "found.json"
    start.main(start.parse(["--quick", f"--json={path}"]))
    found = json.loads(path.read_text())
    assert found == json.loads(capsys.readouterr().out)
    (warm,), (shown,) = found["first_step_warm_secs"], found["help_secs"]
    assert 0 < shown < warm < found["first_step_cold_secs"]


@pytest.mark.slow
def test_cost_beside_measured_steps(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "found.json"
    cost.main(cost.parse(["--quick", f"--json={path}"]))
    found = json.loads(path.read_text())
    assert len(found["rows"]) == 2 and all(row["secs"] > 0 for row in found["rows"])
    assert found["rows"][0]["model_error"] == pytest.approx(
        found["rows"][0]["model"] / found["rows"][0]["secs"] - 1
    )
    assert "largest error" in capsys.readouterr().out
