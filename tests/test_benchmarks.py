"""Benchmarks: what they count, what they refuse, and that --quick measures."""

import importlib
import json
import pathlib
import sys
from typing import Any

import jax
import pytest
import test_flops
import tiny

from scalelab import formats
from scalelab.runs import environment
from scalelab.tasks import batches

sys.path.insert(0, str(tiny.ROOT))
from benchmarks import accelerator, common, data, finetune, floor, step  # noqa: E402

PROGRAMS = sorted(
    path.stem
    for path in (tiny.ROOT / "benchmarks").glob("*.py")
    if "__main__" in path.read_text(encoding="utf-8")
)


def load(name: str) -> Any:
    return importlib.import_module(f"benchmarks.{name}")


def measured(name: str, folder: pathlib.Path, *flags: str) -> Any:
    """Runs a benchmark in --quick and returns its JSON."""
    program, path = load(name), folder / "found.json"
    program.main(program.parse(["--quick", f"--json={path}", *flags]))
    return json.loads(path.read_text())


@pytest.fixture
def no_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common, "missing_peer", lambda: "PyTorch is not installed")
    monkeypatch.setattr(batches, "BUCKETS", (32,))  # compiling takes longest


# --- Command lines --------------------------------------------------------------------------------


def test_these_are_the_programs() -> None:
    assert PROGRAMS == [
        "accelerator",
        "data",
        "decode",
        "finetune",
        "population",
        "prepare",
        "step",
    ]


@pytest.mark.parametrize(
    ("name", "flag", "word"),
    [(name, "--nonsense=1", "--nonsense=1") for name in PROGRAMS]
    + [
        ("step", "--shapes=2x8", "2x8"),
        ("step", "--shapes=2x7x2", "2x7x2"),
        ("step", "--systems=brt", "bert"),
        ("step", "--peers=stcok", "stock"),
        ("step", "--repeats=two", "two"),
        ("step", "--threads=0", "--threads"),
        ("decode", "--new_tokens=1", "--new_tokens"),
        ("finetune", "--task=sst", "sst2"),
        ("prepare", "--format=doc_sentence", "doc_sentences"),
        ("data", "--json=/no/such/file", "/no/such/file"),
    ],
)
def test_a_wrong_flag_is_one_message(
    name: str, flag: str, word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        load(name).parse(["--quick", flag])
    (line,) = capsys.readouterr().err.splitlines()
    assert ended.value.code == 2 and line.startswith("error: ") and word in line


def test_a_flag_wins_over_quick() -> None:
    assert step.parse(["--quick"]).shapes == ["2x8x2"]
    assert step.parse(["--quick", "--shapes=1x4x1"]).shapes == ["1x4x1"]
    assert step.parse([]).shapes == step.SHAPES


def test_more_threads_than_cores_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        common.start(lambda: step.parse(["--threads=9999"]), print)
    assert ended.value.code == 2 and "9999" in capsys.readouterr().err


# --- The floor ------------------------------------------------------------------------------------


def tiny_run(system: str = "bert", shape: str = "2x8x3") -> Any:
    return common.abstract_run(system, shape, batch_size=4, length=16, vocab_size=97)


def floor_flops(run: Any) -> float:
    """FLOPs of the floor's matrix products, counted in the traced program."""
    made = {k: jax.ShapeDtypeStruct(v, "float32") for k, v in floor.matrix_sizes(run).items()}
    x = jax.ShapeDtypeStruct((4, 16, 8), "float32")

    def gradients(made: Any, x: Any) -> Any:
        predicted = run.phases[0].predicted
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


@pytest.mark.parametrize("system", tiny.SYSTEMS)
def test_the_floor_has_the_products_that_flops_counts(system: str) -> None:
    """But the classifier of pairs; a causal net computes the whole scores, of which half count."""
    run = tiny_run(system)
    count = run.phases[0].forward
    classifier = 2 * 4 * 2 * 8 if system == "bert" else 0
    masked = count.attention if run.system.CAUSAL else 0
    assert floor_flops(run) == 3 * (count.forward - classifier + masked)


# --- Programs -------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.usefixtures("no_peer")
def test_step_without_peer(tmp_path: pathlib.Path) -> None:
    found = measured("step", tmp_path)
    (made,) = found["cases"]
    assert made["left_out"].keys() == {"stock", "tuned"}
    ours, base = made["ours"], made["floor"]
    assert base["over_ours"] == pytest.approx(base["step_secs"] / ours["step_secs"])
    rate = made["flops"]["train"] / ours["step_secs"]
    assert ours["of_peak"] == pytest.approx(rate / found["peak_flops_per_sec"])


@pytest.mark.slow
@pytest.mark.parity
@pytest.mark.parametrize("system", tiny.SYSTEMS)
def test_step_beside_its_peers(system: str, tmp_path: pathlib.Path) -> None:
    """The program checks that all losses are equal."""
    pytest.importorskip("torch")
    (made,) = measured("step", tmp_path, f"--systems={system}")["cases"]
    assert made["left_out"] == {} and made["losses"].keys() == {"ours", "stock", "tuned"}


@pytest.mark.slow
@pytest.mark.usefixtures("no_peer")
def test_finetune_without_peer(tmp_path: pathlib.Path) -> None:
    found = measured("finetune", tmp_path, "--task=rte")
    assert found["train"]["per_sec"] > 0 and len(found["train"]["each_secs"]) == 2
    assert found["peer"] is None and found["compiled_lengths"] == [32]


@pytest.mark.slow
@pytest.mark.parity
def test_finetune_beside_its_peer(tmp_path: pathlib.Path) -> None:
    """The program checks that both sides see the same tokens."""
    pytest.importorskip("torch")
    found = measured("finetune", tmp_path)
    assert found["peer_parameters"] == found["parameters"]


def test_finetune_draws_whole_stretches() -> None:
    class Run:
        steps_per_epoch = 156

        class config:
            group_batches = 50

    chosen = {n: finetune.choose_steps(Run, n, 2) for n in (0, 1, 51, 151)}
    assert {n: len(parts[0]) for n, parts in chosen.items()} == {0: 156, 1: 50, 51: 100, 151: 156}
    assert chosen[1][1] == range(156, 206)


@pytest.mark.slow
@pytest.mark.parity
def test_decode_beside_its_peer(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("torch")
    found = measured("decode", tmp_path)
    assert found["same_tokens"] == 1 and found["ratio"] > 0


@pytest.mark.slow
def test_population(tmp_path: pathlib.Path) -> None:
    found = measured("population", tmp_path)
    assert found["ratio"] > 0 and found["sides"].keys() == {"vmapped", "one_by_one"}


@pytest.mark.slow
def test_data(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common, "pin_to_cores", lambda threads: None)
    monkeypatch.setattr(data, "loop_over_sentences", lambda *_: 1)
    found = measured("data", tmp_path)
    assert len({row["name"] for row in found}) == 2 * len(formats.format_names()) + 4
    assert all(row["per_sec"] > 0 and row["per_cpu_sec"] > 0 for row in found)


@pytest.mark.slow
def test_prepare(tmp_path: pathlib.Path) -> None:
    found = measured("prepare", tmp_path, "--sample=500")
    assert found["total_secs"] >= max(found["secs"].values())
    assert found["tokens_per_sec"] == pytest.approx(found["tokens"] / found["total_secs"])


# --- The accelerator ------------------------------------------------------------------------------


MADE = {"dtype": "bfloat16", "length": 128, "block": 1, "seeds": 1, "share_of_peak": 0.4}


def test_accelerator_keeps_what_was_done(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line that fails leaves its reason; those for which there is no time are named."""

    def fail(*_: object) -> None:
        raise RuntimeError("RESOURCE_EXHAUSTED: out of memory\nmore")

    monkeypatch.setattr(accelerator, "build", lambda *_: None)
    monkeypatch.setattr(accelerator, "measure", fail)
    monkeypatch.setattr(environment, "cores", lambda: [0, 1, 2, 3])  # two lines at once
    with pytest.raises(SystemExit) as ended:
        accelerator.main(accelerator.parse(["--quick", f"--out={tmp_path}", "--minutes=1e-9"]))
    assert ended.value.code == 1
    found = json.loads((tmp_path / "accelerator.json").read_text())
    assert (len(found["rows"]), len(found["left"])) == (2, 2)
    assert "RESOURCE_EXHAUSTED" in (tmp_path / "accelerator.md").read_text()


def test_accelerator_measures_what_matters_first() -> None:
    lines = accelerator.list_cases(accelerator.SHAPES, accelerator.BATCHES, 16)
    assert len(lines) == len(set(lines)) == 6 * 5 + 1
    assert [line.name for line in lines[:5]] == [
        "2x256x9 bfloat16 64 x 128 by 1",
        "13x832x5 bfloat16 64 x 128 by 1",
        "2x128x2 bfloat16 64 x 128 by 16",
        "2x128x2 bfloat16 64 x 128, 8 seeds by 16",
        "2x256x9 float32 64 x 128 by 16",
    ]


def test_accelerator_judges_by_one_step_a_dispatch() -> None:
    rows = [
        MADE | {"shape": "2x256x9", "ms": 1.5, "block": 16},
        MADE | {"shape": "2x256x9", "ms": 2.5},
        MADE | {"shape": "13x832x5", "ms": 1.0, "share_of_peak": 0.45},
        MADE | {"shape": "2x128x2", "ms": 1.0, "block": 16},
        MADE | {"shape": "2x128x2", "ms": 4.0, "block": 16, "seeds": 8},
        {"shape": "2x256x9", "error": "out of memory"},
    ]
    first, share, seeds = accelerator.conclude(rows, "gpu")
    assert first.endswith("2.5, not met") and share.endswith("0.45, met")
    assert "2.00x" in seeds and seeds.endswith("not met")
    assert all("not judged" in line for line in accelerator.conclude(rows, "cpu"))
