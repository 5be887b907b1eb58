"""Kernels of a program by hand; attention in one kernel beside the net's own."""

import dataclasses
import importlib.util
import json
import pathlib
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from flax import linen as nn

from scalelab.nn import dropout
from scalelab.nn.attention import SelfAttention
from scalelab.nn.context import Context
from scalelab.nn.masks import Mask

sys.path.insert(0, str(tiny.ROOT))
from benchmarks import (
    accelerator,
    accelerator_report,
    finetune_kernels,
    fused_attention,
    hlo,
    kernels,
)  # noqa: E402

CANDIDATE = "fused_attention"
PROGRAM = """HloModule made_up

%gemm_body (a: bf16[64,32], b: bf16[32,16]) -> f32[64,16] {
  %a = bf16[64,32]{1,0} parameter(0)
  %b = bf16[32,16]{1,0} parameter(1)
  ROOT %dot.1 = f32[64,16]{1,0} dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

%sliced (whole: f32[1000,8], other: f32[10,8]) -> (f32[10,8], pred[10,8]) {
  %whole = f32[1000,8]{1,0} parameter(0)
  %other = f32[10,8]{1,0} parameter(1)
  %flat = f32[8000]{0} bitcast(%whole)
  %part = f32[80]{0} slice(%flat), slice={[0:80]}
  %shaped = f32[10,8]{1,0} bitcast(%part)
  %sum = f32[10,8]{1,0} add(%shaped, %other)
  %large = pred[10,8]{1,0} compare(%sum, %other), direction=GT
  ROOT %both = (f32[10,8]{1,0}, pred[10,8]{1,0}) tuple(%sum, %large)
}

%scattered (into: f32[1000,8], at: s32[5,1], rows: f32[5,8]) -> f32[1000,8] {
  %into = f32[1000,8]{1,0} parameter(0)
  %at = s32[5,1]{1,0} parameter(1)
  %rows = f32[5,8]{1,0} parameter(2)
  ROOT %scatter.1 = f32[1000,8]{1,0} scatter(%into, %at, %rows), to_apply=%add
}

%turn (state: (s32[], f32[4,4])) -> (s32[], f32[4,4]) {
  %state = (s32[], f32[4,4]{1,0}) parameter(0)
  %x = f32[4,4]{1,0} get-tuple-element(%state), index=1
  %copy.7 = f32[4,4]{1,0} copy(%x)
  ROOT %next = (s32[], f32[4,4]{1,0}) tuple(%i, %copy.7)
}

%two_rows (table: f32[2,8], at: s32[50,1], rows: f32[50,8]) -> (pred[50,8], f32[2,8]) {
  %table = f32[2,8]{1,0} parameter(0)
  %at = s32[50,1]{1,0} parameter(1)
  %rows = f32[50,8]{1,0} parameter(2)
  %small = pred[50,8]{1,0} compare(%rows, %rows), direction=LT
  %flat = f32[2,8]{1,0} bitcast(%table)
  %scatter.2 = f32[2,8]{1,0} scatter(%flat, %at, %rows), to_apply=%add
  ROOT %all = (pred[50,8]{1,0}, f32[2,8]{1,0}) tuple(%small, %scatter.2)
}

ENTRY %main (p: bf16[64,32], q: bf16[32,16], t: f32[1000,8], u: f32[10,8]) -> f32[1000,8] {
  %p = bf16[64,32]{1,0} parameter(0)
  %q = bf16[32,16]{1,0} parameter(1)
  %t = f32[1000,8]{1,0} parameter(2)
  %u = f32[10,8]{1,0} parameter(3)
  %at = s32[5,1]{1,0} constant({...})
  %gemm_fusion_dot = f32[64,16]{1,0} fusion(%p, %q), calls=%gemm_body, metadata={op_name="f/dot"}
  %loop_add_fusion = (f32[10,8]{1,0}, /*index=1*/pred[10,8]{1,0}) fusion(%t, %u), calls=%sliced
  %rows = f32[5,8]{1,0} custom-call(%p), custom_call_target="something"
  %init = (s32[], f32[4,4]{1,0}) tuple(%i, %y)
  %w = (s32[], f32[4,4]) while(%init), body=%turn, backend_config={"known_trip_count":{"n":"3"}}
  %at.2 = s32[50,1]{1,0} constant({...})
  %many = f32[50,8]{1,0} custom-call(%p), custom_call_target="something"
  %few = f32[2,8]{1,0} custom-call(%p), custom_call_target="something"
  %scatter_fusion.9 = (pred[50,8], f32[2,8]) fusion(%few, %at.2, %many), calls=%two_rows
  %dynamic-slice.3 = f32[10,8]{1,0} dynamic-slice(%t, %i, %i), dynamic_slice_sizes={10,8}
  %copy-start.4 = (f32[10,8], f32[10,8], u32[]) copy-start(%u)
  ROOT %input_scatter_fusion = f32[1000,8]{1,0} fusion(%t, %at, %rows), calls=%scattered
}
"""


def test_kernels_of_a_program_by_hand() -> None:
    found = {kernel.name: kernel for kernel in hlo.kernels(PROGRAM)}
    shown = {k: (v.kind, v.num_bytes, v.flops, v.turns) for k, v in found.items()}
    rest = "elementwise and softmax"
    product = 2 * 64 * 32 + 2 * 32 * 16 + 4 * 64 * 16
    assert shown == {
        "gemm_fusion_dot": ("products", product, 2 * 64 * 32 * 16, 1),
        "loop_add_fusion": (rest, 4 * 80 + 4 * 80 + 4 * 80 + 80, 0.0, 1),  # of the slice alone
        "rows": (rest, 2 * 64 * 32 + 4 * 5 * 8, 0.0, 1),
        "many": (rest, 2 * 64 * 32 + 4 * 50 * 8, 0.0, 1),
        "few": (rest, 2 * 64 * 32 + 4 * 2 * 8, 0.0, 1),
        # Two rows are read and written once, whatever is added to them.
        "scatter_fusion.9": ("scatters", 2 * 4 * 16 + 4 * 50 + 4 * 400 + 400, 0.0, 1),
        "dynamic-slice.3": ("moves", 2 * 4 * 80, 0.0, 1),  # of the part alone
        "copy-start.4": ("moves", 2 * 4 * 80, 0.0, 1),
        "copy.7": ("moves", 2 * 4 * 16, 0.0, 3),
        "input_scatter_fusion": ("scatters", 2 * 4 * 40 + 4 * 5 + 4 * 40, 0.0, 1),
    }  # fmt: skip
    assert found["gemm_fusion_dot"].source == "f/dot"


def test_times_by_hand() -> None:
    """The first is held up by its bytes (2 s), the second by its products (3 s)."""
    made = [hlo.Kernel("", "", "moves", 20, 1.0, 2), hlo.Kernel("", "", "products", 1, 30.0)]
    assert kernels.secs(made[0], 10.0, 10.0) == 4.0
    assert kernels.secs(made[0], 10.0, 10.0, start_secs=0.5) == 5.0
    found = kernels.summary(made, (10.0, 10.0))
    assert found["kernels"] == 3 and found["table_ms"] == 7e3
    share, rate = kernels.OF_BANDWIDTH, kernels.OF_PEAK
    assert found["expected_ms"] == pytest.approx(1e3 * (4 / share + 3 / rate), rel=1e-5)
    quick = kernels.summary(made, (1e7, 1e7))  # microseconds: starting three kernels is seen
    starts = 3 * kernels.START_SECS
    assert quick["expected_ms"] == pytest.approx(1e3 * (starts + (4 / share + 3 / rate) / 1e6))
    assert kernels.rates("h200", "bfloat16") == (4.8e12, 989e12)
    assert kernels.rates("h200", "float32") is None is kernels.rates("here", "bfloat16")


def test_tables_with_times(capsys: pytest.CaptureFixture[str]) -> None:
    row = kernels.summary([hlo.Kernel("", "", "moves", 10**9, 0.0)], (1e12, 1e15))
    found = {
        "shape": "2x8x1", "dtype": "bfloat16", "batch_size": 4, "length": 16, "seeds": 8,
        "candidate": CANDIDATE, "device": "h100", "compile_secs": 1.0, "kinds": {"moves": row},
        "total": row | {"expected_share_of_peak": 0.25}, "largest": [],
        "memory_bytes": 3 * 2**29,
    }  # fmt: skip
    text = kernels.markdown(found)
    assert "| moves | 1 | 1.00 | 0.000 | 1.00 | 1.33 |" in text and ", 8 seeds" in text
    assert (
        "memory as planned: 1.50 GiB" in text
        and "expected share of peak: 0.250" in text
        and CANDIDATE in text
    )
    finetune_kernels.report({
        "task": "rte", "shape": "2x8x1", "dtype": "bfloat16", "batch_size": 4, "device": "h100",
        "seeds": 8, "alone": row | {"length": 16}, "together": row | {"length": 32},
        "expected_gain": 8.0,
    })  # fmt: skip
    out = capsys.readouterr().out
    assert "| 8 | 32 | 1 | 1.00 | 1.00 | 1.33 |" in out and "8 times as fast" in out
    told = kernels.TARGETS["h200"].told(kernels.devices.named("h200"))
    assert "memory_bandwidth: 4800000000000" in told and '"NVIDIA H200"' in told


def test_a_candidate_is_counted_or_refused() -> None:
    """Interpreted here; nets that it does not fit are not counted in its name."""
    given = kernels.parse(["--quick", "--shapes=2x32x1", f"--candidate={CANDIDATE}"])
    fits = accelerator.Case("2x32x1", "bfloat16", 4, 16, 1)
    assert kernels.measure_case(fits, given)["candidate"] == CANDIDATE
    with pytest.raises(kernels.cli.Stopped, match="does not fit 2x8x1"):
        kernels.measure_case(accelerator.Case("2x8x1", "bfloat16", 4, 16, 1), given)


def test_lines_of_a_candidate_say_so_also_where_they_fail() -> None:
    rows = [
        {"shape": "2x256x9", "dtype": "bfloat16", "batch_size": 64, "length": 128, "seeds": 1,
         "block": 1, "candidate": CANDIDATE, "ms": 1.5, "share_of_peak": 0.4},
    ]  # fmt: skip
    (said,) = accelerator_report.conclusions(rows, "gpu")
    assert f"with {CANDIDATE}" in said and said.endswith("met")
    failed = [{k: v for k, v in rows[0].items() if k != "ms"} | {"error": "no such kernel"}]
    about = {"device": "a", "jax": "b", "commit": "c", "secs": 1.0, "command": "d", "peaks": {}}
    table = accelerator_report.markdown(about | {"rows": failed, "left": [], "platform": "gpu"})
    assert f"| 2x256x9 with {CANDIDATE} |" in table and "no such kernel" in table


def test_kernels_of_a_step_have_the_products_that_flops_counts(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "found.json"
    kernels.main(kernels.parse(["--quick", f"--json={path}", "--top=2"]))
    (case,) = json.loads(path.read_text())
    given = kernels.parse(["--quick"])
    plan = accelerator.blueprint_of(
        accelerator.Case("2x8x1", "bfloat16", given.batch_size, given.length, 1),
        given.vocab_size,
    )
    useful = plan.phases[0].forward.train
    assert 1e12 * case["total"]["tflop"] == pytest.approx(useful, rel=0.02)
    assert case["total"]["kernels"] == sum(k["kernels"] for k in case["kinds"].values()) > 50
    assert len(case["largest"]) == 2 and "expected_ms" not in case["total"]
    assert "| all |" in capsys.readouterr().out


def test_kernels_of_seeds_together(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of two seeds in one program: twice the products in one program's kernels."""
    path = tmp_path / "found.json"
    finetune_kernels.main(finetune_kernels.parse(["--quick", f"--json={path}"]))
    found = json.loads(path.read_text())
    alone, together = found["alone"], found["together"]
    assert found["dtype"] == "bfloat16"  # of which the model's times are
    assert together["tflop"] == pytest.approx(2 * alone["tflop"], rel=0.1)
    assert together["kernels"] < 1.5 * alone["kernels"]
    assert "| 2 |" in capsys.readouterr().out


def test_without_its_part_for_cuda_jax_is_told_what_to_install() -> None:
    if importlib.util.find_spec("jax_cuda12_plugin") or importlib.util.find_spec(
        "jax_cuda13_plugin"
    ):
        pytest.skip("it is installed here")
    given = kernels.parse(["--quick", "--device=h200"])
    with pytest.raises(kernels.cli.Stopped, match="pip install '.\\[cuda\\]'"):
        kernels.measure_case(accelerator.Case("2x8x1", "bfloat16", 4, 16, 1), given)


def both(
    causal: bool, dtype: Any, made: type, *, train: bool = True, length: int = 16
) -> tuple[Any, Any]:
    """Values and gradients of our attention and of `made`, at weights of std 0.5."""
    rng = np.random.default_rng(0)
    x, target = (jnp.asarray(rng.normal(size=(3, length, 24)), dtype) for _ in range(2))
    lengths = jnp.array([length, 7, 0])
    ctx = Context(
        Mask(lengths=lengths, causal=causal), jnp.arange(length)[None], jnp.array([5, 6, 9]),
        train=train,
    )  # fmt: skip
    init = nn.initializers.normal(0.5)
    found = []
    for module in (SelfAttention, made):
        net = module(2, 16, 0.1, init, init, dtype)
        keys = {"params": jax.random.key(0), "dropout": jax.random.key(1)}
        params = nn.unbox(jax.eval_shape(lambda net=net, keys=keys: net.init(keys, x, ctx, None)))
        draw = np.random.default_rng(1)
        params = jax.tree.map(lambda s, draw=draw: 0.5 * draw.normal(size=s.shape), params)

        def loss(params: Any, x: Any, net: Any = net) -> Any:
            y, _ = net.apply(params, x, ctx, None, rngs={"dropout": jax.random.key(2)})
            return jnp.sum((y * target).astype(jnp.float32)), y

        (_, y), grads = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))(params, x)
        # Scores do not feel the keys' bias: its gradient is rounding alone.
        grads[0]["params"]["key"].pop("bias")
        found.append(jax.tree.map(lambda v: np.asarray(v, np.float32), (y, grads)))
    return found[0], found[1]


def close(a: Any, b: Any, tolerance: float) -> None:
    for left, right in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(left, right, rtol=0, atol=tolerance * np.abs(left).max())


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_in_one_kernel_is_ours(causal: bool, train: bool) -> None:
    """Value, gradients and dropout's masks, of padding and a padding example too."""
    made = fused_attention.fused_attention(interpret=True)
    close(*both(causal, jnp.float32, made, train=train), 1e-5)
    close(*both(causal, jnp.bfloat16, made, train=train), 0.03)


def test_the_kernel_drops_what_ours_drops_bit_by_bit() -> None:
    """Values that are the rows of 1 give dropout's weights themselves, at the largest tile."""
    size, heads, rate = fused_attention.MOST_TOKENS, 2, 0.3
    key, examples = jax.random.key(4), jnp.array([7, 2])
    draw = np.random.default_rng(0).normal
    q, k = (jnp.asarray(draw(size=(2, size, heads, size)) / size, jnp.float32) for _ in range(2))
    v = jnp.broadcast_to(jnp.eye(size)[None, :, None], q.shape)
    words = dropout.example_words(key, examples)
    kind = fused_attention.Kind(causal=False, rate=rate, interpret=True)
    found = fused_attention.attend(kind, q, k, v, jnp.full(2, size), words)
    ours = dropout.drop(jnp.ones((2, heads, size, size)), key, examples, rate)
    np.testing.assert_array_equal(found.swapaxes(1, 2) > 0, ours > 0)
    assert 0.25 < (ours == 0).mean() < 0.35


def test_nets_have_the_candidate_and_runs_together_have_it_too() -> None:
    """A step of two runs whose attention is interpreted is the step of ours."""
    made = accelerator.Case("2x32x1", "float32", 4, 16, 1, seeds=2)

    def after(name: str | None) -> Any:
        with accelerator.with_candidate(name, interpret=True):
            program = accelerator.program(made, 97)
            state = jax.jit(program.fresh)(program.seeds)
            run = jax.jit(program.block)
            text = str(jax.make_jaxpr(run)(state, program.batches, np.float32(0.1)))
            return text, run(state, program.batches, np.float32(0.1))

    (ours, (state, metrics)), (fused, (state_too, metrics_too)) = after(None), after(CANDIDATE)
    assert "pallas_call" in fused and "pallas_call" not in ours
    close(metrics["loss"], metrics_too["loss"], 1e-5)
    moments = [one.opt_state[1].mu["stack"]["layer"]["attention"] for one in (state, state_too)]
    for one in moments:
        one["key"].pop("bias")  # rounding alone, as above
    close(*moments, 1e-4)
    assert accelerator.takes(made, CANDIDATE) == CANDIDATE
    longer = dataclasses.replace(made, length=512)
    assert accelerator.takes(longer, CANDIDATE) is None and accelerator.takes(made, None) is None


def test_another_dropout_in_the_kernel_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    made = fused_attention.fused_attention(interpret=True)
    ones = lambda _, examples: jnp.ones((len(examples), 2), jnp.uint32)  # noqa: E731
    monkeypatch.setattr(fused_attention.dropout, "example_words", ones)
    ours = both(False, jnp.float32, SelfAttention)[0]
    monkeypatch.undo()
    theirs = both(False, jnp.float32, made)[1]
    with pytest.raises(AssertionError):
        close(ours, theirs, 0.03)


def test_heads_that_are_no_tile_are_ours() -> None:
    """A length of 12 is no power of two: no kernel is made, or interpreting would be asked for."""
    assert fused_attention.fits(128, 64) and not fused_attention.fits(256, 64)
    assert not fused_attention.fits(12, 16) and not fused_attention.fits(16, 67)
    close(*both(False, jnp.float32, fused_attention.fused_attention(), length=12), 1e-6)


def test_masks_that_the_kernel_does_not_know_are_ours() -> None:
    """No kernel is made, or interpreting would be asked for."""
    net = fused_attention.fused_attention()(2, 16, 0.0, *[nn.initializers.normal(0.5)] * 2)
    x = jnp.ones((1, 16, 24))
    for mask in (Mask(window=2), Mask(segments=jnp.zeros((1, 16), jnp.int32))):
        ctx = Context(mask, jnp.arange(16)[None], jnp.arange(1))
        text = str(jax.make_jaxpr(lambda ctx=ctx: net.init(jax.random.key(0), x, ctx, None))())
        assert "pallas_call" not in text
    known = Context(Mask(causal=True), jnp.arange(16)[None], jnp.arange(1))
    text = str(jax.make_jaxpr(lambda: net.init(jax.random.key(0), x, known, None))())
    assert "pallas_call" in text
