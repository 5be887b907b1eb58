"""Checkpoints: state, clocks, data position and config, saved by orbax in the background.

Kept are the last few and the best. Each carries a checksum of every array, computed on the devices
when it was saved; a checkpoint that cannot be read or does not match is moved aside and the one
before it is used.
"""

import contextlib
import copy
import dataclasses
import json
import math
import pathlib
import shutil
import zlib
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils
from orbax.checkpoint.checkpoint_managers import AnyPreservationPolicy, BestN, LatestN

from scalelab.runs import orbax_noise
from scalelab.runs.clocks import Clocks

# The layout of the parameter tree on disk. Raise it when names or shapes of parameters change.
LAYOUT = 1
SMALL_FILES_BYTES = 100_000  # what a checkpoint takes besides its arrays


@dataclasses.dataclass
class Run:
    """What changes while a run trains; a checkpoint holds all of it.

    Attributes:
      state: the TrainState, on the devices.
      clocks: how far it has come.
      phase: index of the phase in progress.
      phase_start: the step at which that phase began.
      best: lowest validation loss of the phase in progress.
      evals: the last validation of each phase, by its length in tokens.
      data: fingerprint of the training examples.
      unlogged: (sum, weight) of each metric since the last logged line.
      initialised: names of the parameters that the run it began with had not.
    """

    state: Any
    clocks: Clocks = dataclasses.field(default_factory=Clocks)
    phase: int = 0
    phase_start: int = 0
    best: float = math.inf
    evals: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)
    data: str = ""
    unlogged: dict[str, tuple[float, float]] = dataclasses.field(default_factory=dict)
    initialised: list[str] = dataclasses.field(default_factory=list)

    def meta(self) -> dict[str, Any]:
        """Everything but the state, as plain json."""
        fields = {
            f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "state"
        }
        return fields | {"clocks": dataclasses.asdict(self.clocks), "best": repr(self.best)}

    @classmethod
    def from_meta(cls, state: Any, meta: dict[str, Any]) -> "Run":
        """The run that `meta` described."""
        names = {f.name for f in dataclasses.fields(cls)} - {"state"}
        values = {name: meta[name] for name in names - {"initialised"}}
        values["initialised"] = meta.get("initialised", [])  # which older checkpoints have not
        return cls(
            state, **(values | {"clocks": Clocks(**meta["clocks"]), "best": float(meta["best"])})
        )


@jax.jit
def _checksum_of(array: jax.Array) -> jax.Array:
    """The sum of an array's words, each times an odd number given by its place: a uint32."""
    words = jax.lax.bitcast_convert_type(
        array, jnp.dtype(f"uint{8 * array.dtype.itemsize}")
    ).astype(jnp.uint32)
    place = jax.lax.iota(jnp.uint32, max(words.size, 1))[: words.size].reshape(words.shape)
    return jnp.sum(words * (place * jnp.uint32(2_654_435_762) | jnp.uint32(1)), dtype=jnp.uint32)


def checksums(tree: Any) -> list[int]:
    """The checksums of a tree's arrays, in the order of its leaves."""
    # One after another: XLA makes a copy of what it sums, and one of the whole state is too much.
    return [int(_checksum_of(leaf)) for leaf in jax.tree.leaves(tree)]


class Checkpoints:
    """The checkpoints of one run folder.

    Args:
      directory: where they lie; made if absent.
      num_last: how many of the last are kept beside the best; None: only read, change nothing.
      write_bytes: how much may be on its way to the disk at a time, which takes as much memory
        again; at least the largest array. None: everything.
    """

    def __init__(
        self, directory: pathlib.Path, num_last: int | None, write_bytes: int | None = None
    ) -> None:
        orbax_noise.silence()
        self._directory = directory.absolute()
        self._read_only = num_last is None
        self._manager = ocp.CheckpointManager(
            self._directory,
            handler_registry=None if write_bytes is None else _writing_at_most(write_bytes),
            options=ocp.CheckpointManagerOptions(read_only=True)
            if num_last is None
            else ocp.CheckpointManagerOptions(
                preservation_policy=AnyPreservationPolicy(
                    [
                        LatestN(num_last),
                        BestN(
                            get_metric_fn=lambda m: m["rank"],
                            reverse=True,
                            n=1,
                            keep_checkpoints_without_metrics=False,
                        ),
                    ]
                ),
                cleanup_tmp_directories=True,
            ),
        )

    def steps(self) -> list[int]:
        """Steps at which there is a checkpoint, oldest first."""
        return sorted(self._manager.all_steps())

    def save(self, state: Any, meta: dict[str, Any], rank: float | None = None) -> None:
        """Saves in the background; returns once the arrays are safe to overwrite.

        Args:
          state: a TrainState.
          meta: what else the run needs to continue: plain json.
          rank: lower is better; None where nothing was evaluated at this step.
        """
        step = int(state.step)
        if step in self._manager.all_steps():
            return
        # A copy: orbax writes it in the background, while the run changes what it holds.
        meta = copy.deepcopy(meta) | {"layout": LAYOUT, "checksums": checksums(state)}
        meta["checksum"] = _checksum(meta)
        self._check_room(state)
        with self._naming_full_disks():
            self._manager.save(
                step,
                args=ocp.args.Composite(
                    state=ocp.args.StandardSave(state), meta=ocp.args.JsonSave(meta)
                ),
                metrics=None if rank is None else {"rank": rank},
            )

    def restore(self, like: Any) -> tuple[Any, dict[str, Any]] | None:
        """Restores the newest sound checkpoint.

        Args:
          like: a state with the shapes, types and shardings wanted.

        Returns:
          (state, meta), or None if there is no checkpoint.

        Raises:
          ValueError: checkpoints are there, but none is sound, or they have another layout.
        """
        steps = self.steps()
        newest = self._newest_sound(steps, like)
        if newest is None and steps:
            raise ValueError(
                f"none of the checkpoints {steps} in {self._directory} can be read;"
                " train, or import, again into a new workdir"
            )
        return newest

    def _newest_sound(self, steps: list[int], like: Any) -> tuple[Any, dict[str, Any]] | None:
        """Only what a sound one stands behind is moved: else a second start would begin anew."""
        damaged: list[int] = []
        for k, step in reversed(list(enumerate(steps))):
            try:
                found = self._restore(step, like)
                self._move_aside(damaged)
                return found
            except _WrongLayout as error:
                raise ValueError(str(error)) from None
            except Exception as error:  # whatever orbax and tensorstore make of damaged files
                if isinstance(error, PermissionError) or "out of memory" in str(error).lower():
                    raise  # the files may be as good as ever
                reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
            then = "; trying the one before it" if k else ""
            print(f"checkpoint {step} is damaged ({reason}){then}", flush=True)
            damaged.append(step)
        return None

    def _move_aside(self, damaged: list[int]) -> None:
        """Makes room for the checkpoints that the run will write again."""
        if self._read_only or not damaged:
            return
        for step in damaged:
            aside = _free(self._directory.parent / "damaged" / str(step))
            print(f"checkpoint {step} moved to {aside}", flush=True)
            if jax.process_index() == 0:
                aside.parent.mkdir(exist_ok=True)
                (self._directory / str(step)).rename(aside)
            multihost_utils.sync_global_devices(f"checkpoint {step} moved aside")
        self._manager.reload()

    def restore_as_saved(self) -> tuple[Any, dict[str, Any]] | None:
        """Restores the newest sound checkpoint, its shapes being those on disk, as plain dicts."""
        return self.restore(None)

    def _restore(self, step: int, like: Any) -> tuple[Any, dict[str, Any]]:
        meta = self._manager.restore(step, args=ocp.args.Composite(meta=ocp.args.JsonRestore()))[
            "meta"
        ]
        if meta.pop("checksum", None) != _checksum(meta):
            raise OSError("the checksum of its metadata does not match")
        if meta["layout"] != LAYOUT:
            raise _WrongLayout(
                f"the checkpoint of step {step} has layout {meta['layout']}, this version reads"
                f" {LAYOUT}:"
                " use the version of the code that wrote it (WORKDIR/environment.json)"
            )
        as_saved = like is None
        if as_saved:
            like = self._manager.item_metadata(step)["state"]
            here = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
            like = jax.tree.map(
                lambda m: jax.ShapeDtypeStruct(m.shape, m.dtype, sharding=here), like
            )
        abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, like)
        state = self._manager.restore(
            step, args=ocp.args.Composite(state=ocp.args.StandardRestore(abstract))
        )["state"]
        # Plain dicts have their leaves in another order than what was saved.
        arranged = sorted if as_saved else list
        if arranged(checksums(state)) != arranged(meta["checksums"]):
            raise OSError("its checksum does not match")
        return state, meta

    def wait(self) -> None:
        """Blocks until what was saved is on disk."""
        with self._naming_full_disks():
            self._manager.wait_until_finished()

    def close(self) -> None:
        """Waits, then releases the folder."""
        self.wait()
        self._manager.close()

    def _check_room(self, state: Any) -> None:
        """Looks for room first: orbax notices a full disk in threads of its own, and noisily."""
        needed = sum(leaf.nbytes for leaf in jax.tree.leaves(state)) + SMALL_FILES_BYTES
        if shutil.disk_usage(self._directory).free < needed:
            raise self._no_room(f"{needed / 1e6:,.1f} MB are needed")

    def _no_room(self, reason: str) -> OSError:
        last = max(self.steps(), default=None)
        return OSError(
            f"no space left on device: a checkpoint could not be written to {self._directory}"
            f" ({reason}); make room and start the same command again, which continues from step"
            f" {last}"
        )

    @contextlib.contextmanager
    def _naming_full_disks(self) -> Iterator[None]:
        """Words what orbax and tensorstore raise when a disk fills up meanwhile."""
        try:
            yield
        except Exception as error:
            signs = ("No space left", "RESOURCE_EXHAUSTED", "quota")
            if not any(sign in str(error) for sign in signs):
                raise
            raise self._no_room("it filled up meanwhile") from None


def _writing_at_most(num_bytes: int) -> ocp.handlers.DefaultCheckpointHandlerRegistry:
    """What orbax saves a state with; it refuses an array that is not smaller than its limit."""
    gigabytes: Any = (num_bytes + 1) / 1e9
    handler = ocp.StandardCheckpointHandler(save_concurrent_gb=gigabytes)
    registry = ocp.handlers.DefaultCheckpointHandlerRegistry()
    registry.add("state", ocp.args.StandardSave, handler)
    return registry


def _checksum(meta: dict[str, Any]) -> int:
    """Of plain json, whatever the order and the kind of its keys."""
    plain = json.loads(json.dumps(meta))
    return zlib.crc32(json.dumps(plain, sort_keys=True).encode())


class _WrongLayout(Exception):
    """A checkpoint of another version of the parameter tree: not damage."""


def _free(path: pathlib.Path) -> pathlib.Path:
    """`path`, or a numbered variant that does not exist yet."""
    candidates = [path, *(path.with_name(f"{path.name}.{i}") for i in range(1, 1000))]
    return next(p for p in candidates if not p.exists())
