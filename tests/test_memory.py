"""What a step needs: the search for the largest batch, remat, the program, and real peaks."""

import os
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import numpy as np
import pytest
import tiny

from scalelab import fit, sharding
from scalelab import objectives as objectives_lib
from scalelab.nn.stack import REMAT_POLICIES, UNROLLED_LAYERS
from scalelab.resources import blueprint, devices, malloc, memory, memory_measured
from scalelab.resources.memory import StepMemory


def planted(total: Callable[[int], float]) -> tuple[Callable[[int], StepMemory], list[int]]:
    """A step whose memory is known, and the batch sizes for which it was asked."""
    asked: list[int] = []

    def measure(batch_size: int) -> StepMemory:
        asked.append(batch_size)
        return StepMemory(batch_size, 100, 200, 0, round(total(batch_size)) - 300)

    return measure, asked


@pytest.mark.parametrize("quantum", [1, 8])
@pytest.mark.parametrize(
    "total",
    [
        lambda b: 1000 + 70 * b,
        lambda b: 1000 + 70 * b + 5000 * (b > 96),  # as where a loss goes on in chunks
        lambda b: 1000 + 40 * b + 0.05 * b * b,
    ],
)
@pytest.mark.parametrize("capacity", [3000, 20_000, 100_000])
def test_the_largest_batch_is_found(total: Any, capacity: int, quantum: int) -> None:
    measure, asked = planted(total)
    known = [measure(32), measure(64)]
    fits, beyond = memory.largest_batch(measure, known, capacity, quantum)
    assert fits is not None and beyond is not None
    sizes = range(quantum, 10_000, quantum)
    assert fits.batch_size == max(b for b in sizes if round(total(b)) <= capacity)
    assert beyond.batch_size == fits.batch_size + quantum
    assert len(asked) == len(set(asked)) <= 2 + memory.MOST_TRIES  # each is a compilation


def test_nothing_fits() -> None:
    measure, _ = planted(lambda b: 1000 + 70 * b)
    fits, beyond = memory.largest_batch(measure, [measure(32), measure(64)], 1500, 8)
    assert fits is None and beyond is not None and beyond.batch_size == 8


def test_a_search_without_end_is_given_up() -> None:
    measure, asked = planted(lambda b: 1000)
    fits, beyond = memory.largest_batch(measure, [measure(32), measure(64)], 1500)
    assert fits is not None and fits.batch_size == max(asked) and beyond is None
    assert len(asked) == 2 + memory.MOST_TRIES


def test_no_batch_is_asked_for_that_nobody_trains_with() -> None:
    measure, asked = planted(lambda b: b)
    fits, beyond = memory.largest_batch(measure, [measure(32), measure(64)], 1e9)
    assert fits is not None and fits.batch_size == max(asked) == memory.LARGEST and beyond is None
    assert "at least 16384 " in fit._largest(fits, beyond, 1)


def test_the_largest_batch_is_certain_where_the_next_was_compiled() -> None:
    measure, _ = planted(lambda b: b)
    assert "at least" not in fit._largest(measure(32), measure(40), 8)
    assert "has at least 32 " in fit._largest(measure(32), measure(48), 8)


def die(*_: Any) -> None:
    os._exit(9)


def test_a_measuring_process_that_is_killed_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_measured, "_peak", die)
    with pytest.raises(ValueError, match="8 x 16 was killed, most likely for want of memory"):
        memory_measured.peak(None, 16, 8)


def test_a_share_of_memory_that_is_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", "abc")
    with pytest.raises(ValueError, match="XLA_PYTHON_CLIENT_MEM_FRACTION=abc: expected a share"):
        devices.named("h100").num_bytes  # noqa: B018


def test_sizes_to_compare_with() -> None:
    assert [memory.another_size(*b) for b in ((64, 1), (1, 1), (8, 8), (24, 8))] == [32, 2, 16, 8]


def test_bytes_are_read() -> None:
    assert memory.parse_bytes("24GiB") == 24 * 2**30
    assert memory.parse_bytes("1.5 gb") == 1_500_000_000
    for wrong in ("24", "GiB", "0GiB", "-1GB", "24 G"):
        with pytest.raises(ValueError, match="expected a number with its unit"):
            memory.parse_bytes(wrong)


def test_devices_by_name_and_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XLA_PYTHON_CLIENT_MEM_FRACTION", raising=False)
    assert devices.named("A100-40").num_bytes == 30 * 2**30  # three quarters of it
    assert devices.named("tpu-v4").num_bytes == 32 * 2**30
    kinds = {"NVIDIA H200": "h200", "NVIDIA A100-SXM4-80GB": "a100-80", "TPU v5 lite": "tpu-v5e",
             "TPU v5p": "tpu-v5p", "Tesla V100-SXM2-16GB": "v100-16"}  # fmt: skip
    for kind, name in kinds.items():
        found = devices.of_kind(kind)
        assert found is not None and found.name == name
    assert devices.of_kind("cpu") is None
    with pytest.raises(ValueError, match="unknown device 'h10'.*did you mean 'h100'"):
        devices.named("h10")
    with pytest.raises(ValueError, match="give one"):
        fit.capacity("h100", "3GiB")


def with_remat(remat: str, num_layers: int) -> tuple[int, Any]:
    """Scratch of a compiled gradient, and what it gives, with dropout on."""
    plan = blueprint.draw(
        tiny.config("gpt2", net__num_layers=num_layers, net__width=32, net__max_len=64,
                    short__max_len=64, machine__remat=remat)
    )  # fmt: skip
    params = plan.start(tiny.one_device()).params
    batch = plan.random_batch(64, 8)

    def loss(params: Any) -> jax.Array:
        terms = plan.net.apply(
            {"params": params}, batch, plan.objectives, train=True, accuracy=False,
            method=objectives_lib.apply_objectives, rngs={"dropout": jax.random.key(1)},
        )  # fmt: skip
        return terms["clm"]["loss"][0] / (8 * 63)

    with nn.logical_axis_rules(sharding.activation_rules()):
        run = jax.jit(jax.value_and_grad(loss)).lower(params).compile()
    return run.memory_analysis().temp_size_in_bytes, jax.device_get(run(params))


@pytest.mark.slow
@pytest.mark.parametrize("num_layers", [UNROLLED_LAYERS + 4, UNROLLED_LAYERS])
def test_remat_keeps_less_and_gives_the_same_gradient(num_layers: int) -> None:
    found = {remat: with_remat(remat, num_layers) for remat in REMAT_POLICIES}
    (none, plain), (dots, _), (full, _) = (found[name] for name in ("none", "dots", "full"))
    assert full < 0.9 * dots and dots < 0.9 * none
    for _, given in found.values():
        for a, b in zip(jax.tree.leaves(given), jax.tree.leaves(plain), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_the_program_answers(tmp_path: Any) -> None:
    """On a config whose corpus is nowhere: no data is needed."""
    config = tiny.config("bert", data__corpus=f"wikitext:{tmp_path}/nowhere",
                         machine__compile_cache_dir=None)  # fmt: skip
    text = fit.fit(config, None, "100MiB", measure=False)
    assert "8 x 16 fits" in text and "the largest batch that fits has" in text
    assert "vocabulary 97" in text and "does NOT fit" not in text
    assert "counted as a CPU's; for a GPU or TPU" in text
    assert "freed buffers" not in text  # of a machine that is only named
    text = fit.fit(config, None, "1MiB", measure=True)
    assert "does NOT fit" in text and "8 x 16 not measured: it would not fit" in text


def test_what_training_keeps_is_said() -> None:
    """Parameters and the like once, and GAPS times what exists only within the step."""
    asked = StepMemory(8, params=100, optimizer=200, batch=30, between=1000, beside=7)
    assert asked.kept == 337 + malloc.GAPS * 1000
    assert "freed buffers go back" in fit._kept(asked, 2 * asked.kept - 1)
    assert "freed buffers being kept" in fit._kept(asked, 2 * asked.kept)


@pytest.mark.slow
def test_training_here_keeps_freed_buffers() -> None:
    config = tiny.config("bert", machine__compile_cache_dir=None)
    assert "8 x 16 in training: up to " in fit.fit(config, None, None, measure=False)


@pytest.mark.slow
def test_the_step_of_another_device_is_planned_as_it_runs_there() -> None:
    """A GPU's scores come in larger chunks, and it has no allowance for the cores' threads."""
    config = tiny.config("gpt2", net__max_len=64, short__max_len=64,
                         tokenizer__vocab_size=30_000, machine__compile_cache_dir=None)  # fmt: skip
    plan = blueprint.draw(config)
    here, gpu, again = (
        memory.of_step(plan, 64, 64, tiny.one_device(), platform)
        for platform in (None, "gpu", "cpu")
    )
    assert here == again and here.beside == memory.BESIDE_ON_CPU
    scores = 4 * 64 * 64 * 30_000
    assert here.between < scores < gpu.between and gpu.beside == 0


def measured(plan_for: Any, length: int, batch_size: int) -> tuple[int, int]:
    plan = blueprint.draw(plan_for)
    planned = memory.of_step(plan, length, batch_size, tiny.one_device())
    real = memory_measured.peak(plan_for, length, batch_size)
    if real is None:
        pytest.skip("this system does not tell")
    return planned.total, real


@pytest.mark.slow
@pytest.mark.parametrize(
    ("system", "remat", "batch_size"), [("bert", "none", 32), ("gpt2", "full", 96)]
)
def test_the_plan_is_the_real_peak(system: str, remat: str, batch_size: int) -> None:
    """To 10%, where the 50 MB by which the allocator moves it are small beside the plan."""
    config = tiny.config(
        system, net__width=256, net__num_heads=4, net__num_layers=6, net__max_len=128,
        short__max_len=128, short__batch_size=batch_size, tokenizer__vocab_size=30_000,
        machine__remat=remat, machine__compile_cache_dir=None,
    )  # fmt: skip
    planned, real = measured(config, 128, batch_size)
    assert planned > 6e8
    assert real == pytest.approx(planned, rel=0.1)
