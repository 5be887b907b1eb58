"""Runs the jobs of a study: several processes at a time, each on its own cores.

A lock on WORKDIR/locks/<job> claims a job. The job's process inherits the lock and keeps it to its
end, even if the process that started it is killed. So a second `study run` of the same folder, here
or on another machine that sees the folder, takes the jobs that are not claimed. The output of a job
goes to WORKDIR/logs/<job>.log. A `run` does not retry a job that failed; the others go on.
"""

import dataclasses
import fcntl
import itertools
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from typing import TextIO

from scalelab.config import exits
from scalelab.helpers.files import write_text
from scalelab.records import run_folder
from scalelab.resources import host
from scalelab.studies import expand, jobs, mps
from scalelab.studies.jobs import DONE, READY, Job
from scalelab.studies.progress import Status
from scalelab.studies.spec import StudySpec

MAX_WORKERS = 4  # by default on a CPU
# By default on one GPU, if no model of the study has a larger n_model: it leaves most of a GPU
# idle.
MAX_WORKERS_ON_GPU, SMALL = 8, 500_000
POLL_SECS = 0.5
READ_SECS = 3.0  # between two readings of all run folders, at least
READ_SHARE = 0.05  # largest share of a core's time: reading 165 runs takes most of a second


@dataclasses.dataclass
class Pool:
    """Runs jobs until no runnable job is left."""

    workdir: pathlib.Path  # holds studies/, runs/, locks/, logs/
    name: str  # name of the study
    num_workers: int  # processes at a time
    show: Callable[[Status], None]
    failed: dict[str, str] = dataclasses.field(default_factory=dict)  # jobs -> the reason
    _stop: threading.Event = dataclasses.field(default_factory=threading.Event)

    def run(self) -> dict[str, str]:
        """Runs all jobs that can be run; returns the jobs that failed, with the reason.

        Raises:
          exits.Stopped: interrupted; the processes have saved where they were.
        """
        for folder in ("locks", "logs", "runs"):
            (self.workdir / folder).mkdir(parents=True, exist_ok=True)
        slots = itertools.count()  # a process has the cores of the thread that starts it
        with (
            exits.Interrupt() as interrupt,
            mps.shared_gpu(self.num_workers) as variables,
            futures.ThreadPoolExecutor(
                self.num_workers,
                initializer=lambda: host.bind_to_cores(next(slots), self.num_workers),
            ) as threads,
        ):
            try:
                self._run_jobs(threads, interrupt, variables)
            finally:
                self._stop.set()
        if interrupt.received is not None:
            raise exits.Interrupted(interrupt.received, f"what is done is saved in {self.workdir}")
        done = {job.name for job in jobs.read(self.workdir, self.name)[1] if job.state == DONE}
        return {name: reason for name, reason in self.failed.items() if name not in done}

    def command(self, job: Job) -> list[str]:
        """Returns the command line that does a job."""
        return [
            sys.executable, "-m", "scalelab.studies.jobs", f"--workdir={self.workdir}",
            f"--study={self.name}", f"--kind={job.kind}", f"--run={job.run}",
        ]  # fmt: skip

    def _run_jobs(
        self, threads: futures.Executor, interrupt: exits.Interrupt, variables: Mapping[str, str]
    ) -> None:
        working: dict[futures.Future[str | None], str] = {}  # names of jobs
        while interrupt.received is None:
            started = time.process_time()
            study, found = jobs.read(self.workdir, self.name)
            for job in found:
                if job.damaged and job.state == READY:  # training would always fail on it
                    folder = self.workdir / "runs" / job.run
                    reason = f"damaged: {job.damaged}; move {folder} away, and it is made again"
                    self.failed[job.name] = reason
            ours = {*self.failed, *working.values()}
            left = [job for job in found if job.state != DONE and job.name not in ours]
            for job in left:
                free = job.state == READY and len(working) < self.num_workers
                if free and (lock := self._claim(job)):
                    working[threads.submit(self._run_process, job, lock, variables)] = job.name
            self.show(Status(study, found, [*working.values()], self.failed))
            if working:
                pause = max(READ_SECS, (time.process_time() - started) / READ_SHARE)
                for future in futures.wait(working, pause, futures.FIRST_COMPLETED).done:
                    name, reason = working.pop(future), future.result()
                    if reason:
                        self.failed[name] = reason
                        write_text(self.workdir / "logs" / f"{name}.failed", reason)
            elif any(run_folder.is_locked(self.workdir / "locks" / job.name) for job in left):
                self._stop.wait(POLL_SECS)  # more may follow what another process does
            else:
                return

    def _claim(self, job: Job) -> TextIO | None:
        """Claims a job; returns None if another process has claimed or finished it."""
        lock = claim(self.workdir / "locks" / job.name)
        if lock is None:
            return None
        now = {j.name: j.state for j in jobs.read(self.workdir, self.name)[1]}
        if now.get(job.name) == READY:
            return lock
        lock.close()  # just finished elsewhere
        return None

    def _run_process(self, job: Job, lock: TextIO, variables: Mapping[str, str]) -> str | None:
        """Runs a claimed job in a process; returns why it failed, None if it did not."""
        path = self.workdir / "logs" / f"{job.name}.log"
        path.with_suffix(".failed").unlink(missing_ok=True)
        with lock, path.open("ab") as log:
            process = subprocess.Popen(
                self.command(job),
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                pass_fds=[lock.fileno()],
                env={**os.environ, **host.memory_share(self.num_workers), **variables},
                start_new_session=True,  # so that Ctrl-C reaches it once, through us
            )
            while process.poll() is None:
                if self._stop.wait(POLL_SECS):
                    process.terminate()  # it saves where it is
                    process.wait()
        return describe_failure(process.returncode, path) if process.returncode else None


def default_workers(spec: StudySpec) -> int:
    """Returns how many processes work at a time unless the user says so.

    On one GPU there are several if all models are small and no budget is in seconds, which
    processes that share a GPU take from each other.
    """
    cores = len(host.cores())
    if not host.has_accelerator():
        return min(MAX_WORKERS, cores)
    if host.num_gpus() != 1:
        return 1
    runs = expand.expand_runs(spec)
    if any(r.config.optim.total_secs or (r.n_model or 0) > SMALL for r in runs):
        return 1
    return max(1, min(MAX_WORKERS_ON_GPU, cores // 2, len(runs)))


def claim(path: pathlib.Path) -> TextIO | None:
    """Takes the lock on a file, made if absent; returns None if another process has it."""
    file = path.open("a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file


def read_failures(workdir: pathlib.Path, found: Sequence[Job]) -> dict[str, str]:
    """Returns the jobs that failed when they were last tried, with the reason."""
    left = [job.name for job in found if job.state != DONE]
    notes = {name: workdir / "logs" / f"{name}.failed" for name in left}
    return {name: note.read_text() for name, note in notes.items() if note.exists()}


def describe_failure(code: int, log: pathlib.Path) -> str:
    """Returns the exit code or signal of a failed job and its last message, in a line."""
    lines = log.read_text(errors="replace").strip().splitlines() or ["no output"]
    last = next((line for line in reversed(lines) if line.startswith("error: ")), lines[-1])
    how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    return f"{how}: {last.removeprefix('error: ')} (see {log})"
