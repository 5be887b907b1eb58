"""The files for the GLUE leaderboard, and their archive.

Each test set has a file: a line `index`, `prediction`, then a line for each row, counted from 0 in
the test file's order. Classes are spelled as in the training file, scores have three decimals.
"""

import os
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from scalelab.helpers.files import whole
from scalelab.tasks.task import Splits, Task, load_task, task_names

HEADER = "index\tprediction\n"
EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest date that an archive can hold


def write(
    task: Task,
    splits: Splits,
    predictions: Mapping[str, np.ndarray],
    directory: str | os.PathLike[str],
) -> list[Path]:
    """Writes the files of one task; returns their paths.

    Args:
      task: the task.
      splits: its data, test splits included.
      predictions: for each test split to write, by its name, [rows]: class indices, or scores,
        which are clipped to the task's range.
      directory: folder of the files; made if absent.

    Raises:
      ValueError: a score is not finite.
      OSError: the directory cannot be written.
    """
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    written = []
    for split in task.test_splits:
        if split.name in predictions and split.submission is not None:
            records, predicted = splits.test[split.name], predictions[split.name]
            assert records is not None and predicted.shape == (len(records),), split.name
            spelt = _spell(task, f"{task.title} {split.name}", predicted)
            rows = (f"{index}\t{label}\n" for index, label in enumerate(spelt))
            content = HEADER + "".join(rows)
            written.append(directory / split.submission)
            written[-1].write_bytes(content.encode())  # bytes: a line feed everywhere
    return written


def official_files() -> dict[str, int]:
    """Returns {file: number of rows} of a whole submission: nine tasks, MNLI twice, and AX."""
    tasks = [load_task(name) for name in task_names()]
    found = {s.submission: s.count or 0 for t in tasks for s in t.test_splits if s.submission}
    return dict(sorted(found.items()))


def pack(workdir: Path) -> None:
    """Packs WORKDIR/submission/ into WORKDIR/submission.zip and prints the missing files.

    Equal files make an equal archive.

    Raises:
      OSError: the archive cannot be written.
    """
    folder, path, wanted = workdir / "submission", workdir / "submission.zip", official_files()
    there = {name: folder / name for name in wanted if (folder / name).is_file()}
    if not there:
        print(f"no {path}: none of the test sets is there")
        return
    with whole(path) as part, zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, file in there.items():
            entry = zipfile.ZipInfo(name, EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.create_system = 3  # Unix, on all platforms
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, file.read_bytes())
    absent = [name for name in wanted if name not in there]
    lacks = [f"absent: {', '.join(absent)}"] if absent else []
    for name, file in there.items():
        num_rows = file.read_bytes().count(b"\n") - 1
        if num_rows != wanted[name]:
            lacks.append(f"{name} has {num_rows:,} rows, not the official {wanted[name]:,}")
    print(f"wrote {path}" + "".join(f"\n  not a whole submission: {what}" for what in lacks))


def _spell(task: Task, where: str, predicted: np.ndarray) -> list[str]:
    """Returns the predictions of one split as text, with the training file's labels."""
    if task.labels is not None:
        return [task.labels[index] for index in predicted]
    if not np.isfinite(predicted).all():
        raise ValueError(f"{where}: a prediction is not finite")
    least, most = task.score_range or (-np.inf, np.inf)
    rounded = np.round(np.clip(predicted.astype(np.float64), least, most), 3)
    return [f"{score:.3f}" for score in rounded + 0.0]  # + 0.0 turns -0.0 into 0.0
