"""Studies: a comparison stated in one file, planned, run, and reported.

  python -m scalelab.study plan   --config=configs/studies/X.py --workdir=DIR
  python -m scalelab.study run    --config=configs/studies/X.py --workdir=DIR [--workers=2]
  python -m scalelab.study status --workdir=DIR [--study=NAME]
  python -m scalelab.study report --workdir=DIR [--study=NAME] [--to=DIR]
  python -m scalelab.study pack   --workdir=DIR --to=DIR
  python -m scalelab.study list   [--workdir=DIR]

plan    times steps here and adds up what every run will take; starts nothing
run     does what is not finished yet; interrupt it and start it again, also several at once
status  shows how far each run is
report  writes tables, figures and report.html of what is finished
pack    keeps the finished runs without checkpoints and texts, small enough to be committed
list    lists the studies of a folder; without one, the names that a study's config may use
"""

import pathlib
import re
import sys
import textwrap

from absl import flags

from scalelab.config import cli
from scalelab.resources import malloc
from scalelab.runs import environment
from scalelab.studies.spec import StudySpec

flags.declare_key_flag("config")
flags.declare_key_flag("workdir")
flags.FLAGS["workdir"].help = "Folder of studies and their runs: run makes it, and continues in it."
WORKERS = flags.DEFINE_integer(
    "workers", None, "Processes at a time; by default one a core, at most 4; up to 8 of small nets"
    " on one GPU; else 1 on GPUs and TPUs.", lower_bound=1,
)  # fmt: skip
STUDY = flags.DEFINE_string("study", None, "Name of the study, where --workdir holds several.")
COMPARISON = flags.DEFINE_string("comparison", None, "Your own module that a report may import.")
TO = flags.DEFINE_string("to", None, "Where the report, or the packed runs, go.")
ALLOW = flags.DEFINE_list(
    "allow", [], "Config fields in which runs may differ beyond the study's; the report says so."
    " Also data, numerics, matched; of fine-tunings finetune.data, finetune.epochs, ...",
)  # fmt: skip


def plan(workdir: pathlib.Path) -> None:
    """Prints what every run will take, and keeps it."""
    from scalelab.studies import plan as plan_lib

    malloc.keep_freed()  # as the runs do
    spec = read_spec()
    print(plan_lib.make(spec, workdir, command(), num_workers(spec)))


def run(workdir: pathlib.Path) -> None:
    """Does what is left of the study."""
    from scalelab.eval import yardstick
    from scalelab.studies import expand, finetunings, jobs, pool, progress

    spec = read_spec()
    runs = expand.expand_runs(spec)
    path = workdir / "studies" / f"{spec.name}.json"
    if not path.exists() or any(j.state != jobs.DONE for j in jobs.read(workdir, spec.name)[1]):
        finetunings.prepare(spec.finetune.data, runs[0].config, workdir)
        for name in spec.finetune.tasks:  # missing data is refused before anything is trained
            finetunings.load(name, spec.finetune.data, workdir)
        for found in map(yardstick.load, spec.yardsticks):
            yardstick.read(found, pathlib.Path(str(spec.yardstick_data)) / found.folder)
    expand.write(spec, runs, workdir, command())
    number = num_workers(spec)
    screen = progress.Screen(sys.stderr, number, progress.read_plan(workdir, spec.name))
    with screen:
        failed = pool.Pool(workdir, spec.name, number, screen).run()
    print(progress.describe_end(*jobs.read(workdir, spec.name), failed))
    print(f"  python -m scalelab.study report --workdir={workdir} --study={spec.name}")
    if failed:
        raise cli.Stopped(f"{len(failed)} of the study's jobs failed, see above")


def status(workdir: pathlib.Path) -> None:
    """Prints how far the study is."""
    from scalelab.studies import jobs, pool, progress

    study, found = jobs.read(workdir, study_name())
    working = [job.name for job in found if pool.is_claimed(workdir, job)]
    planned = progress.read_plan(workdir, study.name)
    failures = pool.read_failures(workdir, found)
    failed = {name: reason for name, reason in failures.items() if name not in working}
    print(progress.describe_runs(study, found, working, failed, planned))
    print(progress.summary(study, found, working, failed, planned, len(working)))
    if failed and not working:
        print(progress.describe_end(study, found, failed))


def list_studies(workdir: pathlib.Path) -> None:
    """Prints the studies of a folder, with their titles and how far they are."""
    from scalelab.lab import tables
    from scalelab.studies import jobs

    rows = []
    for path in sorted((workdir / "studies").glob("*.json")):
        study, found = jobs.read(workdir, path.stem)
        done = sum(job.state == jobs.DONE for job in found)
        rows.append([study.name, study.facts.title, study.facts.scale, f"{done}/{len(found)}"])
    if not rows:
        raise ValueError(f"{workdir} holds no study: expected {workdir}/studies/<name>.json")
    print(tables.plain(("study", "title", "scale", "jobs done"), rows))


def list_names() -> None:
    """Prints the names that a study's config may use, of tables, tasks, claims and so on."""
    from scalelab.eval.names import YARDSTICKS
    from scalelab.helpers.names import module_names
    from scalelab.lab.compare import claim_lines, scores
    from scalelab.lab.load.task_runs import MAIN
    from scalelab.lab.show.figures import FIGURES
    from scalelab.lab.show.score_tables import TABLES

    found = scores.load_comparison(COMPARISON.value, COMPARISON.value)
    lists = {
        "systems": module_names("systems"),
        "tables": [*TABLES, *found.TABLES],
        "figures": [*FIGURES, *found.FIGURES],
        "finetune.tasks": [task for task in MAIN if task not in YARDSTICKS],
        "yardsticks": list(YARDSTICKS),
        "hypotheses": list(found.HYPOTHESES),
        "scores in claims": list(scores.SCORES),
    }
    for title, names in lists.items():
        if names:
            print(textwrap.fill(f"{title}: {', '.join(names)}", 100, subsequent_indent="  "))
    print("claims" + str(claim_lines.__doc__).partition("data")[2].rstrip())


def report(workdir: pathlib.Path) -> None:
    """Writes the report and says where it is."""
    from scalelab import objectives
    from scalelab.lab.show import report as report_lib

    folder, baselines = TO.value and pathlib.Path(TO.value), objectives.load_baselines()
    page = report_lib.make(
        workdir, study_name(), folder, ALLOW.value, baselines, COMPARISON.value, print
    )
    print(f"report: {page}")


def pack(workdir: pathlib.Path) -> None:
    """Copies what a report needs."""
    from scalelab.studies import packing

    print(packing.pack(workdir, study_name(), pathlib.Path(cli.required(TO.value, "to"))))


COMMANDS = dict(plan=plan, run=run, status=status, report=report, pack=pack, list=list_studies)
FLAGS = {  # that --help of a command shows
    "plan": ("config", "workdir", "workers"),
    "run": ("config", "workdir", "workers"),
    "status": ("workdir", "study"),
    "report": ("workdir", "study", "to", "allow", "comparison"),
    "pack": ("workdir", "study", "to"),
    "list": ("workdir", "comparison"),
}


def read_spec() -> StudySpec:
    """Reads the study that --config names."""
    from scalelab.studies import spec

    return spec.resolve(cli.config_values())


def study_name() -> str | None:
    """Returns the study's name by --study or --config; None is the only one."""
    if STUDY.value or cli.CONFIG.value is None:
        return STUDY.value
    return cli.config_values()["name"]


def num_workers(spec: StudySpec) -> int:
    """Returns how many processes work at a time."""
    from scalelab.studies import pool

    return WORKERS.value or pool.default_workers(spec)


def command() -> str:
    """Returns the command line, for the report."""
    given = environment.mask_secrets(sys.argv[1:])
    return environment.join_command(["python", "-m", "scalelab.study", "run", *given])


def take_command(arguments: list[str]) -> str:
    """Takes the command out of the program's arguments, before the flags are read.

    From then on, help and messages know the flags of this command only.
    """
    from scalelab.helpers.names import nearest

    given = next((a for a in arguments[1:] if not a.startswith("-")), None)
    if given in COMMANDS:
        arguments.remove(given)
        own = rf"(?m)^(?:  python -m scalelab.study )?{given} .*$"
        sys.modules["__main__"].__doc__ = "\n".join(re.findall(own, str(__doc__)))
        for known in (flags.FLAGS.flags_by_module_dict(), flags.FLAGS.key_flags_by_module_dict()):
            known[arguments[0]][:] = [f for f in known[arguments[0]] if f.name in FLAGS[given]]
        return given
    if given is not None:
        cli.fail(f"unknown command {given!r}: {nearest(given, COMMANDS)}")
    if not cli.asks_for_help(arguments):
        cli.fail(f"expected a command: {', '.join(COMMANDS)}; --help says what they do")
    return "plan"


if __name__ == "__main__":
    chosen = COMMANDS[take_command(sys.argv)]
    unkept = {"when_interrupted": "no timing was kept"} if chosen is COMMANDS["plan"] else {}
    if chosen is list_studies and not any("--workdir" in word for word in sys.argv):
        cli.run(lambda argv: list_names(), StudySpec)
    else:
        cli.run(lambda argv: chosen(cli.workdir()), StudySpec, **unkept)
