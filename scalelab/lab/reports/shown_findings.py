"""How hypotheses and what they rest on are shown in a report."""

import dataclasses
from collections.abc import Sequence

from scalelab.lab.compare.claims import Finding
from scalelab.lab.reports.scored_table import Cell, Column, Table, Value

COLUMNS = (
    Column("hypothesis", "hypothesis", "text"),
    Column("claim", "claim", "text"),
    Column("region", "claimed to be", "text"),
    Column("effect", "found", "effect"),
    Column("p", "p (Holm)", "effect"),
    Column("detectable", "smallest detectable", "effect"),
    Column("verdict", "claim is", "text"),
)
NOTES = (
    "Scores are fractions here, losses are in nats; 95% intervals in square brackets.",
    "p is corrected for all claims of the report (Holm 1979); smallest detectable: the true"
    " difference that a two-sided test at 5% would find with power 80%, before this correction.",
)


@dataclasses.dataclass(frozen=True)
class Shown:
    """A hypothesis as the report shows it.

    Attributes:
      title: its number and statement.
      verdict: such as "confirmed".
      lines: what decides it, and what must be said.
      claims: those that it rests on; without rows if it has none.
    """

    title: str
    verdict: str
    lines: tuple[str, ...]
    claims: Table


def show(findings: Sequence[Finding]) -> list[Shown]:
    """Makes what is shown of each finding."""
    shown = []
    for finding in findings:
        lines = [f"Confirmed if {finding.rule}."]
        lines += [f"{finding.verdict.capitalize()}: {finding.why}."] if finding.why else []
        lines += [f"Counted case by case, without test: it {finding.counted}."] * bool(
            finding.cases
        )
        title = f"{finding.id}: {finding.statement.rstrip('.')}"
        made = _table([finding], COLUMNS[1:], ())
        shown.append(Shown(title, finding.verdict, (*lines, *finding.remarks), made))
    return shown


def table(
    findings: Sequence[Finding], notes: Sequence[str] = (), footnotes: Sequence[str] = ()
) -> Table:
    """All claims of all findings; below them further notes, and what was allowed to differ."""
    made = _table(findings, COLUMNS, (*NOTES, *notes, *footnotes))
    return dataclasses.replace(made, footnotes=tuple(footnotes))


def _table(findings: Sequence[Finding], columns: Sequence[Column], notes: tuple[str, ...]) -> Table:
    rows = []
    for finding in findings:
        for claim in finding.claims:
            estimate = claim.estimate
            ends = (None, None) if estimate is None else (estimate.low, estimate.high)
            cells: dict[str, Cell] = {
                "hypothesis": finding.id, "claim": claim.what, "region": str(claim.region),
                "effect": None if claim.effect is None else Value(claim.effect, *ends),
                "p": claim.corrected, "detectable": claim.detectable, "verdict": claim.verdict,
            }  # fmt: skip
            rows.append(tuple(cells[column.key] for column in columns))
    name = "hypotheses" if len(columns) == len(COLUMNS) else f"hypothesis-{findings[0].id}"
    return Table(name, "Hypotheses: the claims that they rest on", tuple(columns), tuple(rows),
                 None, notes)  # fmt: skip
