"""How far a study is: a table of its runs, a line in sum, and what to do when it cannot go on."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from scalelab.helpers.progress import format_secs
from scalelab.lab import tables
from scalelab.lab.load.study_runs import Plan, PretrainRun, Study, planned
from scalelab.studies import jobs
from scalelab.studies.jobs import DONE, FINETUNE, PRETRAIN, WAITING, Job
from scalelab.studies.spec import COMPOUND

HEADER = ("run", "pre-training", "fine-tuning", "tokens", "seconds", "planned")
HEADER += ("memory GiB", "planned", "loss")


# --- While it runs --------------------------------------------------------------------------------


def secs_left(study: Study, found: Sequence[Job], plan: Plan) -> float | None:
    """Returns the seconds of one process that are left, by the plan; None without one.

    The planned seconds are scaled by those that finished runs took. Runs that the plan does not
    know are not counted; of a "best:k" stage that is not decided yet, k of its points are.
    """
    if not plan:
        return None
    runs = {run.name: run for run in study.runs}
    expected = {run.name: planned(plan, run.name, run.stage, run.n_model) for run in study.runs}
    taken = [(run.result.seconds, known["secs"]) for run in study.runs
             if run.result is not None and (known := expected[run.name])]  # fmt: skip
    ratio = sum(a for a, _ in taken) / sum(b for _, b in taken) if taken else 1.0
    total = 0.0
    for job in found:
        run, known = runs[job.run], expected[job.run]
        if job.state == DONE or known is None:
            continue
        if job.kind == PRETRAIN:
            done = jobs.progress(run.folder, run.config) or 0.0
            total += known["secs"] * (1 - done) + known.get("start_secs", 0.0)
        else:
            share = sum("/" not in task for task in job.tasks) / max(1, len(study.facts["tasks"]))
            undecided = jobs.is_finetuned(study, run) is None
            chosen = known.get("finetune_share", 1.0) if undecided else 1.0
            total += chosen * known["finetune_secs"] * share
    begun = {run.stage for run in study.runs}
    if any(job.state != DONE for job in found):
        total += sum(
            entry["secs"] + entry["start_secs"] + entry["finetune_share"] * entry["finetune_secs"]
            for entry in plan.values()
            if entry.get("foreseen") and entry["stage"] not in begun
        )
    return total * ratio


def rows(
    study: Study,
    found: Sequence[Job],
    working: Sequence[str],
    failed: Mapping[str, str],
    plan: Plan,
) -> list[list[str]]:
    """Returns a table row for each run.

    Args:
      study: the study.
      found: its jobs.
      working: names of jobs that are being done.
      failed: jobs that failed, with the reason.
      plan: of the study.
    """
    by_name = {job.name: job for job in found}
    lines = []
    for run in study.runs:
        finetune = by_name.get(f"{run.name}.finetune")
        expected = planned(plan, run.name, run.stage, run.n_model)
        result = run.result
        memory = result.peak_memory_bytes if result else None
        lines.append([
            run.name,
            _pretraining_state(run, by_name[f"{run.name}.pretrain"], working, failed),
            "-" if finetune is None else _finetuning_state(study, finetune, working, failed),
            f"{result.tokens:,}" if result else "",
            f"{result.seconds:,.0f}" if result else "",
            f"{expected['secs']:,.0f}" if expected else "",
            "" if memory is None else f"{memory / 2**30:.2f}",
            f"{expected['peak_bytes'] / 2**30:.2f}" if expected else "",
            "" if run.loss is None else f"{run.loss:.3f}",
        ])  # fmt: skip
    return lines


def _pretraining_state(
    run: PretrainRun, job: Job, working: Sequence[str], failed: Mapping[str, str]
) -> str:
    if job.name in failed:
        return "failed"
    done = jobs.progress(run.folder, run.config)
    share = "" if done is None else f" {done:.0%}"
    if job.name in working:
        return "running" + share
    if job.state == DONE:
        return "done"
    if job.damaged:
        return "damaged"
    return "to be repeated" if job.again else f"stopped at{share}" if share else "to do"


def _finetuning_state(
    study: Study, job: Job, working: Sequence[str], failed: Mapping[str, str]
) -> str:
    if job.name in failed:
        return "failed"
    if job.state == DONE:
        return "done"
    number = len(study.facts["tasks"])
    done = number - sum("/" not in task for task in job.tasks)
    return f"{'running ' * (job.name in working)}{done}/{number}"


def summary(
    study: Study, found: Sequence[Job], working: Sequence[str], failed: Mapping[str, str],
    remaining: float | None, num_workers: int,
) -> str:  # fmt: skip
    """Returns one line about the whole study."""
    parts = []
    for kind in (PRETRAIN, FINETUNE):
        ours = [job for job in found if job.kind == kind]
        if ours:
            parts.append(f"{kind} {sum(j.state == DONE for j in ours)}/{len(ours)}")
    runs = {run.name: run for run in study.runs}
    for name in working:
        run_name, _, kind = name.rpartition(".")
        done = jobs.progress(runs[run_name].folder, runs[run_name].config)
        share = f" {done:.0%}" if done is not None and kind == "pretrain" else ""
        parts.append(f"{run_name} {kind}{share}")
    if failed:
        parts.append(f"{len(failed)} failed")
    if remaining is not None:
        parts.append(f"ETA {format_secs(remaining / max(1, num_workers))}")
    return f"{study.name}: " + " | ".join(parts)


class Screen:
    """Shows progress: the whole table on a terminal, rewritten in place; else a line a minute.

    Args:
      stream: where to write.
      num_workers: processes at a time, for the time left.
      plan: of the study.
    """

    def __init__(self, stream: Any, num_workers: int, plan: Plan) -> None:
        self._stream, self._workers, self._plan = stream, num_workers, plan
        self._every_secs = 2.0 if stream.isatty() else 60.0
        self._last, self._height, self._shown = -1e9, 0, ""

    def __call__(
        self, study: Study, found: Sequence[Job], working: Sequence[str], failed: Mapping[str, str]
    ) -> None:
        """Shows the state if it has changed or some time has passed."""
        state = f"{[j.state for j in found]} {working} {sorted(failed)}"
        if time.monotonic() - self._last < self._every_secs and state == self._shown:
            return
        self._last, self._shown = time.monotonic(), state
        remaining = secs_left(study, found, self._plan)
        text = summary(study, found, working, failed, remaining, self._workers) + "\n"
        if self._stream.isatty():
            text = tables.plain(HEADER, rows(study, found, working, failed, self._plan)) + text
            back = f"\x1b[{self._height}F\x1b[J" if self._height else ""
            self._height, text = text.count("\n"), back + text
        self._stream.write(text)
        self._stream.flush()


# --- At its end -----------------------------------------------------------------------------------


def describe_end(study: Study, found: Sequence[Job], failed: Mapping[str, str]) -> str:
    """Returns the lines that end a `study run`: what failed, what waits for it, and what helps.

    Args:
      study: as it is now.
      found: its jobs.
      failed: names of jobs that failed, with the reason.
    """
    done = sum(job.state == DONE for job in found)
    waits = describe_waiting(study, found)
    if done == len(found) and not waits:
        return f"{study.name}: nothing left to do in {study.workdir}"
    lines = [f"{study.name}: {done} of {len(found)} jobs are done in {study.workdir}"]
    lines += [f"  failed: {name}: {reason}" for name, reason in failed.items()]
    lines += [f"  waiting: {line}" for line in waits]
    return "\n".join([*lines, *advise(study, failed)])


def describe_waiting(study: Study, found: Sequence[Job]) -> list[str]:
    """Returns a line for each stage about what cannot be done yet, and what it waits for."""
    open_runs = {job.run for job in found if job.kind == PRETRAIN and job.state != DONE}
    lines = []
    for stage, facts in study.facts["stages"].items():
        runs = {run.name for run in study.runs if run.stage == stage}
        waits = [j for j in found if j.kind == FINETUNE and j.state == WAITING and j.run in runs]
        rule = facts["finetune"]
        if waits and rule != "all":
            lines.append(
                f"stage {stage}: {len(waits)} fine-tunings, because {rule} needs the losses of all"
                f" its runs; not finished: {', '.join(sorted(runs & open_runs))}"
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


def advise(study: Study, failed: Mapping[str, str]) -> list[str]:
    """Returns what a user can do about jobs that failed."""
    if not failed:
        return []
    lines = ["  start the same command again to retry what failed; its log says why it failed"]
    runs = {run.name: run for run in study.runs}
    lost = {name.rpartition(".")[0] for name in failed if name.endswith(".pretrain")} & runs.keys()
    for stage, facts in study.facts["stages"].items():
        nets = (runs[name].config["net"] for name in lost if runs[name].stage == stage)
        bad = {"{num_heads}x{width}x{num_layers}".format(**net) for net in nets}
        left = [shape for shape in facts["shapes"] if shape not in bad]
        if bad and left and len(left) < len(facts["shapes"]):
            given = "(" + "".join(f"'{shape}'," for shape in left) + ")"
            lines.append(
                f"  or go on without {', '.join(sorted(bad))}; finished runs stay in the study:"
                f' --config.stages.{stage}.shapes="{given}"'
            )
    return lines
