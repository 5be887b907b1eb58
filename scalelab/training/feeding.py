"""The batches and the programs of a phase of pre-training.

The examples lie in one of two places; both give the same batches, bit for bit:

resident  the examples lie on the device, if they fit; a row names those of a step
packed    the host makes the batches ahead, and a row holds all arrays of a batch as one; also for
          formats that corrupt examples anew in each epoch
"""

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax.typing import ArrayPytree
from jax.sharding import Mesh

from scalelab import sharding, step
from scalelab.config.pretraining import Machine
from scalelab.data.batches import Batches, evaluation_batches, iterate
from scalelab.data.phases import PhaseData
from scalelab.data.store import Arrays, ExampleStore, Layout, Row, gather
from scalelab.formats import batch_type
from scalelab.helpers.progress import timed
from scalelab.resources import host
from scalelab.step import BlockParts, Blocks, Evaluate

if TYPE_CHECKING:
    from scalelab.training.pretraining import Pretraining

Batch = dict[str, jax.Array]

CHUNK = 64  # steps whose examples are drawn at a time
UNKNOWN = 2**31  # steps of a phase that ends on another clock
LARGEST = 2**31 - 1  # numbers on the device have 32 bits
SHARE = 0.25  # share of a device's memory that examples may take
BLOCK_BYTES = 2**26  # most that the rows of one block may take
MOST_STEPS = 64  # most steps of a block


class Source(NamedTuple):
    """The batches of a phase, as the device reads them."""

    arrays: Arrays  # on the device during the whole phase
    # (arrays, row) -> the batch of a row; device code.
    batch: Callable[[Arrays, Mapping[str, jax.Array]], Batch]
    # (start, stop) -> (tokens without padding, row) of each step.
    stream: Callable[[int, int], Iterator[tuple[int, Row]]]
    row: Row  # an example of a row
    batch_size: int | None  # B, where a row has this process's part of it alone; None: it is whole

    @property
    def most_steps(self) -> int:
        """The most steps of a block: MOST_STEPS, or fewer where rows are large."""
        row_bytes = sum(values.nbytes for values in self.row.values())
        return max(1, min(MOST_STEPS, BLOCK_BYTES // row_bytes))


def free_bytes(mesh: Mesh) -> float:
    """Returns the memory of a device that examples may take; infinite if it is not known."""
    if "bytes_limit" in (stats := mesh.local_devices[0].memory_stats() or {}):
        return SHARE * stats["bytes_limit"]
    free = host.available()
    return np.inf if free is None else SHARE * free / len(mesh.local_devices)


def place(
    phase: PhaseData, batches: Batches, machine: Machine, mesh: Mesh,
    say: Callable[[str], object],
) -> Source:  # fmt: skip
    """Returns a phase's training batches.

    Args:
      phase: the stored examples.
      batches: this process's rows of the batches.
      machine: config.machine.
      mesh: the devices.
      say: tells that the examples do not fit.
    """
    if machine.loader == "device" and phase.corrupt is None:
        arrays, free = stored_arrays(phase.train), free_bytes(mesh)
        size = np.inf if arrays is None else sum(values.nbytes for values in arrays.values())
        if arrays is not None and size <= free:
            return resident(batches, sharding.put(arrays, sharding.rows_sharding(mesh, None)))
        sizes = f"{size / 1e9:,.2f} GB of examples, and {free / 1e9:,.2f} GB may lie on the device"
        say(f"the host makes the batches: {sizes}")
    loader = "numpy" if machine.loader == "numpy" else "tf"
    return packed(batches, loader, machine.prefetch)


# --- Resident ----------------


def stored_arrays(store: ExampleStore) -> dict[str, np.ndarray] | None:
    """Returns the arrays of a store in their types on the device; None: 32 bits cannot count one.

    A wide type becomes that of a batch: tokens and offsets are below 2^31.
    """
    arrays = store.arrays
    if any(values.size > LARGEST for values in arrays.values()):
        return None
    wide = {n for n, v in arrays.items() if v.dtype.itemsize > 4 or v.dtype == np.uint32}
    return {n: v.astype(batch_type(v.dtype)) if n in wide else v for n, v in arrays.items()}


def resident(batches: Batches, arrays: Arrays) -> Source:
    """Makes batches of examples whose arrays lie on the device.

    Args:
      batches: which examples each batch has.
      arrays: the store's arrays, on the device.
    """

    def stream(start: int, stop: int) -> Iterator[tuple[int, Row]]:
        for first in range(start, stop, CHUNK):
            ids, epochs = batches.address(np.arange(first, min(first + CHUNK, stop)))
            tokens = batches.store.lengths(ids, batches.counted_arrays).sum(axis=1).tolist()
            rows = {"ids": ids.astype(np.int32), **batches.mask_ids(ids, epochs)}
            for k, count in enumerate(tokens):
                yield count, {name: values[k] for name, values in rows.items()}

    def read(arrays: Arrays, row: Mapping[str, jax.Array]) -> Batch:
        others = {name: values for name, values in row.items() if name != "ids"}
        examples = jnp.arange(len(row["ids"]), dtype=jnp.int32)
        made = gather(arrays, row["ids"], batches.store.meta["ragged"], xp=jnp)
        return made | others | {"examples": examples}

    (_, row), *_ = stream(batches.first_step, batches.first_step + 1)
    return Source(arrays, read, stream, row, None)


# --- Packed ----------------


def packed(batches: Batches, loader: str, prefetch: int) -> Source:
    """Returns batches that the host makes.

    Args:
      batches: this process's rows.
      loader: "tf" or "numpy", see `batches.iterate`.
      prefetch: batches made ahead.
    """
    example = batches(batches.first_step)
    del example["num_tokens"]
    layout = Layout(example, len(example["examples"]))

    def make(step: int) -> Row:
        batch = batches(step)
        count = batch.pop("num_tokens")
        return {"packed": layout.pack(batch), "num_tokens": count}

    def stream(start: int, stop: int) -> Iterator[tuple[int, Row]]:
        # Not a generator: TensorFlow is slow to import, and is so at once.
        made = iterate(make, start, stop, loader, prefetch)
        return ((int(row.pop("num_tokens")), row) for row in made)

    row = {"packed": layout.pack(example)}
    return Source({}, layout.batch, stream, row, batches.batch_size)


# --- The programs of a phase ----------------


@dataclasses.dataclass(frozen=True)
class PhaseProgram:
    """The compiled programs of a phase, and its examples."""

    phase: int  # its index
    blocks: Blocks
    arrays: ArrayPytree  # on the devices
    stream: Iterator[tuple[int, Row]]  # from the next step on
    evaluate: Evaluate


@contextlib.contextmanager
def compiling(training: "Pretraining") -> Iterator[BlockParts]:
    """Places the examples of the phase in progress; yields what its steps are compiled from.

    Then compiles the validation, and validates the untrained model.
    """
    phase, config, mesh, say = training.phase, training.config, training.mesh, training.say
    what, machine = f"length {phase.max_len}, batch {phase.batch_size}", config.machine
    program, timers = f"{training.name}, {what}", training.timers
    training.program = training.blocks = None  # frees the examples of the phase before
    begun, model, index = time.perf_counter(), training.model, training.progress.phase
    cache = machine.compile_cache_dir
    with host.compiling(cache, program) as note, timed(timers, "compile_secs"):
        say(f"phase {index + 1}: {what}; compiling{note}")
        seed = config.seed if config.data.order_seed is None else config.data.order_seed
        rows, sizes = sharding.host_rows(mesh, phase.batch_size), (phase.batch_size, phase.max_len)
        rule = model.system.ORDER, phase.corrupt, config.mask_copies, phase.counted_arrays
        own = Batches(phase.train, *sizes, seed, rows, training.progress.phase_start, *rule)
        source = place(phase, own, machine, mesh, say)
        size = training.most_steps or source.most_steps
        train_step = step.make_train_step(
            model.net, model.terms, model.tx, machine.num_microbatches
        )
        given = mesh, training.placed, training.state
        rows = source.arrays, source.row, size, source.batch_size
        yield BlockParts(train_step, source.batch, *given, *rows)
        count = math.ceil(config.eval.num_examples / phase.batch_size)
        crosses = any(term.crosses_examples for term in model.terms)
        valid = evaluation_batches(
            phase.valid, phase.batch_size, count, phase.corrupt, model.system.ORDER, crosses
        )
        evaluate = step.compile_evaluation(model, *given, valid)
    blocks, plan = training.blocks, training.plan
    assert blocks is not None
    last_step = int(plan.ends[index]) if plan.clock == "steps" else UNKNOWN
    stream = source.stream(training.step, last_step)
    training.program = PhaseProgram(index, blocks, source.arrays, stream, evaluate)
    if mesh.devices.flat[0].platform == "cpu":
        scratch = blocks.compiled.memory_analysis().temp_size_in_bytes
        host.release_if_low(soon=host.GAPS * scratch)
    begins = not training.step  # the untrained model is where curves begin
    validates = "; validating the untrained model" * begins
    say(f"compiled in {time.perf_counter() - begun:.1f} s{validates}")
    if begins:
        training.validate_and_save(say)
