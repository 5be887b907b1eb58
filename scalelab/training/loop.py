"""The loop of pre-training: runs of one program, from the start or where they were stopped.

Those that are least far train together until they reach the next one, end a phase, or lose one of
them; so runs that were stopped at different steps catch up with each other. One run alone is the
same with nobody to wait for.
"""

import contextlib
import pathlib
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax

from scalelab import sharding
from scalelab.config import cli
from scalelab.config.pretraining import Config
from scalelab.data import batches
from scalelab.helpers import progress
from scalelab.resources import malloc
from scalelab.runs import compatibility, run_folder, warm_start
from scalelab.runs.run import Recorder
from scalelab.training.group import Group
from scalelab.training.setup import Setup, devices

UNKNOWN = 2**31  # steps of a phase that ends by another clock
BeforeStep = Callable[[int, dict[str, Any]], None]
Every = Iterable[tuple[int, Callable[[Any], None]]]


def train(
    runs: Sequence[tuple[Config, pathlib.Path]],
    *,
    before_step: BeforeStep | None = None,
    every: Every = (),
) -> list[dict[str, Any]]:
    """Runs, or continues, pre-trainings that one program can do; see `train.train`.

    Args:
      runs: config and folder of each.
      before_step: called on the host with (step, batch), the batches of several runs stacked.
      every: (n, fn) pairs: fn(run) is called after every n-th step of a run, and when its phase
        ends.

    Returns:
      The content of the result.json of each.

    Raises:
      ValueError: one program cannot do them, or a config, its data or a folder do not allow it.
      OSError: the disk is full or a folder cannot be written.
      cli.Stopped: interrupted, or some ended early because loss or gradient were not finite.
    """
    started = time.perf_counter()
    compatibility.check([config for config, _ in runs])
    configs, start = warm_start.begin(runs)
    runs = list(zip(configs, [workdir for _, workdir in runs], strict=True))
    results = {}
    for config, workdir in runs:
        finished = run_folder.claim(workdir, config)
        if finished is not None:
            print(
                f"{workdir} is finished ({finished['steps']} steps); nothing to do:"
                f" its numbers are in {workdir}/result.json"
            )
            results[workdir] = finished
    left = [(config, workdir) for config, workdir in runs if workdir not in results]
    if left:
        with contextlib.ExitStack() as held:
            loop = Loop(left, held, before_step, every, started, start)
            results |= loop.finish(loop.run())
    return [results[workdir] for _, workdir in runs]


class Loop:
    """Trains runs to their end.

    Args:
      runs: config and folder of each; none is finished.
      held: releases the folders when it is left.
      before_step: see `train`.
      every: see `train`.
      started: time.perf_counter() at the start.
      start: whose parameters they begin with; None: random ones.
    """

    def __init__(
        self,
        runs: Sequence[tuple[Config, pathlib.Path]],
        held: contextlib.ExitStack,
        before_step: BeforeStep | None,
        every: Every,
        started: float,
        start: warm_start.Start | None,
    ) -> None:
        self._before_step, self._every, self._started = before_step, tuple(every), started
        self._config = runs[0][0]
        mesh = devices(self._config)
        if jax.process_index() == 0:
            for _, workdir in runs:
                held.enter_context(run_folder.locked(workdir))
        self._setup = setup = Setup([config for config, _ in runs], mesh, start)
        self._say = print if setup.chief else (lambda *_: None)
        self._recorders = [
            Recorder(setup, config, data, workdir)
            for (config, workdir), data in zip(runs, setup.data, strict=True)
        ]
        for k, recorder in enumerate(self._recorders):
            self._say(f"{recorder.name} in {recorder.workdir}")
            if k == 0:
                self._say("\n".join(f"  {k:<18} {v}" for k, v in recorder.facts().items()))
            if start is not None and k == 0:
                self._say(start.said())
            if recorder.run.clocks.steps:
                self._say(f"continuing from step {recorder.run.clocks.steps}")
        if start is not None:
            start.forget()
        setup.measure_peak()
        for recorder in self._recorders:
            recorder.timers["setup_secs"] = (time.perf_counter() - started) / len(runs)
        self._line, self._eta = progress.Progress(), progress.Eta()
        self._stopped = False

    def run(self) -> cli.Interrupt:
        """Trains until every run is over or cannot go on, or a signal comes."""
        for recorder in self._recorders:
            if recorder.run.clocks.steps == 0:
                recorder.save()
        with cli.Interrupt() as interrupt:
            while (going := self._going()) and not self._stopped:
                group, until = _least_far(going)
                self._train(Group(self._setup, group), until, interrupt)
            for recorder in self._recorders:
                if recorder.failed is None:
                    recorder.save()
        return interrupt

    def _going(self) -> list[Recorder]:
        """The runs with steps left, each in its phase."""
        going = [r for r in self._recorders if r.failed is None and not r.over]
        for recorder in going:
            recorder.enter_phase()
        return going

    def _train(self, group: Group, until: int, interrupt: cli.Interrupt) -> None:
        """Trains a group to step `until`, or until its runs part."""
        machine = self._config.machine
        self._say(
            f"phase {group.recorders[0].run.phase + 1}: length {group.phase.max_len}, batch"
            f" {group.phase.batch_size};"
            f" compiled, {time.perf_counter() - self._started:.1f} s after start"
        )
        stream = batches.iterate(
            group.batch_at, group.step, until, machine.loader, machine.prefetch
        )
        for k, batch in enumerate(stream):
            if k == 0:
                group.restart()  # what came before was start-up of the pipeline
                self._eta.start(self._done())
            if self._before_step is not None:
                self._before_step(group.step, batch)
            group.advance(batch)
            malloc.release_if_scarce()
            self._do_what_is_due(group)
            if self._line.due():
                group.settle()
                self._show(group)
            # Several processes must stop after the same step, so they ask each other, rarely.
            if jax.process_count() == 1 or group.step % machine.log_every_steps == 0:
                self._stopped = sharding.any_process(interrupt.received is not None)
            if self._stopped or any(r.phase_over or r.failed for r in group.recorders):
                break
        group.settle()
        if self._stopped or all(r.failed or r.over for r in self._recorders):
            self._show(group, final=True)
        group.part()

    def _do_what_is_due(self, group: Group) -> None:
        """Logs, validates, saves and calls the hooks, for the runs for which it is time to."""
        machine = self._config.machine
        logged, saved = machine.log_every_steps, machine.checkpoint_every_steps
        validated = self._config.eval.every_steps

        def due(num_steps: int) -> list[Recorder]:
            on_time = group.step % num_steps == 0
            return [r for r in group.recorders if not r.failed and (on_time or r.phase_over)]

        if due(logged) or due(validated) or due(saved):
            group.settle()
            for recorder in due(logged):
                recorder.log()
            if due(validated):
                self._validate(group, due(validated))
            for recorder in due(saved):
                group.hand_out(recorder)
                recorder.save()
                group.take_back()
            group.restart()
        for num_steps, hook in self._every:
            for recorder in due(num_steps):
                group.hand_out(recorder)
                hook(recorder.run)
                group.take_back()

    def _validate(self, group: Group, recorders: Sequence[Recorder]) -> None:
        found = group.validate()
        for recorder, means in zip(group.recorders, found, strict=True):
            if recorder in recorders:
                group.hand_out(recorder)
                said = recorder.evaluated(means)
                whose = f"{recorder.workdir.name}: " if len(self._recorders) > 1 else ""
                self._say(f"\n{whose}{said}")
                group.take_back()

    def _done(self) -> float:
        """The share of all budgets that is done."""
        return sum(r.done for r in self._recorders) / len(self._recorders)

    def _show(self, group: Group, final: bool = False) -> None:
        """Shows how far it is; rates are those of the group in sum."""
        first, done = group.recorders[0], self._done()
        names = first.name if len(group) == 1 else f"{len(group)} runs from {first.name}"
        losses = [r.window.loss for r in group.recorders]
        share = first.flops_per_sec / (self._setup.peak * jax.device_count())
        self._line.show(
            f"{names} | step {first.run.clocks.steps} ({done:.0%})"
            f" | loss {' '.join(f'{loss:.4f}' for loss in losses)}"
            f" | {first.window.tokens_per_sec:,.0f} tokens/s | MFU {share:.0%}"
            f" | ETA {self._eta.text(done)}",
            final=final,
        )

    # --- The end ----------------

    def finish(self, interrupt: cli.Interrupt) -> dict[pathlib.Path, dict[str, Any]]:
        """Writes the results of the runs that are over.

        Raises:
          cli.Stopped: others were interrupted, or lost.
        """
        results = {}
        for recorder in self._recorders:
            if recorder.failed is None:
                recorder.close()
            if recorder.failed is None and recorder.over:
                results[recorder.workdir] = recorder.finish()
                self._say(
                    f"finished {recorder.name}: {recorder.run.clocks.steps} steps,"
                    f" {recorder.run.clocks.tokens:,} tokens in {recorder.run.clocks.secs:.0f} s of"
                    f" training\n  look at {recorder.workdir}/curves.png,"
                    f" {recorder.workdir}/metrics.jsonl, {recorder.workdir}/result.json"
                )
        failed = [r.failed for r in self._recorders if r.failed is not None]
        stopped = [r for r in self._recorders if r.failed is None and not r.over]
        if stopped:
            saved = ", ".join(
                f"{r.run.clocks.steps}, which is saved in {r.workdir}" for r in stopped
            )
            failed.append(
                f"stopped by {interrupt.received or 'another process'} after step {saved};"
                " start the same command again to continue"
            )
        if failed:
            code = cli.PREEMPTED if stopped and interrupt.received == "SIGTERM" else cli.FAILED
            raise cli.Stopped("\n".join(failed), code)
        return results


def _least_far(going: Sequence[Recorder]) -> tuple[list[Recorder], int]:
    """The runs that train next, and the step at which another one may join them.

    They are in one phase; where runs at the same step are not, by a budget in tokens, say, those in
    the earlier one.
    """
    place = min((r.run.clocks.steps, r.run.phase) for r in going)
    group = [r for r in going if (r.run.clocks.steps, r.run.phase) == place]
    ahead = [r.run.clocks.steps for r in going if r.run.clocks.steps > place[0]]
    ends = [r.last_step() for r in group]
    return group, min([UNKNOWN, *ahead, *(end for end in ends if end is not None)])
