"""benchmarks.step and benchmarks.profile: what they count, by hand, and that they measure."""

import dataclasses
import json
import mmap
import pathlib
import re
import shutil
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import test_flops
import tiny
from flax import traverse_util

sys.path.insert(0, str(tiny.ROOT))
from benchmarks import (  # noqa: E402
    candidates,
    dropouts,
    floor,
    products,
    profile,
    side_by_side,
    step,
    step_case,
    trace,
)
from scalelab.nn import dropout  # noqa: E402
from scalelab.nn.norm import LayerNorm  # noqa: E402
from scalelab.objectives import xent  # noqa: E402


def case(system: str = "bert", shape: str = "2x8x3") -> step_case.Case:
    return step_case.Case(system, shape, 97, 4, 16, 0.1, 2)


def products_of(made: step_case.Case) -> float:
    """FLOPs of the floor's matrix products, counted in the traced program."""
    kernels = floor.weights(made)
    x = jax.ShapeDtypeStruct((made.batch_size, made.length, made.sizes[1]), "float32")

    def run(kernels: Any, x: Any) -> Any:
        scores, back = jax.vjp(lambda w, x: floor.forward(made, w, x), kernels, x)
        return back(scores)

    return test_flops.dot_flops(jax.make_jaxpr(run)(kernels, x).jaxpr)


@pytest.mark.parametrize("shape", ["2x8x3", "2x8x12"], ids=["unrolled", "scanned"])
def test_the_floors_products_by_hand(shape: str) -> None:
    """B 4, T 16, D 8, F 32, V 97, P 3; three products each, one forward and two backward."""
    layers = int(shape.split("x")[-1])
    body = 2 * 64 * (4 * 8 * 8 + 2 * 8 * 32)  # 64 positions
    attention = 2 * 2 * 64 * 16 * 8  # scores and weighted sums
    head = 2 * 12 * (8 * 97 + 8 * 8) + 2 * 4 * 8 * 8  # 12 predicted positions, 4 first tokens
    assert products_of(case(shape=shape)) == 3 * (layers * (body + attention) + head)


@pytest.mark.parametrize("system", tiny.SYSTEMS)
def test_the_floor_has_the_products_that_flops_counts(system: str) -> None:
    """But the classifier of pairs; a causal net's scores are computed whole and useful by half."""
    made = case(system)
    ours = step_case.fresh_parameters(made)
    count = made.flops(ours)
    classifier = 2 * 4 * 2 * 8 if system == "bert" else 0
    masked = count.attention if made.module.CAUSAL else 0
    assert products_of(made) == 3 * (count.forward - classifier + masked)


def test_the_floor_as_jax_has_it_is_the_same_numbers_by_another_program() -> None:
    made = case()
    one, other = floor.Floor(made), floor.Floor(made, by_jax=True)
    ours, theirs = one.run(*one.operands), other.run(*other.operands)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), ours, theirs)
    barriers = [
        str(jax.make_jaxpr(each.products)(*each.operands)).count("optimization_barrier")
        for each in (one, other)
    ]
    assert barriers[0] > 0 == barriers[1]


def test_a_larger_peak_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    peak = floor.Peak((8,))
    wall, cpu = peak.wall, peak.cpu
    assert wall > 0 and cpu > 0
    peak()
    assert peak.wall >= wall and peak.cpu >= cpu


@pytest.mark.skipif(sys.platform != "linux", reason="counts Linux's page faults")
def test_pages_that_a_call_was_given_are_counted() -> None:
    def touch(count: int) -> None:
        with mmap.mmap(-1, count * mmap.PAGESIZE) as pages:
            pages.madvise(mmap.MADV_NOHUGEPAGE)
            for place in range(0, len(pages), mmap.PAGESIZE):
                pages[place] = 1

    assert 5000 <= side_by_side.timed(touch, 5000).faults < 6000
    spent = side_by_side.timed(lambda _: None, 1)
    assert spent.faults < 500 and 0 <= spent.kernel <= spent.cpu + 0.01


def test_summary_by_hand() -> None:
    calls = [(2.0, 4.0, 1.0, 8), (1.0, 3.0, 2.0, 4), (9.0, 5.0, 3.0, 6)]
    made = step.summary([side_by_side.Spent(*call) for call in calls], case(), 2)
    assert made["step_secs"] == 1.0 and made["step_cpu_secs"] == 2.0
    assert made["step_kernel_secs"] == 1.0 and made["step_faults"] == 3
    assert made["tokens_per_sec"] == 64 and made["each"] == [1.0, 0.5, 4.5]


@pytest.mark.slow
def test_step_without_peer(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(side_by_side, "peer_left_out", lambda: "PyTorch is not installed")
    path = tmp_path / "found.json"
    step.main(step.parse(["--quick", f"--json={path}"]))
    found = json.loads(path.read_text())
    out = capsys.readouterr().out
    assert "stock is left out: PyTorch is not installed" in out and "share of the floor" in out
    (made,) = found["cases"]
    # B 4, T 16, D 8, L 2, V 97, P 3, by hand as above, the classifier of pairs too.
    terms = {"body": 2 * 64 * 768 * 2, "attention": 2 * 2 * 64 * 16 * 8 * 2}
    terms["head"] = 2 * 12 * (8 * 97 + 64) + 2 * 4 * (64 + 16)
    assert made["flops"] == terms | {"train": 3 * sum(terms.values())}
    ours, base = made["ours"], made["floor"]
    assert len(ours["each"]) == 2 and ours["over_ours"] == 1 and ours["buffer_bytes"] > 0
    assert base["over_ours"] == pytest.approx(base["step_secs"] / ours["step_secs"])
    rate = made["flops"]["train"] / ours["step_secs"]
    assert ours["of_peak"] == pytest.approx(rate / found["peak_flops_per_sec"])
    assert "stock" not in made


@pytest.mark.parity
@pytest.mark.parametrize("system", tiny.SYSTEMS)
def test_step_beside_its_peers(
    system: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their losses are equal, which the program checks."""
    pytest.importorskip("torch")
    path = tmp_path / "found.json"
    step.main(step.parse(["--quick", f"--systems={system}", f"--json={path}"]))
    (made,) = json.loads(path.read_text())["cases"]
    peers = {"stock", "tuned", "stock_apart"}
    assert made["losses"].keys() == {"ours"} | peers and made["left_out"] == {}
    for name in peers:
        assert made[name]["over_ours"] > 0
        assert abs(made["losses"][name] - made["losses"]["ours"]) < 1e-4


@pytest.mark.slow
@pytest.mark.parity
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch.compile itself
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
def test_step_beside_the_compiled_peer(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its loss is ours, which the program checks, and compiling stands apart."""
    pytest.importorskip("torch")
    path = tmp_path / "found.json"
    step.main(step.parse(["--quick", "--peers=compiled", f"--json={path}"]))
    (made,) = json.loads(path.read_text())["cases"]
    assert made["left_out"] == {}
    assert made["losses"].keys() == {"ours", "compiled"}
    assert made["compiled"]["compile_secs"] > made["compiled"]["step_secs"] > 0
    assert "| compiled |" in capsys.readouterr().out


def test_more_threads_than_cores_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        side_by_side.start(lambda: step.parse(["--threads=9999", "--default_malloc"]), print)
    assert ended.value.code == 2
    assert re.search(
        r"error: --threads=9999: this process may use \d+ core", capsys.readouterr().err
    )


def test_what_to_do_where_memory_ends_is_a_benchmarks_own(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def ends(_: Any) -> None:
        raise RuntimeError("RESOURCE_EXHAUSTED: 9 GB")

    with pytest.raises(SystemExit):
        side_by_side.start(object, ends)
    assert "measure a smaller shape or --batch_size (RESOURCE" in capsys.readouterr().err


def test_another_net_ends_the_program() -> None:
    class Side:
        def __init__(self, value: float) -> None:
            self.loss = lambda: value

    with pytest.raises(SystemExit, match="not the same net"):
        step.same_losses({"ours": Side(2.0), "floor": object(), "stock": Side(2.001)})


@pytest.mark.slow
@pytest.mark.parametrize(("name", "least"), [("ours", 4), ("floor", 2), ("by_jax", 2)])
def test_memory_of_a_side(name: str, least: int) -> None:
    """At least parameters and gradients, ours with two moments; a process of its own measures."""
    from benchmarks import step_memory

    found = step_memory.of_side(step_case.Case("bert", "2x64x2", 30_000, 4, 16, 0.1, 2), name)
    assert found is None or least * 4 * 64 * 30_000 < found < 2e9


@pytest.mark.parametrize(
    ("part", "operation"),
    [("softmax", "exp"), ("norms", "rsqrt"), ("gelu", "erf"), ("lookup", "scatter-add")],
)
def test_a_part_left_out_is_out(part: str, operation: str) -> None:
    """And nothing stays replaced."""
    made = case(shape="2x8x1")

    def program() -> str:
        params = step_case.fresh_parameters(made)
        net, batch = made.net(), made.batch()

        def loss(params: Any) -> jax.Array:
            rng = {"dropout": jax.random.key(0)}
            return net.apply({"params": params}, batch, train=True, rngs=rng)[0].sum()

        return str(jax.make_jaxpr(jax.grad(loss))(params))

    whole = program()
    with profile.patched(made, part):
        without = program()
    pattern = re.compile(rf"\b{operation}\b(?!_)")
    assert len(pattern.findall(without)) < len(pattern.findall(whole))
    assert program() == whole


def test_entropy_left_out_leaves_the_products() -> None:
    arrays = [jnp.ones(shape) for shape in ((2, 3, 4), (7, 4), (7,), (2, 3))]

    def program() -> str:
        # Not by the function itself: what was traced of it before would be found again.
        return str(jax.make_jaxpr(lambda *of: xent._forward(*of))(*arrays))

    whole = program()
    with profile.patched(case(), "entropy"):
        without = program()
    assert " exp " in whole and " log " in whole
    assert not re.search(r" (exp|log|reduce_max) ", without)
    assert without.count("dot_general") == whole.count("dot_general") and program() == whole


def test_candidates_compute_the_same() -> None:
    """Attention by jax.nn exactly; one product of three, once its kernel is ours side by side."""
    made = dataclasses.replace(case(), dropout_rate=0.0)
    batch = made.batch()
    draw = np.random.default_rng(0).standard_normal
    params = jax.tree.map(
        lambda x: 0.5 * draw(x.shape, np.float32), step_case.fresh_parameters(made)
    )
    batch["lengths"] = np.full_like(batch["lengths"], 11)

    def hidden(params: Any) -> np.ndarray:
        return np.asarray(made.net().apply({"params": params}, batch, train=False)[0])

    ours = hidden(params)
    with candidates.patched(made, "dot_product_attention"):
        np.testing.assert_allclose(hidden(params)[:, :11], ours[:, :11], rtol=1e-4, atol=1e-5)
    flat = traverse_util.flatten_dict(params)
    for path in [path for path in flat if path[-2] == "query"]:
        parts = [flat.pop((*path[:-2], name, path[-1])) for name in ("query", "key", "value")]
        flat[*path[:-2], "qkv", path[-1]] = np.stack(parts, axis=-3)
    with candidates.patched(made, "fused_qkv"):
        fused = hidden(traverse_util.unflatten_dict(flat))
    np.testing.assert_allclose(fused, ours, rtol=1e-4, atol=1e-5)


def test_a_norm_of_one_pass_has_the_value_and_the_gradients_of_ours() -> None:
    draw = np.random.default_rng(0).standard_normal
    x, target = draw((3, 5, 7)), draw((3, 5, 7))
    params = {"params": {"scale": 1 + 0.5 * draw(7), "bias": 0.5 * draw(7)}}

    def found(norm: type) -> Any:
        def loss(params: Any, x: Any) -> Any:
            return ((norm(epsilon=1e-5).apply(params, x) - target) ** 2).sum()

        return jax.value_and_grad(loss, argnums=(0, 1))(params, x)

    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5),
        found(candidates.one_pass_norm()), found(LayerNorm),
    )  # fmt: skip


def test_other_dropouts_drop_as_many_and_two_of_them_the_same() -> None:
    x = jnp.asarray(np.random.default_rng(0).standard_normal((40, 33, 21), np.float32)) + 9
    key, examples = jax.random.key(3), jnp.arange(40)

    def found(drop: Any) -> Any:
        return jax.value_and_grad(lambda x: (drop(x, key, examples, 0.3) ** 2).sum())(x)

    value, gradient = found(dropout.drop)
    for name in ("dropout_mask_kept", "dropout_mask_again"):
        same = found(dropouts.BY_NAME[name])
        np.testing.assert_allclose(same[0], value, rtol=1e-6)
        np.testing.assert_allclose(same[1], gradient, rtol=1e-6)
    zero = dropouts.BY_NAME["dropout_16_bits"](x, key, examples, 0.3) == 0
    assert zero.mean() == pytest.approx(0.3, abs=0.01)
    halves = zero[..., :10] & zero[..., 11:]  # which share their words
    assert halves.mean() == pytest.approx(0.09, abs=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("rate", [0.0, 0.1])
def test_profile(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], rate: float) -> None:
    path = tmp_path / "found.json"
    others = [name for name in candidates.NAMES if name.startswith("dropout_") == bool(rate)]
    parts = ["dropout", "entropy", "head", "optimizer"]
    given = [f"--parts={','.join(parts)}", f"--candidates={','.join(others)}"]
    profile.main(profile.parse(["--quick", f"--json={path}", f"--dropout_rate={rate}", *given]))
    (made,) = json.loads(path.read_text())["cases"]
    names = {"whole", "floor"} | {f"without {part}" for part in parts}
    names |= {f"with {name}" for name in others}
    assert made["sides"].keys() == names and made["sides"]["whole"]["share_step_secs"] == 0
    assert "| without head |" in capsys.readouterr().out


@pytest.mark.slow
def test_trace(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "found.json"
    trace.main(trace.parse(["--quick", "--top=3", f"--json={path}"]))
    (made,) = json.loads(path.read_text())["cases"]
    kinds = {operation["kind"] for operation in made["operations"]}
    assert {"products", "head", "stack"} <= kinds
    assert all(operation["ms"] >= 0 for operation in made["operations"])
    assert "| products |" in capsys.readouterr().out


@pytest.mark.slow
def test_products(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "found.json"
    products.main(products.parse(["--quick", f"--json={path}"]))
    found = json.loads(path.read_text())
    assert len(found) == 4 and all(rate > 0 for rate in found.values())
    assert "| table 8, narrow transposed |" in capsys.readouterr().out
