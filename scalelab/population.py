"""Pre-trains runs of one shape in one program: they differ in seed, data order, learning rate.

  python -m scalelab.population --config=FILE.py:ARGUMENTS --workdir=DIR --seeds=0,1,2,3
  python -m scalelab.population ... --seeds=0,1 --learning_rates=1e-3,2e-3
  python -m scalelab.population ... --order_seeds=0,1,2,3

DIR/seed0, DIR/seed1, ... (DIR/seed0-order1-rate0.001, ...) are run folders as `scalelab.train`
leaves them for the same config; `train` can also continue one of them alone. Start the same command
again to continue what was stopped. A run whose loss is not finite ends; the others go on.

Every seed is trained in every order and at every rate. A seed decides parameters, examples, masks,
dropout and order; with --order_seeds the order has seeds of its own. `seconds` of a run are its
share of the time.
"""

import contextlib
import dataclasses
import functools
import importlib
import pathlib
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from absl import flags

from scalelab.config import cli
from scalelab.config.pretraining import Config
from scalelab.resources import malloc
from scalelab.runs import compatibility

if TYPE_CHECKING:
    from jax.sharding import Mesh
    from jax.stages import Compiled

    from scalelab.helpers.progress import Eta, Progress
    from scalelab.runs.metrics import InFlight
    from scalelab.runs.run import Recorder
    from scalelab.state import Model, TrainState
    from scalelab.step import Evaluate

BeforeStep = Callable[[int, dict[str, Any]], None]

flags.adopt_module_key_flags(cli)


def train(
    runs: Sequence[tuple[Config, pathlib.Path]], *, before_step: BeforeStep | None = None
) -> list[dict[str, Any]]:
    """Runs or continues pre-trainings that can share one program.

    Runs at the same step train as one program. Runs that were stopped at different steps catch up:
    the ones behind train first.

    Args:
      runs: config and folder of each.
      before_step: called on the host with (step, stacked batches) before each step.

    Returns:
      The content of the result.json of each.

    Raises:
      ValueError: they cannot share one program, or a config, its data or a folder is wrong.
      OSError: the disk is full or a folder cannot be written.
      cli.Stopped: interrupted, or some ended early because loss or gradient were not finite.
    """
    from scalelab.helpers.progress import Eta, Progress
    from scalelab.runs import metrics, plots, pretrained, run_folder
    from scalelab.runs.opening import open_run, set_up

    # --- Setup ----------------
    started = time.perf_counter()
    begun = {folder: pretrained.begin(config, folder) for config, folder in runs}
    compatibility.check([config for config, _ in begun.values()])
    results = {}
    for folder, (config, _) in list(begun.items()):
        if (result := run_folder.claim(folder, config)) is not None:
            print(run_folder.describe_finished(folder, result))
            results[folder] = result
            del begun[folder]
    if not begun:
        return [results[folder] for _, folder in runs]
    mesh = set_up(next(iter(begun.values()))[0], num_runs=len(begun))

    with contextlib.ExitStack() as stack:
        # --- Data, net and state of each run, as `scalelab.train` has them ----------------
        recorders = []
        for folder, (config, start) in begun.items():
            stack.enter_context(run_folder.locked(folder))
            say = (lambda _: None) if recorders else print
            recorder, model, placed = open_run(config, start, folder, mesh, say)
            print(f"{recorder.name} in {folder} from step {recorder.run.clocks.steps}")
            if config.eval.pairs is not None:  # as in `scalelab.train`
                importlib.import_module("scalelab.eval.pairs").watch(recorder)
            recorders.append(recorder)
        begun.clear()  # frees memory
        start = None
        for recorder in recorders:
            recorder.timers["setup_secs"] = (time.perf_counter() - started) / len(recorders)

        # --- The loop: the runs behind train first ----------------
        interrupt = stack.enter_context(cli.Interrupt())
        trainer = _Trainer(
            model, mesh, placed, recorders, interrupt, before_step,
            metrics.InFlight(), Progress(), Eta(), {},
        )  # fmt: skip
        failed: dict[Recorder, str] = {}
        while interrupt.received is None:
            going = [r for r in recorders if not r.over and r not in failed]
            if not going:
                break
            group, until = _choose_group(going)
            failed |= trainer.train(group, until)

        # --- The end ----------------
        stopped = []
        for recorder in recorders:
            if recorder in failed:
                continue
            recorder.save()
            recorder.close()
            plots.draw_curves(recorder.workdir, recorder.name)
            if recorder.over:
                results[recorder.workdir] = recorder.finish()
                print(f"finished {recorder.name} in {recorder.workdir}: result.json")
            else:
                stopped.append(f"step {recorder.run.clocks.steps} is saved in {recorder.workdir}")
        messages = list(failed.values())
        if stopped and not messages:
            raise cli.Interrupted(interrupt.received, ", ".join(stopped))
        if stopped:
            ended = cli.Interrupted(interrupt.received, ", ".join(stopped))
            raise cli.Stopped("\n".join([*messages, str(ended)]), ended.exit_code)
        if messages:
            raise cli.Stopped("\n".join(messages))
        return [results[folder] for _, folder in runs]


def _choose_group(going: "Sequence[Recorder]") -> "tuple[list[Recorder], int]":
    """Chooses the runs that train next, and the step at which another one may join them.

    They are in one phase; with a budget in tokens, runs at the same step can be in two phases.
    """
    for recorder in going:
        recorder.enter_phase()
    place = min((r.run.clocks.steps, r.run.phase) for r in going)
    group = [r for r in going if (r.run.clocks.steps, r.run.phase) == place]
    ahead = [r.run.clocks.steps for r in going if r.run.clocks.steps > place[0]]
    return group, min([*ahead, *(r.last_step for r in group)])


@dataclasses.dataclass
class _Trainer:
    """Trains runs at the same step of the same phase as one program."""

    model: "Model"
    mesh: "Mesh"
    placed: "TrainState"  # shardings of the state of one run
    recorders: "Sequence[Recorder]"  # of all runs
    interrupt: cli.Interrupt  # ends the training early
    before_step: BeforeStep | None
    in_flight: "InFlight"
    progress: "Progress"
    time_left: "Eta"
    compiled: "dict[tuple[int, int], tuple[Compiled, Evaluate]]"

    def train(self, group: "Sequence[Recorder]", until: int) -> "dict[Recorder, str]":
        """Trains to step `until`, or until every run has ended its phase or failed.

        A run that ends before the others stays in the program, which keeps its size, but is no
        longer recorded.

        Returns:
          Run -> why it failed.
        """
        import jax

        from scalelab import sharding
        from scalelab.data import batches as batches_lib
        from scalelab.runs import vmapped

        count, mesh, phase = len(group), self.mesh, group[0].phase
        machine, start = group[0].config.machine, group[0].run.clocks.steps
        rows = sharding.host_rows(mesh, phase.batch_size)
        sources = [recorder.batches(rows) for recorder in group]
        batch_at = lambda step: vmapped.stack_host([source(step) for source in sources])  # noqa: E731
        state = vmapped.stack([recorder.run.state for recorder in group])
        state = jax.device_put(state, vmapped.shardings(self.placed, count))
        for recorder in group:
            recorder.run.state = None  # frees memory
        train_step, evaluate = self._compile(group, state, batch_at(start))
        training, failed = dict(enumerate(group)), {}  # place in the program -> run; run -> why

        def settle() -> None:
            steps, secs = self.in_flight.wait()
            share = secs / max(len(training), 1)
            for place, recorder in list(training.items()):
                try:
                    recorder.settle([vmapped.unstack(p, place, count) for p in steps], share)
                except cli.Stopped as error:
                    failed[recorder] = str(error)
                    del training[place]

        def unstack(place: int) -> "TrainState":
            own = vmapped.unstack_state(state, place, count)
            return own if count == 1 else jax.device_put(own, self.placed)

        def attend() -> None:
            for place, recorder in list(training.items()):
                recorder.run.state = unstack(place)
                say = functools.partial(print, f"\n{recorder.workdir.name}")
                recorder.attend(evaluate, self.model, say)
                if recorder.phase_over:
                    del training[place]
                else:
                    recorder.run.state = None

        if not start:  # the untrained nets, where curves begin
            attend()
        stream = batches_lib.iterate(batch_at, start, until, machine.loader, machine.prefetch)
        for step, batch in enumerate(stream, start):
            if step == start:
                self.in_flight.restart()  # excludes the start-up of the pipeline
                self.time_left.start(self._done())
            num_tokens = batch.pop("num_tokens").reshape(count)
            if self.before_step is not None:
                self.before_step(step, batch)
            on_devices = sharding.put_batch(batch, mesh, phase.batch_size, count)
            rates = vmapped.stack_host([recorder.learning_rate() for recorder in group])
            state, pairs = train_step(state, on_devices, rates)
            self.in_flight.add(pairs)
            for place, recorder in training.items():
                recorder.advance(int(num_tokens[place]))
            malloc.release_if_low()
            if any(recorder.is_anything_due() for recorder in training.values()):
                settle()
                attend()
                self.in_flight.restart()
            if training and self.progress.due():
                settle()
                self._show(list(training.values()))
            if not training or self.interrupt.received is not None:
                break
        settle()
        for place, recorder in training.items():
            recorder.run.state = unstack(place)
        if group[0].tokens_per_sec:  # a step was made
            self._show(group, final=True)
        return failed

    def _compile(
        self, group: "Sequence[Recorder]", state: "TrainState", batch: dict[str, Any]
    ) -> "tuple[Compiled, Evaluate]":
        """Returns the train step of the group and the evaluation of one run, compiled."""
        import jax

        from scalelab import sharding
        from scalelab import step as step_lib
        from scalelab.runs import metrics, vmapped

        model, mesh, placed, count = self.model, self.mesh, self.placed, len(group)
        key, size = (group[0].run.phase, count), group[0].phase.batch_size
        spent = {"compile_secs": 0.0}
        if key not in self.compiled:
            del batch["num_tokens"]
            length = group[0].phase.max_len
            print(f"phase {key[0] + 1}: length {length}, {count} runs; compiling", flush=True)
            with metrics.timed(spent, "compile_secs"):
                step = step_lib.make_train_step(
                    model.net, model.terms, model.tx, group[0].config.machine.num_microbatches
                )
                train_step = step_lib.compile_train(
                    vmapped.train_step(step, type(state), count),
                    mesh,
                    vmapped.shardings(placed, count),
                    state,
                    sharding.put_batch(batch, mesh, size, count),
                    count,
                )
                one = jax.device_put(vmapped.unstack_state(state, 0, count), placed)
                single = sharding.put_batch(vmapped.unstack(batch, 0, count), mesh, size)
                evaluate = step_lib.compile_evaluation(model, mesh, placed, one, single)
            self.compiled[key] = train_step, evaluate
            print(f"compiled in {spent['compile_secs']:.1f} s")
        for recorder in group:
            recorder.timers["compile_secs"] += spent["compile_secs"] / count
        return self.compiled[key]

    def _done(self) -> float:
        """Returns the share of all budgets that is used."""
        return sum(recorder.done for recorder in self.recorders) / len(self.recorders)

    def _show(self, group: "Sequence[Recorder]", *, final: bool = False) -> None:
        """Shows how far the runs are; rates are those of the group in sum."""
        done, first = self._done(), group[0]
        rate = sum(recorder.tokens_per_sec for recorder in group) / len(group)
        self.progress.show(
            f"{len(group)} runs from {first.name} | step {first.run.clocks.steps} ({done:.0%})"
            f" | loss {' '.join(f'{recorder.loss:.4f}' for recorder in group)}"
            f" | {rate:,.0f} tokens/s | ETA {self.time_left.text(done)}",
            final=final,
        )


def define_flags() -> None:
    """Defines this program's own flags, some of which fine-tunings have too."""
    flags.DEFINE_list("seeds", [], "Seeds that train together; by default that of the config.")
    flags.DEFINE_list("learning_rates", [], "Peak learning rates; by default that of the config.")
    flags.DEFINE_list("order_seeds", [], "Seeds of the examples' order; by default the run's.")


def main(argv: list[str]) -> None:
    """Reads the flags and trains."""
    del argv
    malloc.keep_freed()
    workdir, config, given = cli.workdir(), cli.read_config(), flags.FLAGS
    varied = given.seeds, given.learning_rates, given.order_seeds
    train(compatibility.expand_runs(config, workdir, *varied))


if __name__ == "__main__":
    define_flags()
    cli.run(main)
