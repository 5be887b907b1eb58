"""Finished runs in one small file: WORKDIR/runs.tar.xz, beside studies/, plans/ and reports/.

A packed pre-training keeps config.json, environment.json, result.json, and metrics.jsonl with all
validations and at most MAX_LINES lines of training: every k-th, counted back from the last. Its
fine-tunings (<task>/seed<k> in tasks/, scratch/ and early/<share>/) keep the same files, and
predictions.npz (without texts and probabilities) for predictions.tsv. Dropped are checkpoints,
tokenizer, TensorBoard, pictures, and runs of a recipe's grid. Equal runs give equal bytes.
"""

import contextlib
import functools
import glob
import io
import json
import pathlib
import shutil
import tarfile
import tempfile
from collections.abc import Mapping, Sequence

from scalelab.helpers import files
from scalelab.records import predictions, run_files
from scalelab.records.run_files import RunResult

NAME = "runs.tar.xz"
FILES = ("config.json", "environment.json", "result.json")
MAX_LINES = {"pre-training": 150, "fine-tuning": 10}
LARGEST = 2**31  # bytes that an archive may unpack to


def find_run(workdir: pathlib.Path, name: str) -> pathlib.Path:
    """Returns the folder of a run: WORKDIR/runs/<name>, or its unpacked copy if it is packed.

    Raises:
      Unreadable: the archive is damaged, or holds a path that leads out of it.
    """
    folder = workdir / "runs" / name
    if folder.exists() or not (workdir / NAME).exists():
        return folder
    packed = unpacked(workdir) / name
    return packed if packed.exists() else folder


def find_runs(text: str) -> list[pathlib.Path]:
    """Returns folders joined by commas; each may be a pattern, such as "runs/bert-*".

    Of WORKDIR/runs/NAME, a pattern too, the runs may be packed.

    Raises:
      ValueError: one is empty, or a pattern that no folder matches.
    """
    found = []
    for part in text.split(","):
        if not part.strip():
            raise ValueError(f"{text!r}: one of them is empty; expected folders joined by commas")
        path, workdir = pathlib.Path(part), pathlib.Path(part).parent.parent
        if path.parent.name == "runs" and not any(path.parent.glob(path.name)):
            if (workdir / NAME).exists() and any(unpacked(workdir).glob(path.name)):
                path = unpacked(workdir) / path.name
        is_pattern = glob.has_magic(part)
        matches = [path]
        if is_pattern:  # a slash at the end matches folders alone
            matches = sorted(map(pathlib.Path, glob.glob(f"{path}{'/' * part.endswith('/')}")))
        if not matches:
            raise ValueError(f"no folder matches {part!r}")
        found += matches
    return found


def unpacked(workdir: pathlib.Path) -> pathlib.Path:
    """Returns a temporary folder of all packed runs, which lasts as long as this process.

    Raises:
      Unreadable: the archive is damaged, or holds a path that leads out of it.
    """
    path = (workdir / NAME).resolve()
    return pathlib.Path(_unpack(path, path.stat().st_mtime_ns).name) / "runs"


def shorten(workdir: pathlib.Path, text: str) -> str:
    """Returns a message without the paths of a study's folder and of its unpacked runs."""
    if (workdir / NAME).exists():
        text = text.replace(f"{unpacked(workdir).parent}/", "")
    return text.replace(f"{workdir}/", "")


@functools.cache
def _unpack(path: pathlib.Path, _: int) -> tempfile.TemporaryDirectory[str]:
    folder = tempfile.TemporaryDirectory(prefix="scalelab-runs-")
    with contextlib.ExitStack() as stack:
        stack.callback(folder.cleanup)
        with files.reading(path), tarfile.open(path, "r:xz") as archive:
            total = 0
            for member in archive:
                total += member.size
                if total > LARGEST or not (member.isreg() or member.isdir()):
                    raise ValueError(f"{member.name!r} is no file, or too large")
                archive.extract(member, folder.name, filter="data")
        stack.pop_all()  # it is sound
    return folder


def pack(runs: Mapping[str, pathlib.Path], to: pathlib.Path) -> tuple[int, int]:
    """Adds finished pre-trainings with their fine-tunings, by name, to TO/runs.tar.xz.

    A run that is already in the archive stays unchanged. Returns the numbers of added runs and of
    runs that were already there.

    Raises:
      ValueError: a run, or a fine-tuning below it, is unfinished or incomplete.
    """
    to.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="scalelab-pack-") as name:
        folder = pathlib.Path(name)
        if (to / NAME).exists():
            shutil.copytree(unpacked(to), folder / "runs")
        added = [run for run in runs if not (folder / "runs" / run).exists()]
        for run in added:
            copy_run(runs[run], folder / "runs" / run)
        with files.whole(to / NAME) as path, tarfile.open(path, "w:xz", preset=6) as archive:
            for source in sorted(path for path in folder.rglob("*") if path.is_file()):
                member = tarfile.TarInfo(source.relative_to(folder).as_posix())
                member.size = source.stat().st_size  # without times and owners
                archive.addfile(member, io.BytesIO(source.read_bytes()))
    return len(added), len(runs) - len(added)


def copy_run(source: pathlib.Path, to: pathlib.Path) -> None:
    """Copies a finished pre-training and its fine-tunings without the large files."""
    record = _copy_files(source, to, MAX_LINES["pre-training"])
    if not isinstance(record.result, RunResult):
        raise ValueError(f"{source}: expected a finished pre-training")
    parts = "tasks", "scratch", "early/*"
    seeds = (path for part in parts for path in source.glob(f"{part}/*/seed*/"))
    for seed in sorted(seeds):
        copy = to / seed.relative_to(source)
        _copy_files(seed, copy, MAX_LINES["fine-tuning"])
        for path in seed.glob("predictions*.tsv"):
            predictions.pack(copy / f"{path.stem}.npz", predictions.read(path))
        for path in seed.glob("predictions*.npz"):
            if not path.with_suffix(".tsv").exists():
                shutil.copyfile(path, copy / path.name)


def _copy_files(source: pathlib.Path, to: pathlib.Path, max_lines: int) -> run_files.RunRecord:
    """Copies the files that pre-trainings and fine-tunings have in common; returns the record."""
    record = run_files.read_run(source)
    if record.result is None:
        raise ValueError(f"{source} is not finished; let it finish, or delete it")
    to.mkdir(parents=True)
    for name in FILES:
        if (source / name).exists():
            shutil.copyfile(source / name, to / name)
    if record.lines:
        kept = "".join(json.dumps(line) + "\n" for line in thin(record.lines, max_lines))
        (to / "metrics.jsonl").write_text(kept)
    return record


def thin(lines: Sequence[run_files.Line], max_lines: int) -> list[run_files.Line]:
    """Returns the lines of metrics.jsonl, with at most `max_lines` of training.

    Keeps all evaluations. Of the other lines it keeps every k-th, counted back from the last.
    """
    trained = [
        i for i, line in enumerate(lines) if not any(name.startswith("eval/") for name in line)
    ]
    every = max(1, -(-len(trained) // max_lines))
    dropped = set(trained) - set(trained[::-1][::every])
    return [line for i, line in enumerate(lines) if i not in dropped]
