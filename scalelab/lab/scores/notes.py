"""What must be said below a table of fine-tunings, so that nobody takes it for more than it is."""

import pathlib
from collections.abc import Iterable, Mapping, Sequence

from scalelab.lab.load import task_runs
from scalelab.lab.load.task_runs import TITLES, SeedRun, TaskRuns

SCORES = (
    "Scores x 100 on dev sets, {}; the mean is over all finished seeds, degenerate ones included."
)
LAST = "of the last step"
LAST_OR_BEST = "of the last step, with early stopping of the best"
INTERVAL = (
    "95% interval of the mean: Multi-Bootstrap over fine-tuning seeds and dev examples together;"
    " pre-training was not repeated, and its chance is not in it."
)
BEST = "Best on dev: chosen by the very score that is shown, so too high; not the protocol's score."
STOPPED = "Early stopping on dev: its scores were chosen by themselves and are too high"


def of_table(
    tasks: Mapping[str, TaskRuns], baselines: Mapping[str, TaskRuns], averages: Sequence[str]
) -> list[str]:
    """The notes of a table.

    Args:
      tasks: what it shows.
      baselines: what it shows beside.
      averages: names of the averages in it.
    """
    runs = [run for task in tasks.values() for run in task.finished]
    stopped = any(run.result and run.result.early_stopping for run in runs)
    found = [SCORES.format(LAST_OR_BEST if stopped else LAST), INTERVAL, *of_recipe(runs)]
    if averages:
        found.append("Averages: means over tasks of the mean of a task's metrics and dev splits.")
    if any(name.startswith("GLUE-Large") for name in averages):
        found.append("GLUE-Large: the mean of MNLI-m, QQP and QNLI.")
    shown = {name: task for name, task in baselines.items() if name in tasks}
    if runs and all(run.from_scratch for run in runs):
        found.append("These runs themselves start from random weights.")
    elif shown:
        found.append("From scratch: the same net from random weights, mean and 95% interval.")
        beside = [run for task in shown.values() for run in task.finished]
        for field in ("recipe", "system"):
            ours, theirs = task_runs.distinct(runs, field), task_runs.distinct(beside, field)
            if runs and beside and set(map(str, ours)) != set(map(str, theirs)):
                found.append(
                    f"From scratch has another {field}: {_listed(theirs)}, not {_listed(ours)}"
                )
        if any(task_runs.distinct(runs, "mnli_first")) and not any(
            task_runs.distinct(beside, "mnli_first")
        ):
            found.append("From scratch starts from no run on MNLI, where the tasks beside it do.")
        pairs = {task.title: (tasks[name].finished, task.finished) for name, task in shown.items()}
        for titles, fields in differing(pairs, ("here", "from scratch")):
            found.append(
                f"From scratch was fine-tuned with other settings in {titles}, and what lies"
                f" between the two is theirs too: {fields}."
            )
    return found + of_runs(tasks) + [f"From scratch: {x}" for x in of_runs(shown, data=False)]


def of_recipe(runs: Sequence[SeedRun]) -> list[str]:
    """System, initial weights, recipe, and what was done beyond them."""
    parts = [
        f"{name} {_listed(values)}"
        for name, field in (("System", "system"), ("recipe", "recipe"), ("initial weights", "init"))
        if (values := [v for v in task_runs.distinct(runs, field) if v is not None])
    ]
    found = ["; ".join(parts) + "."] if parts else []
    first, stopped = _titles(runs, "mnli_first"), _titles(runs, "early_stopping")
    if first:
        found.append(f"mnli-first: started from weights fine-tuned on MNLI: {first}.")
    if stopped:
        found.append(f"{STOPPED}: {stopped}.")
    return found + _of_grids(runs)


def differing(
    pairs: Mapping[str, tuple[Sequence[SeedRun], Sequence[SeedRun]]], sides: tuple[str, str]
) -> list[tuple[str, str]]:
    """Tasks that were adapted with other settings here and there, though by one recipe perhaps.

    A field that one of the two does not tell counts as equal: earlier results have but a few.

    Args:
      pairs: by title the runs to be compared.
      sides: what the two sides are called, such as "in A" and "in B".

    Returns:
      Titles, and the fields in which they differ: ("RTE, WNLI", "epochs 1 in A, 6 in B").
    """
    found: dict[str, list[str]] = {}
    for title, both in pairs.items():
        parts = []
        for field in dict.fromkeys(name for runs in both for run in runs for name in run.settings):
            one, two = (
                sorted({_spelt(run.settings[field]) for run in runs if field in run.settings})
                for runs in both
            )
            if one and two and one != two:
                parts.append(f"{field} {_listed(one)} {sides[0]}, {_listed(two)} {sides[1]}")
        if parts:
            found.setdefault("; ".join(parts), []).append(title)
    return [(", ".join(titles), fields) for fields, titles in found.items()]


def _of_grids(runs: Sequence[SeedRun]) -> list[str]:
    """What was chosen by the scores that are shown."""
    tasks: dict[str, list[str]] = {}
    for run in runs:
        if run.chosen:
            fields = _listed(name.rpartition(".")[2] for name in run.chosen)
            name = run.result.task if run.result else ""
            title = TITLES.get(name, name)
            tasks.setdefault(fields, []).append(title)
    return [
        f"Grid: {fields} chosen on dev with the first seed, whose score is among those shown, so"
        f" they are too high: {', '.join(dict.fromkeys(titles))}."
        for fields, titles in tasks.items()
    ]


def of_runs(tasks: Mapping[str, TaskRuns], *, data: bool = True) -> list[str]:
    """Runs that failed, are not finished or learnt nothing, and what the data lacks.

    Args:
      tasks: the runs.
      data: whether to repeat the runs' own remarks.
    """
    found = []
    for task in tasks.values():
        unfinished = [run.seed for run in task.runs if run.unfinished]
        if unfinished:
            found.append(f"{task.title}: unfinished: {_seeds(unfinished)}")
        for run in task.runs:
            if run.failed is not None:
                found.append(f"{task.title}: seed {run.seed} failed: {run.failed}")
        found += _degenerate(task)
        if len(task.finished) == 1:
            found.append(f"{task.title}: one seed: its interval is over examples alone")
    if data:
        remarks = (r for task in tasks.values() for run in task.finished
                   if run.result for r in run.result.remarks)  # fmt: skip
        found += dict.fromkeys(remarks)
    return found


def _degenerate(task: TaskRuns) -> list[str]:
    """The runs that learnt nothing, by reason, and the mean of the main metric without them."""
    reasons: dict[str, list[int]] = {}
    for run in task.finished:
        if run.degenerate:
            reasons.setdefault(run.degenerate, []).append(run.seed)
    found = [f"{task.title}: degenerate: {_seeds(s)}: {reason}" for reason, s in reasons.items()]
    sound = [run for run in task.finished if not run.degenerate]
    if found and sound:
        key = task.keys[0]
        mean = sum(run.scores[key] for run in sound) / len(sound)
        found[-1] += f"; mean {key[1]} of the other {len(sound)}: {100 * mean:.1f}"
    return found


def without_baseline(task: TaskRuns, scratch: pathlib.Path) -> list[str]:
    """How to get a baseline that the table would show.

    Args:
      task: what the table shows.
      scratch: where it looks for the baseline.
    """
    if not task.finished or task.finished[0].from_scratch:
        return []
    init = task.finished[0].result and task.finished[0].result.init
    return [
        f"No baseline run: the same command with --init=none --like={init} --workdir={scratch}"
        " trains the net from random weights, and this table then shows it beside."
    ]


def of_averages(absent: Sequence[str], others: Sequence[str]) -> list[str]:
    """What keeps averages from being those of GLUE.

    Args:
      absent: titles of tasks and dev splits without scores.
      others: dev sets that are not GLUE's, in words.
    """
    found = []
    if absent:
        found.append(f"Not the GLUE average of nine: without {', '.join(absent)}.")
    if others:
        found.append(f"Averages over dev sets that are not GLUE's: {'; '.join(others)}.")
    return found


def _titles(runs: Sequence[SeedRun], flag: str) -> str:
    """The tasks of the runs with a flag."""
    names = dict.fromkeys(r.result.task for r in runs if r.result and getattr(r.result, flag))
    return ", ".join(TITLES.get(name, name) for name in names)


def _seeds(seeds: Sequence[int]) -> str:
    return ("seed " if len(seeds) == 1 else "seeds ") + ", ".join(map(str, seeds))


def _spelt(value: object) -> str:
    return "off" if value is None else str(value)


def _listed(values: Iterable[object]) -> str:
    return " and ".join(map(str, values))
