"""Does one job of a study in a process of its own; `pool` starts it.

  python -m scalelab.studies.job --workdir=DIR --study=NAME --run=RUN --kind=pretrain|finetune

Several --run=... train as one program (`scalelab.population`). Reads everything from the study's
file. Exit code 0: done; 75: stopped by a signal, to be continued; else failed, with one message.
"""

import pathlib
import shutil
import sys
from collections.abc import Sequence

from scalelab.config import cli
from scalelab.lab.load.study_runs import PretrainRun, Study


def pretrain(runs: Sequence[PretrainRun], again: Sequence[bool]) -> None:
    """Trains runs as one program; `again` where a checkpoint was lost."""
    from scalelab import population, train
    from scalelab.config import pretraining as config_lib

    for run, lost in zip(runs, again, strict=True):
        if lost:
            _set_aside(run.folder)
    found = [(config_lib.resolve(run.config), run.folder) for run in runs]
    if len(found) == 1:
        train.train(*found[0])
    else:
        population.train(found)


def _set_aside(folder: pathlib.Path) -> None:
    """Makes room for a repetition: moves the files of the finished run into before/."""
    kept = folder / "before"
    kept.mkdir(exist_ok=True)
    for name in ("result.json", "metrics.jsonl", "environment.json"):
        if (folder / name).exists():
            (folder / name).replace(kept / name)
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)


def finetune(study: Study, run: PretrainRun, tasks: Sequence[str]) -> None:
    """Fine-tunes a run on the tasks that are left."""
    from scalelab import finetune as finetune_lib
    from scalelab.config import pretraining as config_lib
    from scalelab.finetuning import warm_start
    from scalelab.studies import finetunings, jobs
    from scalelab.tasks import task as task_lib

    asked, config = study.facts["finetune"], config_lib.resolve(run.config)
    finetunings.prepare(asked["data"], config, study.workdir)
    options = finetune_lib.Options(
        tuple(range(asked["seeds"])),
        data=finetunings.data_folder(asked["data"], study.workdir),
        together=min(asked["seeds"], jobs.num_vmapped(config.net)),
    )
    values = finetunings.base_values(asked["recipe"])
    for name in ("cache_dir", "compile_cache_dir"):
        values["machine"][name] = run.config["machine"][name]
    for name in tasks:
        prefix, _, task = name.rpartition("/")
        overrides = finetunings.task_fields(asked["fields"], task)
        if prefix:
            start = warm_start.open_start("none", str(run.folder))
            folder = run.folder / "scratch" / task
        else:
            start = warm_start.open_start(str(run.folder))
            folder = run.folder / "tasks" / task
        finetune_lib.fine_tune(task_lib.load_task(task), start, values, folder, options, overrides)
        if not asked["keep"]:
            for kept in folder.glob("seed*/checkpoints"):
                shutil.rmtree(kept)


def main(argv: list[str]) -> None:
    """Parses the arguments and does the job."""
    parser = cli.Parser(prog="python -m scalelab.studies.job", description=__doc__)
    for name in ("workdir", "study"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--run", required=True, action="append")
    parser.add_argument("--kind", required=True, choices=("pretrain", "finetune"))
    given = parser.parse_args(argv)
    from scalelab.resources import malloc
    from scalelab.studies import jobs

    malloc.keep_freed()
    study, found = jobs.read(pathlib.Path(given.workdir), given.study)
    by_name, runs = {job.name: job for job in found}, {run.name: run for run in study.runs}
    names = [f"{name}.{given.kind}" for name in given.run]
    for name in names:
        if name not in by_name:
            raise ValueError(f"study {given.study} has no job {name}")
    if given.kind == "pretrain":
        pretrain([runs[name] for name in given.run], [by_name[name].again for name in names])
        return
    for run_name, name in zip(given.run, names, strict=True):
        finetune(study, runs[run_name], by_name[name].tasks)


if __name__ == "__main__":
    with cli.one_message("start the same study again to continue"):
        main(sys.argv[1:])
