"""Meshes, the table from logical names to mesh axes, one step on 1, 2, 4 and 8 devices."""

import pathlib

import flax.linen as nn
import jax
import numpy as np
import pytest
import several_devices
import subjects
import tiny
from jax.sharding import AbstractMesh, PartitionSpec

from scalelab import sharding
from scalelab.nn import axes

CUBE = AbstractMesh((2, 2, 2), sharding.MESH_AXES)
# Each axis alone, two together; of all three, in the cube of eight.
WAYS = ("2x1x1", "1x4x1", "1x1x4", "2x1x2")


def compare(ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray]) -> None:
    assert ours.keys() == theirs.keys()
    for name in ours:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-5, atol=1e-5, err_msg=name)
        # The exact gradient of a key's bias is 0; what is computed is rounding error.
        if name.startswith("gradients/") and not name.endswith("attention/key/bias"):
            atol = 1e-4 * (np.abs(theirs[name]).max() + 1e-6)
            np.testing.assert_allclose(ours[name], theirs[name], 1e-7, atol, err_msg=name)
    np.testing.assert_allclose(ours["metrics/loss"], theirs["metrics/loss"], rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("system", tiny.SYSTEMS)
def test_one_device_equals_eight_in_three_ways_with_microbatches(system: str, cube) -> None:
    expected = subjects.get(system).arrays(1)
    compare(dict(np.load(cube / f"{system}-2x2x2.npz")), expected)


@pytest.mark.slow
@pytest.mark.parametrize("system", tiny.SYSTEMS)
def test_one_device_equals_two_and_four_in_each_way(system: str, tmp_path: pathlib.Path) -> None:
    process = several_devices.start(tmp_path, 4, 1, "none", "1x1x1", *WAYS, "--", system)
    several_devices.finish(process)
    expected = dict(np.load(tmp_path / f"{system}-1x1x1.npz"))
    for ways in WAYS:
        compare(dict(np.load(tmp_path / f"{system}-{ways}.npz")), expected)


# --- The table -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("names", "shape", "expected"), [
    ((axes.VOCAB, axes.WIDTH), (10, 8), PartitionSpec("tensor", "fsdp")),
    ((axes.VOCAB, axes.WIDTH), (11, 8), PartitionSpec(None, "fsdp")),  # 11 does not divide by 2
    ((axes.LAYERS, axes.WIDTH, axes.HEADS), (3, 8, 2), PartitionSpec(None, "fsdp", "tensor")),
    ((axes.LAYERS, axes.FFN, axes.WIDTH), (2, 32, 8), PartitionSpec(None, "tensor", "fsdp")),
    ((axes.WIDTH, axes.WIDTH), (8, 8), PartitionSpec("fsdp", None)),  # used once
    ((axes.NORM,), (8,), PartitionSpec(None)),
    ((axes.BATCH, axes.LENGTH), (8, 16), PartitionSpec(("data", "fsdp"), None)),
    ((axes.BATCH,), (6,), PartitionSpec(None)),
    ((None,), (8,), PartitionSpec(None)),
])  # fmt: skip
def test_spec(names, shape, expected) -> None:
    assert sharding.spec(names, shape, CUBE) == expected


def test_an_unknown_or_missing_name_is_refused() -> None:
    with pytest.raises(ValueError, match="'widht'.*'width'"):
        sharding.spec(("widht",), (8,), CUBE)
    with pytest.raises(ValueError, match="zip"):
        sharding.spec((axes.WIDTH,), (8, 8), CUBE)


def test_shardings_follow_names_into_the_optimizer() -> None:
    table, count = jax.ShapeDtypeStruct((10, 8), "float32"), jax.ShapeDtypeStruct((), "int32")
    boxed = nn.LogicallyPartitioned(table, (axes.VOCAB, axes.WIDTH))
    placed = sharding.shardings({"mu": boxed, "count": count}, CUBE)
    assert placed["mu"].spec == PartitionSpec("tensor", "fsdp")
    assert placed["count"].spec == PartitionSpec()


# --- Meshes and batches --------------------------------------------------------------------------


def test_make_mesh_uses_the_devices_that_are_left() -> None:
    assert dict(sharding.make_mesh().shape) == {"data": jax.device_count(), "fsdp": 1, "tensor": 1}


@pytest.mark.parametrize("sizes", [(2, 1, 1), (-1, 3, 1), (0, 1, 1), (-1, 0, 1), (1, 1, -1)])
def test_a_mesh_that_does_not_fit_the_devices_is_refused(sizes, monkeypatch) -> None:
    monkeypatch.setattr(jax, "device_count", lambda: 4)
    with pytest.raises(ValueError, match="4 devices"):
        sharding.make_mesh(*sizes)


def test_batches_that_do_not_divide_are_refused() -> None:
    sharding.check_batches(CUBE, (8, 16), num_microbatches=2)
    with pytest.raises(ValueError, match="12 .* 2 .* 4 devices"):
        sharding.check_batches(CUBE, (8, 12), num_microbatches=2)


@pytest.mark.parametrize(("slices", "rows"), [
    ([slice(0, 4), slice(4, 8)], slice(0, 8)),
    ([slice(8, 12), slice(8, 12)], slice(8, 12)),  # devices that differ in the tensor axis
    ([slice(None)], slice(0, 16)),
    ([slice(0, 4), slice(8, 12)], None),
])  # fmt: skip
def test_a_process_makes_the_rows_that_its_devices_hold(slices, rows, monkeypatch) -> None:
    class DeviceSlices:
        def addressable_devices_indices_map(self, shape: tuple[int]) -> dict:
            assert shape == (16,)
            return {device: (index,) for device, index in enumerate(slices)}

    monkeypatch.setattr(sharding, "batch_sharding", lambda mesh: DeviceSlices())
    if rows is None:
        with pytest.raises(AssertionError):
            sharding.host_rows(tiny.one_device(), 16)
    else:
        assert sharding.host_rows(tiny.one_device(), 16) == rows
