"""Multi-task fine-tuning: the fine-tunings of several tasks, mixed, that share their net.

  python -m scalelab.eval.glue --config.sharing=hard --tasks=rte,mrpc,qnli,mnli --init=RUN ...

A batch has examples of one task. An epoch has the batches of all tasks in random order (Liu et al.
2019, MT-DNN, algorithm 1). `config.sharing` says what is shared:

  hard     one body, which each step takes over with its moments; a head a task
  l1, l2   a net a task; after each step the bodies move towards their mean, see `pull`

All else is as in single-task fine-tuning: a task has its own batches, dropout, rates and number of
steps, and leaves the same run folder. With one task, or with a penalty of weight 0, the result is
that of `scalelab.finetune`.
"""

import contextlib
import dataclasses
import functools
import pathlib
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import flax
import jax
import jax.numpy as jnp
import numpy as np
from flax.typing import ArrayPytree

from scalelab import finetune
from scalelab.config import exits
from scalelab.config.fields import science
from scalelab.config.finetuning import resolve
from scalelab.finetuning import results
from scalelab.finetuning.plan import Options, plan
from scalelab.finetuning.progress import Progress, checkpoint_folder
from scalelab.finetuning.run import TaskRun
from scalelab.finetuning.step import FinetuneState, Program, compiled
from scalelab.finetuning.warm_start import WarmStart
from scalelab.helpers.progress import Eta
from scalelab.helpers.progress import Progress as ProgressLine
from scalelab.optim import adamw
from scalelab.resources import malloc
from scalelab.runs import environment, metrics, run_folder
from scalelab.runs.checkpoint import Checkpoints
from scalelab.tasks import task as task_lib
from scalelab.tasks.batches import TaskBatches
from scalelab.tasks.task import Task


@flax.struct.dataclass
class JointState:
    """The states of all tasks."""

    step: jax.Array  # int32 [], steps of all tasks together
    tasks: dict[str, FinetuneState]


def fine_tune(
    tasks: Sequence[Task],
    start: WarmStart,
    values: Mapping[str, Any],
    workdir: pathlib.Path,
    options: Options,
    overrides: Mapping[str, Mapping[str, Any]],
) -> None:
    """Trains every seed of the tasks that is not finished yet; arguments as `finetune.fine_tune`.

    The run folders are workdir/<task>/seed<k>; `overrides` has the fields of each task by its name.

    Raises:
      ValueError: config, data or a folder does not allow it.
      exits.Stopped: interrupted; the steps taken are saved.
    """
    if options.together > 1:
        raise ValueError("config.sharing trains one seed at a time: leave out --seeds_together")
    runs = []
    for task in tasks:
        own, axes = plan(task, start, values, options, overrides[task.name])
        if axes:
            fields = " ".join(f"--config.{name}={points[0]:g}" for name, points in axes.items())
            raise ValueError(
                f"recipe {own['recipe']!r} chooses from a grid for each task alone; with"
                f" config.sharing choose yourself, such as {fields}"
            )
        splits = task_lib.load(task, options.data, tests=False)
        runs.append(TaskRun(task, splits, start, resolve(own), workdir / task.name))
    if len({(run.config.sharing, run.config.sharing_weight) for run in runs}) > 1:
        raise ValueError("config.sharing and config.sharing_weight must be equal for all tasks")
    for seed in options.seeds:
        if None in [run.claim(seed) for run in runs]:
            train(runs, seed, workdir)
        else:
            print(f"seed {seed} of {', '.join(t.title for t in tasks)}: finished already")


def train(runs: Sequence[TaskRun], seed: int, workdir: pathlib.Path) -> None:
    """Trains one seed of all tasks until each has its result.json.

    Raises:
      ValueError: a folder holds another run.
      exits.Stopped: interrupted; the steps taken are saved.
    """
    config, machine = runs[0].config, runs[0].config.machine
    metrics.check_tracker(machine.tracker)
    environment.configure_jax(machine.compile_cache_dir, runs[0].start.opened.config.net.dtype)
    environment.drop_programs_if_many()
    workdir.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as lock, contextlib.ExitStack() as files:
        lock.enter_context(run_folder.locked(workdir))
        members = [_Member.begin(run, seed) for run in runs]
        fields = {run.task.name: science(run.describe(seed)) for run in runs}
        directory = checkpoint_folder(workdir, [seed], fields, None)
        checkpoints = Checkpoints(directory, 1)
        files.callback(checkpoints.close)
        step = _restore(checkpoints, members)
        for member in members:
            files.callback(member.open())
        order, line, remaining = draw_order(runs, seed), ProgressLine(), Eta()
        name = f"{'+'.join(run.task.name for run in runs)} seed {seed}"
        print(f"{name}: " + (f"continuing from step {step}" if step else "compiling"), flush=True)
        share(members, members[0])
        with exits.Interrupt() as interrupt:
            failed = None
            while step < len(order) and interrupt.received is None and failed is None:
                remaining.start(step / len(order))
                member = members[order[step]]
                rate = member.take_step()
                share(members, member, rate)
                step += 1
                failed = member.progress.failed
                malloc.release_if_low()
                if member.evaluates:
                    member.evaluate()
                if step % machine.checkpoint_every_steps == 0:
                    _save(checkpoints, members, step)
                if line.due():
                    loss, done = member.progress.loss(1), step / len(order)
                    at = f"{step}/{len(order)} | {member.run.task.name} loss {loss:.4f}"
                    line.show(f"{name} | step {at} | ETA {remaining.text(done)}")
            over = step == len(order) or failed is not None
            if not over:
                _save(checkpoints, members, step)
        if over:
            outputs = [member.evaluate() for member in members]
            files.close()
            for member, own in zip(members, outputs, strict=True):
                member.progress.failed = member.progress.failed or failed
                params = member.state.params
                member.run.save(seed, member.progress.clocks.steps, params)
                results.write(member.run, seed, member.progress, own, params)
            shutil.rmtree(directory)
            print(f"{name}: finished {step} steps, {config.sharing} sharing")
    if interrupt.received is not None:
        saved = f"{name} is finished" if over else f"step {step} is saved in {directory}"
        raise exits.Interrupted(interrupt.received, saved)


def draw_order(runs: Sequence[TaskRun], seed: int) -> np.ndarray:
    """Returns the place of each step's task in `runs`; every epoch mixes its batches anew."""
    config = runs[0].config
    rng = np.random.default_rng(seed if config.order_seed is None else config.order_seed)
    order, left = [], np.array([run.num_steps for run in runs])
    while left.any():
        now = np.minimum(left, [run.steps_per_epoch for run in runs])
        order.append(rng.permutation(np.repeat(np.arange(len(runs)), now)))
        left = left - now
    return np.concatenate(order)


# --- What tasks share ----------------


def share(members: Sequence["_Member"], trained: "_Member", rate: float = 0.0) -> None:
    """Gives all tasks the body that one has trained, or moves all bodies towards their mean."""
    config = trained.run.config
    if config.sharing == "hard":
        for member in members:
            member.state = take_body(member.state, trained.state)
    elif len(members) > 1 and (strength := rate * (config.sharing_weight or 0.0)):
        bodies = [member.state.params["body"] for member in members]
        pulled = pull(bodies, np.float32(strength), config.sharing == "l1")
        for member, body in zip(members, pulled, strict=True):
            member.state = member.state.replace(params=member.state.params | {"body": body})


def take_body(state: FinetuneState, other: FinetuneState) -> FinetuneState:
    """Returns `state` with the body of `other` and the body's moments; the rest is its own."""
    in_body = lambda path: any(getattr(key, "key", None) == "body" for key in path)  # noqa: E731
    theirs = {path: x for path, x in jax.tree_util.tree_leaves_with_path(other) if in_body(path)}
    return jax.tree_util.tree_map_with_path(lambda path, x: theirs.get(path, x), state)


@functools.partial(jax.jit, static_argnames="absolute", donate_argnums=0)
def pull(bodies: list[ArrayPytree], strength: jax.Array, absolute: bool) -> list[ArrayPytree]:
    """Moves parameters towards their mean c by the proximal step of a penalty (soft sharing).

    The penalty is sum |x - c|^2 / 2 (Duong et al. 2015), or sum |x - c| if `absolute`, times
    `strength`: the weight times the step's learning rate. It is decoupled from the gradients, as
    AdamW's weight decay is, so no weight is too large: all bodies are then the mean.
    """

    def move(*leaves: jax.Array) -> list[jax.Array]:
        gaps = [x - sum(leaves) / len(leaves) for x in leaves]
        if absolute:
            steps = [jnp.clip(gap, -strength, strength) for gap in gaps]
        else:
            steps = [gap * (strength / (1 + strength)) for gap in gaps]
        return [x - step for x, step in zip(leaves, steps, strict=True)]

    moved = [move(*leaves) for leaves in zip(*map(jax.tree.leaves, bodies), strict=True)]
    tree = jax.tree.structure(bodies[0])
    return [jax.tree.unflatten(tree, leaves) for leaves in zip(*moved, strict=True)]


# --- One task ----------------


@dataclasses.dataclass
class _Member:
    """The training of one task: the steps of `finetune.train`, one at a time."""

    run: TaskRun
    seed: int
    program: Program
    batches: TaskBatches
    state: FinetuneState
    progress: Progress = dataclasses.field(default_factory=Progress)
    writer: metrics.Writer = dataclasses.field(init=False)
    step_flops: dict[int, float] = dataclasses.field(default_factory=dict)  # by length

    @classmethod
    def begin(cls, run: TaskRun, seed: int) -> "_Member":
        """Returns a task before its first step."""
        program = compiled(run.trained, run.mesh)
        state = run.first_state(seed, run.first_params(seed))
        return cls(run, seed, program, run.batches(seed), jax.device_put(state, program.shardings))

    def open(self) -> Callable[[], None]:
        """Writes config.json and opens metrics.jsonl; returns the function that closes it."""
        run, folder = self.run, self.run.folder(self.seed)
        run.claim(self.seed)
        (folder / "result.json").unlink(missing_ok=True)  # of an end that was interrupted
        run_folder.describe(folder, run.describe(self.seed))
        steps, tracker = self.progress.clocks.steps, run.config.machine.tracker
        self.writer = metrics.Writer(folder, steps, self.progress.num_lines, tracker)
        return self.writer.close

    @property
    def evaluates(self) -> bool:
        """Whether an evaluation follows the last step; the one at the end does not count."""
        every = max(1, round(self.run.config.eval_every_epochs * self.run.steps_per_epoch))
        steps = self.progress.clocks.steps
        return steps % every == 0 and steps < self.run.num_steps

    def take_step(self) -> float:
        """Trains on the task's next batch; returns the learning rate."""
        run, config, clocks = self.run, self.run.config, self.progress.clocks
        place, total = clocks.steps, run.num_steps
        schedule = adamw.get_schedule(config.optim.schedule)
        factor = schedule(place, config.optim.warmup_rate * total, total)
        rate = np.float32(config.optim.learning_rate * factor)
        length = self.batches.length(place)
        is_new = length not in self.step_flops
        if is_new:  # it compiles, which is not training
            self.step_flops[length] = run.flops(self.state.params, length)
        begun = time.perf_counter()
        self.state, pairs = self.program.train(self.state, self.batches(place, length), rate)
        pairs = jax.device_get(pairs)
        clocks.secs += 0.0 if is_new else time.perf_counter() - begun
        clocks.steps += 1
        clocks.tokens += self.batches.num_tokens(place)
        clocks.flops += self.step_flops[length]
        self.progress.add(pairs, clocks.steps, run.steps_per_epoch)
        if clocks.steps == total or clocks.steps % config.machine.log_every_steps == 0:
            means = metrics.divide(self.progress.totals)
            self.progress.totals = {}
            values = {f"train/{key}": v for key, v in means.items() if key != "finite"}
            self.writer.write(clocks, values | {"train/learning_rate": float(rate)})
        return float(rate)

    def evaluate(self) -> results.Outputs:
        """Scores the dev splits, and notes the scores."""
        run, clocks = self.run, self.progress.clocks
        (outputs,) = finetune.evaluate(run, self.program, self.state.params, self.state.fixed)
        _, values = results.judge(run, self.progress, clocks.steps, outputs)
        self.writer.write(clocks, values)
        return outputs


# --- Checkpoints of all tasks ----------------


def _joined(members: Sequence[_Member], step: int) -> JointState:
    return JointState(jnp.int32(step), {member.run.task.name: member.state for member in members})


def _save(checkpoints: Checkpoints, members: Sequence[_Member], step: int) -> None:
    """Saves a checkpoint from which the same command continues."""
    for member in members:
        member.progress.num_lines = member.writer.num_lines
    progress = [dataclasses.asdict(member.progress) for member in members]
    checkpoints.save(_joined(members, step), {"progress": progress})


def _restore(checkpoints: Checkpoints, members: Sequence[_Member]) -> int:
    """Restores all tasks, if there is a checkpoint; returns the step."""
    found = checkpoints.restore(_joined(members, 0))
    if found is None:
        return 0
    state, meta = found
    for member, values in zip(members, meta["progress"], strict=True):
        member.state = state.tasks[member.run.task.name]
        member.progress = Progress.from_json(values)
    return int(state.step)
