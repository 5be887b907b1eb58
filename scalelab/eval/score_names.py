"""Scores by name: of tasks and evaluations, their means, and of pre-training; titles and parts."""

from scalelab.eval.names import EVALUATIONS
from scalelab.tasks import glue
from scalelab.tasks.task import TASKS

GLUE_TITLES = {task.name: task.title for task in glue.GLUE}
TASK_TITLES = GLUE_TITLES | {name: title for name, (title, _) in EVALUATIONS.items()}
TASK_TITLES |= {name: TASKS[name].title for name in sorted(TASKS)}
# The tasks that claims and tables of studies know; GLUE's, the largest first.
COLUMNS = (*glue.LARGE_FIRST, *glue.SELF_SUPERVISED)
# Score -> task, dev split, metric.
TASK_SCORES = {
    name: (task.name, score.split, score.metric)
    for task in COLUMNS
    for name, score in task.scores.items()
}
TASK_SCORES |= {name: (name, "dev", metric) for name, (_, metric) in EVALUATIONS.items()}
# Task -> its main score, the first in the list.
MAIN = {task: name for name, (task, *_) in reversed(TASK_SCORES.items())}
MEANS = {name: parts for name, (_, parts) in glue.MEANS.items()}  # mean -> its scores
LARGE = MEANS["large"]
LARGE_TASKS = tuple(TASK_SCORES[part][0] for part in LARGE)
PRETRAINING_SCORES = ("loss", "bits_per_byte", "seconds")
SCORES = (*MEANS, *TASK_SCORES, *PRETRAINING_SCORES)
TITLES = {
    **{name: title for name, (title, _) in glue.MEANS.items()},
    **{name: score.title for task in COLUMNS for name, score in task.scores.items()},
    **{name: title for name, (title, _) in EVALUATIONS.items()},
    "loss": "validation loss",
    "bits_per_byte": "bits per byte",
    "seconds": "seconds of pre-training",
}


def check(score: str) -> None:
    """Raises a ValueError if there is no such score."""
    if score not in SCORES:
        raise ValueError(f"unknown score {score!r}: expected one of {', '.join(SCORES)}")


def title_of(score: str) -> str:
    """Returns the title of a score in tables: "GLUE-Large", "SST-2", "validation loss"."""
    score = MAIN.get(score, score)
    return TITLES.get(score, score)


def score_parts(score: str) -> tuple[str, ...]:
    """Returns the scores of which a score is the mean."""
    return MEANS.get(score, (score,))
