"""Progress of a study: a table of runs, a summary line, and advice when it cannot continue.

WORKDIR/plans/<name>.json has the expected cost of every run, see `PlanEntry`.
"""

import contextlib
import dataclasses
import pathlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, TextIO

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from scalelab.config.durations import CLOCKS
from scalelab.config.fields import NotNegative, fill
from scalelab.helpers.files import reading
from scalelab.helpers.progress import format_secs
from scalelab.lab import tables
from scalelab.lab.load.study_runs import PretrainRun, Study
from scalelab.records import json_files
from scalelab.studies.jobs import DONE, FINETUNE, PRETRAIN, WAITING, Job

HEADER = ("run", "pre-training", "fine-tuning", "tokens", "seconds", "planned", "memory GiB",
          "planned", "loss")  # fmt: skip


@dataclasses.dataclass(frozen=True)
class PlanEntry:
    """The expected cost of a run."""

    name: str
    secs: NotNegative  # pre-training alone; 0: a copy of an equal one
    start_secs: NotNegative  # start of the process, and compiling
    finetune_secs: NotNegative  # fine-tunings and evaluations
    peak_bytes: float


Plan = Mapping[str, PlanEntry]


def read_plan(workdir: pathlib.Path, name: str) -> Plan:
    """Returns the estimates of `study plan` by the run's name; empty without a plan."""
    path = workdir / "plans" / f"{name}.json"
    values = json_files.read_object(path) or {}
    with reading(path):
        runs = [fill(PlanEntry, run, strict=False) for run in values.get("runs", ())]
    return {run.name: run for run in runs}


class Status(NamedTuple):
    """The state of a study, as it is now."""

    study: Study
    jobs: Sequence[Job]
    working: Sequence[str]  # names of the jobs that are being done
    failed: Mapping[str, str]  # job -> reason


def last_metrics(run: PretrainRun) -> dict[str, float]:
    """Returns the newest value of each logged number of a pre-training."""
    return {name: value for line in run.lines for name, value in line.items()}


def share_done(run: PretrainRun) -> float | None:
    """Returns the share of a pre-training's budget that is done; None if nothing was logged."""
    last, optim = last_metrics(run), run.config["optim"]
    totals = {clock.logged: optim.get(f"total_{name}") for name, clock in CLOCKS.items()}
    known = ((last[name], total) for name, total in totals.items() if total and name in last)
    return next((min(1.0, done / total) for done, total in known), None)


def secs_left(status: Status, plan: Plan, *, scaled: bool = True) -> float | None:
    """Returns the planned seconds that are left for one process; None without a plan.

    Runs outside the plan are not counted. `scaled` planned seconds are scaled by the time of
    finished runs.
    """
    study, found, _, _ = status
    if not plan:
        return None
    taken = [(run.result.seconds, plan[run.name].secs) for run in study.runs
             if run.result is not None and run.name in plan and plan[run.name].secs]  # fmt: skip
    total, runs = 0.0, {run.name: run for run in study.runs}
    for job in found:
        if job.state == DONE or job.run not in plan:
            continue
        known = plan[job.run]
        if job.kind == PRETRAIN:
            done = share_done(runs[job.run]) or 0.0
            total += known.secs * (1 - done) + known.start_secs
        else:
            total += known.finetune_secs * job.num_left / max(1, study.facts.num_scores)
    known = scaled and taken
    return total * (sum(a for a, _ in taken) / sum(b for _, b in taken) if known else 1.0)


def correct(planned: float, first: float, took: float) -> float:
    """Corrects the planned time that is left by how fast the work has gone since this start.

    `first` was left at the start, and all processes together `took` so long since. Before half of
    the work is done the plan counts more than what was seen. While a job shows no progress of its
    own, such as an evaluation, the time left grows.
    """
    done, half = max(0.0, first - planned), first / 2
    return planned * ((half + took) / (half + done) if half else 1.0)


def describe_runs(status: Status, plan: Plan) -> str:
    """Formats a table with a row for each run."""
    study, found, working, failed = status
    by_name, num_tasks = {job.name: job for job in found}, study.facts.num_scores
    rows, titles = [], study.titles
    for run in study.runs:
        states = {PRETRAIN: "to do", FINETUNE: "-"}
        for kind in states:
            job = by_name.get(f"{run.name}.{kind}")
            if job is None:
                continue
            share = share_done(run)
            done = "" if share is None else f"{share:.0%}"
            if kind == FINETUNE:
                done = f"{num_tasks - job.num_left}/{num_tasks}"
            if job.name in failed:
                states[kind] = "failed"
            elif job.state == DONE:
                states[kind] = "done"
            elif job.damaged:
                states[kind] = "damaged"
            elif job.name in working:
                states[kind] = f"running {done}".strip()
            elif done:
                states[kind] = f"stopped at {done}" if kind == PRETRAIN else done
        expected, result = plan.get(run.name), run.result
        rows.append([
            titles[run.name],
            *states.values(),
            f"{result.tokens:,}" if result else "",
            f"{result.seconds:,.0f}" if result else "",
            f"{expected.secs:,.0f}" if expected else "",
            f"{memory / 2**30:.2f}" if result and (memory := result.peak_memory_bytes) else "",
            f"{expected.peak_bytes / 2**30:.2f}" if expected else "",
            "" if run.loss is None else f"{run.loss:.3f}",
        ])  # fmt: skip
    return tables.plain(HEADER, rows)


def summary(status: Status, remaining: float | None) -> str:
    """Returns one line about the whole study; `remaining` is in seconds, None if it is unknown."""
    study, found, working, failed = status
    parts = []
    for kind, title in ((PRETRAIN, "pre-training"), (FINETUNE, "fine-tuning")):
        chosen = [job for job in found if job.kind == kind]
        if chosen:
            parts.append(f"{title} {sum(j.state == DONE for j in chosen)}/{len(chosen)}")
    runs = {run.name: run for run in study.runs}
    for name in working:
        run_name, _, kind = name.rpartition(".")
        done = share_done(runs[run_name])
        share = f" {done:.0%}" if done is not None and kind == PRETRAIN else ""
        parts.append(f"{study.titles[run_name]} {kind}{share}")
    if failed:
        parts.append(f"{len(failed)} failed")
    if remaining is not None:
        undone = any(job.state != DONE for job in found)
        parts.append(f"ETA {format_secs(max(remaining, float(undone)))}")
    return f"{study.name}: " + " | ".join(parts)


def describe_working(status: Status) -> list[list[str]]:
    """Returns a row for each running job: name, share done, loss, tokens/s, time left."""
    study, found, working, _ = status
    runs, count, rows = {run.name: run for run in study.runs}, study.facts.num_scores, []
    for job in [job for job in found if job.name in working]:
        name = escape(f"{study.titles[job.run]}.{job.kind}")
        if job.kind == FINETUNE:
            rows.append([name, f"{count - job.num_left}/{count} tasks", "", "", ""])
            continue
        last, share = last_metrics(runs[job.run]), share_done(runs[job.run])
        shown = {"train/loss": ".4f", "train/tokens_per_sec": ",.0f"}
        loss, rate = (f"{last[k]:{form}}" if k in last else "" for k, form in shown.items())
        left = format_secs(last["seconds"] * (1 / share - 1)) if share else ""
        rows.append([name, f"{share:.0%}" if share is not None else "starting", loss, rate, left])
    return rows


@contextlib.contextmanager
def screen(stream: TextIO, num_workers: int, plan: Plan) -> Iterator[Callable[[Status], None]]:
    """Yields a function that shows the state if it has changed or some time has passed.

    At a terminal the function updates a live table, which ends with the block; elsewhere it prints
    a line when a job begins or ends, and every 30 s.
    """
    live = Live(console=Console(file=stream), auto_refresh=False) if stream.isatty() else None
    begun, first, shown = time.monotonic(), None, None

    def show(status: Status) -> None:
        nonlocal first, shown
        if (left := secs_left(status, plan, scaled=False)) is not None:
            first = left if first is None else first
            took = (time.monotonic() - begun) * num_workers
            left = correct(left, first, took) / num_workers
        if live is not None:
            line = summary(status._replace(working=()), left)
            table = Table("job", "done", "loss", "tokens/s", "ETA", caption=escape(line), box=None)
            for row in describe_working(status):
                table.add_row(*row)
            live.update(table, refresh=True)
            return
        _, found, working, failed = status
        state = ([j.state for j in found], working, sorted(failed), time.monotonic() // 30)
        if state != shown:
            shown = state
            print(summary(status, left), file=stream, flush=True)

    with live or contextlib.nullcontext():
        yield show


def describe_end(status: Status) -> str:
    """Returns the last lines of a `study run`: failed jobs, jobs that wait for them, and advice."""
    study, found, _, failed = status
    done = sum(job.state == DONE for job in found)
    if done == len(found):
        return f"{study.name}: nothing left to do in {study.workdir}"
    lines = [f"{study.name}: {done} of {len(found)} jobs are done in {study.workdir}"]
    lines += [f"  failed: {name}: {reason}" for name, reason in failed.items()]
    failed_runs = [name.rpartition(".")[0] for name in failed if name.endswith(PRETRAIN)]
    if waits := [job.run for job in found if job.state == WAITING and job.run in failed_runs]:
        lines.append(f"  waiting for their pre-training: fine-tuning of {', '.join(waits)}")
    advice = "start the same command again to retry failed jobs; their logs give the reasons"
    return "\n".join([*lines, *[f"  {advice}"] * bool(failed)])
