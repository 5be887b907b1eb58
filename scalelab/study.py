"""Studies: a comparison stated in one file, planned, run, and reported.

python -m scalelab.study plan   --config=configs/studies/X.py --workdir=DIR
python -m scalelab.study run    --config=configs/studies/X.py --workdir=DIR [--workers=2]
python -m scalelab.study status --workdir=DIR [--study=NAME]
python -m scalelab.study report --workdir=DIR [--study=NAME] [--to=DIR]
python -m scalelab.study pack   --workdir=DIR --to=DIR
python -m scalelab.study list   [--workdir=DIR]
"""

import argparse
import pathlib
import shutil
import sys
import textwrap
from collections.abc import Iterable
from typing import Any

from scalelab.config import cli, exits
from scalelab.records import run_folder
from scalelab.resources import host
from scalelab.studies.spec import StudySpec


def plan(given: argparse.Namespace) -> None:
    """Times steps here and adds up what every run will take; starts nothing."""
    from scalelab.studies import plan as plan_lib
    from scalelab.studies import pool, spec

    asked = spec.resolve(cli.config_values(given))
    number = given.workers or pool.default_workers(asked)
    print(plan_lib.make(asked, cli.workdir(given), command(given), number))


def run(given: argparse.Namespace) -> None:
    """Does what is not finished yet; interrupt it and start it again, also several at once."""
    from scalelab.eval import evaluation
    from scalelab.studies import expand, finetunings, jobs, pool, progress, spec

    asked, workdir = spec.resolve(cli.config_values(given)), cli.workdir(given)
    runs, study = expand.expand_runs(asked), asked.name
    path = workdir / "studies" / f"{study}.json"
    if not path.exists() or any(j.state != jobs.DONE for j in jobs.read(workdir, study)[1]):
        finetunings.prepare(asked.finetune.data, runs[0].config, workdir)
        for name in asked.finetune.tasks:  # missing data is refused before anything is trained
            finetunings.load(name, asked.finetune.data, workdir)
        for found in map(evaluation.load, asked.evaluations):
            evaluation.read(found, pathlib.Path(str(asked.evaluation_data)) / found.folder)
    expand.write(asked, runs, workdir, command(given))
    number = given.workers or pool.default_workers(asked)
    with progress.screen(sys.stderr, number, progress.read_plan(workdir, study)) as show:
        failed = pool.Pool(workdir, study, number, show).run()
    print(progress.describe_end(progress.Status(*jobs.read(workdir, study), (), failed)))
    if not failed:
        print(verdicts(workdir, study))
    print(f"  python -m scalelab.study report --workdir={workdir} --study={study}")
    if failed:
        raise exits.Stopped(f"{len(failed)} of the study's jobs failed, see above")


def verdicts(workdir: pathlib.Path, name: str) -> str:
    """Returns the verdicts of a study with their reasons, or why a report has none."""
    from scalelab import objectives
    from scalelab.lab.load import study_runs
    from scalelab.lab.show import answer
    from scalelab.lab.show import report as report_lib

    try:
        study = study_runs.read(workdir, name)
        scores, _, _, findings = report_lib.judge(study, objectives.load_baselines())
        return "\n" + answer.for_terminal(scores, findings)
    except ValueError as error:  # as of a comparison that the user has to name for a report
        return f"no verdicts: {error}"


def status(given: argparse.Namespace) -> None:
    """Shows how far each run is."""
    from scalelab.studies import jobs, pool, progress

    workdir = cli.workdir(given)
    study, found = jobs.read(workdir, given.study)
    working = [job.name for job in found if run_folder.is_locked(workdir / "locks" / job.name)]
    planned = progress.read_plan(workdir, study.name)
    failures = pool.read_failures(workdir, found)
    failed = {name: reason for name, reason in failures.items() if name not in working}
    now = progress.Status(study, found, working, failed)
    print(progress.describe_runs(now, planned))
    left = progress.secs_left(now, planned)
    left = None if left is None else left / max(1, len(working))
    print(progress.summary(now, left))
    if failed and not working:
        print(progress.describe_end(now))


def list_studies(given: argparse.Namespace) -> None:
    """Lists the studies of a folder; without one, the names that a study's config may use."""
    if given.workdir is None:
        list_names(given.comparison)
        return
    from scalelab.lab import tables
    from scalelab.studies import jobs

    rows, workdir = [], cli.workdir(given)
    for path in sorted((workdir / "studies").glob("*.json")):
        study, found = jobs.read(workdir, path.stem)
        done = sum(job.state == jobs.DONE for job in found)
        rows.append([study.name, study.facts.title, study.facts.scale, f"{done}/{len(found)}"])
    if not rows:
        raise ValueError(f"{workdir} holds no study: expected {workdir}/studies/<name>.json")
    print(tables.plain(("study", "title", "scale", "jobs done"), rows))


def list_names(comparison: str | None) -> None:
    """Prints the names that a study's config may use, of tables, tasks, hypotheses and so on."""
    from scalelab.eval.names import EVALUATIONS
    from scalelab.eval.score_names import MAIN, SCORES
    from scalelab.helpers.names import module_names
    from scalelab.lab.compare import claim_lines, scores
    from scalelab.lab.show.figures import FIGURES
    from scalelab.lab.show.score_tables import TABLES

    found = scores.load_comparison(comparison, comparison)
    lists = {
        "systems": module_names("systems"),
        "tables": [*TABLES, *found.TABLES],
        "figures": [*FIGURES, *found.FIGURES],
        "finetune.tasks": [task for task in MAIN if task not in EVALUATIONS],
        "evaluations": list(EVALUATIONS),
        "ids of hypotheses": list(found.HYPOTHESES),
        "scores in hypotheses": list(SCORES),
    }
    for title, names in lists.items():
        if names:
            print(textwrap.fill(f"{title}: {', '.join(names)}", 100, subsequent_indent="  "))
    print("hypotheses" + str(claim_lines.__doc__).partition("data")[2].rstrip())


def report(given: argparse.Namespace) -> None:
    """Writes tables, figures and report.html of what is finished."""
    from scalelab import objectives
    from scalelab.lab.show import report as report_lib

    folder, baselines = given.to and pathlib.Path(given.to), objectives.load_baselines()
    page = report_lib.make(
        cli.workdir(given), given.study, folder, baselines, given.comparison, print
    )
    print(f"report: {page}")


def pack(given: argparse.Namespace) -> None:
    """Keeps the finished runs without checkpoints and texts, small enough to be committed.

    Copies the study's file and plan, and every run whose jobs are all done. A run that is there
    already is left as it is, so that packing again adds later ones.
    """
    from scalelab.records import archive
    from scalelab.studies import jobs

    to, workdir = pathlib.Path(cli.required(given.to, "to")), cli.workdir(given)
    study, found = jobs.read(workdir, given.study)
    left = {job.run for job in found if job.state != jobs.DONE}
    runs = {run.name: run.folder for run in study.runs if run.name not in left}
    packed, kept = archive.pack(runs, to)
    for part in ("studies", "plans"):
        source = workdir / part / f"{study.name}.json"
        if source.exists():
            (to / part).mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, to / part / source.name)
    unfinished = f"; {len(left)} have unfinished jobs" * bool(left)
    print(f"{study.name}: packed {packed} runs into {to}, {kept} were there{unfinished}")


def command(given: argparse.Namespace) -> str:
    """Returns the command line, for the report."""
    fields = [f"--config.{name}={text}" for name, text in given.fields.items()]
    words = [f"--config={given.config}", *fields, f"--workdir={given.workdir}"]
    words += [f"--workers={given.workers}"] * (given.workers is not None)
    return run_folder.join_command(
        ["python", "-m", "scalelab.study", "run", *run_folder.mask_secrets(words)]
    )


COMMANDS = {
    "plan": plan, "run": run, "status": status, "report": report, "pack": pack,
    "list": list_studies,
}  # fmt: skip


def parser() -> cli.Parser:
    """Returns the command line."""
    made = cli.Parser("python -m scalelab.study", __doc__)
    commands, own = made.add_commands(), {}
    for name, function in COMMANDS.items():
        text = str(function.__doc__).partition("\n")[0]
        own[name] = commands.add_parser(
            name, help=text, description=text,
            config=StudySpec if name in ("plan", "run") else None,
            setup=host.keep_freed if name == "plan" else None,  # as the runs do
            when_interrupted="no timing was kept" if name == "plan" else None,
        )  # fmt: skip

    def add(flag: str, names: Iterable[str], text: str, **how: Any) -> None:
        for name in names:
            own[name].add_argument(flag, help=text, **how)

    add("--workdir", COMMANDS, "folder of studies and their runs: run makes it, and continues in"
        " it", metavar="DIR")  # fmt: skip
    add("--workers", ("plan", "run"), "processes at a time; by default one a core, at most 4; up to"
        " 8 of small models on one GPU; else 1 on GPUs and TPUs", type=cli.positive,
        metavar="N")  # fmt: skip
    add("--study", ("status", "report", "pack"), "name of the study, where --workdir holds several",
        metavar="NAME")  # fmt: skip
    add("--to", ("report", "pack"), "where the report, or the packed runs, go", metavar="DIR")
    add("--comparison", ("report", "list"), "your own module that a report may import",
        metavar="MODULE")  # fmt: skip
    return made


def main(given: argparse.Namespace) -> None:
    """Does what the command asks."""
    COMMANDS[given.command](given)


if __name__ == "__main__":
    cli.run(main, parser())
