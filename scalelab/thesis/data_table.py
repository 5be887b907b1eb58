"""The table of what there was to read and what was read (Table 7.1 of the benchmark protocol).

The protocol prints tokens and average length of one epoch of each partition, and so do we, with its
numbers beside them; then follow the steps and tokens of the whole training, and how often it read
its sequences, and its text. Formats repeat text within an epoch, so these are two things.
"""

from collections.abc import Sequence

from scalelab.lab.load import phases
from scalelab.lab.load.phases import Phase
from scalelab.lab.load.study_runs import Point, PretrainRun
from scalelab.lab.show import notes as notes_lib
from scalelab.lab.show.score_tables import TableRequest
from scalelab.lab.show.tables import Cell, Column, Table, Value
from scalelab.thesis import published as published_tables

NOTE = (
    "Each row is of one run, the first that records its epoch. Tokens (without padding), average"
    " length and sequences are of one epoch; where no run records it, the average is of the whole"
    " training. Steps, sequences read and tokens read are of the whole training; epochs count how"
    " often its sequences were read."
)
TEXT = (
    "Different text counts each training document once, without special tokens. Text read is tokens"
    " read over different text; an epoch of segment pairs repeats text."
)
PUBLISHED = " (Table 7.1), whose sequences are tokens over average length"
COLUMNS = (
    Column("system", "system", "text"),
    Column("tokenizer", "tokenizer", "text"),
    Column("phase", "partition", "text"),
    Column("vocabulary", "vocabulary", "count"),
    Column("epoch_tokens", "tokens", "count", exact=True),
    Column("epoch_average", "average length", "fixed", exact=True),
    Column("epoch_sequences", "sequences", "count", exact=True),
    Column("steps", "steps", "count"),
    Column("epochs", "epochs", "number"),
    Column("sequences", "sequences read", "count"),
    Column("tokens", "tokens read", "count"),
    Column("text", "different text", "count"),
    Column("text_read", "text read", "number"),
)
BOTH = "both"


def build(request: TableRequest) -> Table:
    """Makes the table: rows of each system and data, from a finished run of each."""
    study, published = request.study, request.published
    known = {row.label for row in published.rows} if published else set()
    alike: dict[tuple[str, str], list[Point]] = {}  # shapes that read the same data make one row
    for point in (p for p in request.points if p.finished):
        config = point.runs[0].config
        asked = {k: config[k] for k in ("short", "long", "optim", "tokenizer", "data")}
        alike.setdefault((point.system, repr(asked)), []).append(point)
    points = [of[0] for of in alike.values()]
    rows: list[tuple[Cell, ...]] = []
    for of in alike.values():
        runs = [run for point in of for run in point.finished]
        telling = [run for run in runs if run.result and run.result.phases]
        rows += _of_run(of[0].system, (telling or runs)[0], of[0].label in known)
    notes = [NOTE]
    if any(row[-1] is not None for row in rows):
        notes.append(TEXT)
    shown = any(isinstance(c, Value) and c.published is not None for row in rows for c in row)
    notes += notes_lib.describe_published(study, request.departing, shown, PUBLISHED)
    notes += notes_lib.describe_study(study, points, request.footnotes)
    return Table(
        "data", "Data of an epoch and of the training", COLUMNS, tuple(rows), None,
        tuple(notes), tuple(request.footnotes),
    )  # fmt: skip


def _of_run(system: str, run: PretrainRun, is_published: bool) -> list[tuple[Cell, ...]]:
    """A row for each phase of a finished run, and one for both together."""
    tokenizer, found = run.config["tokenizer"], phases.read_phases(run)
    printed = published_tables.epochs() if is_published else {}
    text = run.result.corpus.tokens if run.result and run.result.corpus else None
    if run.config["long"].get("epoch_rate") == 0:
        text = None  # it left out the documents of the second phase: how much is not known
    names = (system, tokenizer["kind"])
    rows = []
    for phase in found:
        beside = printed.get((system, phase.name))
        rows.append((
            *names, f"{phase.name} ({phase.max_len})", tokenizer["vocab_size"],
            *_epoch([phase], beside), phase.steps, phase.epochs, phase.sequences, phase.tokens,
            *(_text(found, text) if len(found) == 1 else (None, None)),
        ))  # fmt: skip
    if len(found) > 1:
        steps, sequences, tokens = (
            sum(getattr(phase, name) for phase in found)
            for name in ("steps", "sequences", "tokens")
        )
        rows.append((
            *names, BOTH, tokenizer["vocab_size"], *_epoch(found, None), steps, None, sequences,
            tokens, *_text(found, text),
        ))  # fmt: skip
    return rows


def _epoch(
    found: Sequence[Phase], printed: published_tables.Epoch | None
) -> tuple[Value | None, Value | None, Value | None]:
    """Tokens, average length and sequences of one epoch of some phases together."""
    theirs = (printed.tokens, printed.average, printed.sequences) if printed else (None,) * 3
    counts = [(p.epoch_tokens, p.epoch_sequences) for p in found]
    pairs = [(tokens, sequences) for tokens, sequences in counts if tokens and sequences]
    if len(pairs) < len(found):
        average = sum(p.tokens for p in found) / sum(p.sequences for p in found)
        return None, Value(average, published=theirs[1]), None
    tokens, sequences = (sum(column) for column in zip(*pairs, strict=True))
    ours = (tokens, tokens / sequences, sequences)
    made = [Value(own, published=other) for own, other in zip(ours, theirs, strict=True)]
    return made[0], made[1], made[2]


def _text(found: Sequence[Phase], text: int | None) -> tuple[int | None, float | None]:
    """Tokens of the text, and how often they were read."""
    return text, sum(phase.tokens for phase in found) / text if text else None
