"""Carried state with a batch axis, and contiguous order: from the program to the checkpoint."""

import dataclasses
import pathlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import guests
import numpy as np
import pytest
import scratch
from jax.sharding import AbstractMesh, PartitionSpec
from train_lab import Lab, Record

from scalelab import sharding, state, systems
from scalelab.data import load_data
from scalelab.nn import axes
from scalelab.training import blueprint

L, B, M, D = 1, 8, 8, 8
MEMORY = axes.LAYERS, axes.BATCH, axes.LENGTH, axes.WIDTH


@pytest.fixture(autouse=True, scope="module")
def two_streams() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        guests.add(patch, "two_streams")
        yield


@pytest.fixture(scope="module")
def config(lab: Lab) -> Callable[..., Any]:
    def make(**more: Any) -> Any:
        given = {"machine__checkpoint_every_steps": 2, "long__example_rate": 0.0} | more
        return lab.config("system=two_streams,steps=4", **given)

    return make


@pytest.fixture(scope="module")
def whole(lab: Lab, config: Any, tmp_path_factory: pytest.TempPathFactory) -> Record:
    return lab.run(tmp_path_factory.mktemp("whole") / "run", config())


def test_a_memory_of_each_row_is_trained_and_continued(lab, config, whole, tmp_path) -> None:
    memories = [whole.states[k].carried["memory"] for k in (1, 2, 3, 4)]
    assert memories[0].shape == (L, B, M, D) and all(np.ptp(m, axis=1).all() for m in memories)
    assert not any((a == b).all() for a, b in zip(memories, memories[1:], strict=False))
    _, resumed = lab.killed(tmp_path, config(), at=3)
    assert list(resumed.states) == [3, 4]  # that of step 2 was saved
    resumed.assert_equal(whole)


def test_a_memory_is_split_like_a_batch(config: Any) -> None:
    model = state.make_model(config())
    boxed = blueprint.draw(config()).boxed
    assert boxed.carried["memory"].names == MEMORY
    assert boxed.carried["memory"].value.shape == (L, B, M, D)
    cube = AbstractMesh((2, 2, 2), sharding.MESH_AXES)
    rows, whole = ("data", "fsdp"), None
    assert sharding.shardings(boxed, cube).carried["memory"].spec == PartitionSpec(
        None, rows, None, whole
    )
    state.check_phases(model, config())


def test_two_phases_of_different_sizes_are_refused(lab, config, tmp_path, capsys) -> None:
    two = config(long__example_rate=0.1)
    message = scratch.refused(capsys, lambda: lab.run(tmp_path, two))
    assert "set --config.long.example_rate=0" in message
    assert (
        "memory from step to step, whose shape changes from (1, 8, 8, 8) to (1, 4, 8, 8)" in message
    )
    with pytest.raises(ValueError, match="example_rate=0"):
        blueprint.draw(two)
    blueprint.draw(config(long__example_rate=0.1, long__batch_size=B))


@pytest.mark.parametrize(("rate", "message"), [
    (0.0, "each of the 300 rows .* has 240 for length 32: .*config.short.batch_size to 240 or"),
    (0.1, "each of the 64 rows .* has [0-9]+ for length 64: .*config.long.batch_size to [0-9]+ or"),
])  # fmt: skip
def test_fewer_documents_than_rows_are_refused(
    rate: float, message: str, lab: Lab, config: Any, tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture,
) -> None:  # fmt: skip
    sizes = {"long__batch_size": 64, "short__batch_size": 300 if rate == 0 else 64}
    given = config(long__example_rate=rate, **sizes)
    assert re.search(message, scratch.refused(capsys, lambda: lab.run(tmp_path, given)))
    shuffled = dataclasses.replace(given, system="roberta")
    assert load_data(shuffled, systems.load("roberta"), progress=False).phases
