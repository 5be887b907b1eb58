"""How far a study is: a table of its runs, a line in sum, and the time left."""

import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import Any

from scalelab.helpers.progress import format_secs
from scalelab.lab import tables
from scalelab.lab.load.study_runs import Plan, PretrainRun, Study, planned
from scalelab.studies import jobs
from scalelab.studies.jobs import DONE, FINETUNE, PRETRAIN, Job

HEADER = ("run", "pre-training", "fine-tuning", "tokens", "seconds", "planned")
HEADER += ("memory GiB", "planned", "loss")


@dataclasses.dataclass(frozen=True)
class Left:
    """What is still to be done.

    Attributes:
      secs: of one process, as planned and corrected by what finished runs took; None: no plan.
      ratio: seconds that finished runs took, to those planned; 1 while there is none.
      unplanned: runs with work left that the plan does not know.
    """

    secs: float | None
    ratio: float
    unplanned: int = 0


def left(study: Study, found: Sequence[Job], plan: Plan) -> Left:
    """The work that is left.

    Args:
      study: the study.
      found: its jobs.
      plan: of the study.
    """
    runs = {run.name: run for run in study.runs}
    expected = {run.name: planned(plan, run.name, run.stage, run.n_model) for run in study.runs}
    taken = [(run.result.seconds, known["secs"]) for run in study.runs
             if run.result is not None and (known := expected[run.name])]  # fmt: skip
    ratio = sum(a for a, _ in taken) / sum(b for _, b in taken) if taken else 1.0
    chosen = {stage: _chosen(study, found, stage) for stage in study.facts["stages"]}
    total, unplanned = 0.0, set()
    for job in found:
        if job.state == DONE:
            continue
        run, known = runs[job.run], expected[job.run]
        if known is None:
            unplanned.add(run.name)
        elif job.kind == PRETRAIN:
            done = jobs.progress(run.folder, run.config) or 0.0
            total += known["secs"] * (1 - done) + known.get("start_secs", 0.0)
        else:
            whole = max(1, len(study.facts["tasks"]))
            share = sum("/" not in task for task in job.tasks) / whole
            total += chosen[run.stage] * known["finetune_secs"] * share
    begun = {run.stage for run in study.runs}
    going = any(job.state != DONE for job in found)  # else a later shape was one of the earlier
    later = [one for one in plan.values()
             if going and one.get("foreseen") and one["stage"] not in begun]  # fmt: skip
    total += sum(
        one["secs"] + one["start_secs"] + one["finetune_share"] * one["finetune_secs"]
        for one in later
    )
    return Left(total * ratio if plan else None, ratio, len(unplanned))


def _chosen(study: Study, found: Sequence[Job], stage: str) -> float:
    """The share of a stage's fine-tunings that will be done: of "best:k", k of its points.

    All of them as soon as it is known which; there are none for the others then.
    """
    points = [p for p in study.points if any(run.stage == stage for run in p.runs)]
    runs = {run.name for point in points for run in point.runs}
    listed = sum(job.kind == FINETUNE and job.run in runs for job in found)
    rule = study.facts["stages"][stage]["finetune"]
    best = rule.removeprefix("best:")
    if best == rule or not listed:
        return 1.0
    return min(1.0, int(best) / len(points) * len(runs) / listed)


def rows(
    study: Study,
    found: Sequence[Job],
    working: Sequence[str],
    failed: Mapping[str, str],
    plan: Plan,
) -> list[list[str]]:
    """One line a run.

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
        pretrain = by_name[f"{run.name}.pretrain"]
        finetune = by_name.get(f"{run.name}.finetune")
        expected = planned(plan, run.name, run.stage, run.n_model)
        result = run.result
        memory = result.peak_memory_bytes if result else None
        lines.append([
            run.name,
            _pretraining(run, pretrain, working, failed),
            "-" if finetune is None else _finetuning(study, finetune, working, failed),
            f"{result.tokens:,}" if result else "",
            f"{result.seconds:,.0f}" if result else "",
            f"{expected['secs']:,.0f}" if expected else "",
            "" if memory is None else f"{memory / 2**30:.2f}",
            f"{expected['peak_bytes'] / 2**30:.2f}" if expected else "",
            "" if run.loss is None else f"{run.loss:.3f}",
        ])  # fmt: skip
    return lines


def _pretraining(
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


def _finetuning(study: Study, job: Job, working: Sequence[str], failed: Mapping[str, str]) -> str:
    if job.name in failed:
        return "failed"
    if job.state == DONE:
        return "done"
    number = len(study.facts["tasks"])
    done = number - sum("/" not in task for task in job.tasks)
    state = "running " if job.name in working else ""
    return f"{state}{done}/{number}"


def summary(
    study: Study,
    found: Sequence[Job],
    working: Sequence[str],
    failed: Mapping[str, str],
    remaining: Left,
    num_workers: int,
) -> str:
    """One line about all of it."""
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
    if remaining.secs is not None:
        eta = f"ETA {format_secs(remaining.secs / max(1, num_workers))}"
        some = remaining.unplanned
        parts.append(eta + f" and {some} runs that the plan does not know" * bool(some))
    return f"{study.name}: " + " | ".join(parts)


class Screen:
    """Shows progress: the whole table on a terminal, rewritten in place; a line elsewhere.

    Args:
      stream: where to.
      num_workers: processes at a time, for the time left.
      plan: of the study.
      every_secs: between two lines where it is no terminal.
    """

    def __init__(
        self, stream: Any, num_workers: int, plan: Plan,
        every_secs: float = 60.0,
    ) -> None:  # fmt: skip
        self._stream, self._workers, self._plan = stream, num_workers, plan
        self._every = 2.0 if stream.isatty() else every_secs
        self._last, self._height, self._said = -1e9, 0, ""

    def __call__(
        self, study: Study, found: Sequence[Job], working: Sequence[Any], failed: Mapping[str, str]
    ) -> None:
        """Shows how far it is, if it is time to."""
        names = [job.name for one in working for job in one.jobs]
        state = f"{[j.state for j in found]} {names} {sorted(failed)}"
        if time.monotonic() - self._last < self._every and state == self._said:
            return
        self._last, self._said = time.monotonic(), state
        remaining = left(study, found, self._plan)
        line = summary(study, found, names, failed, remaining, self._workers)
        if not self._stream.isatty():
            self._stream.write(line + "\n")
            self._stream.flush()
            return
        text = tables.plain(HEADER, rows(study, found, names, failed, self._plan)) + line + "\n"
        back = f"\x1b[{self._height}F\x1b[J" if self._height else ""
        self._height = text.count("\n")
        self._stream.write(back + text)
        self._stream.flush()
