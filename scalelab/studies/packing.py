"""Packs the finished runs of a study, small enough for git: WORKDIR/ -> TO/."""

import pathlib
import shutil

from scalelab.lab.load import study_runs
from scalelab.records import archive
from scalelab.studies import jobs


def pack(workdir: pathlib.Path, name: str | None, to: pathlib.Path) -> str:
    """Copies the study's file and plan, and every run whose jobs are all done; returns the counts.

    A run that is there already is left as it is, so that packing again adds later ones. `study
    report` and `study run` take TO as --workdir; its runs are in one file (records/archive.py).
    `name` None: the only study of the folder.
    """
    study = study_runs.read(workdir, name)
    open_runs = {job.run for job in jobs.list_jobs(study) if job.state != jobs.DONE}
    runs = {run.name: run.folder for run in study.runs if run.name not in open_runs}
    packed, kept = archive.pack(runs, to)
    for part in ("studies", "plans"):
        source = workdir / part / f"{study.name}.json"
        if source.exists():
            (to / part).mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, to / part / source.name)
    left = len({run.name for run in study.runs} & open_runs)
    return (
        f"{study.name}: packed {packed} runs into {to}, {kept} were there"
        + f"; {left} have unfinished jobs" * bool(left)
    )
