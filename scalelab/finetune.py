"""Fine-tuning: the loop behind every eval binary.

  python -m scalelab.eval.rte --init=RUN --workdir=DIR --data=GLUE_DIR [--seeds=5]

`fine_tune` plans a task, chooses from the recipe's grid and trains its seeds; `train` is the loop:
setup, restore, loop, end. It runs on all devices: the batch is split over them, and with
machine.fsdp_parallel or machine.tensor_parallel the net too. Each seed leaves a run folder
DIR/seed0, DIR/seed1, ... with result.json and predictions.tsv. Finished seeds are not trained
again; a stopped one continues from its checkpoint.
"""

import contextlib
import dataclasses
import json
import pathlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from scalelab.config import exits
from scalelab.config.finetuning import override, resolve
from scalelab.finetuning import results
from scalelab.finetuning.plan import Options, grid_points, plan, read_choice, write_choice
from scalelab.finetuning.progress import (
    Progress,
    checkpoint_folder,
    describe_unused,
    remove_checkpoints,
)
from scalelab.finetuning.run import TaskRun
from scalelab.finetuning.step import FinetuneState, Metrics, Params, Program, compiled
from scalelab.finetuning.warm_start import WarmStart
from scalelab.helpers.progress import Eta
from scalelab.helpers.progress import Progress as ProgressLine
from scalelab.optim import adamw
from scalelab.resources import malloc
from scalelab.runs import environment, metrics, run_folder, vmapped
from scalelab.runs.checkpoint import Checkpoints
from scalelab.tasks import task as task_lib
from scalelab.tasks.task import Task

AHEAD = 8  # steps that may wait on the device


def fine_tune(
    task: Task,
    start: WarmStart,
    values: Mapping[str, Any],
    workdir: pathlib.Path,
    options: Options,
    overrides: Mapping[str, Any] = {},  # noqa: B006 never changed
) -> list[dict[str, Any]]:
    """Fine-tunes every seed that is not finished yet; returns the results of all seeds.

    `values` are fields of `configs/finetune.py`; `overrides` are dotted fields of this task that
    differ from them and from the recipe's own. The seeds' run folders lie in `workdir`.

    Raises:
      ValueError: config, data or a folder does not allow it.
      exits.Stopped: interrupted; the steps taken are saved.
    """
    values, axes = plan(task, start, values, options, overrides)
    if values["sharing"] and not values["sharing_tasks"]:
        raise ValueError("config.sharing needs several tasks: use eval.glue --tasks=..., or None")
    splits = task_lib.load(task, options.data, tests=options.submit)
    imported = start.classifier if start.bodies is not None else None
    if options.eval_only and imported and not any(workdir.glob("seed*/checkpoints")):
        config = resolve(override(values, {"feature_layers": None, "lm_weight": 0.0}))
        head = dataclasses.replace(config.head, kind=imported.kind)
        config = dataclasses.replace(config, head=head, epochs=0.0)
        run, seeds = TaskRun(task, splits, start, config, workdir), (0,)
        results.score_import(run)
    else:
        if axes and options.eval_only:
            values = override(values, read_choice(workdir, axes))
        elif axes:  # the first seed chooses
            scores = {}
            for name, fields in grid_points(axes).items():
                config = resolve(override(values, fields))
                point = TaskRun(task, splits, start, config, workdir / "grid" / name)
                if point.claim(options.seeds[0]) is None:
                    train(point, options.seeds[:1])
                scores[name] = results.main_score(task, point.result(options.seeds[0])["eval"])
                print(f"{task.name}: {name} has {task.metrics[0]} {scores[name]:.4f} on dev")
            values = override(values, write_choice(workdir, axes, scores, options.seeds[0]))
        run, seeds = TaskRun(task, splits, start, resolve(values), workdir), options.seeds
        if options.eval_only:
            for seed in seeds:
                scores = json.dumps(results.evaluate_again(run, seed))
                print(f"{task.title} seed {seed}: {scores}")
        else:
            print(results.describe(run))
            finished = [seed for seed in seeds if run.claim(seed) is not None]
            if finished:
                named = ", ".join(map(str, finished))
                print(f"{task.title} seed {named}: finished already, not trained again")
            left = [seed for seed in seeds if seed not in finished]
            for i in range(0, len(left), options.together):
                train(run, left[i : i + options.together])
    if options.submit:
        results.submit(run, seeds)
    return [run.result(seed) for seed in seeds]


def train(run: TaskRun, seeds: Sequence[int]) -> None:
    """Trains seeds in one program until each has its result.json.

    Raises:
      ValueError: a folder holds another run.
      exits.Stopped: interrupted; the steps taken are saved.
    """
    config, num_steps, rows, count = run.config, run.num_steps, run.rows, len(seeds)
    machine, started = config.machine, time.perf_counter()
    metrics.check_tracker(machine.tracker)
    environment.configure_jax(machine.compile_cache_dir, run.start.opened.config.net.dtype)
    environment.drop_programs_if_many()  # those of earlier tasks
    with contextlib.ExitStack() as lock, contextlib.ExitStack() as files:
        # --- Setup: folders, batches, the compiled step, the first parameters ----------------
        run.workdir.mkdir(parents=True, exist_ok=True)
        lock.enter_context(run_folder.locked(run.workdir))
        name = f"{run.task.name} seed {','.join(map(str, seeds))}"
        batches = [run.batches(seed) for seed in seeds]
        schedule = adamw.get_schedule(config.optim.schedule)
        warmup_steps = config.optim.warmup_rate * num_steps
        program = compiled(run.trained, run.mesh, count)
        first = [run.first_params(seed) for seed in seeds]
        states = [run.first_state(s, params) for s, params in zip(seeds, first, strict=True)]
        state = jax.device_put(vmapped.stack(states), program.shardings)
        tables = [] if rows is None else [np.asarray(rows.table(params)) for params in first]
        del first, states

        # --- Restore: the checkpoint of the same seeds in one program, if there is one ----------
        directory = checkpoint_folder(run.workdir, seeds, run.describe(seeds[0]), rows)
        checkpoints = Checkpoints(directory, 1)
        files.callback(checkpoints.close)
        progress, restored = [Progress() for _ in seeds], checkpoints.restore(state)
        if restored is not None:
            state, meta = restored
            progress = [Progress.from_json(values) for values in meta["progress"]]
        step = int(state.step)
        if restored is None:
            for note in describe_unused(run.workdir, seeds, directory):
                print(note)
        writers = []
        for seed, each in zip(seeds, progress, strict=True):
            run.claim(seed)
            run_folder.describe(run.folder(seed), run.describe(seed))
            given = run.folder(seed), step, each.num_lines, machine.tracker
            writers.append(metrics.Writer(*given))
            files.callback(writers[-1].close)
        if step:
            print(f"{name}: continuing from step {step}")

        # --- Loop ----------------
        eval_every = max(1, round(config.eval_every_epochs * run.steps_per_epoch))
        step_flops: dict[int, float] = {}  # FLOPs of a step, by the lengths that are compiled
        outputs, evaluated = [], -1  # of the last evaluation, and its step
        pending, line, remaining = [], ProgressLine(), Eta()
        with exits.Interrupt() as interrupt:
            begun = time.perf_counter()
            while step < num_steps and interrupt.received is None:
                active = [k for k, each in enumerate(progress) if not each.over]
                if not active:
                    break
                remaining.start(step / num_steps)
                length = max(each.length(step) for each in batches)
                parts = [each(step, length) for each in batches]
                batch = vmapped.stack_host(parts if rows is None else [*map(rows.renumber, parts)])
                factor = schedule(step, warmup_steps, num_steps)
                rate = np.float32(config.optim.learning_rate * factor)
                is_new = length not in step_flops
                if is_new:  # it compiles, which is not training: this one step is not timed
                    begun = _collect(pending, progress, active, begun, step, run.steps_per_epoch)
                    if not step_flops:
                        print(f"{name}: compiling, later again for new lengths", flush=True)
                    params = vmapped.unstack(state.params | state.fixed, 0, count)
                    step_flops[length] = run.flops(params, length)
                state, pairs = program.train(state, batch, vmapped.stack_host([rate] * count))
                pending.append(pairs)
                if is_new:
                    jax.block_until_ready(pairs)
                    begun = time.perf_counter()
                for k in active:
                    progress[k].clocks.steps += 1
                    progress[k].clocks.tokens += batches[k].num_tokens(step)
                    progress[k].clocks.flops += step_flops[length]
                step += 1
                malloc.release_if_low()

                last = step == num_steps
                logs = last or step % machine.log_every_steps == 0
                evaluates = last or step % eval_every == 0
                saves = step % machine.checkpoint_every_steps == 0
                if logs or evaluates or saves or len(pending) >= AHEAD:
                    begun = _collect(pending, progress, active, begun, step, run.steps_per_epoch)
                    loss = progress[0].loss(machine.log_every_steps)
                    if loss is not None and line.due():
                        at, left = f"{step}/{num_steps}", remaining.text(step / num_steps)
                        line.show(f"{name} | step {at} | loss {loss:.4f} | ETA {left}")
                if logs:
                    for k in active:
                        means = metrics.divide(progress[k].totals)
                        progress[k].totals = {}
                        values = {f"train/{key}": v for key, v in means.items() if key != "finite"}
                        if means:
                            values["train/learning_rate"] = float(rate)
                            writers[k].write(progress[k].clocks, values)
                if evaluates:
                    outputs, evaluated = evaluate(run, program, state.params, state.fixed), step
                    better = np.zeros(count, bool)
                    for k in active:
                        better[k], values = results.judge(run, progress[k], step, outputs[k])
                        writers[k].write(progress[k].clocks, values)
                    if run.trained.keep_best:
                        state = state.replace(best=_keep(better, state.params, state.best))
                for each, writer in zip(progress, writers, strict=True):
                    each.num_lines = writer.num_lines
                if saves:
                    _save(checkpoints, state, progress)
                if logs or evaluates or saves:
                    begun = time.perf_counter()
            over = step == num_steps or all(each.over for each in progress)
            if not over:
                _collect(pending, progress, active, begun, step, run.steps_per_epoch)
                _save(checkpoints, state, progress)

        # --- End: parameters and results; a checkpoint is no longer needed ----------------
        files.close()
        if over:
            params = state.best if run.trained.keep_best else state.params
            if run.trained.keep_best or evaluated != step:
                outputs = evaluate(run, program, params, state.fixed)
            for k, seed in enumerate(seeds):
                whole = vmapped.unstack(params | state.fixed, k, count)
                whole = whole if rows is None else rows.widen(whole, tables[k])
                run.save(seed, progress[k].clocks.steps, whole)
                results.write(run, seed, progress[k], outputs[k], whole)
            remove_checkpoints(run.workdir)
            print(f"{name}: finished {step} steps in {time.perf_counter() - started:.0f} s")
    if interrupt.received is not None:  # perhaps during the last evaluation
        saved = f"{name} is finished" if over else f"step {step} is saved in {directory}"
        raise exits.Interrupted(interrupt.received, saved)


def evaluate(
    run: TaskRun, program: Program, params: Params, fixed: Params
) -> list[results.Outputs]:
    """Computes each seed's outputs on the dev splits, given the parameters of a state."""

    def predict(batch: dict[str, np.ndarray]) -> jax.Array:
        narrow = batch if run.rows is None else run.rows.renumber(batch)
        return program.predict(params, fixed, narrow)

    found = {
        split: run.predict(predict, examples, program.num_seeds)
        for split, examples in run.dev.items()
        if examples is not None
    }
    return [{split: each[k] for split, each in found.items()} for k in range(program.num_seeds)]


def _collect(
    pending: list[Metrics], progress: list[Progress], active: list[int], begun: float, step: int,
    steps_per_epoch: int,
) -> float:  # fmt: skip
    """Waits for the steps under way and adds their metrics and time; returns the time now.

    The active seeds share the time since `begun` equally.
    """
    found = jax.device_get(pending)
    now = time.perf_counter()
    for k in active:
        progress[k].clocks.secs += (now - begun) / len(active)
        for pairs in found:
            progress[k].add(vmapped.unstack(pairs, k, len(progress)), step, steps_per_epoch)
    pending.clear()
    return now


def _keep(better: np.ndarray, new: Params, old: Params) -> Params:
    """Takes the new parameters of the seeds that are better, the old ones of the others."""

    def choose(x: jax.Array, y: jax.Array) -> jax.Array:
        takes = better.reshape(-1, *(1,) * (x.ndim - 1)) if len(better) > 1 else better[0]
        return jnp.where(takes, x, y)

    return jax.tree.map(choose, new, old)


def _save(checkpoints: Checkpoints, state: FinetuneState, progress: list[Progress]) -> None:
    """Saves a checkpoint from which the same command continues."""
    checkpoints.save(state, {"progress": [dataclasses.asdict(each) for each in progress]})
