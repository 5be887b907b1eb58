"""The first page of a report: its answer, the primary table, all verdicts, and what was checked."""

import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence

from scalelab.eval.score_names import PRETRAINING_SCORES, find_score, title_of
from scalelab.lab import tables
from scalelab.lab.compare import comparability
from scalelab.lab.compare.claims import DECIDED, DIRECTIONS, NOT_TESTABLE, UNDECIDED, Claim, Finding
from scalelab.lab.compare.hypotheses import compared_scores
from scalelab.lab.compare.study_scores import StudyScores
from scalelab.lab.load.study_runs import Row, Study
from scalelab.lab.tables import INTERVAL, Column, Table, Value

Ends = tuple[float, float]
Primary = tuple[str, str]  # the primary score, and why it ranks no arms; "": it does
MOST_DECIDED = 8  # hypotheses that the answer shows
TESTED = "; a difference that a hypothesis tests has the interval of its verdict"
COST = {"tokens": "count", "flops": "short", "seconds": "seconds"}


def find_primary(scores: StudyScores) -> Primary:
    """Returns the score of the primary table, and why it ranks no arms ("" if it does).

    It is the one that the study fixes; else the first score that its claims name; without claims,
    the first that the report compares, or the loss. The first that tells something is preferred.
    """
    study, facts = scores.study, scores.study.facts
    named = [line[1] for line in facts.lines]
    named = [facts.primary] if facts.primary else named
    asked = [find_score(x, facts.measured) for x in named] or compared_scores(study)
    measured = [s for s in dict.fromkeys(asked) if any(scores.value(p, s) for p in study.points)]
    reasons = {score: _why_not(scores, score) for score in measured or ["loss"]}
    telling = [score for score, reason in reasons.items() if not reason]
    return (telling[0], "") if telling else ([*reasons][0], "; ".join(reasons.values()))


def _why_not(scores: StudyScores, score: str) -> str:
    """Returns why a score tells nothing: losses of several kinds, or its best row fails a check."""
    known = {p: found.value for p in scores.rows if (found := scores.value(p, score))}
    is_loss = score in PRETRAINING_SCORES and score != "seconds"
    if fields := comparability.differing_losses(known, score) if is_loss else {}:
        return f"{title_of(score)} does not compare between rows of different {', '.join(fields)}"
    best = min if score in PRETRAINING_SCORES else max
    return scores.check_treatment([best(known, key=known.__getitem__)], score)[0] if known else ""


def tabulate_primary(
    scores: StudyScores, primary: Primary, findings: Sequence[Finding] = ()
) -> Table | None:
    """Returns every arm's score, difference to the first arm, and cost; None without any.

    A difference that a claim tests has the claim's interval.
    """
    score, why = primary
    known = {p: found for p in scores.rows if (found := scores.value(p, score)) is not None}
    if not known:
        return None
    tested = _find_ends(findings, title_of(score))
    first, kind = next(iter(known)), "loss" if score in PRETRAINING_SCORES else "percent"
    columns = (
        Column("arm", "arm"), Column(score, title_of(score), kind, (), INTERVAL),
        Column("difference", f"minus {first.label}", kind, (), INTERVAL),
        Column("seeds", "seeds", "count"),
        *(Column(name, "FLOPs" if name == "flops" else name, how) for name, how in COST.items()),
    )  # fmt: skip
    rows = []
    for point, value in known.items():
        x = None if point is first else scores.difference(first, point, score)
        apart = x and Value(x.value, *tested.get((point, first), (x.low, x.high)))
        costs = [cost(point, name) for name in COST]
        shown = Value(value.value, value.low, value.high)
        rows.append((point.label, shown, apart, len(point.finished), *costs))
    title = f"Primary score: {title_of(score)}{', which ranks no arms' * bool(why)}"
    notes = (TESTED,) * any(first in pair for pair in tested)
    return Table("primary", title, columns, tuple(rows), notes)


def _find_ends(findings: Sequence[Finding], title: str) -> dict[tuple[Row, Row], Ends]:
    """Returns the interval of each difference of two rows, (a, b) and (b, a), that a claim tests.

    A claim about its sign comes before one with a margin.
    """
    found = dict[tuple[Row, Row], Ends]()
    made = [c for f in findings for c in f.claims if c.score == title and c.corrected is not None]
    for claim in sorted(made, key=lambda claim: claim.region not in DIRECTIONS):
        if sorted(claim.weights.values()) == [-1.0, 1.0]:
            b, a = sorted(claim.weights, key=claim.weights.__getitem__)
            found.setdefault((a, b), claim.ends)
            found.setdefault((b, a), (-claim.ends[1], -claim.ends[0]))
    return found


def cost(point: Row, name: str) -> float:
    """Returns the mean cost of a row's finished runs."""
    values = [getattr(run.result, name) for run in point.finished]
    return sum(values) / len(values)


def tabulate_verdicts(findings: Sequence[Finding]) -> Table | None:
    """Returns several claims as a matrix: a row is a comparison, a column a score."""
    claims = [claim for finding in findings for claim in finding.claims if claim.score]
    if len(claims) < 2:  # the answer says it
        return None
    cells: dict[str, dict[str, str]] = {}
    for claim in claims:
        cells.setdefault(claim.compared, {}).setdefault(claim.score, _cell(claim))
    scores = dict.fromkeys(claim.score for claim in claims)
    columns = tuple(Column(name, name) for name in ("comparison", *scores))
    rows = tuple((what, *(own.get(score, "") for score in scores)) for what, own in cells.items())
    return Table("verdicts", "Verdicts", columns, rows)


def _cell(claim: Claim) -> str:
    """Returns a verdict with the difference that was found: "refuted, -6.02 [-8.32, -3.72]"."""
    verdict = "not testable" if claim.verdict == NOT_TESTABLE else claim.words
    return ", ".join(filter(None, (verdict, describe_effect(claim))))


def describe_effect(claim: Claim) -> str:
    """Returns what a claim found in the unit of tables: "-6.02 [-8.32, -3.72]"."""
    if claim.effect is None:
        return ""
    low, high = (claim.scale * end for end in claim.ends)
    column = Column("", "", "short", (), INTERVAL[:2] if claim.estimate else ())
    return column.text(Value(claim.scale * claim.effect, low, high))


def answer(findings: Sequence[Finding], why_none: str = "", fixed: str | None = None) -> list[str]:
    """Returns the answer of a study, one sentence each: verdicts in the order of its hypotheses.

    Those on the `fixed` primary score come first, also if they are open. `why_none` says why no
    score ranks the arms; "": one does.
    """
    unranked = [f"No score ranks the arms: {why_none}."] * bool(why_none)
    found = list[str]()
    title = title_of(fixed) if fixed else ""
    first = [f for f in findings if title and any(c.score == title for c in f.claims)]
    found += [_state(finding) for finding in first]
    if not findings:
        return ["The study tests no hypothesis.", *unranked]
    num = len(findings)
    counts = _count(map(_words, findings))
    found.append(f"Verdicts on {num} hypothes{'es' if num > 1 else 'is'}: {counts}.")
    decided = [f for f in findings if f.verdict in DECIDED and f not in first]
    found += [_state(finding) for finding in decided[:MOST_DECIDED]]
    if len(decided) > MOST_DECIDED:
        found.append(f"{len(decided) - MOST_DECIDED} more are decided, see the verdicts.")
    parts = [c for f in findings if f.verdict not in DECIDED for c in f.claims]
    found += [f"{c.what}: {c.chosen}." for f in findings if f.verdict not in DECIDED
              and f not in first for c in f.claims if c.chosen]  # fmt: skip
    if counts := _count(c.verdict for c in parts if c.verdict in DECIDED):
        found.append(f"Parts of the open hypotheses, one score each: {counts}.")
    return [*found, *unranked]


def _state(finding: Finding) -> str:
    """Returns a hypothesis with its verdict, what was found, and what best() chose."""
    effects = [describe_effect(claim) for claim in finding.claims]
    shown = f", {effects[0]}" if len(effects) == 1 and effects[0] else ""
    chosen = "".join(f"; {claim.chosen}" for claim in finding.claims if claim.chosen)
    return f"{finding.text.rstrip('.')}: {_words(finding)}{shown}{chosen}."


def _words(finding: Finding) -> str:
    """Returns a verdict in words, as its claim has it where there is one."""
    return finding.claims[0].words if len(finding.claims) == 1 else finding.verdict


def checks(findings: Sequence[Finding]) -> list[str]:
    """Returns failed checks of each comparison, or that all passed; then the undecided claims."""
    found: dict[str, dict[str, None]] = {}
    claims = [claim for finding in findings for claim in finding.claims]
    for claim in claims:
        own = found.setdefault(claim.compared or claim.what, {})
        own.update(dict.fromkeys(filter(None, claim.checks.untestable.split("; "))))
        _, unchecked, remark = claim.checks
        own.update({f"not checked: {unchecked}": None} if unchecked else {})
        own.update({f"not needed here: {remark}": None} if remark else {})
    lines = [f"{compared}: {'; '.join(own)}." for compared, own in found.items() if own]
    passed = "Every objective and score that was checked exceeds its baseline."
    undecided = {
        f"{claim.compared or claim.what}{f', {claim.score}' * bool(claim.compared)}:"
        f" {claim.statement}.": None
        for claim in claims if claim.verdict == UNDECIDED
    }  # fmt: skip
    if len(undecided) > MOST_DECIDED:  # each is a row of the appendix
        undecided = {
            f"{len(undecided)} tests are undecided; the appendix has their intervals.": None
        }
    return [*(lines or [passed] * bool(claims)), *undecided]


def tabulate_findings(findings: Sequence[Finding]) -> Table:
    """Returns every hypothesis of several claims, or of none, with its verdict and the reason."""
    columns = [Column(name, name) for name in ("id", "hypothesis", "verdict", "why", "remarks")]
    rows = [
        (f.id, f.text.rstrip("."), f.verdict, f.why,
         " ".join([f"Confirmed if {f.rule}.", *f.remarks]))
        for f in findings if len(f.claims) != 1
    ]  # fmt: skip
    return Table("findings", "Hypotheses", tuple(columns), tuple(rows))


def describe_changes(study: Study) -> list[str]:
    """Returns a sentence for each change of the primary score after runs had finished."""
    earlier = study.facts.earlier_primary
    names = [title_of(name) if name else "none" for name, _ in (*earlier, (study.facts.primary, 0))]
    return [
        f"The primary outcome was changed from {names[k]} to {names[k + 1]} after {num} runs had"
        " finished."
        for k, (_, num) in enumerate(earlier)
    ]


def for_terminal(
    scores: StudyScores, findings: Sequence[Finding], primary: Table | None = None
) -> str:
    """Returns the answer, the primary table if given, the verdicts and why some are open."""
    study, (_, why_none) = scores.study, find_primary(scores)
    sentences = answer(findings, why_none, study.facts.primary)
    parts = [study.facts.title, *(textwrap.fill(sentence, 100) for sentence in sentences)]
    for table in filter(None, (primary, tabulate_verdicts(findings))):
        texts = table.texts()
        shown = tables.plain(list(texts), texts.to_numpy().tolist(), table.num_names)
        parts.append("\n" + shown.rstrip())
    lines = [*checks(findings), *describe_changes(study)]
    parts += ["", *(textwrap.fill(line, 100) for line in lines)]
    return "\n".join(parts) + "\n"


def _count(verdicts: Iterable[str]) -> str:
    """Returns verdicts with their numbers, the most frequent first: "2 refuted, 1 confirmed"."""
    return ", ".join(f"{num} {verdict}" for verdict, num in Counter(verdicts).most_common())
