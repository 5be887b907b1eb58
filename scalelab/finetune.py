"""Fine-tuning: the loop behind every eval binary.

  python -m scalelab.eval.rte --init=RUN --workdir=DIR --data=GLUE_DIR [--seeds=5]

`fine_tune` plans a task, chooses from the recipe's grid and trains its seeds; `train` trains one of
them by the loop of `train.py`. It runs on all devices: the batch is split over them, and with
machine.fsdp_parallel or machine.tensor_parallel the model too. Each seed leaves a run folder
DIR/seed0, DIR/seed1, ... with result.json and predictions.tsv. Finished seeds are not trained
again; a stopped one continues from its checkpoint.
"""

import contextlib
import dataclasses
import json
import pathlib
import time
from collections.abc import Iterator, Sequence
from typing import Any

from scalelab import train as loop
from scalelab.config import exits
from scalelab.config.fields import science
from scalelab.config.finetuning import override, resolve
from scalelab.finetuning import results
from scalelab.finetuning.joint import Joint
from scalelab.finetuning.plan import Request, grid_points, plan, read_choice, write_choice
from scalelab.finetuning.progress import checkpoint_folder, describe_unused, remove_checkpoints
from scalelab.finetuning.run import TaskRun
from scalelab.finetuning.step import compiled
from scalelab.records import metrics, run_folder
from scalelab.resources import host
from scalelab.tasks import task as task_lib
from scalelab.tasks.task import Task
from scalelab.training.checkpoint import Checkpoints


def fine_tune(task: Task, asked: Request, workdir: pathlib.Path) -> list[dict[str, Any]]:
    """Fine-tunes every seed that is not finished yet; returns the results of all seeds.

    Their run folders are workdir/seed<k>.

    Raises:
      ValueError: config, data or a folder does not allow it.
      exits.Stopped: interrupted; the steps taken are saved.
    """
    (values, axes), start = plan(task, asked), asked.start
    if values["sharing"] and not values["sharing_tasks"]:
        raise ValueError("config.sharing needs several tasks: use eval.glue --tasks=..., or None")
    splits = task_lib.load(task, asked.data, tests=asked.submit)
    imported = start.classifier if start.bodies is not None else None
    if asked.eval_only and imported and not any(workdir.glob("seed*/checkpoints")):
        config = resolve(override(values, {"feature_layers": None, "lm_weight": 0.0}))
        head = dataclasses.replace(config.head, kind=imported.kind)
        config = dataclasses.replace(config, head=head, epochs=0.0)
        run, seeds = TaskRun(task, splits, start, config, workdir), (0,)
        results.score_import(run)
    else:
        if axes and asked.eval_only:
            values = override(values, read_choice(workdir, axes))
        elif axes:  # the first seed chooses
            points = []
            for name, fields in grid_points(axes).items():
                config = resolve(override(values, fields))
                point = TaskRun(task, splits, start, config, workdir / "grid" / name)
                if point.claim(asked.seeds[0]) is None:
                    train([point], asked.seeds[0], point.workdir)
                score = results.main_score(task, point.result(asked.seeds[0])["eval"])
                points.append((fields, score))
                print(f"{task.name}: {name} has {task.metrics[0]} {score:.4f} on dev")
            values = override(values, write_choice(workdir, points, asked.seeds[0]))
        run, seeds = TaskRun(task, splits, start, resolve(values), workdir), asked.seeds
        if asked.eval_only:
            for seed in seeds:
                scores = json.dumps(results.evaluate_again(run, seed))
                print(f"{task.title} seed {seed}: {scores}")
        else:
            print(results.describe(run))
            finished = [seed for seed in seeds if run.claim(seed) is not None]
            if finished:
                named = ", ".join(map(str, finished))
                print(f"{task.title} seed {named}: finished already, not trained again")
            for seed in seeds:
                if seed not in finished:
                    train([run], seed, run.workdir)
    if asked.submit:
        results.submit(run, seeds)
    return [run.result(seed) for seed in seeds]


def fine_tune_jointly(
    tasks: Sequence[Task], asked: Request, workdir: pathlib.Path
) -> list[dict[str, Any]]:
    """Fine-tunes several tasks that share their body; returns the results of all their seeds.

    See `finetuning.joint`. Run folders are workdir/<task>/seed<k>. Errors are those of `fine_tune`.
    """
    runs = []
    for task in tasks:
        own, axes = plan(task, asked)
        if axes:
            fields = " ".join(f"--config.{name}={points[0]:g}" for name, points in axes.items())
            raise ValueError(
                f"recipe {own['recipe']!r} chooses from a grid for each task alone; with"
                f" config.sharing choose yourself, such as {fields}"
            )
        splits = task_lib.load(task, asked.data, tests=False)
        runs.append(TaskRun(task, splits, asked.start, resolve(own), workdir / task.name))
    if None in [run.config.sharing for run in runs]:
        raise ValueError("config.sharing must be equal for all tasks")
    for seed in asked.seeds:
        if None in [run.claim(seed) for run in runs]:
            train(runs, seed, workdir)
        else:
            print(f"seed {seed} of {', '.join(t.title for t in tasks)}: finished already")
    return [run.result(seed) for run in runs for seed in asked.seeds]


def train(runs: Sequence[TaskRun], seed: int, workdir: pathlib.Path) -> None:
    """Trains a seed of a task, or of several that share their body, until it has its result.

    Raises:
      ValueError: a folder holds another run.
      exits.Stopped: interrupted; the steps taken are saved.
    """
    loop.train(finetuning(runs, seed, workdir))


@contextlib.contextmanager
def finetuning(runs: Sequence[TaskRun], seed: int, workdir: pathlib.Path) -> Iterator[Joint]:
    """Opens a fine-tuning, new or stopped, for the loop; saves and ends it after the loop.

    The arguments and errors are those of `train`.
    """
    started, run = time.perf_counter(), runs[0]
    metrics.check_tracker(run.config.machine.tracker)
    dtype, cache = run.start.opened.config.model.dtype, run.config.machine.compile_cache_dir
    host.configure_jax(cache, dtype)
    if host.drop_programs_if_many():  # programs of earlier tasks
        compiled.cache_clear()
    workdir.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        # --- Setup and restore ----------------
        stack.enter_context(run_folder.locked(workdir))
        rows = [run.rows and run.rows.size for run in runs]  # token rows kept; None: all
        fields = {run.task.name: science(run.describe(seed)) for run in runs}
        directory = checkpoint_folder(workdir, seed, [fields, rows])
        checkpoints = Checkpoints(directory, 1)
        stack.callback(checkpoints.close)
        training = Joint(runs, seed, checkpoints)
        if (found := checkpoints.restore(training.saved())) is None:
            for note in describe_unused(workdir, seed, directory):
                print(note)
        else:
            training.restore(found[0], found[1]["progress"])
            print(f"{training.name}: continuing from step {int(found[0].step)}")
        training.open()
        stack.callback(training.close)

        # --- The loop, and the end ----------------
        with training.interrupt as interrupt:
            yield training
            if training.over:
                training.finish()
            else:
                training.save()
    if not training.over:
        saved = f"step {training.step} is saved in {directory}"
        raise exits.Interrupted(interrupt.received, f"{training.name}: {saved}")
    remove_checkpoints(workdir, seed)
    print(f"{training.name}: {training.step} steps in {time.perf_counter() - started:.0f} s")
    if interrupt.received is not None:  # during the last evaluation
        raise exits.Interrupted(interrupt.received, f"{training.name} is finished")


if __name__ == "__main__":
    exits.fail("scalelab.finetune is not a program: use python -m scalelab.eval.TASK")
