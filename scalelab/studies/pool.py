"""Runs the jobs of a study: several processes at a time, each on its own cores.

A lock on WORKDIR/locks/<job> claims a job. The job's process inherits the lock and keeps it to its
end, even if the process that started it is killed. So a second `study run` of the same folder, here
or on another machine that sees the folder, takes the jobs that are not claimed. The output of a job
goes to WORKDIR/logs/<job>.log. A `run` does not retry a job that failed; the others go on.

On a GPU or TPU one process may train several seeds of a small net as one program, with the log of
the first seed. If the program fails, the seeds are trained one by one.
"""

import contextlib
import dataclasses
import fcntl
import itertools
import os
import pathlib
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent import futures
from typing import TextIO

from scalelab.config import cli
from scalelab.helpers.files import write_text
from scalelab.lab.load.study_runs import Study
from scalelab.runs import environment
from scalelab.studies import jobs
from scalelab.studies.jobs import DONE, READY, Job

POLL_SECS = 0.5
READ_SECS = 3.0  # reading all run folders every half second took a tenth of a core

Show = Callable[[Study, list[Job], list[str], dict[str, str]], None]


@dataclasses.dataclass
class Pool:
    """Runs jobs until no runnable job is left."""

    workdir: pathlib.Path  # holds studies/, runs/, locks/, logs/
    name: str  # of the study
    num_workers: int  # processes at a time
    refresh: Callable[[], None]  # called when a job has ended: later stages may have new runs
    show: Show  # called with (study, jobs, names of working jobs, failed)
    num_vmapped: int = 1  # largest number of pre-trainings of one net that a process trains
    refused: str | None = None  # ValueError of `refresh`: there are no new runs, the rest goes on
    failed: dict[str, str] = dataclasses.field(default_factory=dict)  # jobs -> the reason
    _unvmapped: set[str] = dataclasses.field(default_factory=set)  # failed as one program
    _stop: threading.Event = dataclasses.field(default_factory=threading.Event)

    def run(self) -> dict[str, str]:
        """Runs all jobs that can be run; returns the jobs that failed, with the reason.

        Raises:
          cli.Stopped: interrupted; the processes have saved where they were.
        """
        for folder in ("locks", "logs", "runs"):
            (self.workdir / folder).mkdir(parents=True, exist_ok=True)
        slots = itertools.count()  # a process has the cores of the thread that starts it
        with cli.Interrupt() as interrupt, futures.ThreadPoolExecutor(
            self.num_workers,
            initializer=lambda: environment.bind_to_cores(next(slots), self.num_workers),
        ) as threads:  # fmt: skip
            try:
                self._run_jobs(threads, interrupt)
            finally:
                self._stop.set()
        if interrupt.received is not None:
            raise cli.Interrupted(interrupt.received, f"what is done is saved in {self.workdir}")
        done = {job.name for job in jobs.read(self.workdir, self.name)[1] if job.state == DONE}
        return {name: reason for name, reason in self.failed.items() if name not in done}

    def command(self, claimed: Sequence[Job]) -> list[str]:
        """Returns the command line that does jobs."""
        return [
            sys.executable, "-m", "scalelab.studies.jobs", f"--workdir={self.workdir}",
            f"--study={self.name}", f"--kind={claimed[0].kind}",
            *(f"--run={job.run}" for job in claimed),
        ]  # fmt: skip

    def _run_jobs(self, threads: futures.Executor, interrupt: cli.Interrupt) -> None:
        working: dict[futures.Future[str | None], list[str]] = {}  # names of jobs
        while interrupt.received is None:
            study, found = jobs.read(self.workdir, self.name)
            for job in found:
                if job.damaged and job.state == READY:  # training would always fail on it
                    folder = self.workdir / "runs" / job.run
                    reason = f"damaged: {job.damaged}; move {folder} away, and it is made again"
                    self.failed[job.name] = reason
            ours = {*self.failed, *itertools.chain(*working.values())}
            left = [job for job in found if job.state != DONE and job.name not in ours]
            for job in left:
                free = job.state == READY and len(working) < self.num_workers
                if free and (claims := self._claim(study, job, left)):
                    names = [claimed.name for claimed in claims]
                    working[threads.submit(self._run_process, claims)] = names
            self.show(study, found, [*itertools.chain(*working.values())], self.failed)
            if working:
                for future in futures.wait(working, READ_SECS, futures.FIRST_COMPLETED).done:
                    self._note(working.pop(future), future.result())
            elif any(is_claimed(self.workdir, job) for job in left):
                self._stop.wait(POLL_SECS)  # more may follow what another process does
            else:
                return

    def _claim(self, study: Study, job: Job, left: list[Job]) -> dict[Job, TextIO]:
        """Claims a job and its companions, without those that others have claimed or finished."""
        wanted = [job]
        if job.name not in self._unvmapped:
            candidates = [other for other in left if other.name not in self._unvmapped]
            wanted += jobs.companions(study, job, candidates, self.num_vmapped)
        locks = self.workdir / "locks"
        claims = {job: lock for job in wanted if (lock := claim(locks / job.name))}
        now = {j.name: j.state for j in jobs.read(self.workdir, self.name)[1]} if claims else {}
        for job in [job for job in claims if now.get(job.name) != READY]:  # just finished elsewhere
            claims.pop(job).close()
        return claims

    def _run_process(self, claims: dict[Job, TextIO]) -> str | None:
        """Runs claimed jobs in a process; returns why it failed, None if it did not."""
        logs = [self.workdir / "logs" / f"{job.name}.log" for job in claims]
        for log in logs:
            log.with_suffix(".failed").unlink(missing_ok=True)
        with contextlib.ExitStack() as stack:
            locks = [stack.enter_context(lock) for lock in claims.values()]
            process = subprocess.Popen(
                self.command([*claims]),
                stdout=stack.enter_context(logs[0].open("ab")),
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                pass_fds=[lock.fileno() for lock in locks],
                env=os.environ | environment.memory_share(self.num_workers),
                start_new_session=True,  # so that Ctrl-C reaches it once, through us
            )
            while process.poll() is None:
                if self._stop.wait(POLL_SECS):
                    process.terminate()  # it saves where it is
                    process.wait()
        return describe_failure(process.returncode, logs[0]) if process.returncode else None

    def _note(self, names: list[str], reason: str | None) -> None:
        """Notes that a process has ended, and why it failed; then lists new runs."""
        if reason and len(names) > 1:
            self._unvmapped.update(names)
        elif reason:
            self.failed[names[0]] = reason
            write_text(self.workdir / "logs" / f"{names[0]}.failed", reason)
        self.refused = None
        try:
            self.refresh()
        except ValueError as error:
            self.refused = str(error)


def claim(path: pathlib.Path) -> TextIO | None:
    """Takes the lock on a file, made if absent; returns None if another process has it."""
    file = path.open("a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file


def is_claimed(workdir: pathlib.Path, job: Job) -> bool:
    """Returns whether a process works on a job."""
    path = workdir / "locks" / job.name
    lock = claim(path) if path.exists() else None
    if lock is not None:
        lock.close()
    return path.exists() and lock is None


def read_failures(workdir: pathlib.Path, found: Sequence[Job]) -> dict[str, str]:
    """Returns the jobs that failed when they were last tried, with the reason."""
    left = [job.name for job in found if job.state != DONE]
    notes = {name: workdir / "logs" / f"{name}.failed" for name in left}
    return {name: note.read_text() for name, note in notes.items() if note.exists()}


def describe_failure(code: int, log: pathlib.Path) -> str:
    """Returns the exit code of a failed job and its last message, in a line."""
    lines = log.read_text(errors="replace").strip().splitlines() or ["no output"]
    last = next((line for line in reversed(lines) if line.startswith("error: ")), lines[-1])
    how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    return f"{how}: {last.removeprefix('error: ')} (see {log})"
