"""Runs the jobs of a study: several processes at a time, each on its own cores.

A lock on WORKDIR/locks/<job> claims a job. The job's process inherits the lock and keeps it to its
end, even if the process that started it is killed. So a second `study run` of the same folder, here
or on another machine that sees the folder, takes the jobs that are not claimed. The output of a job
goes to WORKDIR/logs/<job>.log. A `run` does not retry a job that failed; the others go on.

On a GPU or TPU one process may train several seeds of a small net as one program, with the log of
the first seed. If the program fails, the seeds are trained one by one.
"""

import contextlib
import fcntl
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, TextIO

from scalelab.config import cli
from scalelab.helpers.files import write_text
from scalelab.lab.load.study_runs import Study
from scalelab.runs import environment
from scalelab.studies import jobs
from scalelab.studies.jobs import DONE, READY, Job

POLL_SECS = 0.5
GPU_SHARE = 0.9  # of a GPU's memory, for all processes of a pool

Show = Callable[[Study, list[Job], list[str], dict[str, str]], None]


class Working(NamedTuple):
    """A process, its jobs with their locks, and its log."""

    process: subprocess.Popen[bytes]
    claims: list[tuple[Job, TextIO]]
    log: pathlib.Path

    @property
    def names(self) -> list[str]:
        """The names of the jobs."""
        return [job.name for job, _ in self.claims]


class Pool:
    """Runs jobs until no runnable job is left.

    Args:
      workdir: holds studies/, runs/, locks/, logs/.
      name: the study's.
      num_workers: processes at a time.
      refresh: called when a job has ended, because later stages may have new runs. `refused` keeps
        its ValueError; then there are no new runs, and the rest goes on.
      show: called with (study, jobs, names of working jobs, failed) to show progress.
      num_vmapped: largest number of pre-trainings of one net that a process trains together.
    """

    def __init__(
        self, workdir: pathlib.Path, name: str, num_workers: int, refresh: Callable[[], None],
        show: Show, num_vmapped: int = 1,
    ) -> None:  # fmt: skip
        self.workdir, self.name, self.num_workers = workdir, name, num_workers
        self.num_vmapped, self.refresh, self.show = num_vmapped, refresh, show
        self.refused: str | None = None
        self.failed: dict[str, str] = {}  # jobs -> the reason
        self._unvmapped: set[str] = set()  # jobs that failed as one program
        self._working: dict[int, Working] = {}  # by slot
        for folder in ("locks", "logs", "runs"):
            (workdir / folder).mkdir(parents=True, exist_ok=True)

    def run(self) -> dict[str, str]:
        """Runs all jobs that can be run; returns the jobs that failed, with the reason.

        Raises:
          cli.Stopped: interrupted; the processes have saved where they were.
        """
        with cli.Interrupt() as interrupt:
            try:
                while interrupt.received is None:
                    self._collect()
                    study, found = jobs.read(self.workdir, self.name)
                    left = self._start_jobs(study, found)
                    names = [name for working in self._working.values() for name in working.names]
                    self.show(study, found, names, self.failed)
                    # Another process may work on a job that is left, so more may follow.
                    if not names and not any(is_claimed(self.workdir, job) for job in left):
                        break
                    time.sleep(POLL_SECS)
            finally:
                for working in self._working.values():  # each process saves where it is
                    working.process.send_signal(signal.SIGTERM)
                for working in self._working.values():
                    working.process.wait()
                    for _, lock in working.claims:
                        lock.close()
        if interrupt.received is not None:
            raise cli.Stopped(
                f"stopped by {interrupt.received}; progress is saved in {self.workdir}: start the"
                " same command again to continue",
                cli.PREEMPTED if interrupt.received == "SIGTERM" else cli.FAILED,
            )
        done = {job.name for job in jobs.read(self.workdir, self.name)[1] if job.state == DONE}
        return {name: reason for name, reason in self.failed.items() if name not in done}

    def command(self, claimed: Sequence[Job]) -> list[str]:
        """Returns the command line that does jobs."""
        return [
            sys.executable, "-m", "scalelab.studies.jobs", f"--workdir={self.workdir}",
            f"--study={self.name}", f"--kind={claimed[0].kind}",
            *(f"--run={job.run}" for job in claimed),
        ]  # fmt: skip

    def _collect(self) -> None:
        """Notes which processes have ended and failed, and frees their slots."""
        ended = {slot: w for slot, w in self._working.items() if w.process.poll() is not None}
        for slot, working in ended.items():
            del self._working[slot]
            for _, lock in working.claims:
                lock.close()
            if working.process.returncode and len(working.claims) > 1:
                self._unvmapped.update(working.names)
            elif working.process.returncode:
                (name,) = working.names
                self.failed[name] = describe_failure(working.process.returncode, working.log)
                write_text(self.workdir / "logs" / f"{name}.failed", self.failed[name])
        if ended:
            self.refused = None
            try:
                self.refresh()
            except ValueError as error:
                self.refused = str(error)

    def _start_jobs(self, study: Study, found: list[Job]) -> list[Job]:
        """Starts jobs that are ready on the free slots; returns the jobs that are left."""
        for job in found:
            if job.damaged and job.state == READY:  # training would always fail on it
                folder = self.workdir / "runs" / job.run
                reason = f"damaged: {job.damaged}; move {folder} away, and it is made again"
                self.failed[job.name] = reason
        left = [job for job in found if job.state != DONE and job.name not in self.failed]
        for job in left:
            if job.state == READY and len(self._working) < self.num_workers:
                wanted = [job]
                if job.name not in self._unvmapped:
                    candidates = [other for other in left if other.name not in self._unvmapped]
                    wanted += jobs.companions(study, job, candidates, self.num_vmapped)
                if claims := self._claim(wanted):
                    self._start(claims)
        return left

    def _claim(self, wanted: Sequence[Job]) -> list[tuple[Job, TextIO]]:
        """Claims the jobs that are neither claimed nor finished."""
        claims = [
            (job, lock) for job in wanted if (lock := claim(self.workdir / "locks" / job.name))
        ]
        if claims:
            now = {job.name: job.state for job in jobs.read(self.workdir, self.name)[1]}
            for job, lock in claims:
                if now.get(job.name) != READY:  # another process has just finished it
                    lock.close()
        return [(job, lock) for job, lock in claims if not lock.closed]

    def _start(self, claims: list[tuple[Job, TextIO]]) -> None:
        """Starts a process for claimed jobs on the cores of a free slot."""
        slot = next(k for k in range(self.num_workers) if k not in self._working)
        log = self.workdir / "logs" / f"{claims[0][0].name}.log"
        for job, _ in claims:
            (self.workdir / "logs" / f"{job.name}.failed").unlink(missing_ok=True)
        with log.open("ab") as output:
            process = subprocess.Popen(
                self.command([job for job, _ in claims]),
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                pass_fds=[lock.fileno() for _, lock in claims],
                env=os.environ | memory_share(self.num_workers),
                start_new_session=True,  # so that Ctrl-C reaches it once, through us
            )
        for core_set in split_cores(slot, self.num_workers):
            with contextlib.suppress(OSError):
                os.sched_setaffinity(process.pid, core_set)
        self._working[slot] = Working(process, claims, log)


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
    notes = {
        job.name: workdir / "logs" / f"{job.name}.failed" for job in found if job.state != DONE
    }
    return {name: note.read_text() for name, note in notes.items() if note.exists()}


def describe_failure(code: int, log: pathlib.Path) -> str:
    """Returns the exit code of a failed job and its last message, in a line."""
    lines = log.read_text(errors="replace").strip().splitlines() or ["no output"]
    last = next((line for line in reversed(lines) if line.startswith("error: ")), lines[-1])
    how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    return f"{how}: {last.removeprefix('error: ')} (see {log})"


def memory_share(num_workers: int) -> dict[str, str]:
    """Returns the environment that divides a GPU's memory, unless the user has set it.

    JAX takes three quarters of the memory at its start, so a second process would find too little.
    """
    name = "XLA_PYTHON_CLIENT_MEM_FRACTION"
    if num_workers == 1 or name in os.environ or not environment.has_accelerator():
        return {}
    return {name: f"{GPU_SHARE / num_workers:.3f}"}


def split_cores(slot: int, num_workers: int) -> list[set[int]]:
    """Returns the cores of a slot: an even part of all, or nothing if there is nothing to split.

    XLA has a thread for each core that it may use; processes that share cores would wait for each
    other within every operation.
    """
    cores = environment.cores()
    if not hasattr(os, "sched_setaffinity") or num_workers == 1 or num_workers > len(cores):
        return []
    return [set(cores[slot::num_workers])]
