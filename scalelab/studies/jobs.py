"""What a study has to do, and how far it is: one job a pre-training, one for its fine-tunings.

The state is read from the run folders, so any number of processes agree on it. A folder that was
copied here without its checkpoints counts as done if nothing is left to be made of it.
"""

import dataclasses
import json
import pathlib
from collections.abc import Sequence
from typing import Any

from scalelab.config import pretraining as config_lib
from scalelab.lab.load import study_runs
from scalelab.lab.load.study_runs import PretrainRun, Study
from scalelab.resources import flops
from scalelab.runs import compatibility, environment

PRETRAIN, FINETUNE = "pre-training", "fine-tuning"
WAITING, READY, DONE = "waiting", "ready", "done"
MAX_VMAPPED = 8  # runs, or seeds of a fine-tuning, that one program trains on an accelerator
# Largest n_model whose seeds train as one program: one shape was measured (RESULTS.md, H100).
SMALL = 500_000


@dataclasses.dataclass(frozen=True)
class Job:
    """A piece of work that one process does.

    Attributes:
      kind: PRETRAIN or FINETUNE.
      run: the name of the run.
      state: WAITING for another job, READY to start or to continue, or DONE.
      tasks: fine-tunings still to be done, "sst2" or "scratch/sst2".
      again: whether a finished pre-training must be repeated because its checkpoint is gone.
      damaged: what is wrong with its folder, or None.
    """

    kind: str
    run: str
    state: str
    tasks: tuple[str, ...] = ()
    again: bool = False
    damaged: str | None = None

    @property
    def name(self) -> str:
        """The name in tables, logs and locks."""
        return f"{self.run}.{'pretrain' if self.kind == PRETRAIN else 'finetune'}"


def read(workdir: pathlib.Path, name: str | None) -> tuple[Study, list[Job]]:
    """Reads a study and its jobs, as they are now."""
    study = study_runs.read(workdir, name)
    return study, list_jobs(study)


def list_jobs(study: Study) -> list[Job]:
    """Lists every job of a study, in the order in which they should be done.

    Fine-tunings come before further pre-trainings, so that what is begun is soon finished; the
    first seed of all runs comes before the second, so that every point has a run early.
    """
    pretrain, finetune = [], []
    for run in sorted(study.runs, key=lambda r: r.seed):
        left, chosen = unfinished_tasks(study, run), is_finetuned(study, run)
        lost = run.finished and bool(chosen and left) and not _has_checkpoint(run.folder)
        trained = run.finished and not lost
        state = DONE if trained else READY
        pretrain.append(Job(PRETRAIN, run.name, state, again=lost, damaged=run.damaged))
        if chosen is not False:
            ready = READY if trained and chosen else WAITING
            state = DONE if chosen and not left else ready
            finetune.append(Job(FINETUNE, run.name, state, tuple(left), damaged=run.damaged))
    return finetune + pretrain


def unfinished_tasks(study: Study, run: PretrainRun) -> list[str]:
    """Lists the fine-tunings of a run that are not finished: "sst2", "scratch/sst2"."""
    left = []
    for prefix, found in (("", run.tasks), ("scratch/", run.scratch)):
        if prefix and not (study.facts["finetune"]["scratch"] and run.seed == 0):
            continue
        for task in study.facts["tasks"]:
            done = {r.seed for r in found[task].runs if not r.unfinished} if task in found else ()
            if any(seed not in done for seed in range(study.facts["finetune_seeds"])):
                left.append(prefix + task)
    return left


def is_finetuned(study: Study, run: PretrainRun) -> bool | None:
    """Returns whether a run is to be fine-tuned; None while that depends on unfinished runs."""
    rule = study.facts["stages"][run.stage]["finetune"]
    if rule == "none" or not study.facts["tasks"]:
        return False
    if rule == "all":
        return True
    losses = {}
    for point in study.points:
        ours = [r.loss for r in point.runs if r.stage == run.stage]
        if None in ours:
            return None
        if ours:
            losses[point] = sum(loss for loss in ours if loss is not None) / len(ours)
    best = sorted(losses, key=losses.__getitem__)[: int(rule.removeprefix("best:"))]
    return any(run in point.runs for point in best)


def _has_checkpoint(folder: pathlib.Path) -> bool:
    kept = folder / "checkpoints"
    return kept.is_dir() and any(p.name.isdecimal() for p in kept.iterdir())


def companions(study: Study, job: Job, left: Sequence[Job], count: int) -> list[Job]:
    """Lists pre-trainings that one program does with `job`: other seeds of the same small net.

    Args:
      study: the study.
      job: a pre-training.
      left: where to look, in this order.
      count: how many a program does, `job` among them.
    """
    runs = {run.name: run for run in study.runs}

    def is_alike(other: Job) -> bool:
        if other.kind != PRETRAIN or other.state != READY or other.again or other.damaged:
            return False
        configs = [config_lib.resolve(runs[name].config) for name in (job.run, other.run)]
        if not is_small(configs[0].net):
            return False
        try:
            compatibility.check(configs)
        except ValueError:
            return False
        return True

    if not is_alike(job):
        return []
    return [other for other in left if other != job and is_alike(other)][: count - 1]


def is_small(net: config_lib.Net) -> bool:
    """Returns whether a net leaves most of an accelerator idle."""
    return flops.n_model(net.width, net.num_layers) <= SMALL


def num_vmapped(net: config_lib.Net | None = None) -> int:
    """Returns how many seeds of a net one program trains: several on a GPU or TPU if it is small.

    A GPU or TPU waits for small nets most of the time. CPU cores have a process each instead
    (`benchmarks.population --threads=1` measures it).
    """
    small = net is None or is_small(net)
    return MAX_VMAPPED if environment.has_accelerator() and small else 1


def progress(run_folder: pathlib.Path, config: dict[str, Any]) -> float | None:
    """Returns the share of a pre-training's budget that is done, by its last logged line."""
    try:
        with (run_folder / "metrics.jsonl").open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - 4096))
            lines = file.read().decode(errors="replace").split("\n")
        last = json.loads(lines[-2])
        for clock in ("steps", "tokens", "flops", "secs"):
            total = config["optim"][f"total_{clock}"]
            if total:
                return min(
                    1.0, last[{"steps": "step", "secs": "seconds"}.get(clock, clock)] / total
                )
    except (OSError, ValueError, IndexError, KeyError, TypeError):
        pass
    return None
