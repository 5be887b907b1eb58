"""Checkpoints: what is kept, what comes back, and what damaged files do."""

import dataclasses
import math
import os
import pathlib
import re
import shutil
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from scalelab.records.metrics import Clocks, Progress
from scalelab.state import TrainState
from scalelab.training import checkpoint
from scalelab.training.checkpoint import Checkpoints


def state_of(step: int) -> TrainState:
    """A state whose every number depends on the step."""
    rng = np.random.default_rng(step)
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape).astype(np.float32))  # noqa: E731
    return TrainState(
        step=jnp.asarray(step, jnp.int32),
        params={"kernel": draw(3, 40, 50), "bias": draw(7)},
        opt_state=(draw(40, 50), jnp.asarray(step, jnp.int32)),
        rng=jax.random.key_data(jax.random.key(step)),
    )


def assert_same(ours: TrainState, theirs: TrainState) -> None:
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)


def saved(folder, *steps: int, num_last=5, keep=0, meta=None, **ranks: float) -> pathlib.Path:
    checkpoints = Checkpoints(folder / "checkpoints", num_last)
    for step in steps:
        rank = ranks.get(f"at_{step}")
        checkpoints.save(state_of(step), meta or {"clocks": step}, rank, keep=step == keep)
    checkpoints.close()
    return folder


def restored(folder: pathlib.Path, num_last: int | None = 5) -> tuple[TrainState, dict] | None:
    checkpoints = Checkpoints(folder / "checkpoints", num_last)
    try:
        return checkpoints.restore(state_of(0))
    finally:
        checkpoints.close()


# --- What comes back ------------------------------------------------------------------------------


def test_what_was_saved_is_safe_from_later_donating_steps(tmp_path: pathlib.Path) -> None:
    """The save goes on in the background while steps overwrite the arrays that it was given."""
    checkpoints = Checkpoints(tmp_path / "checkpoints", num_last=5)
    step = jax.jit(lambda s: jax.tree.map(lambda a: a + 1, s), donate_argnums=0)
    now = state_of(1).replace(params={"kernel": jnp.ones((64, 128, 128))})
    expected, counts = jax.device_get(now), {"loss": [1.0, 1.0]}
    checkpoints.save(now, {"unlogged": counts})
    counts["loss"][0] += 1
    for _ in range(30):
        now = step(now)
    jax.block_until_ready(now)
    checkpoints.wait()
    state, meta = checkpoints.restore(now)
    checkpoints.close()
    assert_same(state, expected)
    assert meta["unlogged"] == {"loss": [1.0, 1.0]}


# --- What is kept ---------------------------------------------------------------------------------


def test_the_last_the_best_and_the_marked_are_kept(tmp_path: pathlib.Path) -> None:
    """Those of an earlier process too."""
    saved(tmp_path, *range(1, 8), num_last=2, keep=4, at_2=3.0, at_3=1.0, at_5=2.0)
    assert steps_in(tmp_path) == [3, 4, 6, 7]
    saved(tmp_path, 8, 9, num_last=2, at_9=1.5)
    assert steps_in(tmp_path) == [3, 4, 8, 9]


def steps_in(folder: pathlib.Path) -> list[int]:
    return sorted(int(path.name) for path in (folder / "checkpoints").iterdir())


# --- Damage ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Checkpoints of steps 3 and 7."""
    return saved(tmp_path_factory.mktemp("two"), 3, 7)


def files(folder: pathlib.Path, step: int) -> list[pathlib.Path]:
    """Files of a checkpoint that hold something, the largest first."""
    found = [p for p in (folder / "checkpoints" / str(step)).rglob("*") if p.is_file()]
    return sorted((p for p in found if p.stat().st_size), key=lambda p: -p.stat().st_size)


def flip(path: pathlib.Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    path.write_bytes(data)


DAMAGES = {
    "truncate": lambda path: os.truncate(path, path.stat().st_size // 2),
    "empty": lambda path: os.truncate(path, 0), "flip": flip, "unlink": pathlib.Path.unlink,
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damage_to_any_file_never_gives_wrong_numbers(damage, two, tmp_path, capsys) -> None:
    """Each file of the newest in turn: it comes back exact, or the one before does, with a word."""
    fell_back = 0
    for k, original in enumerate(files(two, 7)):
        folder = shutil.copytree(two, tmp_path / str(k))
        path = folder / original.relative_to(two)
        damage(path)
        state, meta = restored(folder)
        printed = capsys.readouterr().out
        assert int(state.step) in (3, 7) and meta["clocks"] == int(state.step)
        assert_same(state, state_of(int(state.step)))
        if int(state.step) == 3:
            fell_back += 1
            assert "checkpoint 7" in printed
            assert (folder / "damaged" / "7").is_dir()
        else:
            assert not printed, path
        if k == 0:  # the arrays themselves
            assert int(state.step) == 3
    assert fell_back >= 2


def test_wrong_numbers_that_the_file_format_accepts_are_noticed(
    tmp_path: pathlib.Path, monkeypatch, capsys
) -> None:
    """The arrays have checksums of their own, made on the devices."""
    saved(tmp_path, 3)
    honest = checkpoint.checksums
    monkeypatch.setattr(checkpoint, "checksums", lambda tree: [c ^ 1 for c in honest(tree)])
    saved(tmp_path, 7)
    monkeypatch.setattr(checkpoint, "checksums", honest)
    state, _ = restored(tmp_path)
    assert_same(state, state_of(3))
    assert re.search("checkpoint 7 .*checksum", capsys.readouterr().out)


@pytest.mark.parametrize("best", [2.5, math.inf])
def test_another_digit_in_what_goes_with_the_arrays_is_noticed(best, tmp_path, capsys) -> None:
    """Clocks, phase, best so far: json as good as before, but of no run that ever was."""
    run = Progress(Clocks(7, 70_000, 1.5e12, 2.25), phase=1, phase_start=3, best=best)
    run.evals = {"128": {"loss": 2.5, "step": 5}}
    saved(tmp_path, 3, 7, meta=dataclasses.asdict(run))
    path = tmp_path / "checkpoints/7/meta/metadata"
    text = path.read_text()
    digits = [k for k, c in enumerate(text) if c.isdigit()]
    for k in digits[:: len(digits) // 8]:
        path.write_text(text[:k] + str((int(text[k]) + 1) % 10) + text[k + 1 :])
        state, _ = restored(tmp_path, num_last=None)
        assert int(state.step) == 3 and "checkpoint 7" in capsys.readouterr().out
    path.write_text(text)
    state, meta = restored(tmp_path)
    assert int(state.step) == 7 and Progress.from_json(meta) == run


def test_a_run_goes_on_from_the_fallback_and_is_not_started_anew(two, tmp_path) -> None:
    """Step 7 can be reached and saved again, and the damaged ones stay aside."""
    folder = shutil.copytree(two, tmp_path / "run")
    for aside in ("7", "7.1"):
        flip(files(folder, 7)[0])
        checkpoints = Checkpoints(folder / "checkpoints", num_last=5)
        state, _ = checkpoints.restore(state_of(0))
        assert int(state.step) == 3
        checkpoints.save(state_of(7), {"clocks": 77})
        checkpoints.close()
        state, meta = restored(folder)
        assert_same(state, state_of(7))
        assert meta["clocks"] == 77 and (folder / "damaged" / aside).is_dir()
    for step in (3, 7):
        flip(files(folder, step)[0])
    for _ in range(2):  # the second start must not take an empty folder for a fresh run
        with pytest.raises(ValueError, match=r"checkpoints \[3, 7\].*workdir"):
            restored(folder)


def test_another_layout_is_refused_and_left_alone(tmp_path: pathlib.Path, monkeypatch) -> None:
    saved(tmp_path, 3)
    monkeypatch.setattr(checkpoint, "LAYOUT", checkpoint.LAYOUT + 1)
    with pytest.raises(ValueError, match="layout 1.* 2"):
        restored(tmp_path)
    monkeypatch.undo()
    assert_same(restored(tmp_path)[0], state_of(3))


SAVE_ON_TWO = """
import pathlib, sys
import jax, jax.numpy as jnp, numpy as np
from scalelab.training.checkpoint import Checkpoints, Weights

mesh = jax.sharding.Mesh(np.array(jax.devices()), ("data",))
halves = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
made = Checkpoints(pathlib.Path(sys.argv[1]), 2)
made.save(Weights({"a": jax.device_put(jnp.arange(8.0), halves)}, jnp.int32(3)), {})
made.close()
"""


def test_fewer_devices_read_what_several_have_saved(tmp_path: pathlib.Path) -> None:
    """Without a state to compare with, as the programs that read a finished run."""
    two = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}
    given = {"env": os.environ | two, "cwd": tiny.ROOT, "check": True}
    subprocess.run([sys.executable, "-c", SAVE_ON_TWO, tmp_path], **given)
    state, _ = Checkpoints(tmp_path, None).restore(None) or ({}, {})
    assert state["params"]["a"].tolist() == list(range(8)) and int(state["step"]) == 3


@pytest.mark.parametrize("bit", [0, 13, 31])
def test_checksums_see_every_bit_and_every_place(bit: int) -> None:
    values = np.random.default_rng(0).normal(size=(5, 6)).astype(np.float32)
    (before,) = checkpoint.checksums({"a": values})
    for place in (0, 17, 29):
        changed = values.copy()
        changed.reshape(-1).view(np.uint32)[place] ^= np.uint32(1 << bit)
        assert checkpoint.checksums({"a": changed}) != [before]
    swapped = values.copy()
    swapped[0, 0], swapped[3, 4] = values[3, 4], values[0, 0]
    assert checkpoint.checksums({"a": swapped}) != [before]


# --- Full disks -----------------------------------------------------------------------------------


def test_a_full_disk_is_noticed_before_anything_is_written(tmp_path, monkeypatch) -> None:
    checkpoints = Checkpoints(tmp_path / "checkpoints", num_last=5)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(OSError, match="space.*begins anew"):
        checkpoints.save(state_of(3), {})
    monkeypatch.undo()
    checkpoints.save(state_of(3), {})
    checkpoints.wait()
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(OSError, match="space.*step 3"):
        checkpoints.save(state_of(7), {})
    checkpoints.close()
    monkeypatch.undo()
    assert_same(restored(tmp_path)[0], state_of(3))
