"""Checkpoints: a state and the JSON that goes with it, saved by orbax in the background.

Keeps the last few, the best, and those that a caller marks. Each has a checksum of every array,
computed on the devices at the save. A checkpoint that is unreadable or does not match is moved
aside, and the one before is used.
"""

import contextlib
import copy
import functools
import itertools
import json
import logging
import math
import pathlib
import shutil
import sys
import traceback
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import flax
import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from flax.typing import ArrayPytree
from jax.experimental import multihost_utils
from orbax.checkpoint.checkpoint_managers import AnyPreservationPolicy, BestN, LatestN

from scalelab.helpers import files

# The layout of the parameter tree on disk. Raise it when names or shapes of parameters change.
LAYOUT = 1
SMALL_FILES_BYTES = 100_000  # what a checkpoint takes besides its arrays


@jax.jit
def _checksum_array(array: jax.Array) -> jax.Array:
    """Returns the sum of an array's words, each times an odd number set by its place: uint32 []."""
    words = jax.lax.bitcast_convert_type(
        array, jnp.dtype(f"uint{8 * array.dtype.itemsize}")
    ).astype(jnp.uint32)
    place = jax.lax.iota(jnp.uint32, max(words.size, 1))[: words.size].reshape(words.shape)
    return jnp.sum(words * (place * jnp.uint32(2_654_435_762) | jnp.uint32(1)), dtype=jnp.uint32)


def checksums(tree: ArrayPytree) -> list[int]:
    """Returns the checksums of a tree's arrays, in the order of its leaves."""
    # One after another, because XLA copies its input, and a copy of the whole state is too large.
    return [int(_checksum_array(leaf)) for leaf in jax.tree.leaves(tree)]


@flax.struct.dataclass
class Weights:
    """The state in the checkpoint of an import or of a finished fine-tuning."""

    # Of the model, or {"body", "head"}; in the order of a dict's keys, as which they are read back.
    params: ArrayPytree
    step: jax.Array


class Checkpoints:
    """The checkpoints of one run folder.

    Args:
      directory: where they lie; made if absent.
      num_last: number of last checkpoints that are kept besides the best; None: read-only.
      write_bytes: largest number of bytes written at a time, which needs as much memory again; at
        least the largest array. None: no limit.
    """

    def __init__(
        self, directory: pathlib.Path, num_last: int | None, write_bytes: int | None = None
    ) -> None:
        silence_orbax()
        self._directory = directory.absolute()
        self._read_only = num_last is None
        options = ocp.CheckpointManagerOptions(read_only=True)
        if num_last is not None:
            rank = lambda metrics: metrics.get("rank", math.inf)  # noqa: E731
            best = BestN(
                get_metric_fn=rank, reverse=True, n=1, keep_checkpoints_without_metrics=False
            )
            options = ocp.CheckpointManagerOptions(
                preservation_policy=AnyPreservationPolicy([LatestN(num_last), best, _Kept()]),
                cleanup_tmp_directories=True,
                best_fn=rank,  # without it, the marks are not on disk
            )
        # Orbax says int, and takes a float.
        limit: Any = {} if write_bytes is None else {"save_concurrent_gb": (write_bytes + 1) / 1e9}
        handler = ocp.StandardCheckpointHandler(**limit)
        registry = ocp.handlers.DefaultCheckpointHandlerRegistry()
        for kind in (ocp.args.StandardSave, ocp.args.StandardRestore):
            registry.add("state", kind, handler)  # else `item_metadata` knows no state
        self._manager = ocp.CheckpointManager(
            self._directory, handler_registry=registry, options=options
        )

    def steps(self) -> list[int]:
        """Returns the steps at which there is a checkpoint, oldest first."""
        return sorted(self._manager.all_steps())

    def save(
        self, state: ArrayPytree, meta: dict[str, Any], rank: float | None = None, *,
        keep: bool = False,
    ) -> None:  # fmt: skip
        """Saves in the background; returns once the arrays are safe to overwrite.

        Args:
          state: a TrainState.
          meta: all else that the run needs to continue, as plain JSON.
          rank: lower is better; None where nothing was evaluated at this step.
          keep: whether it is never deleted.
        """
        step = int(state.step)
        if step in self._manager.all_steps():
            return
        # A copy: orbax writes in the background, while the run changes the original.
        meta = copy.deepcopy(meta) | {"layout": LAYOUT, "checksums": checksums(state)}
        meta["checksum"] = _checksum(meta)
        # Orbax notices a full disk in threads, and noisily.
        needed = sum(leaf.nbytes for leaf in jax.tree.leaves(state)) + SMALL_FILES_BYTES
        if shutil.disk_usage(self._directory).free < needed:
            raise self._no_room(f"{needed / 1e6:,.1f} MB are needed")
        arguments = ocp.args.Composite(
            state=ocp.args.StandardSave(state), meta=ocp.args.JsonSave(meta)
        )
        measured = ({} if rank is None else {"rank": rank}) | ({"keep": 1.0} if keep else {})
        with self._naming_full_disks():
            self._manager.save(step, args=arguments, metrics=measured or None)

    def restore(
        self, like: ArrayPytree, step: int | None = None
    ) -> tuple[ArrayPytree, dict[str, Any]] | None:
        """Restores a checkpoint.

        Args:
          like: a state with the shapes, types and shardings wanted; None: those on disk, as plain
            dicts on the first device.
          step: its step; None: the newest sound one.

        Returns:
          (state, meta), or None if there is no checkpoint.

        Raises:
          ValueError: checkpoints are there, but none is sound, they have another layout, or there
            is none of that step.
        """
        steps, damaged = self.steps(), []
        if step is not None:
            if step not in steps:
                raise ValueError(
                    f"{self._directory} keeps no checkpoint of step {step}; it keeps those of steps"
                    f" {', '.join(map(str, steps)) or '(none)'}"
                )
            steps = [step]
        for k, step in reversed(list(enumerate(steps))):
            try:
                with files.reading(self._directory / str(step)):
                    found = self._restore(step, like)
            except _WrongLayout:
                raise
            except ValueError as error:
                refused = isinstance(error.__cause__, PermissionError)
                if refused or "out of memory" in str(error).lower():
                    raise  # the files may be as good as ever
                then = "; trying the one before it" if k else ""
                print(f"checkpoint {step} is damaged: {str(error)[:300]}{then}", flush=True)
                damaged.append(step)
            else:
                # Only after a success: with all moved aside, a second start would begin anew.
                self._move_aside(damaged)
                return found
        if steps:
            raise ValueError(
                f"none of the checkpoints {steps} in {self._directory} can be read;"
                " train, or import, again into a new workdir"
            )
        return None

    def _move_aside(self, damaged: list[int]) -> None:
        """Makes room for the checkpoints that the run will write again."""
        if self._read_only or not damaged:
            return
        for step in damaged:
            names = (f"{step}.{i}" if i else str(step) for i in itertools.count())
            folder = self._directory.parent / "damaged"
            aside = next(folder / name for name in names if not (folder / name).exists())
            print(f"checkpoint {step} moved to {aside}", flush=True)
            if jax.process_index() == 0:
                aside.parent.mkdir(exist_ok=True)
                (self._directory / str(step)).rename(aside)
            multihost_utils.sync_global_devices(f"checkpoint {step} moved aside")
        self._manager.reload()

    def _restore(self, step: int, like: ArrayPytree) -> tuple[ArrayPytree, dict[str, Any]]:
        read = self._manager.restore
        meta = read(step, args=ocp.args.Composite(meta=ocp.args.JsonRestore()))["meta"]
        if meta.pop("checksum", None) != _checksum(meta):
            raise OSError("the checksum of its metadata does not match")
        if meta["layout"] != LAYOUT:
            raise _WrongLayout(
                self._directory / str(step),
                f"has layout {meta['layout']}, this version reads {LAYOUT}: use the version of the"
                " code that wrote it (WORKDIR/environment.json)",
            )
        as_saved = like is None
        if as_saved:
            here = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
            like = jax.tree.map(
                lambda m: jax.ShapeDtypeStruct(m.shape, m.dtype, sharding=here),
                self._manager.item_metadata(step)["state"],
            )
        abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, like)
        arguments = ocp.args.Composite(state=ocp.args.StandardRestore(abstract))
        state = read(step, args=arguments)["state"]
        # Plain dicts have their leaves in another order than what was saved.
        arranged = sorted if as_saved else list
        if arranged(checksums(state)) != arranged(meta["checksums"]):
            raise OSError("its checksum does not match")
        return state, meta

    def wait(self) -> None:
        """Blocks until all saves are on disk."""
        with self._naming_full_disks():
            self._manager.wait_until_finished()

    def close(self) -> None:
        """Waits, then releases the folder."""
        self.wait()
        self._manager.close()

    def _no_room(self, reason: str) -> OSError:
        steps = self.steps()
        goes_on = f"continues from step {max(steps)}" if steps else "begins anew: none was written"
        return OSError(
            f"no space left on device: a checkpoint could not be written to {self._directory}"
            f" ({reason}); make room and start the same command again, which {goes_on}"
        )

    @contextlib.contextmanager
    def _naming_full_disks(self) -> Iterator[None]:
        """Turns the errors of orbax and tensorstore on a full disk into one OSError."""
        try:
            yield
        except Exception as error:
            signs = ("No space left", "RESOURCE_EXHAUSTED", "quota")
            if not any(sign in str(error) for sign in signs):
                raise
            raise self._no_room("it filled up meanwhile") from None


def _checksum(meta: dict[str, Any]) -> int:
    """Returns a CRC of plain JSON, whatever the order of its keys."""
    return zlib.crc32(json.dumps(meta, sort_keys=True).encode())


class _Kept:
    """The policy that preserves the checkpoints that were saved with `keep`."""

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> list[bool]:
        """Returns whether each checkpoint has the mark."""
        del context
        return [bool(own.metrics and "keep" in own.metrics) for own in checkpoints]


class _WrongLayout(files.Unreadable):
    """A sound checkpoint with another layout of the parameter tree."""


@functools.cache
def silence_orbax() -> None:
    """Drops orbax's log lines and the errors of reads and writes that it abandoned.

    At the first read or write that fails, orbax closes its event loop. Others in flight then end in
    errors that nobody can catch, each with a traceback when it is collected.
    """
    before = sys.unraisablehook

    def is_in_orbax(filename: str) -> bool:
        return "orbax" in pathlib.Path(filename).parts

    def is_raised_elsewhere(record: logging.LogRecord) -> bool:
        frames = traceback.walk_tb(record.exc_info[2] if record.exc_info else None)
        return not any(is_in_orbax(frame.f_code.co_filename) for frame, _ in frames)

    def hook(unraisable: "sys.UnraisableHookArgs") -> None:
        error, code = unraisable.exc_value, getattr(unraisable.object, "cr_code", None)
        is_loop = unraisable.object is None and str(error) == "Event loop is closed"
        if not is_loop and (code is None or not is_in_orbax(code.co_filename)):
            before(unraisable)

    logging.getLogger("absl").addFilter(lambda record: not is_in_orbax(record.pathname))
    logging.getLogger("asyncio").addFilter(is_raised_elsewhere)
    sys.unraisablehook = hook
