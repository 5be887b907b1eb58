"""Tables of a study's scores: layouts, and one builder for all of them.

A row is a point of the study: one system, shape and variant. A score is a mean over its seeds with
its 95% interval. The footer is the smallest difference that each column could have shown. A study
names a kind of table, "large", or a kind and rows, "large:width" (`table_rows`).
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from scalelab.lab.compare import shape_rules
from scalelab.lab.compare.evidence import Evidence
from scalelab.lab.load.study_runs import BASELINE, Point, Study
from scalelab.lab.show import notes as notes_lib
from scalelab.lab.show import table_rows
from scalelab.lab.show.tables import Cell, Column, Table, Value

DETECTABLE = "smallest detectable difference"
LARGE = (
    Column("large", "GLUE-Large", "percent", ("mnli", "qqp", "qnli")),
    Column("mnli_m", "MNLI-m", "percent", ("mnli",)),
    Column("mnli_mm", "MNLI-mm", "percent", ("mnli",)),
    Column("qqp", "QQP", "percent", ("qqp",)),
    Column("qnli", "QNLI", "percent", ("qnli",)),
    Column("sst2", "SST-2", "percent", ("sst2",)),
    Column("cola", "CoLA", "percent", ("cola",)),
)
SMALL = (
    Column("stsb", "STS-B", "percent", ("stsb",)),
    Column("mrpc", "MRPC", "percent", ("mrpc",)),
    Column("rte", "RTE", "percent", ("rte",)),
    Column("wnli", "WNLI", "percent", ("wnli",)),
)
PROBES = (
    Column("same_document", "SameDocument", "percent", ("same_document",)),
    Column("swapped_words", "SwappedWords", "percent", ("swapped_words",)),
)
TASKS = (*LARGE, *SMALL, *PROBES)  # every column of a task
SYSTEM = Column("system", "system", "text")
VARIANT = Column("variant", "variant", "text")
SHAPE = (
    Column("A", "A", "count"),
    Column("H", "H", "count"),
    Column("L", "L", "count"),
    Column("n_model", "N", "count"),
)
SEEDS = Column("seeds", "seeds", "count")
PLANNED = Column("planned", "planned", "count")
LOSS = Column("loss", "validation loss", "loss")
LENGTH = Column("loss_length", "at length", "count")  # beside losses, where rows differ in it
TIME = Column("seconds", "total time (s)", "seconds")
EPOCHS = Column("epochs", "epochs", "number")


@dataclasses.dataclass(frozen=True)
class Layout:
    """What a kind of table shows beside system, shape and seeds.

    Attributes:
      columns: its columns, of which those without tasks in the study are left out.
      title: its caption; empty: the titles of its columns.
      needs_tasks: whether it is left out where the study has none of its tasks.
      by_variant: whether it compares variants: rows of nets with several, net by net.
      scaling: whether its notes give the base and coefficients of compound scaling.
    """

    columns: tuple[Column, ...]
    title: str = ""
    needs_tasks: bool = False
    by_variant: bool = False
    scaling: bool = False


@dataclasses.dataclass(frozen=True)
class TableRequest:
    """The input of a function that makes a table.

    Attributes:
      study: the comparison.
      points: the table's rows.
      evidence: the scores.
      published: numbers that may stand beside ours.
      departing: reasons why published numbers may not stand beside ours.
      footnotes: notes that every table repeats, in its CSV too.
    """

    study: Study
    points: Sequence[Point]
    evidence: Evidence
    published: Evidence | None = None
    departing: Sequence[str] = ()
    footnotes: Sequence[str] = ()


MakeTable = Callable[[TableRequest], Table | None]


def build(
    study: Study,
    evidence: Evidence,
    *,
    makers: Mapping[str, MakeTable],
    published: Evidence | None = None,
    departing: Sequence[str] = (),
    footnotes: Sequence[str] = (),
) -> list[Table]:
    """Makes the tables that a study asks for, in its order.

    Args:
      study: the comparison.
      evidence: its scores.
      makers: kinds of tables by name.
      published: numbers to stand beside ours, withheld if there are reasons in `departing`.
      departing: differences from the published study.
      footnotes: notes below every table, such as fields that were allowed to differ.

    Returns:
      The tables that have rows: a table without known rows or tasks is left out.

    Raises:
      ValueError: an unknown table, or unknown rows.
    """
    found = []
    request = TableRequest(
        study, (), evidence, None if departing else published, departing, footnotes
    )
    for name in study.facts["tables"]:
        kind, points, title = select(study, name, makers)
        table = makers[kind](dataclasses.replace(request, points=points)) if points else None
        if table and table.rows:
            caption = f"{title}. {table.title}" if title else table.title
            found.append(dataclasses.replace(table, name=name.replace(":", "-"), title=caption))
    return found


def select(study: Study, table: str, kinds: Mapping[str, object]) -> tuple[str, list[Point], str]:
    """Returns the kind of a table, its rows, and the beginning of its caption.

    Raises:
      ValueError: an unknown table, or unknown rows.
    """
    known = study.facts.get("rows") or {}
    kind, name = table_rows.parse(table, kinds, known, "the study asks for an unknown table")
    rows = table_rows.Rows(**known[name]) if name else table_rows.Rows("")
    return kind, rows.choose(study.points), rows.title


def build_scores(request: TableRequest, layout: Layout) -> Table | None:
    """Makes a table of scores; None if it has no rows, or needs tasks that the study lacks."""
    study, evidence, points = request.study, request.evidence, list(request.points)
    if layout.by_variant:
        points = order_by_net(points)
    planned = set(study.facts["tasks"])
    scores = tuple(c for c in layout.columns if planned.issuperset(c.tasks))
    if not points or (layout.needs_tasks and not any(c.tasks for c in scores)):
        return None
    names = (SYSTEM, *SHAPE)
    if layout.by_variant:
        names = (SYSTEM, VARIANT, *SHAPE)
    elif any(p.variant != BASELINE for p in points):
        names = (*names, VARIANT)
    if all(p.runs[0].config["optim"]["total_epochs"] is None for p in points):
        scores = tuple(c for c in scores if c is not EPOCHS)
    title = layout.title or _list_titles(scores)
    if len({notes_lib.loss_length(p) for p in points} - {None}) > 1:
        scores = tuple(x for c in scores for x in ((c, LENGTH) if c is LOSS else (c,)))
    waiting = any(len(p.finished) < len(p.runs) for p in points)
    columns = (*names, SEEDS, *((PLANNED,) if waiting else ()), *scores)
    rows = [tuple(_make_cell(c, p, evidence, request.published) for c in columns) for p in points]
    footer = _make_footer(columns, points, evidence)
    table = Table("", title, columns, tuple(rows), footer, (), tuple(request.footnotes))
    left_out = [c.title for c in layout.columns if not planned.issuperset(c.tasks)]
    left_out = [] if layout.columns is TASKS else left_out
    notes = _make_notes(request, points, table, left_out)
    notes += shape_rules.describe_bases(study, points) if layout.scaling else []
    return dataclasses.replace(table, notes=tuple(notes))


# The kinds of tables that every study may ask for.
LAYOUTS = {
    "scores": Layout(TASKS, "Scores", needs_tasks=True),
    "probes": Layout(
        (*PROBES, LOSS), "Self-labelled probe tasks and validation loss", needs_tasks=True
    ),
    "grid": Layout((LOSS, LARGE[0]), scaling=True),
    "loss": Layout((LOSS,)),
    "cost": Layout((TIME, EPOCHS, LARGE[0], LOSS)),
}
TABLES: dict[str, MakeTable] = {
    name: partial(build_scores, layout=layout) for name, layout in LAYOUTS.items()
}


def order_by_net(points: Sequence[Point]) -> list[Point]:
    """Returns the rows of nets with several variants, net by net."""
    nets = [(p.system, p.shape) for p in points]
    several = [p for p in points if nets.count((p.system, p.shape)) > 1]
    return sorted(several, key=lambda p: nets.index((p.system, p.shape)))


def find_published(published: Evidence | None, point: Point, score: str) -> float | None:
    """Returns the published score of a row; None if there is none."""
    rows = [row for row in published.rows if row.label == point.label] if published else []
    estimate = published.value(rows[0], score) if published and rows else None
    return estimate.value if estimate else None


def _make_notes(
    request: TableRequest, points: Sequence[Point], table: Table, left_out: Sequence[str]
) -> list[str]:
    scores = [c.key for c in table.columns if c.scored]
    has_published = any(
        isinstance(cell, Value) and cell.published is not None for r in table.rows for cell in r
    )
    found = notes_lib.describe_scores(
        request.study, points, scores, left_out, request.departing, has_published
    )
    if has_published and request.published:
        doubts = [text for score in scores for text in request.published.remarks(score)]
        found += [text for text in doubts if any(f" {p.label}, " in text for p in points)]
    if table.footer:
        found.append(notes_lib.describe_detectable(points))
    tasks = {task for c in table.columns for task in c.tasks}
    found += notes_lib.describe_study(request.study, points, request.footnotes, tasks)
    return found + list(request.evidence.caveats(scores))


def _list_titles(columns: Sequence[Column]) -> str:
    """The titles of columns as a caption: "Validation loss and GLUE-Large"."""
    words = [column.title.removesuffix(" (s)") for column in columns]
    text = " and ".join([", ".join(words[:-1]), words[-1]] if words[1:] else words)
    return text[:1].upper() + text[1:]


def _make_cell(
    column: Column, point: Point, evidence: Evidence, published: Evidence | None
) -> Cell:
    if column.scored:
        estimate = evidence.value(point, column.key)
        if estimate is None:
            return None
        low, high = (None if math.isnan(x) else x for x in (estimate.low, estimate.high))
        return Value(estimate.value, low, high, find_published(published, point, column.key))
    shape = point.shape
    cells: dict[str, Cell] = {
        "system": point.system, "variant": point.variant, "A": shape.num_heads, "H": shape.width,
        "L": shape.num_layers, "n_model": shape.n_model,
        "seeds": len(point.finished), "planned": len(point.runs),
        "epochs": point.runs[0].config["optim"]["total_epochs"],
        "loss_length": notes_lib.loss_length(point),
    }  # fmt: skip
    return cells[column.key]


def _make_footer(
    columns: Sequence[Column], points: Sequence[Point], evidence: Evidence
) -> tuple[Cell, ...] | None:
    """For each score the largest detectable difference to the first row, over comparable rows."""
    cells: list[Cell] = [None] * len(columns)
    for place, column in enumerate(columns):
        known = [p for p in points if column.scored and evidence.value(p, column.key)]
        if column is LOSS:
            known = [p for p in known if _same_loss(p, known[0])]
        differences = [evidence.difference(known[0], p, column.key) for p in known[1:]]
        sizes = [d.detectable for d in differences if d is not None and d.detectable is not None]
        cells[place] = max(filter(math.isfinite, sizes), default=None)
    return (DETECTABLE, *cells[1:]) if any(c is not None for c in cells) else None


def _same_loss(a: Point, b: Point) -> bool:
    """Whether the validation losses of two rows compare."""
    kinds, lengths = ({f(a), f(b)} for f in (notes_lib.loss_kind, notes_lib.loss_length))
    return len(kinds) == len(lengths) == 1
