"""Checks that a study may use a folder which holds other studies, or an earlier start of itself.

Studies of one folder share runs by name: two that want a run of the same name must want the same
config and the same fine-tuning, and then it is trained once. Systems, shapes, variants, seeds and
tasks may be added and left out. A study counts as many fine-tuning seeds as it asks for.
"""

import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from scalelab.config import pretraining as config_lib
from scalelab.lab.load import archive, study_runs
from scalelab.runs import records
from scalelab.studies import finetunings
from scalelab.tasks import task as task_lib

SHOWN = 8


def check(facts: Mapping[str, Any], workdir: pathlib.Path) -> None:
    """Refuses a study that contradicts a folder, before anything is written or started.

    Args:
      facts: the content of its file.
      workdir: the folder.

    Raises:
      ValueError: a run of the same name has another config, in a study's file or in its folder;
        or another fine-tuning, or fine-tunings on other data.
    """
    configs = {run["name"]: run["config"] for run in facts["runs"]}
    for path in sorted((workdir / "studies").glob("*.json")):
        other = study_runs.read_facts(path)
        theirs = {run["name"]: run["config"] for run in other["runs"]}
        shared = [name for name in configs if name in theirs]
        for name in shared:
            differing = config_lib.science_diff(configs[name], theirs[name])
            _refuse(f"{path} plans {name} with another config", differing)
        for task in facts["tasks"] if shared else ():
            adapted = [study.get("adaptation", {}).get(task) for study in (facts, other)]
            if all(adapted):
                differing = config_lib.science_diff(*adapted)
                _refuse(f"{path} fine-tunes {shared[0]} on {task} with other fields", differing)
        data = [study["finetune"].get("data") for study in (facts, other)]
        if shared and data[0] != data[1]:
            both = [task for task in facts["tasks"] if task in other["tasks"]]
            _check_data(both, data[0], workdir, shared)
    for name, config in configs.items():
        folder = archive.find_run(workdir, name)
        made = records.read_config(folder) if (folder / "config.json").exists() else None
        differing = config_lib.science_diff(config, made) if made else []
        _refuse(f"{workdir / 'runs' / name} holds {name} with another config", differing)


def _refuse(what: str, differing: Sequence[str]) -> None:
    if differing:
        more = len(differing) - SHOWN
        raise ValueError(
            f"{what}; choose another --workdir, or undo:\n  "
            + "\n  ".join(differing[:SHOWN])
            + f"\n  and {more} more" * (more > 0)
        )


def _check_data(
    names: Sequence[str], data: str | None, workdir: pathlib.Path, runs: Sequence[str]
) -> None:
    """Refuses data whose contents differ from those of finished fine-tunings of the runs.

    The data may lie in another folder, as on another machine.
    """
    for task in names:
        made = next(_digests(workdir, task, runs), None)
        if made is None:
            continue
        folder = finetunings.data_folder(data, workdir)
        now = task_lib.load(task_lib.load_task(task), folder, tests=False).digests
        parts = [part for part, digest in made[1].items() if now.get(part) != digest]
        changed = [f"{task}: the {part} set of {data} has other contents" for part in parts]
        _refuse(f"{made[0]} was fine-tuned on other data", changed)


def _digests(
    workdir: pathlib.Path, task: str, runs: Sequence[str]
) -> Iterator[tuple[pathlib.Path, dict[str, str]]]:
    """Yields folders of finished fine-tunings on a task, and the digests of their data."""
    for run in runs:
        for path in sorted(archive.find_run(workdir, run).glob(f"*/{task}/seed*/result.json")):
            data = records.read_config(path.parent).get("data")
            if data is not None:
                yield path.parent, data
