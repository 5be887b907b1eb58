"""Does the jobs of a study: several processes at a time, each on cores of its own.

A lock on WORKDIR/locks/<job> claims a job. The job's process inherits the lock and holds it as long
as it lives, even if whoever started it is killed. So a second `study run` of the same folder, here
or on another machine that sees it, joins in and does what is not claimed. The output of a job goes
to WORKDIR/logs/<job>.log. A job that fails is not tried again by this `run`; the others go on.

On a GPU or TPU one process may train several seeds of a small net as one program, whose log is that
of the first. If it fails, they are tried one by one.
"""

import concurrent.futures
import contextlib
import fcntl
import os
import pathlib
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from typing import TextIO

from scalelab.config import cli
from scalelab.lab.load.study_runs import Study
from scalelab.runs import environment
from scalelab.studies import jobs
from scalelab.studies.jobs import DONE, FINETUNE, READY, Job

POLL_SECS = 1.0
IDLE_SECS = 5.0  # between two looks for work while others do what is left
GPU_SHARE = 0.9  # of a GPU's memory, for all processes of a pool

Claim = tuple[Job, TextIO]
Show = Callable[[Study, list[Job], list[str], dict[str, str]], None]


class Pool:
    """Runs jobs until none is left that can be done.

    Args:
      workdir: holds studies/, runs/, locks/, logs/.
      name: the study's.
      num_workers: processes at a time.
      refresh: called when a job has ended, because later stages may have got runs. If it raises
        ValueError, they get none and the rest goes on.
      show: called with (study, jobs, names of working jobs, failed) to show progress.
      num_vmapped: pre-trainings of one net that a process does at a time.

    Attributes:
      refused: why later stages got no runs when `refresh` was last called, or None.
      failed: jobs that failed -> the reason.
    """

    def __init__(
        self,
        workdir: pathlib.Path,
        name: str,
        num_workers: int,
        refresh: Callable[[], None],
        show: Show,
        num_vmapped: int = 1,
    ) -> None:
        self.workdir, self.name, self.num_workers = workdir, name, num_workers
        self.num_vmapped, self.refresh, self.show = num_vmapped, refresh, show
        self.refused: str | None = None
        self.failed: dict[str, str] = {}
        self._one_by_one: set[str] = set()  # jobs that failed as one program
        self._working: dict[int, tuple[list[Job], subprocess.Popen[bytes] | None]] = {}
        self._lock, self._stopping = threading.Lock(), threading.Event()
        for folder in ("locks", "logs", "runs"):
            (workdir / folder).mkdir(parents=True, exist_ok=True)

    def run(self) -> dict[str, str]:
        """Does everything that can be done.

        Returns:
          The jobs that failed and are not done by now, with the reason.

        Raises:
          cli.Stopped: interrupted; the processes have saved where they were.
        """
        with cli.Interrupt() as interrupt, concurrent.futures.ThreadPoolExecutor(
            self.num_workers
        ) as executor:  # fmt: skip
            slots = [executor.submit(self._work, slot) for slot in range(self.num_workers)]
            try:
                while interrupt.received is None:
                    _, busy = concurrent.futures.wait(slots, timeout=POLL_SECS)
                    with self._lock:
                        study, found = jobs.read(self.workdir, self.name)
                        self.show(study, found, self._working_names(), self.failed)
                    if not busy:
                        break
            finally:
                self._stop()
        for slot in slots:
            slot.result()
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
        kind = "finetune" if claimed[0].kind == FINETUNE else "pretrain"
        return [
            sys.executable, "-m", "scalelab.studies.job", f"--workdir={self.workdir}",
            f"--study={self.name}", *(f"--run={job.run}" for job in claimed), f"--kind={kind}",
        ]  # fmt: skip

    def _work(self, slot: int) -> None:
        """Does one job after another on the cores of a slot, until nothing is left to do."""
        while not self._stopping.is_set():
            with self._lock:
                claimed, left = self._claim_next()
                if claimed:
                    self._working[slot] = ([job for job, _ in claimed], None)
                elif not self._working and not self._is_any_claimed(left):
                    return
            if not claimed:
                self._stopping.wait(POLL_SECS if self._working else IDLE_SECS)
                continue
            self._do(claimed, slot)

    def _claim_next(self) -> tuple[list[Claim], list[Job]]:
        """Claims the next job that is ready, and those that one program does with it.

        Returns:
          The claims, and the jobs that are left.
        """
        study, found = jobs.read(self.workdir, self.name)
        for job in found:
            if job.damaged and job.state == READY:  # training would fail on it for ever
                folder = study.workdir / "runs" / job.run
                reason = f"damaged: {job.damaged}; move {folder} away, and it is made again"
                self.failed[job.name] = reason
        left = [job for job in found if job.state != DONE and job.name not in self.failed]
        busy = self._working_names()
        for job in left:
            if job.state == READY and job.name not in busy:
                claimed = self._claim([job, *self._companions(study, job, left)], busy)
                if claimed:
                    return claimed, left
        return [], left

    def _companions(self, study: Study, job: Job, left: Sequence[Job]) -> list[Job]:
        """Lists the jobs that the process of `job` does too."""
        if self.num_vmapped == 1 or job.name in self._one_by_one:
            return []
        others = [other for other in left if other.name not in self._one_by_one]
        return jobs.companions(study, job, others, self.num_vmapped)

    def _claim(self, wanted: Sequence[Job], busy: Sequence[str]) -> list[Claim]:
        """Claims those of the jobs that nobody has claimed or finished."""
        claims = [
            (job, lock)
            for job in wanted
            if job.name not in busy and (lock := claim(self.workdir / "locks" / job.name))
        ]
        if claims:
            now = {job.name: job.state for job in jobs.read(self.workdir, self.name)[1]}
            for job, lock in claims:
                if now.get(job.name) != READY:  # another process has just finished it
                    lock.close()
        return [(job, lock) for job, lock in claims if not lock.closed]

    def _do(self, claimed: Sequence[Claim], slot: int) -> None:
        """Runs the process of claimed jobs to its end, and notes whether it failed."""
        ours, log = [job for job, _ in claimed], self.workdir / "logs" / f"{claimed[0][0].name}.log"
        for job in ours:
            _failure_note(self.workdir, job).unlink(missing_ok=True)
        with log.open("ab") as output:
            process = subprocess.Popen(
                self.command(ours),
                env=os.environ | memory_share(self.num_workers),
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                pass_fds=[lock.fileno() for _, lock in claimed],
                start_new_session=True,  # so that Ctrl-C reaches it once, through us
            )
        with self._lock:
            self._working[slot] = (ours, process)
            if self._stopping.is_set():
                _terminate(process)
        for core_set in split_cores(slot, self.num_workers):
            with contextlib.suppress(OSError):
                os.sched_setaffinity(process.pid, core_set)
        process.wait()
        with self._lock:
            del self._working[slot]
            for _, lock in claimed:
                lock.close()
            if process.returncode and not self._stopping.is_set():
                if len(ours) > 1:
                    self._one_by_one |= {job.name for job in ours}
                else:
                    reason = describe_failure(process.returncode, log)
                    self.failed[ours[0].name] = reason
                    _failure_note(self.workdir, ours[0]).write_text(reason)
            if self._stopping.is_set():
                return
            self.refused = None
            try:
                self.refresh()
            except ValueError as error:
                self.refused = str(error)

    def _is_any_claimed(self, left: Sequence[Job]) -> bool:
        """Returns whether another process works on a job that is left, so more may follow."""
        return any(is_claimed(self.workdir, job) for job in left)

    def _working_names(self) -> list[str]:
        return [job.name for ours, _ in self._working.values() for job in ours]

    def _stop(self) -> None:
        """Interrupts what still works; each process saves where it is."""
        with self._lock:
            self._stopping.set()
            for _, process in self._working.values():
                if process is not None:
                    _terminate(process)


def _terminate(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)


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
    notes = {job.name: _failure_note(workdir, job) for job in found if job.state != DONE}
    return {name: note.read_text() for name, note in notes.items() if note.exists()}


def _failure_note(workdir: pathlib.Path, job: Job) -> pathlib.Path:
    return workdir / "logs" / f"{job.name}.failed"


def describe_failure(code: int, log: pathlib.Path) -> str:
    """Returns the exit code of a failed job and its last message, in a line."""
    lines = log.read_text(errors="replace").strip().splitlines() or ["no output"]
    last = next((line for line in reversed(lines) if line.startswith("error: ")), lines[-1])
    how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    return f"{how}: {last.removeprefix('error: ')} (see {log})"


def memory_share(num_workers: int) -> dict[str, str]:
    """Returns environment variables by which processes that share a GPU share its memory.

    JAX takes three quarters of it at the start, so a second process would find none. A share that
    the user has set stays.
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
    mine = environment.cores()
    if not hasattr(os, "sched_setaffinity") or num_workers == 1 or num_workers > len(mine):
        return []
    return [set(mine[slot::num_workers])]
