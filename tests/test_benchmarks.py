"""Benchmarks in --quick: that they measure and say what they measured, not how fast anything is."""

import json
import pathlib
import sys

import pytest
import tiny

from scalelab.data import task_examples

sys.path.insert(0, str(tiny.ROOT))
from benchmarks import (  # noqa: E402
    decode,
    finetune,
    finetune_measure,
    side_by_side,
)


@pytest.fixture(autouse=True)
def one_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiling takes longest."""
    monkeypatch.setattr(task_examples, "BUCKETS", (32,))


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


def test_finetune_refuses(tmp_path: pathlib.Path) -> None:
    with pytest.raises(SystemExit, match="expected the folder"):
        finetune.main(finetune.parse([f"--data={tmp_path}"]))


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


def test_finetune_draws_whole_stretches() -> None:
    class Run:
        steps_per_epoch = 156

        class config:
            group_batches = 50

    assert [finetune_measure.num_steps(Run, n) for n in (0, 1, 50, 51, 120, 151, 999)] == [
        156, 50, 50, 100, 150, 156, 156,
    ]  # fmt: skip
