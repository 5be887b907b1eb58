"""The files that the GLUE leaderboard takes, and the archive of them.

A file a test set: a line `index`, `prediction`, then a line for each row, counted from 0 in the
test file's order. Classes are written as the training file spells them, scores with three decimals.
"""

import os
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from scalelab.tasks.task import Splits, Task, load_task, task_names

HEADER = "index\tprediction\n"
EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest date that an archive can hold


def write(
    task: Task,
    splits: Splits,
    predictions: Mapping[str, np.ndarray],
    directory: str | os.PathLike[str],
) -> list[Path]:
    """Writes the files of one task.

    Args:
      task: the task.
      splits: its data, test splits included.
      predictions: for each test split to write, by its name, [rows]: class indices, or scores,
        which are clipped to the task's range.
      directory: where the files go; made if absent.

    Returns:
      The files written.

    Raises:
      ValueError: predictions of a split that is not there, of another number than its rows, or
        that are no class of the task, or not finite.
      OSError: the directory cannot be written.
    """
    by_name = {split.name: split for split in task.test_splits}
    contents = {}
    for name, predicted in predictions.items():
        records = splits.test.get(name)
        if name not in by_name or records is None:
            there = [n for n, r in splits.test.items() if r is not None]
            raise ValueError(
                f"{task.title}: predictions of {name!r}, but the test sets that are there are:"
                f" {', '.join(there) or 'none'}"
            )
        file = by_name[name].submission
        if file is None:
            continue
        spelt = _spell(task, f"{task.title} {name}", np.asarray(predicted), len(records))
        rows = (f"{index}\t{label}\n" for index, label in enumerate(spelt))
        contents[file] = HEADER + "".join(rows)
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    for file, content in contents.items():
        (directory / file).write_bytes(content.encode())  # bytes: a line feed everywhere
    return [directory / file for file in contents]


def official_files() -> dict[str, int]:
    """Returns the rows of each file of a whole submission: nine tasks, MNLI twice, and AX."""
    tasks = [load_task(name) for name in task_names()]
    found = {s.submission: s.count or 0 for t in tasks for s in t.test_splits if s.submission}
    return dict(sorted(found.items()))


def pack(workdir: Path) -> None:
    """Packs WORKDIR/submission/ into WORKDIR/submission.zip and prints what it lacks.

    Raises:
      OSError: the archive cannot be written.
    """
    folder, path = workdir / "submission", workdir / "submission.zip"
    if not any((folder / name).is_file() for name in official_files()):
        print(f"no {path}: none of the test sets is there")
        return
    lacks = zip_all(folder, path)
    print(f"wrote {path}" + "".join(f"\n  not a whole submission: {what}" for what in lacks))


def zip_all(directory: str | os.PathLike[str], path: str | os.PathLike[str]) -> list[str]:
    """Packs the submission files of a directory; equal files make an equal archive.

    Args:
      directory: where `write` has put files of one or more tasks.
      path: the archive to write.

    Returns:
      The faults of the submission: absent files, and files with another number of rows than the
      official test set.

    Raises:
      ValueError: the directory has no submission file.
    """
    directory, path = Path(directory), Path(path)
    wanted = official_files()
    there = [name for name in wanted if (directory / name).is_file()]
    if not there:
        first = next(iter(wanted))
        raise ValueError(f"{directory}: expected submission files, such as {first}; found none")
    part = path.with_name(f".{path.name}.part")
    try:
        with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as archive:
            for name in there:
                entry = zipfile.ZipInfo(name, EPOCH)
                entry.compress_type = zipfile.ZIP_DEFLATED
                entry.create_system = 3  # Unix, on whatever system this runs
                entry.external_attr = 0o644 << 16
                archive.writestr(entry, (directory / name).read_bytes())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    absent = [name for name in wanted if name not in there]
    lacks = [f"absent: {', '.join(absent)}"] if absent else []
    for name in there:
        num_rows = (directory / name).read_bytes().count(b"\n") - 1
        if num_rows != wanted[name]:
            lacks.append(f"{name} has {num_rows:,} rows, not the official {wanted[name]:,}")
    return lacks


def _spell(task: Task, where: str, predicted: np.ndarray, num_rows: int) -> list[str]:
    """Checks the predictions of one split and spells them."""
    if predicted.shape != (num_rows,):
        raise ValueError(
            f"{where}: expected {num_rows:,} predictions, one a row, found the shape"
            f" {predicted.shape}"
        )
    if task.labels is None:
        if not np.isfinite(predicted).all():
            row = int(np.flatnonzero(~np.isfinite(predicted))[0])
            raise ValueError(f"{where}: the prediction of row {row} is {predicted[row]}")
        least, most = task.score_range or (-np.inf, np.inf)
        rounded = np.round(np.clip(predicted.astype(np.float64), least, most), 3)
        return [f"{score:.3f}" for score in rounded + 0.0]  # which turns -0.0 into 0.0
    if predicted.dtype.kind not in "iu":
        raise ValueError(f"{where}: expected class indices, found {predicted.dtype}")
    wrong = np.flatnonzero((predicted < 0) | (predicted >= len(task.labels)))
    if wrong.size:
        raise ValueError(
            f"{where}: the prediction of row {wrong[0]} is {predicted[wrong[0]]}, expected an index"
            f" from 0 to {len(task.labels) - 1}"
        )
    return [task.labels[index] for index in predicted]
