"""Two systems on the same tasks: differences, what is certain of them, and what could have been.

Differences are B minus A. A task's claim is about its main metric on its main dev set; Holm's
correction is over these claims, and what else the task is scored by is shown beside. Runs are
paired, as `bootstrap.compare` says, where A and B began with the same weights and the same seeds;
otherwise their seeds are drawn apart. A degenerate run counts like any other.
"""

import dataclasses
import pathlib
import zlib

import numpy as np

from scalelab.lab.compare import bootstrap, estimates
from scalelab.lab.compare.estimates import Estimate
from scalelab.lab.load import task_runs
from scalelab.lab.load.task_runs import SHORT, SeedRun, TaskRuns
from scalelab.lab.scores import notes
from scalelab.lab.scores.predictions import stack_runs

NUM_RESAMPLES = 2000  # so that the least p-value, 2 / 2001, survives the correction for nine tasks
UNDECIDED = "undecided"


@dataclasses.dataclass(frozen=True, eq=False)
class Claim:
    """A difference on one metric.

    Attributes:
      label: the task, or "mean".
      task: its name; None for the mean.
      split: the dev split.
      metric: the metric.
      a: mean score of A.
      b: mean score of B.
      difference: B minus A.
      main: whether it is the one that the task is decided by.
      paired: whether seeds were paired.
      num_seeds: fine-tuning seeds of A and of B, over all pre-trainings.
      corrected: the p-value after Holm's correction; None for what is shown beside.
    """

    label: str
    task: str | None
    split: str
    metric: str
    a: float
    b: float
    difference: Estimate
    main: bool
    paired: bool
    num_seeds: tuple[int, int]
    corrected: float | None = None

    @property
    def verdict(self) -> str:
        """What may be said of B: "better", "worse", or "undecided"."""
        if self.corrected is None:
            return ""
        if min(self.num_seeds) < 2 or self.corrected >= 1 - estimates.LEVEL:
            return UNDECIDED
        return "better" if self.difference.value > 0 else "worse"


System = list[dict[str, TaskRuns]]  # one a pre-training


def open_system(folders: str) -> System:
    """Reads the folders of one system, joined by commas.

    Raises:
      ValueError: one is no folder or holds no fine-tuning.
    """
    names = folders.split(",")
    if not all(name.strip() for name in names):
        raise ValueError(
            f"{folders!r}: expected a folder of fine-tunings, or several joined by commas without"
            " blanks; one of them is empty"
        )
    return [task_runs.read(pathlib.Path(name)) for name in names]


def compare(a: System, b: System, *, allow_recipe: bool = False) -> tuple[list[Claim], list[str]]:
    """Compares two systems on every task that both have.

    Args:
      a: what `open_system` gave.
      b: likewise.
      allow_recipe: whether their recipes may differ.

    Returns:
      One claim a metric and the mean over tasks, if there are several; and notes.

    Raises:
      ValueError: dev sets, gold labels or recipes differ, or there is no task that both have.
    """
    sides = [{n for runs in side for n, task in runs.items() if task.finished} for side in (a, b)]
    shared = [n for n in _in_order(a) if n in sides[0] & sides[1]]
    if not shared:
        raise ValueError(
            f"no task that both have finished: A has {_titles(a, sides[0])}, B has"
            f" {_titles(b, sides[1])}"
        )
    if not allow_recipe:
        _check_recipes(a, b, shared)
    claims = [claim for name in shared for claim in _claims(a, b, name)]
    main = [claim for claim in claims if claim.main]
    corrected = iter(estimates.holm([claim.difference.p_value for claim in main]))
    claims = [dataclasses.replace(c, corrected=next(corrected)) if c.main else c for c in claims]
    if len(shared) > 1:
        claims.append(_mean(claims, shared))
    return claims, _notes(a, b, shared, claims)


def _claims(a: System, b: System, name: str) -> list[Claim]:
    """The differences on one task, its main metric first."""
    sides = [[runs[name] for runs in side if name in runs] for side in (a, b)]
    title = sides[0][0].title
    for letter, side, whole in zip("AB", sides, (a, b), strict=True):
        if len(side) < len(whole) or not all(task.finished for task in side):
            raise ValueError(f"{title}: a folder of {letter} has no finished run of it")
        if len({len(task.finished) for task in side}) > 1:
            numbers = ", ".join(str(len(task.finished)) for task in side)
            raise ValueError(f"{title}: the folders of {letter} have {numbers} seeds: not as many")
    keys = sides[0][0].keys
    for task in sides[0] + sides[1]:
        if set(task.keys) != set(keys):
            raise ValueError(f"{title}: dev splits or metrics differ: {keys} and {task.keys}")
    paired = are_paired(*([run for task in side for run in task.finished] for side in sides))
    found = []
    for split, metric in keys:
        (examples, one, *_), (others, two, *_) = (stack_runs(side, split) for side in sides)
        different = task_runs.differ(examples, others)
        if different:
            raise ValueError(f"{title} {split}: A and B were not scored on the same: {different}")
        difference = bootstrap.compare(
            examples.gold, one, two, metric, paired=paired,
            num_resamples=NUM_RESAMPLES, seed=zlib.crc32(name.encode()),
        )  # fmt: skip
        key = (split, metric)
        score_a, score_b = (
            float(np.mean([value for task in side for value in task.values(key)])) for side in sides
        )
        label = SHORT.get(split, title) if name == "mnli" else title
        numbers = one.shape[0] * one.shape[1], two.shape[0] * two.shape[1]
        found.append(
            Claim(label, name, *key, score_a, score_b, difference, not found, paired, numbers)
        )
    return found


def are_paired(a: list[SeedRun], b: list[SeedRun]) -> bool:
    """Whether run by run A and B have the seed and the pre-trained weights in common."""
    if [run.seed for run in a] != [run.seed for run in b]:
        return False
    return all(x.weights is not None and x.weights == y.weights for x, y in zip(a, b, strict=True))


def _mean(claims: list[Claim], shared: list[str]) -> Claim:
    """The mean over tasks of the mean of a task's metrics and splits."""
    by_task = [[claim for claim in claims if claim.task == name] for name in shared]
    differences = [bootstrap.mean([c.difference for c in t], same_runs=True) for t in by_task]
    a = float(np.mean([np.mean([c.a for c in task]) for task in by_task]))
    b = float(np.mean([np.mean([c.b for c in task]) for task in by_task]))
    numbers = (min(c.num_seeds[0] for c in claims), min(c.num_seeds[1] for c in claims))
    paired = all(claim.paired for claim in claims)
    label = f"mean of {len(shared)} tasks"
    return Claim(label, None, "", "", a, b, bootstrap.mean(differences), False, paired, numbers)


def _check_recipes(a: System, b: System, shared: list[str]) -> None:
    for name in shared:
        ours, theirs = (task_runs.distinct(_finished(side, name), "recipe") for side in (a, b))
        if set(ours) != set(theirs):
            raise ValueError(
                f"{task_runs.TITLES.get(name, name)}: A was adapted by recipe"
                f" {' and '.join(map(str, ours))}, B by {' and '.join(map(str, theirs))}; the"
                " difference would be theirs too: --allow compares all the same"
            )


# --- Words ----------------------------------------------------------------------------------------


def _in_order(system: System) -> list[str]:
    return list(dict.fromkeys(name for runs in system for name in runs))


def _titles(system: System, names: set[str]) -> str:
    found = [task_runs.TITLES.get(name, name) for name in _in_order(system) if name in names]
    return ", ".join(found) or "none"


def _notes(a: System, b: System, shared: list[str], claims: list[Claim]) -> list[str]:
    """What has to be said below the table."""
    apart = _settings(a, b, shared)
    found = [
        "Scores x 100, means over all finished seeds; 95% intervals and p-values by the"
        " Multi-Bootstrap over seeds and dev examples together.",
        "Detectable: the smallest true difference that these seeds would show (two-sided 5%, power"
        " 80%; Holm's correction for several tasks asks for more; none: not even 100 points); a"
        " smaller one may well be there where B is undecided.",
        _of_pairs(claims, bool(apart)),
    ]
    for titles, fields in apart:
        found.append(
            f"Adapted with other settings in {titles}: {fields}. What B - A is there is theirs too,"
            " and says nothing of the systems alone."
        )
    if any(min(claim.num_seeds) < 2 for claim in claims):
        found.append(
            "With a single seed nothing can be said of a system: where A or B has one, it is"
            " undecided, and p is about these very runs."
        )
    if len(a) == 1 or len(b) == 1:
        found.append("One pre-training: what is said holds for these weights, not for the system.")
    trained = _trained_apart(a, b, shared)
    if trained:
        found.append(f"A and B were fine-tuned on different training sets of {trained}.")
    for letter, side in (("A", a), ("B", b)):
        alone = {n for runs in side for n in runs} - set(shared)
        if alone:
            found.append(f"Not compared, as not finished in both; in {letter}: "
                         f"{_titles(side, alone)}.")  # fmt: skip
        for runs in side:
            kept = {name: task for name, task in runs.items() if name in shared}
            every = [run for task in kept.values() for run in task.finished]
            lines = [*notes.of_recipe(every), *notes.of_runs(kept)]
            found += [f"{letter}: {line}" for line in lines if f"{letter}: {line}" not in found]
    return found


def _trained_apart(a: System, b: System, shared: list[str]) -> str:
    """The tasks whose training sets are not the same, as far as the results tell."""
    found = []
    for name in shared:
        runs = _finished(a, name) + _finished(b, name)
        digests = {((run.result and run.result.data) or {}).get("train") for run in runs}
        if len(digests) > 1:
            found.append(task_runs.TITLES.get(name, name))
    return ", ".join(found)


def _settings(a: System, b: System, shared: list[str]) -> list[tuple[str, str]]:
    """The tasks that A and B were adapted to with other settings, and which these are."""
    pairs = {
        task_runs.TITLES.get(name, name): (_finished(a, name), _finished(b, name))
        for name in shared
    }
    return notes.differing(pairs, ("in A", "in B"))


def _finished(system: System, name: str) -> list[SeedRun]:
    return [run for runs in system if name in runs for run in runs[name].finished]


def _of_pairs(claims: list[Claim], apart: bool) -> str:
    paired = [claim.label for claim in claims if claim.main and claim.paired]
    if len(paired) == sum(claim.main for claim in claims):
        return "Seeds are paired: both began with the same weights and the same seeds" + (
            "; they differ in their settings, which are named below." if apart else "."
        )
    if paired:
        return f"Seeds are paired (same weights, same seeds) in {', '.join(paired)} alone."
    return "Seeds are independent: the runs did not begin with the same weights and seeds."
