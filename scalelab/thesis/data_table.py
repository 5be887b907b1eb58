"""The table of available and read data (Table 7.1 of the benchmark protocol).

Like the protocol, the table has tokens and average length of one epoch of each partition, next to
the protocol's numbers. It adds steps and tokens of the whole training, and the number of passes
over the sequences and over the text; these differ, because formats repeat text within an epoch.
"""

from collections.abc import Sequence

from scalelab.lab.load.study_runs import PretrainRun
from scalelab.lab.show.score_tables import TableRequest
from scalelab.lab.tables import Cell, Column, Table, Value
from scalelab.thesis import published, select
from scalelab.thesis.phases import Phase, read_phases

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
SOURCE = "Published: Table 7.1, whose sequences are tokens over average length."
PRINTED = ("published",)
COLUMNS = (
    Column("system", "system"),
    Column("tokenizer", "tokenizer"),
    Column("phase", "partition"),
    Column("vocabulary", "vocabulary", "count"),
    Column("epoch_tokens", "tokens", "count", (), PRINTED),
    Column("epoch_average", "average length", "fixed", (), PRINTED),
    Column("epoch_sequences", "sequences", "count", (), PRINTED),
    Column("steps", "steps", "count"),
    Column("epochs", "epochs", "number"),
    Column("sequences", "sequences read", "count"),
    Column("tokens", "tokens read", "count"),
    Column("text", "different text", "count"),
    Column("text_read", "text read", "number"),
)


def build(request: TableRequest) -> Table:
    """Makes the table: rows for each system and data, from one finished run of each."""
    known = {row.key for row in request.published.rows} if request.published else set()
    fields = ("short", "long", "optim", "tokenizer", "data")
    alike = select.group(  # shapes that read the same data make one row
        (p for p in request.points if p.finished),
        lambda p: (p.system, repr([p.runs[0].config[field] for field in fields])),
    ).values()
    rows: list[tuple[Cell, ...]] = []
    for points in alike:
        runs = [run for point in points for run in point.finished]
        telling = [run for run in runs if run.result and run.result.phases]
        rows += _phase_rows(points[0].system, (telling or runs)[0], points[0].key in known)
    notes = [NOTE] + [TEXT] * any(row[-1] is not None for row in rows)
    if any(isinstance(x, Value) and x.published is not None for row in rows for x in row):
        notes.append(SOURCE)
    return Table(
        "data", "Data of an epoch and of the training", COLUMNS, tuple(rows),
        tuple(notes), tuple(request.footnotes),
    )  # fmt: skip


def _phase_rows(system: str, run: PretrainRun, is_published: bool) -> list[tuple[Cell, ...]]:
    """Returns a row for each phase of a finished run, and one for both together."""
    tokenizer, found = run.config["tokenizer"], read_phases(run)
    printed = published.epochs() if is_published else {}
    text = run.result.corpus.tokens if run.result and run.result.corpus else None
    if run.config["long"].get("epoch_rate") == 0:
        text = None  # the run left out an unknown amount of text
    parts = [(f"{phase.name} ({phase.max_len})", [phase], printed.get((system, phase.name)))
             for phase in found]  # fmt: skip
    rows = []
    for name, own, beside in [*parts, ("both", found, None)] if len(found) > 1 else parts:
        steps, sequences, tokens = (
            sum(getattr(phase, field) for phase in own)
            for field in ("steps", "sequences", "tokens")
        )
        epochs = own[0].epochs if len(own) == 1 else None
        read = (text, tokens / text) if text and len(own) == len(found) else (None, None)
        rows.append((
            system, tokenizer["kind"], name, tokenizer["vocab_size"],
            *_epoch(own, beside), steps, epochs, sequences, tokens, *read,
        ))  # fmt: skip
    return rows


def _epoch(found: Sequence[Phase], printed: published.Epoch | None) -> list[Value | None]:
    """Returns tokens, average length and sequences of one epoch of some phases together."""
    expected = (printed.tokens, printed.average, printed.sequences) if printed else (None,) * 3
    counts = [(p.epoch_tokens, p.epoch_sequences) for p in found]
    pairs = [(tokens, sequences) for tokens, sequences in counts if tokens and sequences]
    if len(pairs) < len(found):
        average = sum(p.tokens for p in found) / sum(p.sequences for p in found)
        return [None, Value(average, published=expected[1]), None]
    tokens, sequences = (sum(column) for column in zip(*pairs, strict=True))
    measured = (tokens, tokens / sequences, sequences)
    return [Value(own, published=other) for own, other in zip(measured, expected, strict=True)]
