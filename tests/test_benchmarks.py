"""Benchmarks: what they count, what they refuse, and that they measure."""

import importlib
import json
import pathlib
import sys
from typing import Any

import declared
import jax
import pytest
import test_flops
import tiny

from scalelab import formats
from scalelab.tasks import batches
from scalelab.training import blueprint
from scalelab.worlds import discourse, glue_files
from scalelab.worlds.lexicon import Sizes

sys.path.insert(0, str(tiny.ROOT))
from benchmarks import common, finetune, floor, step  # noqa: E402

SIZES = ["--batch_size=4", "--length=16", "--vocab_size=97"]
SMALL = {
    "step": ["--shapes=2x8x2", "--repeats=2", *SIZES],
    "decode": ["--shape=2x8x2", "--new_tokens=6", "--vocab_size=97", "--repeats=2"],
    "prepare": ["--vocab_size=4000", "--secs=0.5"],
}


def measured(name: str, *flags: str) -> Any:
    """Runs a benchmark at a small size; returns its numbers, which JSON can hold."""
    program = importlib.import_module(f"benchmarks.{name}")
    found = program.measure(program.parser().parse_args([*SMALL.get(name, ()), *flags]))
    program.report(found)
    return json.loads(json.dumps(found))


@pytest.mark.parametrize(("flag", "word"), [("--nonsense=1", "nonsense"), ("--repeats=x", "x")])
def test_a_wrong_flag_is_one_message(flag: str, word: str, capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        step.parser().parse_args([flag])
    (line,) = capsys.readouterr().err.splitlines()
    assert ended.value.code == 2 and line.startswith("error: ") and word in line


# --- The floor ------------------------------------------------------------------------------------


def tiny_run(system: str = "bert", shape: str = "2x8x3") -> Any:
    return blueprint.draw_alone(system, shape, batch_size=4, length=16, vocab_size=97)


def floor_flops(run: Any) -> float:
    """FLOPs of the floor's matrix products, counted in the traced program."""
    made = {k: jax.ShapeDtypeStruct(v, "float32") for k, v in floor.matrix_sizes(run).items()}
    x = jax.ShapeDtypeStruct((4, 16, 8), "float32")

    def gradients(made: Any, x: Any) -> Any:
        predicted = 3 if run.system.PREDICTS == "masked" else 15
        scores, back = jax.vjp(lambda made, x: floor.step_products(2, predicted, made, x), made, x)
        return back(scores)

    return test_flops.dot_flops(jax.make_jaxpr(gradients)(made, x).jaxpr)


@pytest.mark.parametrize("shape", ["2x8x3", "2x8x12"], ids=["unrolled", "scanned"])
def test_the_floors_products_by_hand(shape: str) -> None:
    """B 4, T 16, D 8, F 32, V 97, P 3; three products each, one forward and two backward."""
    layers = int(shape.split("x")[-1])
    body = 2 * 64 * (4 * 8 * 8 + 2 * 8 * 32)  # 64 positions
    attention = 2 * 2 * 64 * 16 * 8  # scores and weighted sums
    head = 2 * 12 * (8 * 97 + 8 * 8) + 2 * 4 * 8 * 8  # 12 predicted positions, 4 first tokens
    assert floor_flops(tiny_run(shape=shape)) == 3 * (layers * (body + attention) + head)


@pytest.mark.parametrize("system", [n for n in tiny.SYSTEMS if not declared.get(n).more_parts])
def test_the_floor_has_the_products_that_flops_counts(system: str) -> None:
    """But the classifier of pairs; a causal model computes the whole scores, of which half
    count."""
    run = tiny_run(system)
    count = run.costs[0]
    classifier = 2 * 4 * 2 * 8 * ("pair" in run.system.HEADS)
    computed = run.system.SEES == "left" and not declared.get(system).mixed_masks
    masked = count.attention if computed else 0
    assert floor_flops(run) == 3 * (count.forward - classifier + masked)


# --- Programs -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_step_without_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common, "missing_peer", lambda: "PyTorch is not installed")
    found = measured("step")
    (made,) = found["cases"]
    assert "stock" not in made
    rate = made["flops"] / made["ours"]["step_secs"]
    assert made["ours"]["of_peak"] == pytest.approx(rate / found["peak_flops_per_sec"])


@pytest.mark.slow
@pytest.mark.parity
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated")
@pytest.mark.parametrize("system", (*step.WITH_PEERS, *common.OF_LAYERS))
def test_step_beside_its_peers(system: str) -> None:
    """The program checks that all losses are equal."""
    pytest.importorskip("torch")
    (made,) = measured("step", f"--systems={system}")["cases"]
    sides = {"ours", "stock"} | ({"floor", "tuned"} if system in step.WITH_PEERS else set())
    assert sides == made.keys() & {"ours", "stock", "floor", "tuned"}


@pytest.mark.slow
@pytest.mark.parity
def test_finetune_beside_its_peer(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program checks that both sides see the same tokens."""
    pytest.importorskip("torch")
    monkeypatch.setattr(batches, "BUCKETS", (32,))  # compiling takes longest
    monkeypatch.setattr(finetune, "NUM_PIECES", 60)
    glue_files.write(discourse.draw(Sizes(), 0), 0, 64, tmp_path)
    found = measured("finetune", "--task=rte", "--shape=2x8x1", "--steps=2", "--repeats=2",
                     f"--data={tmp_path}")  # fmt: skip
    assert found["train"]["per_sec"] > 0 and found["peer_evaluate"]["per_sec"] > 0


@pytest.mark.slow
@pytest.mark.parity
@pytest.mark.parametrize("system", ["gpt2", "t5"])
def test_decode_beside_its_peer(system: str) -> None:
    pytest.importorskip("torch")
    assert measured("decode", f"--system={system}")["same_tokens"] == 1


@pytest.mark.slow
def test_memory_beside_a_window() -> None:
    sizes = ["--segment=8", "--memory_len=8", "--num_tokens=40", "--repeats=1"]
    found = measured("memory", "--shape=2x8x2", "--vocab_size=97", *sizes)
    assert found["sides"].keys() == {"memory", "window"}


def test_formats(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every format with a source, and each way of it."""
    monkeypatch.setattr(common, "pin_to_cores", lambda threads: None)
    found = measured("formats", "--num_tokens=20000", "--max_lens=64", "--secs=0.01")
    assert {row["format"] for row in found} == formats.declarations("source").keys()
    assert all(row["build"] > 0 and row.get("corrupt", 1) > 0 for row in found)


@pytest.mark.slow
def test_prepare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common, "pin_to_cores", lambda threads: None)
    found = measured("prepare")
    assert found["total_secs"] >= max(found["secs"].values())
    assert all(found["batches"][loader]["per_sec"] > 0 for loader in ("numpy", "tf"))


def test_the_loop_beside_its_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common, "pin_to_cores", lambda threads: None)
    flags = ["--cases=2x8x1:300:8x32", "--steps=120", "--repeats=1", "--programs=0"]
    (case,) = measured("loop", *flags)["cases"]
    assert case["bare_over_loop"] == pytest.approx(case["bare_secs"] / case["loop_secs"])
    assert case["loop_tokens_per_sec"] > 0 and case["compile_secs"] > 0
