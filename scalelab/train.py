"""Pre-trains one system.

  python -m scalelab.train --config=pretrain:system=bert,steps=500 --workdir=DIR

The run folder holds everything the run leaves. Start the same command again to continue a stopped
run; a finished one says so and does nothing.

This file is the run, from top to bottom: setup, restore, loop, end. The step is in `step.py`;
`runs.run` restores the state, and keeps clocks, metrics, checkpoints and the result.
"""

import contextlib
import functools
import importlib
import pathlib
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from absl import flags

from scalelab.config import cli
from scalelab.config.pretraining import Config
from scalelab.resources import malloc

if TYPE_CHECKING:
    from scalelab.runs.metrics import Run

flags.adopt_module_key_flags(cli)


def train(
    config: Config,
    workdir: pathlib.Path,
    *,
    before_step: Callable[[int, dict[str, Any]], None] | None = None,
    every: "Iterable[tuple[int, Callable[[Run], None]]]" = (),
) -> dict[str, Any]:
    """Runs, or continues, one pre-training.

    Args:
      config: the resolved config.
      workdir: the run folder.
      before_step: called on the host with (step, batch) before each step.
      every: (n, fn) pairs: fn(run) is called after every n-th step and when a phase ends.

    Returns:
      The content of result.json.

    Raises:
      ValueError: config, data or folder do not allow it.
      OSError: the disk is full or a folder cannot be written.
      cli.Stopped: interrupted, or loss or gradient were not finite.
    """
    # Imported here, once the flags are known to be right, so that --help and typos answer at once.
    import jax

    from scalelab import sharding
    from scalelab import step as step_lib
    from scalelab.data import batches as batches_lib
    from scalelab.helpers.progress import Eta, Progress
    from scalelab.resources import flops
    from scalelab.runs import metrics, plots, pretrained, run_folder
    from scalelab.runs.opening import open_run, set_up

    # --- Setup: folder, devices ----------------
    started, every, machine = time.perf_counter(), tuple(every), config.machine
    config, start = pretrained.begin(config, workdir)
    if (result := run_folder.claim(workdir, config)) is not None:
        print(run_folder.describe_finished(workdir, result))
        return result
    if machine.distributed:
        sharding.join_processes()
    if config.optim.total_secs is not None and jax.process_count() > 1:
        raise ValueError("a budget in seconds needs one process: clocks of several differ")
    mesh, chief = set_up(config), jax.process_index() == 0
    say = functools.partial(print, flush=True) if chief else (lambda _: None)

    with contextlib.ExitStack() as stack:
        if chief:
            stack.enter_context(run_folder.locked(workdir))

        # --- Data, net, state. Parameters are looked for in this order:
        #   1. the newest sound checkpoint of the folder,
        #   2. the run that --init names,
        #   3. a fresh initialisation from the seed. ----------------
        recorder, model, placed = open_run(config, start, workdir, mesh, say)
        run = recorder.run
        if config.eval.pairs is not None:  # by name: no other training imports a yardstick
            importlib.import_module("scalelab.eval.pairs").watch(recorder)
        del start  # whose memory is wanted
        peak = flops.measure_peak(config.net.dtype) * jax.device_count()
        recorder.timers["setup_secs"] = time.perf_counter() - started

        # --- The loop: phases, and the steps of each ----------------
        progress, time_left, in_flight = Progress(), Eta(), metrics.InFlight()
        interrupt, stopped = stack.enter_context(cli.Interrupt()), False
        while not recorder.over and not stopped:
            phase = recorder.enter_phase()
            sizes = f"length {phase.max_len}, batch {phase.batch_size}"
            say(f"phase {run.phase + 1}: {sizes}; compiling")
            batches = recorder.batches(sharding.host_rows(mesh, phase.batch_size))
            with metrics.timed(recorder.timers, "compile_secs"):
                batch = batches(run.clocks.steps)
                del batch["num_tokens"]
                on_devices = sharding.put_batch(batch, mesh, phase.batch_size)
                step = step_lib.make_train_step(
                    model.net, model.terms, model.tx, machine.num_microbatches
                )
                train_step = step_lib.compile_train(step, mesh, placed, run.state, on_devices)
                evaluate = step_lib.compile_evaluation(model, mesh, placed, run.state, on_devices)
            if mesh.devices.flat[0].platform == "cpu":
                scratch = train_step.memory_analysis().temp_size_in_bytes
                malloc.release_if_low(soon=malloc.GAPS * scratch)
            say(f"compiled, {time.perf_counter() - started:.1f} s after start")
            if not run.clocks.steps:  # the untrained net, where curves begin
                recorder.attend(evaluate, model, say)
            stream = batches_lib.iterate(
                batches, run.clocks.steps, recorder.last_step, machine.loader, machine.prefetch
            )
            for k, batch in enumerate(stream):
                if k == 0:
                    in_flight.restart()  # excludes the start-up of the pipeline
                    time_left.start(recorder.done)
                num_tokens = int(batch.pop("num_tokens"))
                if before_step is not None:
                    before_step(run.clocks.steps, batch)
                on_devices = sharding.put_batch(batch, mesh, phase.batch_size)
                run.state, pairs = train_step(run.state, on_devices, recorder.learning_rate())
                in_flight.add(pairs)
                recorder.advance(num_tokens, in_flight.secs())
                malloc.release_if_low()

                # What is due after this step; the clock of training stands still meanwhile.
                if recorder.is_anything_due():
                    recorder.settle(*in_flight.wait())
                    recorder.attend(evaluate, model, lambda text: say(f"\n{text}"))
                    in_flight.restart()
                for num_steps, hook in every:
                    if recorder.is_due(num_steps):
                        hook(run)
                if progress.due():
                    recorder.settle(*in_flight.wait())
                    progress.show(recorder.describe_progress(peak, time_left.text(recorder.done)))
                # Several processes must stop after the same step, so they ask each other, rarely.
                if jax.process_count() == 1 or run.clocks.steps % machine.log_every_steps == 0:
                    stopped = sharding.any_process(interrupt.received is not None)
                if stopped or recorder.phase_over:
                    break
            recorder.settle(*in_flight.wait())

        # --- The end ----------------
        if recorder.tokens_per_sec:  # a step was made
            line = recorder.describe_progress(peak, time_left.text(recorder.done))
            progress.show(line, final=True)
        recorder.save()
        recorder.close()
        if chief:
            plots.draw_curves(workdir, recorder.name)
        if not recorder.over:
            saved = f"step {run.clocks.steps} is saved in {workdir}"
            raise cli.Interrupted(interrupt.received, saved)
        result = recorder.finish()
        for remark in result.get("remarks", ()):
            say(f"warning: {remark}")
        say(f"finished {recorder.name}. Results: {workdir}/result.json, curves.png, metrics.jsonl")
        return result


def main(argv: list[str]) -> None:
    """Reads the flags and trains."""
    del argv
    malloc.keep_freed()
    config = cli.read_config()
    with cli.one_of_several() if config.machine.distributed else contextlib.nullcontext():
        train(config, cli.workdir())


if __name__ == "__main__":
    cli.run(main)
