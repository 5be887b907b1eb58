"""What a study has to do, and how far it is: one job a pre-training, one for its fine-tunings.

The state is read from the run folders, so any number of processes agree on it, and a folder that
was copied here without its checkpoints counts as done where nothing is left to be made of it.
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
TOGETHER = 8  # runs, or seeds of a fine-tuning, that one program trains on an accelerator
# n_model up to which runs train together: one shape was measured (benchmarks/RESULTS.md, H100).
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
      damaged: what is wrong with its folder; None: nothing.
    """

    kind: str
    run: str
    state: str
    tasks: tuple[str, ...] = ()
    again: bool = False
    damaged: str | None = None

    @property
    def name(self) -> str:
        """For tables and for the names of logs and locks."""
        return f"{self.run}.{'pretrain' if self.kind == PRETRAIN else 'finetune'}"


def of_study(study: Study) -> list[Job]:
    """Every job of a study, in the order in which they should be done.

    Fine-tunings come before further pre-trainings, so that what is begun is soon finished; seeds of
    one number come before those of the next, so that every point has a run early.
    """
    pretrain, finetune = [], []
    for run in sorted(study.runs, key=lambda r: r.seed):
        left = unfinished_tasks(study, run)
        wanted = _finetuned(study, run)
        trained = run.finished
        lost = trained and bool(wanted and left) and not _has_checkpoint(run.folder)
        state = DONE if trained and not lost else READY
        pretrain.append(Job(PRETRAIN, run.name, state, again=lost, damaged=run.damaged))
        if wanted is None or wanted:
            ready = trained and not lost and wanted
            state = DONE if wanted and not left else READY if ready else WAITING
            finetune.append(Job(FINETUNE, run.name, state, tuple(left), damaged=run.damaged))
    return finetune + pretrain


def companions(study: Study, job: Job, left: Sequence[Job], count: int) -> list[Job]:
    """Pre-trainings that one program does with `job`: other seeds, or rates, of the same net.

    Only of small nets, which leave most of a device idle; large ones fill it, and its memory.

    Args:
      study: the study.
      job: of which some run wants to start.
      left: where to look, in this order.
      count: how many a program does, `job` among them.
    """
    runs = {run.name: run for run in study.runs}

    def alike(other: Job) -> bool:
        if other.kind != PRETRAIN or other.state != READY or other.again or other.damaged:
            return False
        configs = [config_lib.resolve(runs[one.run].config) for one in (job, other)]
        if not is_small(configs[0].net):
            return False
        try:
            compatibility.check(configs)
        except ValueError:
            return False
        return True

    if not alike(job):
        return []
    return [other for other in left if other != job and alike(other)][: count - 1]


def is_small(net: config_lib.Net) -> bool:
    """Whether a net leaves most of an accelerator idle."""
    return flops.n_model(net.width, net.num_layers) <= SMALL


def go_together(net: config_lib.Net) -> bool:
    """Whether the seeds of a net are fine-tuned as one program: of small ones, on a GPU or TPU."""
    return environment.has_accelerator() and is_small(net)


def unfinished_tasks(study: Study, run: PretrainRun) -> list[str]:
    """The fine-tunings of a run that are not finished: "sst2", "scratch/sst2"."""
    left = []
    for prefix, found in (("", run.tasks), ("scratch/", run.scratch)):
        if prefix and not (study.facts["finetune"]["scratch"] and run.seed == 0):
            continue
        for task in study.facts["tasks"]:
            done = {r.seed for r in found[task].runs if not r.unfinished} if task in found else ()
            if any(seed not in done for seed in range(study.facts["finetune_seeds"])):
                left.append(prefix + task)
    return left


def _finetuned(study: Study, run: PretrainRun) -> bool | None:
    """Whether a run is to be fine-tuned; None: that depends on runs that are not finished."""
    rule = study.facts["stages"][run.stage]["finetune"]
    if rule in ("all", "none") or not study.facts["tasks"]:
        return rule != "none" and bool(study.facts["tasks"])
    return chosen(study, run.stage, int(rule.removeprefix("best:")), run)


def chosen(study: Study, stage: str, count: int, run: PretrainRun) -> bool | None:
    """Whether a run's point is among the `count` of its stage with the least validation loss."""
    losses = {}
    for point in study.points:
        ours = [r for r in point.runs if r.stage == stage]
        if ours:
            values = [r.loss for r in ours]
            if any(value is None for value in values):
                return None
            losses[point] = sum(v for v in values if v is not None) / len(values)
    best = sorted(losses, key=losses.__getitem__)[:count]
    return any(run in point.runs for point in best)


def _has_checkpoint(folder: pathlib.Path) -> bool:
    kept = folder / "checkpoints"
    return kept.is_dir() and any(p.name.isdecimal() for p in kept.iterdir())


def progress(run_folder: pathlib.Path, config: dict[str, Any]) -> float | None:
    """The share of a pre-training's budget that is done, by its last logged line."""
    try:
        with (run_folder / "metrics.jsonl").open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - 4096))
            lines = file.read().decode(errors="replace").split("\n")
        last = json.loads(lines[-2])
    except (OSError, ValueError, IndexError):
        return None
    optim = config["optim"]
    for clock, key in (("steps", "step"), ("tokens", "tokens"), ("flops", "flops"),
                       ("secs", "seconds")):  # fmt: skip
        total = optim[f"total_{clock}"]
        if total:
            return min(1.0, last[key] / total)
    return None


def read(workdir: pathlib.Path, name: str) -> tuple[Study, list[Job]]:
    """A study and its jobs, as they are now."""
    study = study_runs.read(workdir, name)
    return study, of_study(study)
