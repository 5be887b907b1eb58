"""The tables of a study, in the layout of the benchmark protocol's own (thesis, chapter 7).

  data              an epoch's tokens, and what was read, by phase    (Table 7.1)
  large             GLUE-Large and the large tasks                    (7.2, 7.3, 7.4, 7.8)
  small             the four small tasks                              (B.1, B.2, B.3, B.5)
  strategies        variants of one net: time and the large tasks     (7.5)
  strategies_small  the same with the small tasks                     (B.4)
  probes            the self-labelled probe tasks and validation loss
  grid              validation loss and GLUE-Large                    (7.6)
  loss              validation loss alone
  cost              time, epochs, GLUE-Large, validation loss         (7.7)

A study names a kind, "large", or a kind and rows, "large:width"; see `table_rows`. A row is a point
of the study: one system, shape and variant. A score is a mean over its seeds with
its 95% interval. Where the protocol prints MNLI as "m/mm", we have two columns, so that each has
its interval. The last line says what each column could tell apart.
"""

import dataclasses
import math
from collections.abc import Sequence

from scalelab.lab.compare.estimates import Estimate
from scalelab.lab.compare.evidence import Evidence
from scalelab.lab.reading.study_runs import BASELINE, Point, Study
from scalelab.lab.reports import study_notes, table_rows
from scalelab.lab.reports.scored_table import Cell, Column, Table, Value
from scalelab.thesis import data_table, protocol

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
SYSTEM = Column("system", "system", "text")
STRATEGY = Column("variant", "training strategy", "text")
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

# What a table shows beside system, shape and seeds; without a caption its columns are it.
SCORED = {
    "large": ("GLUE: the large tasks", LARGE),
    "small": ("GLUE: the small tasks", SMALL),
    "strategies": ("Training strategies: time and the large tasks", (TIME, *LARGE)),
    "strategies_small": ("Training strategies: time and the small tasks", (TIME, *SMALL)),
    "probes": ("Self-labelled probes, no benchmark; and validation loss", (*PROBES, LOSS)),
    "grid": ("", (LOSS, LARGE[0])),
    "loss": ("", (LOSS,)),
    "cost": ("", (TIME, EPOCHS, LARGE[0], LOSS)),
}
TABLES = ("data", *SCORED)


def build(
    study: Study,
    evidence: Evidence,
    *,
    published: Evidence | None = None,
    footnotes: Sequence[str] = (),
) -> list[Table]:
    """Makes the tables that a study asks for.

    Args:
      study: what is compared.
      evidence: its scores.
      published: numbers to stand beside ours; withheld where the study is not the protocol.
      footnotes: said below every table, such as what the comparability contract found.

    Returns:
      The tables in the study's order; one of whose tasks the study has none is left out, and one
      whose rows are not known yet.

    Raises:
      ValueError: an unknown table, or unknown rows.
    """
    found = []
    departing = protocol.departures(study, footnotes)
    beside = None if departing else published
    for given in study.facts["tables"]:
        kind, points, title = select(study, given)
        if kind == "data":
            table = data_table.build(study, points, beside, departing, footnotes)
        else:
            table = _scored(kind, study, points, evidence, beside, departing, footnotes)
        if table and table.rows:
            caption = f"{title}. {table.title}" if title else table.title
            name = given.replace(":", "-")
            found.append(dataclasses.replace(table, name=name, title=caption))
    return found


def select(study: Study, table: str) -> tuple[str, list[Point], str]:
    """What stands in a table: its kind, its rows in their order, and what these are.

    Raises:
      ValueError: an unknown table, or unknown rows.
    """
    known = study.facts.get("rows") or {}
    kind, name = table_rows.parse(table, TABLES, known, "the study asks for an unknown table")
    rows = table_rows.Rows(**known[name]) if name else table_rows.Rows("")
    points = rows.of(study.points)
    if kind.startswith("strategies"):
        nets = [(p.system, p.shape) for p in points]
        several = [p for p in points if nets.count((p.system, p.shape)) > 1]
        points = sorted(several, key=lambda p: nets.index((p.system, p.shape)))
    return kind, points, rows.title


def _scored(
    kind: str,
    study: Study,
    points: Sequence[Point],
    evidence: Evidence,
    published: Evidence | None,
    departing: Sequence[str],
    footnotes: Sequence[str],
) -> Table | None:
    """A table of scores; None if the study has none of its tasks, or none of its rows is known."""
    title, wanted = SCORED[kind]
    planned = set(study.facts["tasks"])
    scores = tuple(c for c in wanted if planned.issuperset(c.tasks))
    of_tasks = kind in ("large", "small", "strategies_small", "probes")
    if not points or (of_tasks and not any(c.tasks for c in scores)):
        return None
    varied = any(p.variant != BASELINE for p in points)
    names = (SYSTEM, *SHAPE, *((STRATEGY,) if varied else ()))
    if kind.startswith("strategies"):
        names = (SYSTEM, STRATEGY, *SHAPE)
    if all(p.runs[0].config["optim"]["total_epochs"] is None for p in points):
        scores = tuple(c for c in scores if c is not EPOCHS)
    title = title or _listed([column.title for column in scores])
    if len({study_notes.loss_length(p) for p in points} - {None}) > 1:
        scores = tuple(x for c in scores for x in ((c, LENGTH) if c is LOSS else (c,)))
    waiting = any(len(p.finished) < len(p.runs) for p in points)
    columns = (*names, SEEDS, *((PLANNED,) if waiting else ()), *scores)
    rows = [tuple(_cell(c, p, evidence, published) for c in columns) for p in points]
    footer = _detectable(columns, points, evidence)
    left_out = [c.title for c in wanted if not planned.issuperset(c.tasks)]
    beside = any(isinstance(cell, Value) and cell.published is not None for r in rows for cell in r)
    asked = [c.key for c in columns if c.scored]
    notes = study_notes.of_scores(study, points, asked, left_out, beside, departing)
    if beside and published:
        doubts = [x for c in columns if c.scored for x in published.remarks(c.key)]
        notes += [x for x in doubts if any(f" {p.label}, " in x for p in points)]
    if footer:
        notes.append(study_notes.detectable(points))
    notes += study_notes.of_scaling(study, points) if kind == "grid" else []
    tasks = {task for c in columns for task in c.tasks}
    notes += study_notes.of_study(study, points, footnotes, tasks)
    notes += evidence.caveats(asked)
    return Table(kind, title, columns, tuple(rows), footer, tuple(notes), tuple(footnotes))


def _listed(titles: Sequence[str]) -> str:
    """A caption out of the titles of columns: "Validation loss and GLUE-Large"."""
    words = [title.removesuffix(" (s)") for title in titles]
    said = " and ".join([", ".join(words[:-1]), words[-1]] if words[1:] else words)
    return said[:1].upper() + said[1:]


def _cell(column: Column, point: Point, evidence: Evidence, published: Evidence | None) -> Cell:
    if column.scored:
        estimate = evidence.value(point, column.key)
        if estimate is None:
            return None
        beside = beside_of(published, point, column.key)
        low, high = (None if math.isnan(x) else x for x in (estimate.low, estimate.high))
        return Value(estimate.value, low, high, beside.value if beside else None)
    shape = point.shape
    cells: dict[str, Cell] = {
        "system": point.system, "variant": point.variant, "A": shape.num_heads, "H": shape.width,
        "L": shape.num_layers, "n_model": shape.n_model,
        "seeds": len(point.finished), "planned": len(point.runs),
        "epochs": point.runs[0].config["optim"]["total_epochs"],
        "loss_length": study_notes.loss_length(point),
    }  # fmt: skip
    return cells[column.key]


def beside_of(published: Evidence | None, point: Point, score: str) -> Estimate | None:
    """The published score of a row; None if there is none."""
    rows = [row for row in published.rows if row.label == point.label] if published else []
    return published.value(rows[0], score) if published and rows else None


def _detectable(
    columns: Sequence[Column], points: Sequence[Point], evidence: Evidence
) -> tuple[Cell, ...] | None:
    """For each score the largest over all rows of what a difference to the first could show.

    Of losses only those count that compare with the first row's.
    """
    cells: list[Cell] = [None] * len(columns)
    for place, column in enumerate(columns):
        there = [p for p in points if column.scored and evidence.value(p, column.key)]
        if column is LOSS:
            there = [p for p in there if _same_loss(p, there[0])]
        found = [evidence.difference(there[0], p, column.key) for p in there[1:]]
        known = [d.detectable for d in found if d is not None and d.detectable is not None]
        sizes = [size for size in known if math.isfinite(size)]
        cells[place] = max(sizes, default=None)
    return (DETECTABLE, *cells[1:]) if any(c is not None for c in cells) else None


def _same_loss(a: Point, b: Point) -> bool:
    """Whether the validation losses of two rows compare."""
    lengths = study_notes.loss_length(a), study_notes.loss_length(b)
    return study_notes.loss_kind(a) == study_notes.loss_kind(b) and len(set(lengths)) == 1
