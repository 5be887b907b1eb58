"""Tables of a study's scores: layouts, and one builder for all of them.

A row is a point of the study: one system, shape and variant. A score is a mean over its seeds with
its 95% interval.
"""

import dataclasses
import fnmatch
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from scalelab.eval.names import EVALUATIONS
from scalelab.eval.score_names import LARGE_TASKS, MEANS, TITLES
from scalelab.helpers.names import prefix_errors
from scalelab.lab import tables
from scalelab.lab.compare import comparability
from scalelab.lab.compare.scores import Scores
from scalelab.lab.compare.study_scores import StudyScores
from scalelab.lab.load.study_runs import Row, Study, varied_fields
from scalelab.lab.tables import INTERVAL, Cell, Column, Table, Value
from scalelab.records.study_file import DEFAULT, Rows
from scalelab.tasks.facts import Task
from scalelab.tasks.generation import GENERATION
from scalelab.tasks.glue import FIVE_LARGEST, LARGE_FIRST, SELF_SUPERVISED
from scalelab.tasks.questions import QUESTIONS


def _task(key: str, title: str, *tasks: str) -> Column:
    return Column(key, title, "percent", tasks or (key,), INTERVAL)


def _columns(*tasks: Task) -> Iterator[Column]:
    """Yields a column for each dev split that has a score: the first of its scores."""
    for task in tasks:
        found: dict[str, Column] = {}
        for name, score in task.scores.items():
            found.setdefault(score.split, _task(name, score.title, task.name))
        yield from found.values()


LARGE = (*(_task(mean, TITLES[mean], *LARGE_TASKS) for mean in MEANS), *_columns(*FIVE_LARGEST))
SMALL = tuple(_columns(*LARGE_FIRST[len(FIVE_LARGEST) :]))
PROBES = tuple(_columns(*SELF_SUPERVISED))
ANSWERS = tuple(_columns(*GENERATION, *QUESTIONS))
MEASURED = tuple(_task(name, title) for name, (title, *_) in EVALUATIONS.items())
TASKS = (*LARGE, *SMALL, *PROBES, *ANSWERS, *MEASURED)  # every column of a task or evaluation
SYSTEM, VARIANT = Column("system", "system"), Column("variant", "variant")
SHAPE = (*(Column(name, name, "count") for name in "AHL"), Column("n_model", "N", "count"))
SEEDS = Column("seeds", "seeds", "count")
LOSS = Column("loss", "validation loss", "loss", (), INTERVAL)
KIND = Column("loss_kind", "loss kind")  # beside losses, where they are of different things
TIME = Column("seconds", "total time (s)", "seconds", (), INTERVAL)
EPOCHS = Column("epochs", "epochs", "number")


@dataclasses.dataclass(frozen=True)
class TableRequest:
    """The input of a function that makes a table of some points."""

    study: Study
    scores: StudyScores
    published: Scores | None = None  # numbers that stand beside ours
    departing: Sequence[str] = ()  # reasons why published numbers may not stand beside ours
    footnotes: Sequence[str] = ()  # notes that every table repeats, in its CSV too
    points: Sequence[Row] = ()


MakeTable = Callable[[TableRequest], Table | None]


def build(request: TableRequest, makers: Mapping[str, MakeTable]) -> list[Table]:
    """Makes the tables that a study asks for, in its order; one without rows is left out.

    Raises:
      ValueError: an unknown table, or unknown rows.
    """
    found = []
    for name in request.study.facts.tables:
        kind, points, title = select(request.study, name, makers)
        table = makers[kind](dataclasses.replace(request, points=points)) if points else None
        if table and table.rows:
            caption = f"{title}. {table.title}" if title else table.title
            found.append(dataclasses.replace(table, name=name.replace(":", "-"), title=caption))
    return found


def select(study: Study, table: str, makers: Mapping[str, object]) -> tuple[str, list[Row], str]:
    """Returns the kind of a table, its rows, and the beginning of its caption.

    Raises:
      ValueError: an unknown table, or unknown rows.
    """
    known = study.facts.rows
    with prefix_errors("a table that the study asks for"):
        kind, name = tables.parse_name(table, makers, known)
    rows = known[name] if name else Rows("")
    points = [
        p for p in study.points
        if (not rows.stages or p.runs[0].stage in rows.stages)
        and (not rows.shapes or any(fnmatch.fnmatchcase(str(p.shape), s) for s in rows.shapes))
        and (not rows.variants or p.variant in rows.variants)
    ]  # fmt: skip
    return kind, points, rows.title


def build_scores(
    request: TableRequest,
    *,
    title: str,
    columns: Sequence[Column],
    needs_tasks: bool = False,
    by_variant: bool = False,
) -> Table | None:
    """Makes a table of scores; None if it has no rows.

    Args:
      request: the study and its scores.
      title: title of the table.
      columns: the columns; those of tasks that the study lacks are left out.
      needs_tasks: whether a table without columns of tasks is None.
      by_variant: whether it has only the models with several variants, model by model.
    """
    study, scores = request.study, request.scores
    points = [point for point in request.points if point.finished]
    if by_variant:
        points = order_by_net(points)
    planned = set(study.facts.measured)
    scored = [c for c in columns if planned.issuperset(c.tasks)]
    if not points or (needs_tasks and not any(c.tasks for c in scored)):
        return None
    if all(p.fields.get("optim.total_epochs") is None for p in points):
        scored = [c for c in scored if c is not EPOCHS]
    if len(set(comparability.loss_groups(points).values())) > 1:
        scored = [x for c in scored for x in ((c, KIND) if c is LOSS else (c,))]
    varied = [
        Column(field, field.rpartition(".")[2], "number") for field in varied_fields(points)
        if all(point.fields.get(field) is not None for point in points)
    ]  # fmt: skip
    shape = SHAPE if len({p.shape for p in study.points}) > 1 else ()  # else the setting has it
    names = [SYSTEM, *shape, *varied]
    if by_variant:
        names = [SYSTEM, VARIANT, *shape, *varied]
    elif any(p.variant != DEFAULT for p in points):
        names.append(VARIANT)
    shown = (*names, *((SEEDS,) if scores.part != "scratch" else ()), *scored)
    rows = tuple(tuple(_make_cell(c, p, request) for c in shown) for p in points)
    return Table("", title, shown, rows, (), tuple(request.footnotes))


def build_scratch(request: TableRequest) -> Table | None:
    """Makes a table of the same models with random weights; None if nothing was measured."""
    scores = request.scores.scratch
    columns = [c for c in TASKS if any(scores.value(p, c.key) for p in request.points)]
    if not columns:
        return None
    request = dataclasses.replace(request, scores=scores)
    return build_scores(request, title="From random weights (first seed)", columns=columns)


# The kinds of tables that every study may ask for.
TABLES: dict[str, MakeTable] = {
    "scores": partial(build_scores, title="Scores", columns=TASKS, needs_tasks=True),
    "tasks": partial(
        build_scores, title="Fine-tuned scores", columns=(*LARGE, *SMALL, *PROBES, *ANSWERS),
        needs_tasks=True,
    ),
    "scratch": build_scratch,
    "probes": partial(
        build_scores, title="Self-labeled probe tasks and validation loss",
        columns=(*PROBES, LOSS), needs_tasks=True,
    ),
    "evaluations": partial(
        build_scores, title="Evaluations, without fine-tuning", columns=(*MEASURED, LOSS),
        needs_tasks=True,
    ),
    "grid": partial(build_scores, title="Loss and score", columns=(LOSS, LARGE[0])),
    "loss": partial(build_scores, title="Validation loss", columns=(LOSS,)),
    "cost": partial(
        build_scores, title="Time, score and loss", columns=(TIME, EPOCHS, LARGE[0], LOSS)
    ),
}  # fmt: skip


def order_by_net(points: Sequence[Row]) -> list[Row]:
    """Returns the rows of models with several variants, model by model."""
    nets = [(p.system, p.shape) for p in points]
    several = [p for p in points if nets.count((p.system, p.shape)) > 1]
    return sorted(several, key=lambda p: nets.index((p.system, p.shape)))


def find_published(published: Scores | None, point: Row, score: str) -> float | None:
    """Returns the published score of a row; None if there is none."""
    estimate = published.value(point, score) if published and point in published.rows else None
    return estimate.value if estimate else None


def _make_cell(column: Column, point: Row, request: TableRequest) -> Cell:
    if column.scored:
        if (found := request.scores.value(point, column.key)) is None:
            return None
        published = find_published(request.published, point, column.key)
        return Value(found.value, found.low, found.high, published)
    shape = point.shape
    cells: dict[str, Cell] = {
        "system": point.system, "variant": point.arm, "A": shape.num_heads, "H": shape.width,
        "L": shape.num_layers, "n_model": point.n_model,
        "seeds": len(point.finished),
        "epochs": point.fields.get("optim.total_epochs"),
        "loss_kind": comparability.loss_groups(request.points).get(point),
    }  # fmt: skip
    if column.key in cells:
        return cells[column.key]
    value = point.fields.get(column.key)  # a field that variants set
    return value if isinstance(value, int | float) and type(value) is not bool else str(value)
