"""The jobs of a study: one per pre-training, one for its scores. As a program: runs a job.

  python -m scalelab.studies.jobs --workdir=DIR --study=NAME --run=RUN --kind=pretrain|finetune

The state is read from the run folders, so any number of processes agree on it. `pool` starts the
program. Exit code 0: done; 75: stopped by a signal, to be continued; else failed, with one message.
"""

import argparse
import dataclasses
import pathlib
import shutil
from collections.abc import Sequence
from typing import TYPE_CHECKING

from scalelab.config import cli
from scalelab.config import pretraining as config_lib
from scalelab.eval import evaluation
from scalelab.lab.load import study_runs
from scalelab.lab.load.study_runs import PretrainRun, Study
from scalelab.resources import host

if TYPE_CHECKING:
    from scalelab.training.pretrained import Pretrained

PRETRAIN, FINETUNE = "pretrain", "finetune"
WAITING, READY, DONE = "waiting", "ready", "done"


@dataclasses.dataclass(frozen=True)
class Job:
    """A unit of work for one process."""

    kind: str  # PRETRAIN or FINETUNE
    run: str
    state: str  # WAITING for another job, READY to start or to continue, or DONE
    tasks: tuple[str, ...] = ()  # unfinished: "sst2", "scratch/sst2", "early/0.5/blimp"
    damaged: str | None = None  # the fault of its folder

    @property
    def name(self) -> str:
        """The name in tables, logs and locks."""
        return f"{self.run}.{self.kind}"

    @property
    def num_left(self) -> int:
        """The number of unfinished scores, without scores from random weights."""
        return sum(not task.startswith("scratch/") for task in self.tasks)


def read(workdir: pathlib.Path, name: str | None) -> tuple[Study, list[Job]]:
    """Reads a study and its jobs, as they are now, in the order in which they should be done.

    Fine-tunings come before further pre-trainings, so that runs are finished early; the first seed
    of all runs comes before the second, so that every point has a run early. A folder without
    checkpoints counts as done if no job needs them. A run of equal config waits for the first one,
    and copies it (`copy_twin`).
    """
    study = study_runs.read(workdir, name)
    pretrain, finetune, stages, making = [], [], study.facts.stages, list[object]()
    for run in sorted(study.runs, key=lambda r: r.seed):
        rule, left, damaged = stages[run.stage].finetune, unfinished_tasks(study, run), run.damaged
        # Older studies fine-tuned the "best:k" runs of a stage: those with scores are done.
        chosen = rule == "all" or (rule != "none" and run.tuned["tasks"])
        left = left if chosen else []
        if run.finished and left and not any(run.folder.glob("checkpoints/[0-9]*")):
            damaged = "it has no checkpoint to fine-tune"
        trained = run.finished and not damaged
        waits = run.config in making and not run.folder.exists()
        state = DONE if trained else WAITING if waits else READY
        making += [run.config] * (state == READY and not damaged)
        pretrain.append(Job(PRETRAIN, run.name, state, damaged=damaged))
        if chosen and study.facts.measured:
            state = (READY if trained else WAITING) if left else DONE
            finetune.append(Job(FINETUNE, run.name, state, tuple(left), damaged))
    return study, finetune + pretrain


def unfinished_tasks(study: Study, run: PretrainRun) -> list[str]:
    """Lists the tasks and evaluations a run lacks: "sst2", "scratch/sst2", "early/0.5/blimp"."""
    left, facts = [], study.facts
    parts = {"tasks": facts.measured}
    if facts.finetune.scratch and run.seed == 0:
        evaluations = [name for name in facts.evaluations if evaluation.load(name).scratch]
        parts["scratch"] = (*facts.tasks, *evaluations)
    parts |= {f"early/{share}": facts.evaluations for share in facts.evaluation_shares}
    for part, names in parts.items():
        found = run.tuned.get(part, {})
        for name in names:
            done = {r.seed for r in found[name].runs if not r.unfinished} if name in found else ()
            if any(k not in done for k in range(facts.finetune_seeds * (name in facts.tasks) or 1)):
                left.append(name if part == "tasks" else f"{part}/{name}")
    return left


# --- The program ----------------------------------------------------------------------------------


def finetune(study: Study, run: PretrainRun, tasks: Sequence[str]) -> None:
    """Fine-tunes a run on the tasks, and measures it by the evaluations, that are left."""
    from scalelab import finetune as finetune_lib
    from scalelab.finetuning import warm_start
    from scalelab.studies import finetunings

    asked = finetunings.tune_variant(study.facts.finetune, study.facts.variants[run.variant])
    finetunings.prepare(asked.data, config_lib.resolve(run.config), study.workdir)
    glue = finetunings.data_folder(asked.data, study.workdir)
    values = finetunings.base_values(asked.recipe)
    for name in ("cache_dir", "compile_cache_dir"):
        values["machine"][name] = run.config["machine"][name]
    for name in tasks:
        prefix, _, task = name.rpartition("/")
        if task in study.facts.evaluations:
            found, folder = evaluation.load(task), run.folder / (prefix or "tasks") / task
            chosen = evaluation.choose_options(found, study.facts.evaluation_fields)
            data = pathlib.Path(str(study.facts.evaluation_data)) / found.folder
            _, early, share = prefix.partition("early/")
            step, random = kept_step(run, float(share)) if early else None, prefix == "scratch"
            nets = peers(study) if found.compares else []
            evaluation.evaluate(
                found, run.folder, data, folder, chosen, step=step, random=random, peers=nets
            )
            continue
        init = ("none", str(run.folder)) if prefix else (str(run.folder),)
        folder = run.folder / (prefix or "tasks") / task
        start = warm_start.open_start(*init)
        loaded = finetunings.load_task(asked, task)
        own = {loaded.name: finetunings.task_fields(asked.fields, task)}
        seeds = tuple(range(asked.seeds))
        request = finetune_lib.Request(start, values, own, seeds=seeds, data=glue)
        finetune_lib.fine_tune(loaded, request, folder)
        if not asked.keep:
            for kept in folder.glob("seed*/checkpoints"):
                shutil.rmtree(kept)


def peers(study: Study) -> "list[Pretrained]":
    """Returns the measured models of a study, one for each tokenizer, objective and length.

    The models have no parameters, and their runs need not exist: a tokenizer depends only on the
    config.
    """
    configs = {}
    for run in study.runs:
        if study.facts.stages[run.stage].finetune == "none":
            continue
        config = config_lib.resolve(run.config)
        lengths = [phase.max_len for phase in config.phases]
        key = config.system, config.objective, config.tokenizer, config.data, lengths
        configs.setdefault(repr(key), (run.folder, config))
    return [untrained(*found) for found in configs.values()]


def untrained(folder: pathlib.Path, config: config_lib.Config) -> "Pretrained":
    """Returns a config's model, with tokenizer and without parameters; the run need not exist."""
    from scalelab import systems
    from scalelab.data.loading import load_tokenizer
    from scalelab.training import pretrained

    system, frozen = systems.load(config.system), pretrained.load_frozen(config.machine.frozen)
    tokenizer = load_tokenizer(config, system)
    return pretrained.Pretrained(
        folder, config, system, tokenizer, {}, 1, finished=False, frozen=frozen
    )


def kept_step(run: PretrainRun, share: float) -> int:
    """Returns the step of the checkpoint that a run keeps at a share of its budget.

    Raises:
      ValueError: the run keeps none, because it was trained without this share.
    """
    steps = {line["eval/share"]: int(line["step"]) for line in run.lines if "eval/share" in line}
    if share not in steps:
        raise ValueError(
            f"{run.folder} kept no checkpoint at {share} of its budget, only at"
            f" {', '.join(map(str, steps)) or 'none'}: leave this share out of"
            " config.evaluation_shares, or train the run again in another --workdir"
        )
    return steps[share]


def copy_twin(study: Study, run: PretrainRun) -> bool:
    """Copies a finished pre-training of equal config, if there is one and `run` has not begun.

    Arms that differ in fine-tuning alone have one config, so that they train once.
    """
    twins = (r for r in study.runs if r.finished and not r.damaged and r.config == run.config)
    source = next((r.folder for r in twins if any(r.folder.glob("checkpoints/[0-9]*"))), None)
    if source is None or run.folder.exists():
        return False
    made = run.folder.with_name(f".{run.folder.name}")
    shutil.rmtree(made, ignore_errors=True)
    shutil.copytree(source, made, ignore=shutil.ignore_patterns("tasks", "scratch", "early"))
    made.rename(run.folder)
    print(f"finished {run.folder}: a copy of {source}, whose config is equal")
    return True


def parser() -> cli.Parser:
    """Returns the command line."""
    made = cli.Parser("python -m scalelab.studies.jobs", __doc__, setup=host.keep_freed)
    for name in ("workdir", "study", "run"):
        made.add_argument(f"--{name}", required=True)
    made.add_argument("--kind", required=True, choices=(PRETRAIN, FINETUNE))
    return made


def main(given: argparse.Namespace) -> None:
    """Does the job."""
    study, found = read(pathlib.Path(given.workdir), given.study)
    name = f"{given.run}.{given.kind}"
    job = next((job for job in found if job.name == name), None)
    if job is None:
        raise ValueError(f"study {given.study} has no job {name}")
    run = next(run for run in study.runs if run.name == given.run)
    if given.kind == PRETRAIN:
        if not copy_twin(study, run):
            from scalelab import train

            train.train(train.pretraining(config_lib.resolve(run.config), run.folder))
    elif run.finished:
        finetune(study, run, job.tasks)
    else:
        raise ValueError(f"{run.name} is to be fine-tuned, but its pre-training is unfinished")


if __name__ == "__main__":
    cli.run(main, parser())
