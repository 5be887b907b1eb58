"""What is told when nothing more can be done: what failed, what waits for it, and what helps."""

from collections.abc import Mapping, Sequence

from scalelab.lab.load.study_runs import Study
from scalelab.studies.jobs import DONE, FINETUNE, PRETRAIN, WAITING, Job
from scalelab.studies.spec import COMPOUND


def text(study: Study, found: Sequence[Job], failed: Mapping[str, str]) -> str:
    """The lines that end a `study run`.

    Args:
      study: as it is now.
      found: its jobs.
      failed: names of jobs that failed, with the reason.
    """
    done = sum(job.state == DONE for job in found)
    waits = waiting(study, found)
    if done == len(found) and not waits:
        return f"{study.name}: nothing left to do in {study.workdir}"
    lines = [f"{study.name}: {done} of {len(found)} jobs are done in {study.workdir}"]
    lines += [f"  failed: {name}: {reason}" for name, reason in failed.items()]
    lines += [f"  waiting: {line}" for line in waits]
    return "\n".join([*lines, *advice(study, failed)])


def waiting(study: Study, found: Sequence[Job]) -> list[str]:
    """What cannot be done yet, and what it waits for: a line for each stage."""
    open_runs = {job.run for job in found if job.kind == PRETRAIN and job.state != DONE}
    lines = []
    for stage, facts in study.facts["stages"].items():
        runs = {run.name for run in study.runs if run.stage == stage}
        missing = sorted(runs & open_runs)
        waits = [j for j in found if j.kind == FINETUNE and j.state == WAITING and j.run in runs]
        rule = facts["finetune"]
        if waits and rule not in ("all", "none"):
            lines.append(
                f"stage {stage}: {len(waits)} fine-tunings, as {rule} needs the losses of all its"
                f" runs; not finished: {', '.join(missing)}"
            )
        elif waits:
            names = ", ".join(job.run for job in waits)
            lines.append(f"stage {stage}: the fine-tuning of {names}, after the pre-training")
        unknown = [shape for shape in facts["shapes"] if shape.startswith(COMPOUND)]
        if unknown and not runs and any(job.state != DONE for job in found):
            lines.append(
                f"stage {stage}: {', '.join(unknown)} comes out of all runs and fine-tunings of the"
                " stage before"
            )
    return lines


def advice(study: Study, failed: Mapping[str, str]) -> list[str]:
    """What a user can do about what failed."""
    if not failed:
        return []
    lines = ["  start the same command again to try once more what failed; its log says why"]
    runs = {run.name: run for run in study.runs}
    lost = {name.rpartition(".")[0] for name in failed if name.endswith(".pretrain")} & runs.keys()
    for stage, facts in study.facts["stages"].items():
        bad = {shape_of(runs[name].config) for name in lost if runs[name].stage == stage}
        left = [shape for shape in facts["shapes"] if shape not in bad]
        if bad and left and len(left) < len(facts["shapes"]):
            given = "(" + "".join(f"'{shape}'," for shape in left) + ")"
            lines.append(
                f"  or go on without {', '.join(sorted(bad))}, what is finished staying in the"
                f' study: --config.stages.{stage}.shapes="{given}"'
            )
    return lines


def shape_of(config: Mapping[str, Mapping[str, int]]) -> str:
    """AxHxL of a resolved config."""
    return "{num_heads}x{width}x{num_layers}".format(**config["net"])
