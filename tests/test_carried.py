"""Carried state with a batch axis, and contiguous order: from the program to the checkpoint."""

import dataclasses
import pathlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import guests
import jax
import numpy as np
import pytest
import scratch
import tiny
from jax.sharding import AbstractMesh, PartitionSpec
from train_lab import Lab, Record

from scalelab import objectives, sharding, state, systems
from scalelab.data.batches import evaluation_batches
from scalelab.data.loading import load_data
from scalelab.nn import axes
from scalelab.step import compile_evaluation  # before a Lab lets it remember programs
from scalelab.training import blueprint

# Layers, rows, tokens and width of the memory.
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
    assert list(resumed.states) == [3, 4]  # step 2 was saved
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
    with pytest.raises(ValueError, match="num_microbatches = 2: .*memory"):
        blueprint.draw(config(machine__num_microbatches=2))


@pytest.mark.parametrize("samples", [False, True])
def test_validation_reads_lanes_behind_a_memory_of_their_own(
    samples: bool, config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each draw by a loop over the batches, from an empty memory; no training changes it."""
    monkeypatch.setattr(guests.two_streams.Permuted, "samples", samples)
    given, num_draws = config(), 4 if samples else 1
    model, mesh = state.make_model(given), tiny.one_device()
    valid = load_data(given, model.system, progress=False).phases[0].valid
    begun, placed = state.create(model, max_len=32, batch_size=B, seed=0, mesh=mesh)
    batches = list(evaluation_batches(valid, B, 3, None, model.system.ORDER))
    evaluate = compile_evaluation(model, mesh, placed, begun, batches)
    found = [pairs["permuted_loss"] for pairs in evaluate(begun)]

    @jax.jit
    def read(batch: Any, key: jax.Array, carried: Any) -> Any:
        prepared = objectives.prepare(batch, model.terms, objectives.named_key(key, "mask"))
        ctx = objectives.Pass(key)
        return objectives.forward(model.net, begun.params, prepared, model.terms, ctx, carried)

    key = objectives.named_key(jax.random.key(0), "eval")
    for draw in range(num_draws):
        carried = {"memory": np.zeros((L, B, M, D), np.float32)}
        for place in range(draw, 3 * num_draws, num_draws):
            rng = jax.random.fold_in(key, place)
            losses, carried = read(batches[place // num_draws], rng, carried)
            np.testing.assert_allclose(found[place], losses["permuted"]["loss"], rtol=1e-5)
    filled = jax.tree.map(lambda x: x + 1, begun.carried)
    again = [pairs["permuted_loss"] for pairs in evaluate(begun.replace(carried=filled))]
    np.testing.assert_array_equal(again, found)


def test_a_run_validates_in_lanes(whole: Record, config: Any, monkeypatch: Any) -> None:
    """Its result is that of the lanes, and no other."""
    given = config()
    model, mesh = state.make_model(given), tiny.one_device()
    data = load_data(given, model.system, progress=False)
    begun, placed = state.create(model, max_len=32, batch_size=B, seed=0, mesh=mesh)
    for order in ("contiguous", "shuffled"):
        batches = evaluation_batches(data.phases[0].valid, B, 4, None, order)
        evaluate = compile_evaluation(model, mesh, placed, begun, batches)
        total, weight = np.sum([x["permuted_loss"] for x in evaluate(whole.states[4])], axis=0)
        is_same = whole.result["eval"]["32"]["loss"] == pytest.approx(total / weight, rel=1e-6)
        assert is_same == (order == "contiguous")


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
