"""What a step needs: the search for the largest batch, remat, the program."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import numpy as np
import pytest
import tiny

from scalelab import fit, sharding
from scalelab import objectives as objectives_lib
from scalelab.fit import StepMemory
from scalelab.nn.stack import REMAT_POLICIES, UNROLLED_LAYERS
from scalelab.objectives import Pass
from scalelab.resources import devices
from scalelab.training import blueprint


def planted(total: Callable[[int], float]) -> tuple[Callable[[int], StepMemory], list[int]]:
    """A step whose memory is known, and the batch sizes for which it was asked."""
    asked: list[int] = []

    def measure(batch_size: int) -> StepMemory:
        asked.append(batch_size)
        return StepMemory(batch_size, 100, 200, 0, round(total(batch_size)) - 300)

    return measure, asked


@pytest.mark.parametrize("quantum", [1, 8])
@pytest.mark.parametrize("total", [
    lambda b: 1000 + 70 * b,
    lambda b: 1000 + 70 * b + 5000 * (b > 96),  # as where a loss goes on in chunks
    lambda b: 1000 + 40 * b + 0.05 * b * b,
])  # fmt: skip
@pytest.mark.parametrize("capacity", [1030, 3000, 20_000, 100_000])
def test_the_largest_batch_is_found(total: Any, capacity: int, quantum: int) -> None:
    measure, asked = planted(total)
    known = [measure(32), measure(64)]
    fits, beyond = fit.largest_batch(measure, known, capacity, quantum)
    sizes = range(quantum, 10_000, quantum)
    largest = max((b for b in sizes if round(total(b)) <= capacity), default=0)
    assert (fits.batch_size if fits else 0) == largest  # None: nothing fits
    assert beyond is not None and beyond.batch_size == largest + quantum
    assert len(asked) == len(set(asked)) <= 2 + fit.MOST_TRIES  # each is a compilation


@pytest.mark.parametrize(("total", "capacity"), [(lambda b: 1000, 1500), (lambda b: b, 1e9)])
def test_an_endless_search_is_given_up(total: Any, capacity: float) -> None:
    measure, asked = planted(total)
    fits, beyond = fit.largest_batch(measure, [measure(32), measure(64)], capacity)
    assert fits is not None and fits.batch_size == max(asked) <= fit.LARGEST and beyond is None
    assert f"at least {max(asked)} " in fit.describe_largest(fits, beyond, 1)


def test_bytes_are_read() -> None:
    assert fit.parse_bytes("24GiB") == 24 * 2**30
    assert fit.parse_bytes("1.5 gb") == 1_500_000_000
    for wrong in ("24", "GiB", "0GiB", "-1GB", "24 G"):
        with pytest.raises(ValueError, match="unit"):
            fit.parse_bytes(wrong)


def test_devices_by_name_and_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XLA_PYTHON_CLIENT_MEM_FRACTION", raising=False)
    assert devices.named("A100-40").num_bytes == 30 * 2**30  # three quarters of it
    assert devices.named("tpu-v4").num_bytes == 32 * 2**30
    kinds = {"NVIDIA H200": "h200", "NVIDIA A100-SXM4-80GB": "a100-80", "TPU v5 lite": "tpu-v5e",
             "TPU v5p": "tpu-v5p", "Tesla V100-SXM2-16GB": "v100-16"}  # fmt: skip
    for kind, name in kinds.items():
        found = devices.find_kind(kind)
        assert found is not None and found.name == name
    assert devices.find_kind("cpu") is None
    with pytest.raises(ValueError, match="'h10'.*'h100'"):
        devices.named("h10")
    monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", "abc")
    with pytest.raises(ValueError, match="XLA_PYTHON_CLIENT_MEM_FRACTION"):
        devices.named("h100").num_bytes  # noqa: B018


def with_remat(remat: str, num_layers: int) -> tuple[int, Any]:
    """Scratch of a compiled gradient, and what it gives, with dropout on."""
    plan = blueprint.draw(
        tiny.config("gpt2", model__num_layers=num_layers, model__width=32, model__max_len=64,
                    short__max_len=64, machine__remat=remat)
    )  # fmt: skip
    params = plan.start(tiny.one_device()).params
    batch = plan.random_batch(64, 8)

    def loss(params: Any) -> jax.Array:
        terms = plan.net.apply(
            {"params": params}, batch, plan.terms, Pass(jax.random.key(1), train=True),
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
    text = fit.fit(config, None, "100MiB")
    assert "16 fits" in text and "largest batch" in text
    assert "vocabulary 97" in text and "--device" in text and "in training" not in text
    assert "does NOT fit" in fit.fit(config, None, "1MiB")
    assert "in training" in fit.fit(config, None, None)


@pytest.mark.slow
def test_the_step_of_another_device_is_planned_as_it_runs_there() -> None:
    """A GPU's scores come in larger chunks, and it has no allowance for the cores' threads."""
    config = tiny.config("gpt2", model__max_len=64, short__max_len=64,
                         tokenizer__vocab_size=30_000, machine__compile_cache_dir=None)  # fmt: skip
    plan = blueprint.draw(config)
    here, gpu, again = (
        fit.measure_step(plan, 64, 64, tiny.one_device(), platform)
        for platform in (None, "gpu", "cpu")
    )
    assert here == again and here.beside == fit.BESIDE_ON_CPU
    scores = 4 * 64 * 64 * 30_000
    assert here.between < scores < gpu.between and gpu.beside == 0
