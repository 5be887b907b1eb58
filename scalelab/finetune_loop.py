"""The loop of a fine-tuning: some seeds together, from the start or where they were killed."""

import contextlib
import dataclasses
import shutil
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from scalelab import cli, environment, finetune_step, metrics, progress, run_folder
from scalelab import finetune_outcome as outcome
from scalelab.checkpoint import Checkpoints
from scalelab.clocks import Clocks
from scalelab.finetune_run import TaskRun
from scalelab.optim import schedules


@dataclasses.dataclass
class Course:
    """How far a seed has come, beside its parameters; plain json in checkpoints.

    Attributes:
      clocks: its clocks.
      totals: (sum, weight) pairs of the steps not yet logged.
      losses: mean training loss of the last epoch's logged stretches, newest last.
      evals: what each evaluation found: {"step", "dev": {split: {metric: value}}}.
      best: index in `evals` of the best one.
      stopped: step after which early stopping ended it; None: still going.
      failed: what went wrong; None: nothing.
    """

    clocks: Clocks = dataclasses.field(default_factory=Clocks)
    totals: dict[str, tuple[float, float]] = dataclasses.field(default_factory=dict)
    losses: list[tuple[int, float]] = dataclasses.field(default_factory=list)
    evals: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    best: int | None = None
    stopped: int | None = None
    failed: str | None = None

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "Course":
        """What dataclasses.asdict made."""
        return cls(**values | {"clocks": Clocks(**values["clocks"])})


def train(run: TaskRun, seeds: list[int]) -> None:
    """Trains seeds together until each has its result.json.

    Raises:
      ValueError: a folder is not as it should be.
      cli.Stopped: interrupted; what was reached is saved.
    """
    config, learner, count = run.config, run.learner, len(seeds)
    started = time.perf_counter()
    environment.configure_jax(config.machine.compile_cache_dir, run.start.opened.config.net.dtype)
    run.workdir.mkdir(parents=True, exist_ok=True)
    with run_folder.locked(run.workdir), contextlib.ExitStack() as held:
        batches = [run.batches(seed) for seed in seeds]
        example = batches[0](0)
        starts = run.start.bodies or (lambda seed: None)
        state = finetune_step.stack_states(
            [learner.init(seed, starts(seed), example) for seed in seeds]
        )
        directory = run.workdir / f".resume-{'-'.join(map(str, seeds))}"
        checkpoints = Checkpoints(directory, 1)
        held.callback(checkpoints.close)
        restored = checkpoints.restore(state)
        courses = [Course() for _ in seeds]
        if restored is not None:
            state, meta = restored
            courses = [Course.from_json(values) for values in meta["courses"]]
        step = int(state.step)
        writers = []
        for seed in seeds:
            run_folder.claim(run.folder(seed), run.describe(seed))
            run_folder.describe(run.folder(seed), run.describe(seed))
            writers.append(metrics.Writer(run.folder(seed), step))
            held.callback(writers[-1].close)
        run_train, run_predict = finetune_step.compiled(learner, count)
        schedule = schedules.get(config.optim.schedule)
        warmup = config.optim.warmup_rate * run.num_steps
        eval_every = max(1, round(config.eval_every_epochs * run.steps_per_epoch))
        costs: dict[int, float] = {}
        line, eta = progress.Progress(), progress.Eta()
        name = f"{run.task.name} seed {','.join(map(str, seeds))}"
        if step:
            print(f"{name}: continuing from step {step}")
        pending: list[Any] = []
        begun = time.perf_counter()

        def settle() -> None:
            """Waits for the steps under way; their time goes to the clocks."""
            nonlocal begun
            found = jax.device_get(pending)
            spent = time.perf_counter() - begun
            for k, course in enumerate(courses):
                course.clocks.secs += spent
                for pairs in found:
                    own = finetune_step.pick(pairs, k, count)
                    if not own["finite"][0] and course.failed is None:
                        course.failed = f"loss or gradient not finite at or before step {step}"
                    metrics.add(course.totals, own)
            pending.clear()
            begun = time.perf_counter()

        def log(rate: float) -> None:
            for course, writer in zip(courses, writers, strict=True):
                means = metrics.divide(course.totals)
                course.totals = {}
                if not means:
                    continue
                means.pop("finite", None)
                course.losses.append((step, means["loss"]))
                writer.write(
                    course.clocks,
                    {f"train/{k}": v for k, v in means.items()} | {"train/learning_rate": rate},
                )

        def evaluate() -> None:
            nonlocal begun, state
            found = {
                split: run.predict(run_predict, state.params, state.fixed, examples, count)
                for split, examples in run.dev.items()
                if examples is not None
            }
            better = []
            for k, (course, writer) in enumerate(zip(courses, writers, strict=True)):
                scores = {split: all_scores[k] for split, all_scores in found.items()}
                dev = outcome.measure(run.task, run.splits, scores)
                if course.stopped is not None:
                    better.append(False)
                    continue
                course.evals.append({"step": step, "dev": dev})
                values = [outcome.main_score(run.task, e["dev"]) for e in course.evals]
                better.append(course.best is None or values[-1] > values[course.best])
                if better[-1]:
                    course.best = len(values) - 1
                elif config.patience and len(values) - 1 - course.best >= config.patience:
                    course.stopped = step
                found_values = {f"eval/{s}/{m}": v for s, ms in dev.items() for m, v in ms.items()}
                writer.write(
                    course.clocks, {k: v for k, v in found_values.items() if v is not None}
                )
            if learner.keep_best:
                chosen = jnp.array(better) if count > 1 else better[0]

                def choose(new: jax.Array, old: jax.Array) -> jax.Array:
                    mask = chosen if count == 1 else chosen.reshape(-1, *(1 for _ in new.shape[1:]))
                    return jnp.where(mask, new, old)

                state = state.replace(best=jax.tree.map(choose, state.params, state.best))
            begun = time.perf_counter()

        def save() -> None:
            nonlocal begun
            checkpoints.save(state, {"courses": [dataclasses.asdict(c) for c in courses]})
            begun = time.perf_counter()

        stopped = False
        with cli.Interrupt() as interrupt:
            while step < run.num_steps and not stopped:
                eta.start(step / run.num_steps)
                length = max(b.length(step) for b in batches)
                rows = [b(step, length) for b in batches]
                batch = rows[0] if count == 1 else jax.tree.map(lambda *v: np.stack(v), *rows)
                rate = np.float32(
                    config.optim.learning_rate * schedule(step, warmup, run.num_steps)
                )
                if length in costs:
                    state, pairs = run_train(state, batch, rate)
                else:  # compiles, which is not training: this one step goes without being timed
                    settle()
                    costs[length] = run.flops(state.params | state.fixed, length)
                    state, pairs = run_train(state, batch, rate)
                    jax.block_until_ready(pairs)
                    begun = time.perf_counter()
                pending.append(pairs)
                for course, own in zip(courses, batches, strict=True):
                    course.clocks.steps += 1
                    course.clocks.tokens += own.num_tokens(step)
                    course.clocks.flops += costs[length]
                step += 1
                over = step == run.num_steps
                if len(pending) >= 8 or over:
                    settle()
                    if line.due() and courses[0].losses:
                        line.show(
                            f"{name} | step {step}/{run.num_steps}"
                            f" | loss {courses[0].losses[-1][1]:.4f}"
                            f" | ETA {eta.text(step / run.num_steps)}"
                        )
                if step % config.machine.log_every_steps == 0 or over:
                    settle()
                    log(float(rate))
                if step % eval_every == 0 or over:
                    settle()
                    evaluate()
                    over = over or all(c.stopped is not None or c.failed for c in courses)
                stopped = interrupt.received is not None and not over
                if step % config.machine.checkpoint_every_steps == 0 or stopped:
                    settle()
                    save()
                if over:
                    break
        held.close()
        if stopped:
            raise cli.Stopped(
                f"stopped by {interrupt.received} after step {step}, which is saved in {directory};"
                " start the same command again to continue",
                cli.PREEMPTED if interrupt.received == "SIGTERM" else cli.FAILED,
            )
        params = (state.best if learner.keep_best else state.params) | state.fixed
        final = {
            split: run.predict(
                run_predict,
                state.best if learner.keep_best else state.params,
                state.fixed,
                examples,
                count,
            )
            for split, examples in run.dev.items()
            if examples is not None
        }
        for k, (seed, course) in enumerate(zip(seeds, courses, strict=True)):
            own = {split: scores[k] for split, scores in final.items()}
            run.save(seed, step, finetune_step.pick(params, k, count))
            outcome.write(run, seed, course, own)
        shutil.rmtree(directory)
        print(f"{name}: finished {step} steps in {time.perf_counter() - started:.0f} s")
