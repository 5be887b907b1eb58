"""Studies: a comparison stated in one file, planned, run, and reported.

  python -m scalelab.study plan   --config=configs/studies/X.py --workdir=DIR
  python -m scalelab.study run    --config=configs/studies/X.py --workdir=DIR [--workers=2]
  python -m scalelab.study status --workdir=DIR [--study=NAME]
  python -m scalelab.study report --workdir=DIR [--study=NAME] [--to=DIR]
  python -m scalelab.study pack   --workdir=DIR --to=DIR

plan    every run with its size, FLOPs, expected seconds and memory on this machine; starts nothing
run     what is not finished yet; interrupt it and start it again as you like, also several at once
status  how far it is
report  tables, figures and report.html of what is finished
pack    copies of the finished runs without checkpoints and texts, small enough to be committed
"""

import pathlib
import shlex
import signal
import subprocess
import sys
import time

from absl import flags

from scalelab.config import cli
from scalelab.resources import malloc
from scalelab.runs import environment
from scalelab.studies.spec import StudySpec

flags.declare_key_flag("config")
flags.declare_key_flag("workdir")
WORKERS = flags.DEFINE_integer(
    "workers", None, "Processes at a time; by default one a core, at most 4, or 1 on a GPU or TPU.",
    lower_bound=1,
)  # fmt: skip
STUDY = flags.DEFINE_string("study", None, "Name of the study, where --workdir holds several.")
TO = flags.DEFINE_string("to", None, "Where the report, or the packed runs, go.")
ALLOW = flags.DEFINE_list(
    "allow", [], "Config fields in which runs may differ beyond the study's; the report says so."
    " Also data, numerics, matched; of fine-tunings finetune.data, finetune.epochs, ...",
)  # fmt: skip
COMMANDS = ("plan", "run", "status", "report", "pack")


def plan(workdir: pathlib.Path) -> None:
    """Prints what every run will take, and keeps it."""
    from scalelab.studies import planning

    spec = read_spec()
    malloc.keep()  # as the runs do
    workers = num_workers()  # before `bind` leaves this process the cores of one
    planning.bind(workers)
    print(planning.make(spec, workdir, command(), workers))


def run(workdir: pathlib.Path) -> None:
    """Does what is left of the study."""
    from scalelab.lab.load import study_runs
    from scalelab.studies import derive, ending, expand, jobs, pool, status

    spec = read_spec()
    _plan_first(spec, workdir)

    def refresh() -> None:
        expand.write(spec, expand.runs(spec, workdir), workdir, command())

    refused = None
    try:
        refresh()
    except derive.Damaged as error:
        if not (workdir / "studies" / f"{spec.name}.json").exists():
            raise
        refused = str(error)  # what the study's file has goes on
    screen = status.Screen(sys.stderr, num_workers(), study_runs.read_plan(workdir, spec.name))
    workers = pool.Pool(workdir, spec.name, num_workers(), refresh, screen, num_together())
    workers.refused = refused
    failed = workers.run()
    print(ending.text(*jobs.read(workdir, spec.name), failed))
    print(f"  python -m scalelab.study report --workdir={workdir} --study={spec.name}")
    if workers.refused:
        raise cli.Stopped(f"later stages have not begun: {workers.refused}")
    if failed:
        raise cli.Stopped(f"{len(failed)} of the study's jobs failed, see above")


def _plan_first(spec: StudySpec, workdir: pathlib.Path) -> None:
    """Plans what is not planned yet, in a process of its own, which leaves the cores to the runs.

    It also refuses, before anything is written, what cannot run.
    """
    from scalelab.lab.load import study_runs
    from scalelab.studies import expand

    known = study_runs.read_plan(workdir, spec.name)
    wanted = expand.runs(spec, workdir, foreseen=True)
    if all(study_runs.planned(known, r.name, r.stage, r.shape.n_model) for r in wanted):
        return
    arguments = [a for a in sys.argv[1:] if not a.lstrip("-").startswith(("to", "study"))]
    command = [sys.executable, "-m", "scalelab.study", "plan", *arguments]
    with cli.Interrupt() as interrupt:
        # In a session of its own, so that Ctrl-C reaches it once, through us, and is told once.
        process = subprocess.Popen(command, start_new_session=True)
        while process.poll() is None and interrupt.received is None:
            time.sleep(0.1)
        if interrupt.received is not None:
            process.send_signal(getattr(signal, interrupt.received))
        if process.wait():
            sys.exit(process.returncode)  # it has said why
    if interrupt.received is not None:
        raise cli.Stopped("interrupted; start the same command again to continue")


def status(workdir: pathlib.Path) -> None:
    """Prints how far the study is."""
    from scalelab.lab import tables
    from scalelab.lab.load import study_runs
    from scalelab.studies import ending, jobs
    from scalelab.studies import status as status_lib
    from scalelab.studies.pool import claim, failures

    study, found = jobs.read(workdir, study_name(workdir))
    working = []
    for job in found:
        path = workdir / "locks" / job.name
        lock = claim(path) if path.exists() else None
        if lock is not None:
            lock.close()
        elif path.exists():
            working.append(job.name)
    made = study_runs.read_plan(workdir, study.name)
    failed = {k: v for k, v in failures(workdir, found).items() if k not in working}
    print(tables.plain(status_lib.HEADER, status_lib.rows(study, found, working, failed, made)))
    remaining = status_lib.left(study, found, made)
    print(status_lib.summary(study, found, working, failed, remaining, max(1, len(working))))
    if failed and not working:
        print(ending.text(study, found, failed))


def report(workdir: pathlib.Path) -> None:
    """Writes the report and says where it is."""
    from scalelab.lab.show import report as report_lib

    folder = pathlib.Path(TO.value) if TO.value else None
    print(report_lib.make(workdir, study_name(workdir), folder, ALLOW.value))


def pack(workdir: pathlib.Path) -> None:
    """Copies what a report needs."""
    from scalelab.studies import packing

    name = study_name(workdir)
    print(packing.pack(workdir, name, pathlib.Path(cli.required(TO.value, "to"))))


def read_spec() -> StudySpec:
    """The study that --config names.

    Raises:
      ValueError: it is missing or cannot be resolved.
    """
    from scalelab.studies import spec

    return spec.resolve(cli.config_values())


def study_name(workdir: pathlib.Path) -> str | None:
    """The study's name: --study, or that of --config, or None: the only one."""
    if STUDY.value or cli.CONFIG.value is None:
        return STUDY.value
    return cli.config_values()["name"]


def num_workers() -> int:
    """How many processes work at a time."""
    if WORKERS.value is not None:
        return WORKERS.value
    return 1 if environment.has_accelerator() else min(4, len(environment.cores()))


def num_together() -> int:
    """How many pre-trainings of one small net a process does at a time, as one program.

    A GPU or TPU waits for such nets most of the time. Cores do not, but for toys, and they have a
    process each (`benchmarks.population --threads=1` measures it).
    """
    from scalelab.studies import jobs

    return jobs.TOGETHER if environment.has_accelerator() else 1


def command() -> str:
    """The command line, to be told in the report."""
    return shlex.join(["python", "-m", "scalelab.study", "run", *sys.argv[1:]])


def main(argv: list[str]) -> None:
    """Does what the first argument says."""
    del argv
    workdir = cli.workdir()
    {"plan": plan, "run": run, "status": status, "report": report, "pack": pack}[_COMMAND[0]](
        workdir
    )


_COMMAND: list[str] = []


def _take_command(arguments: list[str]) -> str:
    """Takes the command out of the program's arguments, before the flags are read.

    Raises:
      ValueError: there is none, or no such.
    """
    from scalelab.helpers.names import nearest

    given = next((a for a in arguments[1:] if not a.startswith("-")), None)
    if given is None:
        return "plan" if any(a.lstrip("-").startswith("help") for a in arguments) else cli.fail(
            f"expected a command: {', '.join(COMMANDS)}; --help says what they do"
        )  # fmt: skip
    if given not in COMMANDS:
        cli.fail(f"unknown command {given!r}: {nearest(given, COMMANDS)}")
    arguments.remove(given)
    return given


if __name__ == "__main__":
    _COMMAND.append(_take_command(sys.argv))
    cli.run(main, StudySpec)
