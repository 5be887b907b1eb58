"""Does one job of a study in a process of its own; `pool` starts it.

  python -m scalelab.studies.job --workdir=DIR --study=NAME --run=RUN --kind=pretrain|finetune

Several --run=... train as one program (`population`). Reads everything from the study's file.
Exit code 0: done; 75: stopped by a signal, to be continued; else failed, with one message.
"""

import pathlib
import shutil
import sys
from typing import Any

from scalelab.config import cli, files


def pretrain(runs: list[Any], again: list[bool]) -> None:
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
    """Makes room for a repetition: what the finished run left is kept beside."""
    kept = folder / "before"
    kept.mkdir(exist_ok=True)
    for name in ("result.json", "metrics.jsonl", "environment.json"):
        if (folder / name).exists():
            (folder / name).replace(kept / name)
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)


def finetune(study: Any, run: Any, tasks: tuple[str, ...]) -> None:
    """Fine-tunes one run on the tasks that are left."""
    from scalelab import finetune as finetune_lib
    from scalelab.config import pretraining as config_lib
    from scalelab.finetuning import warm_start
    from scalelab.studies import jobs
    from scalelab.studies import tasks as tasks_lib
    from scalelab.tasks import task as task_lib

    asked, config = study.facts["finetune"], config_lib.resolve(run.config)
    tasks_lib.prepare(asked["data"], config, study.workdir)
    options = finetune_lib.Options(
        tuple(range(asked["seeds"])),
        data=tasks_lib.folder(asked["data"], study.workdir),
        together=min(asked["seeds"], jobs.TOGETHER) if jobs.go_together(config.net) else 1,
    )
    values = finetune_values(asked["recipe"], run.config["machine"])
    for name in tasks:
        prefix, _, task = name.rpartition("/")
        overrides = task_fields(asked["fields"], task)
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


def finetune_values(recipe: str, machine: dict[str, Any]) -> dict[str, Any]:
    """The fields of configs/finetune.py for a recipe, with the caches of the pre-training."""
    made = files.load(files.FOLDER / "finetune.py")
    values = made.get_config(f"recipe={recipe}").to_dict()
    for name in ("cache_dir", "compile_cache_dir"):
        values["machine"][name] = machine[name]
    return values


def task_fields(lines: list[str], task: str) -> dict[str, Any]:
    """The fields that a study sets for one task: "epochs=1" for all, "sst2.epochs=1" for one."""
    from scalelab.studies.spec import parse_fields
    from scalelab.tasks import task as task_lib

    names = set(task_lib.task_names())
    found, own = {}, {}
    for field, value in parse_fields(lines).items():
        first, _, rest = field.partition(".")
        if first not in names:
            found[field] = value
        elif first == task:
            own[rest] = value
    return found | own


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

    malloc.keep()
    study, found = jobs.read(pathlib.Path(given.workdir), given.study)
    by_name = {job.name: job for job in found}
    runs = {run.name: run for run in study.runs}
    asked = []
    for name in given.run:
        if f"{name}.{given.kind}" not in by_name or name not in runs:
            raise ValueError(f"study {given.study} has no job {name}.{given.kind}")
        asked.append((runs[name], by_name[f"{name}.{given.kind}"]))
    if given.kind == "pretrain":
        pretrain([run for run, _ in asked], [job.again for _, job in asked])
        return
    for run, job in asked:
        finetune(study, run, job.tasks)


if __name__ == "__main__":
    with cli.one_message("start the same study again to continue"):
        main(sys.argv[1:])
