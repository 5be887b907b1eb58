"""Finished runs made small enough to be kept in git, with all that tables and curves are made of.

What stays of a pre-training: config.json, environment.json, result.json, and metrics.jsonl with all
evaluations and at most MAX_LINES lines of training: every k-th, counted back from the last. What
goes: checkpoints, tokenizer, TensorBoard, pictures. Its fine-tunings, in tasks/<task>/seed<k> and
scratch/<task>/seed<k>, stay likewise, with predictions.npz for predictions.tsv (predictions.py): no
text of a data set, no probabilities; runs of a recipe's grid go. All readers of this room take
either form, and find the same scores in both, bit for bit.
"""

import json
import pathlib
import shutil
import uuid

from scalelab.lab.reading import predictions, task_runs

FILES = ("config.json", "environment.json", "result.json")
MAX_LINES = {"pre-training": 150, "fine-tuning": 10}
PARTS = ("tasks", "scratch")


def pack(run_folder: pathlib.Path, to: pathlib.Path) -> pathlib.Path:
    """Copies a finished pre-training and its fine-tunings, without what is large.

    Args:
      run_folder: the run, packed already or not.
      to: the folder to make; nothing is left of it if anything goes wrong.

    Returns:
      `to`.

    Raises:
      ValueError: the run, or a fine-tuning below it, is not finished or not whole, or `to` exists.
      OSError: a file cannot be read or written.
    """
    _check_finished(run_folder)
    if to.exists():
        raise ValueError(f"{to} exists; pack into a folder that does not, or delete it")
    partial = to.absolute().with_name(f".{to.name}.{uuid.uuid4().hex[:8]}")
    partial.mkdir(parents=True)
    try:
        _copy(run_folder, partial, MAX_LINES["pre-training"])
        for part in PARTS:
            for seed in sorted((run_folder / part).glob("*/seed*/")):
                _pack_fine_tuning(seed, partial / part / seed.parent.name / seed.name)
            if (partial / part).is_dir():
                _check_scores(partial / part)
        partial.replace(to)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return to


def thin(text: str, max_lines: int) -> str:
    """Thins metrics.jsonl.

    Args:
      text: its content.
      max_lines: of training to keep; evaluations stay all.

    Returns:
      The content with every k-th line of training, k the least that is enough, the last among them.

    Raises:
      ValueError: a line is not json.
    """
    lines = text.splitlines(keepends=True)
    trained = [i for i, line in enumerate(lines) if not _is_evaluation(json.loads(line))]
    every = max(1, -(-len(trained) // max_lines))
    dropped = set(trained) - set(trained[::-1][::every])
    return "".join(line for i, line in enumerate(lines) if i not in dropped)


def _is_evaluation(line: dict[str, float]) -> bool:
    return any(name.startswith("eval/") for name in line)


def _pack_fine_tuning(source: pathlib.Path, to: pathlib.Path) -> None:
    if not (source / "result.json").exists():
        raise ValueError(f"{source} is not finished; let it finish, or delete it")
    _copy(source, to, MAX_LINES["fine-tuning"])
    for path in sorted(source.glob("predictions*.tsv")):
        predictions.pack(to / f"{path.stem}.npz", predictions.read(path))
    for path in sorted(source.glob("predictions*.npz")):
        if not path.with_suffix(".tsv").exists():
            shutil.copyfile(path, to / path.name)


def _copy(source: pathlib.Path, to: pathlib.Path, max_lines: int) -> None:
    """Copies what pre-trainings and fine-tunings have in common."""
    to.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        shutil.copyfile(source / name, to / name)
    path = source / "metrics.jsonl"
    try:
        (to / path.name).write_text(thin(path.read_text(), max_lines))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} is damaged: {error}") from None


def _check_finished(run_folder: pathlib.Path) -> None:
    path = run_folder / "result.json"
    try:
        result = json.loads(path.read_text())
    except FileNotFoundError:
        raise ValueError(f"{run_folder} holds no finished run: there is no {path}") from None
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}") from None
    if result.get("status") != "completed" or result.get("task") is not None:
        raise ValueError(
            f"{run_folder}: expected a finished pre-training, found status"
            f" {result.get('status')!r}, task {result.get('task')!r}"
        )


def _check_scores(folder: pathlib.Path) -> None:
    """Makes sure that what was packed gives the scores that its result.json says."""
    for task in task_runs.read(folder).values():
        for run in task.finished:
            for split in dict.fromkeys(split for split, _ in run.scores):
                run.predictions(split)
