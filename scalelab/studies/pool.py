"""Does the jobs of a study: several processes at a time, each on cores of its own.

A job is claimed by a lock on WORKDIR/locks/<job>, which its process inherits: it is held as long as
the process lives, even if whoever started it is killed. So a second `study run` of the same folder,
here or on another machine that sees it, joins in and does what nobody has claimed. What a job says
goes to WORKDIR/logs/<job>.log. A job that fails is not tried again by this `run`; the others go on.

Small nets that differ in their seed alone may be done by one process, as one program, whose log is
that of the first. Should it fail, they are tried one by one.
"""

import contextlib
import dataclasses
import fcntl
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

from scalelab.config import cli
from scalelab.runs import environment
from scalelab.studies import jobs
from scalelab.studies.jobs import DONE, FINETUNE, READY, Job

POLL_SECS = 0.5
GPU_SHARE = 0.9  # of a GPU's memory, for all processes of a pool together


@dataclasses.dataclass(eq=False)
class Working:
    """Jobs that a process of ours is doing.

    Attributes:
      jobs: which.
      process: doing them.
      slot: the place in the pool, which decides the cores.
      locks: the claims.
      log: what it says.
    """

    jobs: list[Job]
    process: subprocess.Popen[bytes]
    slot: int
    locks: list[TextIO]
    log: pathlib.Path

    def release(self) -> None:
        """Gives up the claims."""
        for lock in self.locks:
            lock.close()


class Pool:
    """Runs jobs until none is left that can be done.

    Args:
      workdir: holds studies/, runs/, locks/, logs/.
      name: the study's.
      num_workers: processes at a time.
      refresh: called when a job has ended, before the jobs are read again: later stages may have
        got runs. With a ValueError they get none; what there is goes on.
      num_together: pre-trainings of one net that a process does at a time.
      show: called now and then with (study, jobs, working, failed) for the table of progress.

    Attributes:
      refused: why later stages have got no runs when `refresh` was last called; None: they have.
    """

    def __init__(
        self,
        workdir: pathlib.Path,
        name: str,
        num_workers: int,
        refresh: Callable[[], None],
        show: Callable[..., None],
        num_together: int = 1,
    ) -> None:
        self.workdir, self.name, self.num_workers = workdir, name, num_workers
        self.num_together = num_together
        self.one_by_one: set[str] = set()  # jobs that failed together
        self.refresh, self.show = refresh, show
        self.refused: str | None = None
        self.working: list[Working] = []
        self.failed: dict[str, str] = {}
        for folder in ("locks", "logs", "runs"):
            (workdir / folder).mkdir(parents=True, exist_ok=True)

    def run(self) -> dict[str, str]:
        """Does everything that can be done.

        Returns:
          The jobs that failed, with what they said last.

        Raises:
          cli.Stopped: interrupted; the processes have saved where they were.
        """
        with cli.Interrupt() as interrupt:
            try:
                while interrupt.received is None:
                    study, found = jobs.read(self.workdir, self.name)
                    # Training would find it finished, or fail, for ever.
                    self.failed |= {j.name: damage(study, j) for j in found if j.damaged and
                                    j.state == READY}  # fmt: skip
                    left = [j for j in found if j.state != DONE and j.name not in self.failed]
                    self._start(study, left)
                    self.show(study, found, self.working, self.failed)
                    if not self.working and not self._somebody_works(left):
                        return self.failed
                    self._wait(interrupt)
            finally:
                self._stop()
        raise cli.Stopped(
            f"stopped by {interrupt.received}; what had been reached is saved in {self.workdir}:"
            " start the same command again to continue",
            cli.PREEMPTED if interrupt.received == "SIGTERM" else cli.FAILED,
        )

    def _start(self, study: Any, left: list[Job]) -> None:
        """Starts what is ready and nobody's yet, as far as there are free places."""
        for job in left:
            free = sorted(set(range(self.num_workers)) - {w.slot for w in self.working})
            if not free:
                return
            claimed = self._claimed([job, *self._companions(study, job, left)])
            if claimed:
                self.working.append(self._launch(claimed, free[0]))

    def _companions(self, study: Any, job: Job, left: list[Job]) -> list[Job]:
        """Jobs to be done by the process that does `job`."""
        if self.num_together == 1 or job.name in self.one_by_one:
            return []
        others = [j for j in left if j.name not in self.one_by_one]
        return jobs.companions(study, job, others, self.num_together)

    def _claimed(self, wanted: list[Job]) -> list[tuple[Job, TextIO]]:
        """Those of the jobs that are ready and nobody's yet, which are ours from now on."""
        busy = {job.name for w in self.working for job in w.jobs}
        claims = [
            (job, claim(self.workdir / "locks" / job.name))
            for job in wanted
            if job.state == READY and job.name not in busy
        ]
        ours = [(job, lock) for job, lock in claims if lock is not None]
        if not ours:
            return []
        now = {j.name: j for j in jobs.read(self.workdir, self.name)[1]}
        for job, lock in ours:
            if now[job.name].state != READY:  # somebody has just finished it
                lock.close()
        return [(job, lock) for job, lock in ours if not lock.closed]

    def _launch(self, claimed: list[tuple[Job, TextIO]], slot: int) -> Working:
        ours, locks = [job for job, _ in claimed], [lock for _, lock in claimed]
        log = self.workdir / "logs" / f"{ours[0].name}.log"
        for job in ours:
            _note(self.workdir, job).unlink(missing_ok=True)
        with log.open("ab") as output:
            process = subprocess.Popen(
                self.command(ours),
                env=os.environ | device_share(self.num_workers),
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                pass_fds=[lock.fileno() for lock in locks],
                start_new_session=True,  # so that Ctrl-C reaches it once, through us
            )
        for core_set in cores(slot, self.num_workers):
            with contextlib.suppress(OSError):
                os.sched_setaffinity(process.pid, core_set)
        return Working(ours, process, slot, locks, log)

    def command(self, ours: list[Job]) -> list[str]:
        """The command line that does jobs."""
        kind = "finetune" if ours[0].kind == FINETUNE else "pretrain"
        return [
            sys.executable, "-m", "scalelab.studies.job", f"--workdir={self.workdir}",
            f"--study={self.name}", *(f"--run={job.run}" for job in ours), f"--kind={kind}",
        ]  # fmt: skip

    def _wait(self, interrupt: Any) -> None:
        """Waits until a process ends, or for a while."""
        until = time.monotonic() + (10 * POLL_SECS if self.working else 20 * POLL_SECS)
        while time.monotonic() < until and interrupt.received is None:
            ended = [w for w in self.working if w.process.poll() is not None]
            for one in ended:
                self.working.remove(one)
                one.release()
                if one.process.returncode != 0 and len(one.jobs) > 1:
                    self.one_by_one |= {job.name for job in one.jobs}
                elif one.process.returncode != 0:
                    self.failed[one.jobs[0].name] = last_words(one)
                    _note(self.workdir, one.jobs[0]).write_text(last_words(one))
            if ended:
                self._refresh()
                return
            time.sleep(POLL_SECS)

    def _refresh(self) -> None:
        self.refused = None
        try:
            self.refresh()
        except ValueError as error:
            self.refused = str(error)

    def _somebody_works(self, left: list[Job]) -> bool:
        """Whether another process holds a job that is left, so that there may be more to do."""
        for job in left:
            path = self.workdir / "locks" / job.name
            if path.exists():
                lock = claim(path)
                if lock is None:
                    return True
                lock.close()
        return False

    def _stop(self) -> None:
        """Interrupts what still works and waits until it has saved where it is."""
        for one in self.working:
            with contextlib.suppress(ProcessLookupError):
                one.process.send_signal(signal.SIGTERM)
        for one in self.working:
            one.process.wait()
            one.release()
        self.working.clear()


def failures(workdir: pathlib.Path, found: list[Job]) -> dict[str, str]:
    """The jobs that failed when they were last tried, with what they said last."""
    notes = {job.name: _note(workdir, job) for job in found if job.state != DONE}
    return {name: note.read_text() for name, note in notes.items() if note.exists()}


def _note(workdir: pathlib.Path, job: Job) -> pathlib.Path:
    """Where it is kept that a job failed."""
    return workdir / "logs" / f"{job.name}.failed"


def claim(path: pathlib.Path) -> TextIO | None:
    """Takes the lock on a file, made if absent; None if somebody has it."""
    file = path.open("a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file


def damage(study: Any, job: Job) -> str:
    """What is wrong with a job's folder, and what helps."""
    folder = study.workdir / "runs" / job.run
    return f"damaged: {job.damaged}; move {folder} away, and it is made again"


def last_words(one: Working) -> str:
    """What a failed job said at the end, in a line."""
    lines = one.log.read_text(errors="replace").strip().splitlines() or ["it said nothing"]
    said = next((x for x in reversed(lines) if x.startswith("error: ")), lines[-1])
    code = one.process.returncode
    how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    return f"{how}: {said.removeprefix('error: ')} (see {one.log})"


def device_share(num_workers: int) -> dict[str, str]:
    """Environment variables by which processes that share a GPU share its memory.

    JAX takes three quarters of it at the start, so that a second process finds none. Whoever has
    set a share has it.
    """
    name = "XLA_PYTHON_CLIENT_MEM_FRACTION"
    if num_workers == 1 or name in os.environ or not environment.has_accelerator():
        return {}
    return {name: f"{GPU_SHARE / num_workers:.3f}"}


def cores(slot: int, num_workers: int) -> list[set[int]]:
    """The cores of a place in the pool, where the system can bind to cores: an even part of all.

    XLA has a thread for each core that it may use; processes that share cores would wait for each
    other within every operation.
    """
    mine = environment.cores()
    if not hasattr(os, "sched_setaffinity"):
        return []
    if num_workers == 1 or num_workers > len(mine):
        return []
    return [set(mine[slot::num_workers])]
