"""The programs of a phase of pre-training: its steps and its validation."""

import contextlib
import dataclasses
import math
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from flax.typing import ArrayPytree

from scalelab import sharding, step
from scalelab.data.batches import Batches, evaluation_batches
from scalelab.records import metrics
from scalelab.resources import host
from scalelab.step import BlockParts, Blocks, Evaluate
from scalelab.training import feeding
from scalelab.training.feeding import Row

if TYPE_CHECKING:
    from scalelab.training.pretraining import Pretraining

UNKNOWN = 2**31  # steps of a phase that ends on another clock


@dataclasses.dataclass(frozen=True)
class PhaseProgram:
    """The compiled programs of a phase, and its examples."""

    phase: int  # its index
    blocks: Blocks
    arrays: ArrayPytree  # on the devices
    stream: Iterator[tuple[int, Row]]  # from the next step on
    evaluate: Evaluate


def batches(training: "Pretraining", rows: slice) -> Batches:
    """Returns the batches of the phase in progress: this process's rows, by the run's step."""
    phase, config = training.phase, training.config
    seed = config.seed if config.data.order_seed is None else config.data.order_seed
    start, sizes = training.progress.phase_start, (phase.batch_size, phase.max_len)
    rule = training.model.system.ORDER, phase.corrupt, config.mask_copies, phase.counted_arrays
    return Batches(phase.train, *sizes, seed, rows, start, *rule)


@contextlib.contextmanager
def compiling(training: "Pretraining") -> Iterator[BlockParts]:
    """Places the examples of the phase in progress; yields what its steps are compiled from.

    Then compiles the validation, and validates the untrained net.
    """
    phase, config, mesh, say = training.phase, training.config, training.mesh, training.say
    what, machine = f"length {phase.max_len}, batch {phase.batch_size}", config.machine
    program, timers = f"{training.name}, {what}", training.timers
    training.program = training.blocks = None  # frees the examples of the phase before
    begun, model, index = time.perf_counter(), training.model, training.progress.phase
    cache = machine.compile_cache_dir
    with host.compiling(cache, program) as note, metrics.timed(timers, "compile_secs"):
        say(f"phase {index + 1}: {what}; compiling{note}")
        own = batches(training, sharding.host_rows(mesh, phase.batch_size))
        source = feeding.place(phase, own, machine, mesh, say)
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
    begins = not training.step  # the untrained net is where curves begin
    validates = "; validating the untrained net" * begins
    say(f"compiled in {time.perf_counter() - begun:.1f} s{validates}")
    if begins:
        training.validate_and_save(say)
