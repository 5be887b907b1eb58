"""The loop of a fine-tuning: some runs together, from the start or where they were killed."""

import contextlib
import dataclasses
import functools
import pathlib
import shutil
import time
from typing import Any

import jax
import numpy as np

from scalelab.config import cli
from scalelab.config import pretraining as config_lib
from scalelab.finetuning import outcome
from scalelab.finetuning.course import Course
from scalelab.finetuning.group import Group
from scalelab.finetuning.run import TaskRun
from scalelab.helpers import progress
from scalelab.resources import malloc
from scalelab.runs import environment, metrics, run_folder
from scalelab.runs.checkpoint import Checkpoints

AHEAD = 8  # steps that may wait on the device


def train(run: TaskRun, seeds: list[int]) -> None:
    """Trains seeds of a task together until each has its result.json.

    Raises:
      ValueError: a folder is not as it should be.
      cli.Stopped: interrupted; what was reached is saved.
    """
    train_together([run] * len(seeds), seeds)


def train_together(runs: list[TaskRun], seeds: list[int]) -> None:
    """Trains runs that may differ in seed, learning rate and folder, as `train` does.

    Args:
      runs: each one's task, prepared.
      seeds: each one's seed.
    """
    run = runs[0]
    started = time.perf_counter()
    dtype = run.start.opened.config.net.dtype
    environment.configure_jax(run.config.machine.compile_cache_dir, dtype)
    with contextlib.ExitStack() as locks:
        for workdir in sorted({run.workdir for run in runs}):
            workdir.mkdir(parents=True, exist_ok=True)
            locks.enter_context(run_folder.locked(workdir))
        with contextlib.ExitStack() as held:
            training = Training(runs, seeds, held)
            if training.step:
                print(f"{training.name}: continuing from step {training.step}")
            with cli.Interrupt() as interrupt:
                while not training.over and interrupt.received is None:
                    training.advance()
                if not training.over:
                    training.save()
        if training.over:
            training.finish()
            secs = time.perf_counter() - started
            print(f"{training.name}: finished {training.step} steps in {secs:.0f} s")
        if interrupt.received is not None:  # in the last evaluation, it may be: others would follow
            at = f"stopped by {interrupt.received} after step {training.step}"
            raise cli.Stopped(
                f"{at}: {training.name} is finished; start the same command again for what follows"
                if training.over
                else f"{at}, which is saved in {training.directory}; start the same command again"
                " to continue",
                cli.PREEMPTED if interrupt.received == "SIGTERM" else cli.FAILED,
            )


class Training:
    """A group's way through its steps: clocks, metrics, evaluations, checkpoints, results.

    It begins where its last checkpoint is, if there is one.

    Args:
      runs: each one's task, prepared; the checkpoints lie in the first one's folder.
      seeds: each one's seed.
      held: closes what it opens.

    Attributes:
      name: what messages call it.
      directory: of its checkpoints.
      step: steps taken.
    """

    def __init__(self, runs: list[TaskRun], seeds: list[int], held: contextlib.ExitStack) -> None:
        run = self._run = runs[0]
        self._group = Group(runs, seeds)
        rates = list(dict.fromkeys(run.config.optim.learning_rate for run in runs))
        self.name = f"{run.task.name} seed {','.join(map(str, dict.fromkeys(seeds)))}"
        self.name += f" rate {','.join(f'{rate:g}' for rate in rates)}" * (len(rates) > 1)
        table = "" if run.rows is None else f".{run.rows.size}"  # whose shape a checkpoint has
        self.directory = run.workdir / f".resume-{'-'.join(map(str, seeds))}{table}"
        self._checkpoints = Checkpoints(self.directory, 1)
        held.callback(self._checkpoints.close)
        self._courses = [Course() for _ in seeds]
        restored = self._checkpoints.restore(self._group.state)
        if restored is not None:
            self._group.state, meta = restored
            self._check(meta.get("configs"))
            self._courses = [Course.from_json(values) for values in meta["courses"]]
        else:
            self._say_what_is_lost()
        self.step = int(self._group.state.step)
        self._writers = []
        for own, seed in zip(runs, seeds, strict=True):
            own.claim(seed)
            run_folder.describe(own.folder(seed), own.describe(seed))
            self._writers.append(metrics.Writer(own.folder(seed), self.step))
            held.callback(self._writers[-1].close)
        self._eval_every = max(1, round(run.config.eval_every_epochs * run.steps_per_epoch))
        self._costs: dict[int, float] = {}  # FLOPs of a step, by the lengths that are compiled
        self._pending: list[Any] = []  # metrics of steps under way
        self._last: tuple[int, Any] = (-1, None)  # step of the last evaluation, and its outputs
        self._line, self._eta = progress.Progress(), progress.Eta()
        self._begun = time.perf_counter()

    def _check(self, before: list[dict[str, Any]] | None) -> None:
        """Refuses a checkpoint that runs with other configs left; earlier versions did not say."""
        for config, now in zip(before or (), self._configs(), strict=before is not None):
            differing = config_lib.science_diff(now, config)
            if differing:
                raise ValueError(
                    f"{self.directory} has a checkpoint of a run with another config; choose"
                    " another --workdir, remove that folder, or undo:\n  " + "\n  ".join(differing)
                )

    def _configs(self) -> list[dict[str, Any]]:
        """Each run's config.json."""
        group = self._group
        return [run.describe(seed) for run, seed in zip(group.runs, group.seeds, strict=True)]

    def _say_what_is_lost(self) -> None:
        """Says so where seeds had come some way in another group, whose checkpoint does not fit."""
        for folder in self._run.workdir.glob(".resume-*"):
            again = sorted(_seeds_of(folder) & set(self._group.seeds))
            if again and folder != self.directory:
                print(
                    f"note: {self.name} begins at step 0: what seed {', '.join(map(str, again))}"
                    f" had reached is in {folder}, of seeds grouped otherwise; to go on from there"
                    " start with the --seeds_together that it was stopped with"
                )

    @property
    def over(self) -> bool:
        """Whether all steps are taken, or nothing more is done for any seed."""
        return self.step == self._run.num_steps or not self._going

    @property
    def _going(self) -> list[int]:
        """Places of the seeds that still go on; the others only wait for these."""
        return [k for k, course in enumerate(self._courses) if not course.over]

    # --- A step, and what is due after it ----------------

    def advance(self) -> None:
        """Takes a step, and does what is due after it."""
        machine, num_steps = self._run.config.machine, self._run.num_steps
        self._eta.start(self.step / num_steps)
        rates = self._group.rates(self.step)
        self._take_step()
        malloc.release_if_scarce()
        last = self.step == num_steps
        if len(self._pending) >= AHEAD or last:
            self._settle()
            self._show()
        if self.step % machine.log_every_steps == 0 or last:
            self._settle()
            self._log(rates)
        if self.step % self._eval_every == 0 or last:
            self._settle()
            self._evaluate()
        if self.step % machine.checkpoint_every_steps == 0:
            self.save()

    def _take_step(self) -> None:
        length = self._group.length(self.step)
        if length in self._costs:
            self._pending.append(self._group.advance(self.step))
        else:  # compiles, which is not training: this one step goes without being timed
            self._settle()
            self._costs[length] = self._group.flops(length)
            self._pending.append(jax.block_until_ready(self._group.advance(self.step)))
            self._begun = time.perf_counter()
        for k in self._going:
            course = self._courses[k]
            course.clocks.steps += 1
            course.clocks.tokens += self._group.batches[k].num_tokens(self.step)
            course.clocks.flops += self._costs[length]
        self.step += 1

    def _settle(self) -> None:
        """Waits for the steps under way; each seed that goes on gets a share of their time."""
        found = jax.device_get(self._pending)
        spent = time.perf_counter() - self._begun
        for k in self._going:
            course = self._courses[k]
            course.clocks.secs += spent / len(self._going)
            for pairs in found:
                own = self._group.of_seed(pairs, k)
                if not own["finite"][0] and course.failed is None:
                    course.failed = f"loss or gradient not finite at or before step {self.step}"
                metrics.add(course.totals, own)
                course.epoch.append((float(own["loss"][0]), float(own["loss"][1])))
            del course.epoch[: -self._run.steps_per_epoch]
        self._pending.clear()
        self._begun = time.perf_counter()

    def _show(self) -> None:
        loss = self._courses[0].loss(self._run.config.machine.log_every_steps)
        if loss is not None and self._line.due():
            self._line.show(
                f"{self.name} | step {self.step}/{self._run.num_steps}"
                f" | loss {loss:.4f}"
                f" | ETA {self._eta.text(self.step / self._run.num_steps)}"
            )

    def _log(self, rates: list[np.float32]) -> None:
        for k in self._going:
            course, writer = self._courses[k], self._writers[k]
            means = metrics.divide(course.totals)
            course.totals = {}
            if not means:
                continue
            means.pop("finite", None)
            values = {f"train/{k}": v for k, v in means.items()}
            writer.write(course.clocks, values | {"train/learning_rate": float(rates[k])})

    def _evaluate(self) -> None:
        run, better = self._run, []
        outputs = self._group.outputs(self._group.state.params)
        self._last = (self.step, outputs)
        for course, writer, own in zip(self._courses, self._writers, outputs, strict=True):
            if course.over:
                better.append(False)
                continue
            dev = outcome.measure(run.task, run.splits, own)
            score = functools.partial(outcome.main_score, run.task)
            better.append(course.judge(self.step, dev, score, run.config.patience))
            values = {f"eval/{s}/{m}": v for s, found in dev.items() for m, v in found.items()}
            writer.write(course.clocks, {k: v for k, v in values.items() if v is not None})
        if run.learner.keep_best:
            self._group.keep(better)
        self._begun = time.perf_counter()

    def save(self) -> None:
        """Saves a checkpoint from which the same command continues."""
        self._settle()
        courses = [dataclasses.asdict(course) for course in self._courses]
        meta = {"courses": courses, "configs": self._configs()}
        self._checkpoints.save(self._group.state, meta)
        self._begun = time.perf_counter()

    # --- The end ----------------

    def finish(self) -> None:
        """Writes every run's parameters and results, and removes the checkpoints."""
        run, group, state = self._run, self._group, self._group.state
        params = state.best if run.learner.keep_best else state.params
        evaluated, outputs = self._last
        if run.learner.keep_best or evaluated != self.step:
            outputs = group.outputs(params)
        for k, (seed, course) in enumerate(zip(group.seeds, self._courses, strict=True)):
            own = group.whole(params, k)
            group.runs[k].save(seed, course.clocks.steps, own)
            outcome.write(group.runs[k], seed, course, outputs[k], own)
        for each in group.runs:
            _tidy(each)


def _tidy(run: TaskRun) -> None:
    """Removes the checkpoints of groups with a seed that is finished: none of them starts again.

    They are this group's, and those left by seeds that were grouped otherwise.
    """
    for folder in run.workdir.glob(".resume-*"):
        if any((run.folder(seed) / "result.json").exists() for seed in _seeds_of(folder)):
            shutil.rmtree(folder)


def _seeds_of(folder: pathlib.Path) -> set[int]:
    """The seeds of a group, from the name of its folder of checkpoints."""
    return set(map(int, folder.name.split(".")[1].split("-")[1:]))
