"""What a fine-tuned seed leaves: scores, predictions, pictures, result.json, submission files."""

import pathlib
import shutil
from typing import Any

import numpy as np

from scalelab.config.finetuning import settings
from scalelab.finetuning import said
from scalelab.helpers.files import write_json
from scalelab.lab import curves, scores
from scalelab.lab.reading import predictions
from scalelab.resources import flops
from scalelab.runs import environment, pretrained, run_folder
from scalelab.tasks import submission
from scalelab.tasks.task import Splits, Task


def answers(task: Task, outputs: np.ndarray) -> np.ndarray:
    """What is predicted: classes [n], or scores [n], of the head's outputs [n, C]."""
    return outputs[:, 0] if task.regression else outputs.argmax(axis=-1)


def measure(task: Task, splits: Splits, outputs: dict[str, np.ndarray]) -> dict[str, Any]:
    """The task's metrics on each dev split that is there.

    Args:
      task: the task.
      splits: its records.
      outputs: of the head, by split, [n, C].

    Returns:
      split -> metric -> value; None where an output is not finite.
    """
    measured: dict[str, Any] = {}
    for split, values in outputs.items():
        gold = splits.dev[split].labels  # pyright: ignore[reportOptionalMemberAccess]
        finite = bool(np.isfinite(values).all())
        measured[split] = {
            name: scores.METRICS[name](gold, answers(task, values)) if finite else None
            for name in task.metrics
        }
    return measured


def main_score(task: Task, dev: dict[str, Any]) -> float:
    """The main metric on the main split; below every score where it is None."""
    value = next(iter(dev.values()))[task.metrics[0]]
    return -np.inf if value is None else value


def write(run: Any, seed: int, course: Any, outputs: dict[str, np.ndarray], params: Any) -> None:
    """Writes predictions, pictures and, last, result.json.

    Args:
      run: a finetuning.run.TaskRun.
      seed: which.
      course: its finetuning.course.Course.
      outputs: of the head, by dev split, [n, C].
      params: {"body", "head"} that gave them.
    """
    task, opened = run.task, run.start.opened
    folder = run.folder(seed)
    _write_predictions(run, folder, outputs)
    unit = "squared error" if task.regression else "nats"
    curves.draw(folder, f"{task.title} seed {seed}, {opened.config.system}", unit)
    dev = measure(task, run.splits, outputs)
    main = next(iter(outputs))
    train_loss = course.loss(run.steps_per_epoch)
    degenerate = course.failed or scores.degenerate(
        run.splits.dev[main].labels,
        answers(task, outputs[main]),
        train_loss=train_loss,
        train_gold=run.train.labels,
        regression=task.regression,
    )
    chosen = run_folder.read_json(run.workdir / "grid.json") or {}
    net, best = opened.config.net, course.evals[course.best] if course.best is not None else None
    write_json(
        folder / "result.json",
        {
            "status": "failed" if course.failed else "completed",
            "task": task.name,
            "system": opened.config.system,
            "shape": {"A": net.num_heads, "H": net.width, "L": net.num_layers},
            "n_model": flops.n_model(net.width, net.num_layers),
            "params": flops.count_parameters(params),
            "seed": seed,
            "pretrain_seed": opened.config.seed,
            "recipe": run.config.recipe,
            "init": run.start.label,
            "init_digest": run.start.digest(seed),
            "mnli_first": run.start.mnli_first,
            "steps": course.clocks.steps,
            "tokens": course.clocks.tokens,
            "flops": course.clocks.flops,
            "seconds": course.clocks.secs,
            "eval": dev,
            "best": best,
            "early_stopping": run.config.patience is not None,
            "stopped": course.stopped,
            "train_loss": train_loss,
            "degenerate": degenerate,
            "remarks": said.remarks(run),
            "truncated": {"train": run.train.num_truncated}
            | {k: v.num_truncated for k, v in run.dev.items() if v is not None},
            "data": run.splits.digests,
            "settings": settings(run.config),
            "chosen": chosen.get("chosen"),
            "peak_memory_bytes": environment.peak_memory_bytes(),
        },
    )


def _write_predictions(run: Any, folder: pathlib.Path, outputs: dict[str, np.ndarray]) -> None:
    task = run.task
    for place, (split, values) in enumerate(outputs.items()):
        records = run.splits.dev[split]
        ending = f"-{split}" if place else ""
        predictions.write(
            folder / f"predictions{ending}.tsv",
            texts=records.texts,
            gold=records.labels,
            outputs=values,
            labels=task.labels,
        )
        predictions.draw(
            folder / f"predictions{ending}.png",
            gold=records.labels,
            predicted=answers(task, values),
            labels=task.labels,
            title=f"{task.title} {split}, {run.start.opened.config.system}",
        )


def evaluate_again(run: Any, seed: int) -> dict[str, Any]:
    """Evaluates a finished seed's parameters and writes its predictions anew.

    Returns:
      split -> metric -> value.

    Raises:
      ValueError: the seed is not finished, or is of another config or other data.
    """
    params = params_of(run, seed)
    run.claim(seed)
    outputs = _outputs(run, params)
    _write_predictions(run, run.folder(seed), outputs)
    return measure(run.task, run.splits, outputs)


def score_as_imported(run: Any, course: Any) -> None:
    """Scores an imported classifier on the dev sets; leaves what a fine-tuning of no steps would.

    Args:
      run: a finetuning.run.TaskRun that begins with the classifier, of no epochs.
      course: an empty finetuning.course.Course.

    Raises:
      ValueError: its classes do not fit the task's, or the folder holds another run.
    """
    if run.head is None:
        reason = run.head_said.partition(": ")[2]
        raise ValueError(
            f"--eval_only scores the classifier as it was imported, and it does not fit: {reason};"
            " without --eval_only it is fine-tuned, with a new head"
        )
    run.claim(0)
    run_folder.describe(run.folder(0), run.describe(0))
    params = params_of(run, 0)
    write(run, 0, course, _outputs(run, params), params)
    print(run.head_said)


def params_of(run: Any, seed: int) -> Any:
    """The parameters {"body", "head"} of a finished seed, or of the classifier scored as it is."""
    if not run.config.epochs:
        return {"body": run.start.opened.params, "head": run.head}
    return pretrained.load_trained(run.folder(seed))


def _outputs(run: Any, params: Any) -> dict[str, np.ndarray]:
    """Of the head by dev split, [n, C]."""
    from scalelab.finetuning.step import compiled

    _, run_predict = compiled(run.learner, 1)
    return {
        split: run.predict(run_predict, params, {}, examples, 1)[0]
        for split, examples in run.dev.items()
        if examples is not None
    }


def submit(run: Any, seeds: tuple[int, ...]) -> None:
    """Predicts the test sets with the seed that is best on dev; writes the leaderboard's files.

    Where every seed has failed nothing is predicted, and files of an earlier start go.
    """
    from scalelab.finetuning.step import compiled

    results = {seed: run.result(seed) for seed in seeds}
    sound = [seed for seed in seeds if results[seed]["status"] == "completed"]
    if not sound:
        shutil.rmtree(run.workdir / "submission", ignore_errors=True)
        print(f"{run.task.title}: every seed has failed, so that nothing was predicted")
        return
    seed = max(sound, key=lambda s: main_score(run.task, results[s]["eval"]))
    if why := results[seed]["degenerate"]:
        print(f"{run.task.title}: seed {seed}, the best on dev, is degenerate: {why}")
    params = params_of(run, seed)
    _, run_predict = compiled(run.learner, 1)
    found = {
        split: answers(run.task, run.predict(run_predict, params, {}, examples, 1)[0])
        for split, examples in run.test.items()
        if examples is not None
    }
    written = submission.write(run.task, run.splits, found, run.workdir / "submission")
    if written:
        print(f"{run.task.title}: wrote {', '.join(str(p) for p in written)} from seed {seed}")
    absent = [name for name, examples in run.test.items() if examples is None]
    if absent:
        print(f"{run.task.title}: absent, so not predicted: {', '.join(absent)}")
