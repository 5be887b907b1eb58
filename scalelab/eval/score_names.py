"""Scores by name: of tasks and evaluations, their means, and of pre-training; titles and parts."""

from collections.abc import Collection

from scalelab.eval.names import EVALUATIONS
from scalelab.helpers.names import nearest
from scalelab.tasks import glue
from scalelab.tasks.generation import GENERATION
from scalelab.tasks.questions import QUESTIONS
from scalelab.tasks.task import TASKS

GLUE_TITLES = {task.name: task.title for task in glue.GLUE}
TASK_TITLES = GLUE_TITLES | {name: title for name, (title, *_) in EVALUATIONS.items()}
TASK_TITLES |= {name: TASKS[name].title for name in sorted(TASKS)}
# The tasks that claims and tables of studies know; of GLUE the largest first.
COLUMNS = (*glue.LARGE_FIRST, *glue.SELF_SUPERVISED, *GENERATION, *QUESTIONS)
# Score -> task, dev split, metric.
TASK_SCORES = {
    name: (task.name, score.split, score.metric)
    for task in COLUMNS
    for name, score in task.scores.items()
}
TASK_SCORES |= {name: (name, "dev", metric) for name, (_, metric, _) in EVALUATIONS.items()}
# Task -> its main score, the first in the list.
MAIN = {task: name for name, (task, *_) in reversed(TASK_SCORES.items())}
MEANS = {name: parts for name, (_, parts) in glue.MEANS.items()}  # mean -> its scores
LARGE = MEANS["large"]
LARGE_TASKS = tuple(TASK_SCORES[part][0] for part in LARGE)
PRETRAINING_SCORES = ("loss", "bits_per_byte", "seconds")
SCORES = (*MEANS, *TASK_SCORES, *PRETRAINING_SCORES)
PARTS = {score: (score,) for score in SCORES} | MEANS  # score -> the scores of which it is the mean
TITLES = {
    **{name: title for name, (title, _) in glue.MEANS.items()},
    **{name: score.title for task in COLUMNS for name, score in task.scores.items()},
    **{name: title for name, (title, *_) in EVALUATIONS.items()},
    "loss": "validation loss",
    "bits_per_byte": "bits per byte",
    "seconds": "seconds of pre-training",
}


def title_of(score: str) -> str:
    """Returns the title of a score in tables: "GLUE-Large", "SST-2", "validation loss"."""
    score = MAIN.get(score, score)
    return TITLES.get(score, score)


def find_score(name: str, tasks: Collection[str]) -> str:
    """Returns the score of a name, such as "mnli_m" for "mnli".

    Raises:
      ValueError: the study does not measure it.
    """
    measured = [
        score for score in SCORES
        if score in PRETRAINING_SCORES
        or all(TASK_SCORES[part][0] in tasks for part in PARTS[score])
    ]  # fmt: skip
    score = MAIN.get(name, name)
    if score not in measured:
        raise ValueError(f"score {score!r} is not measured: {nearest(score, measured)}")
    return score
