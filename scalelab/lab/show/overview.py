"""The first screen of a report: its answer, all differences, scores against cost, a ranking."""

import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from scalelab.lab import tables
from scalelab.lab.compare import claim_lines, comparability
from scalelab.lab.compare.claims import CONFIRMED, REFUTED, Claim, Finding
from scalelab.lab.compare.estimates import Estimate, with_bars
from scalelab.lab.compare.hypotheses import compared_scores
from scalelab.lab.compare.scores import PRETRAINING_SCORES, title_of
from scalelab.lab.compare.study_scores import StudyScores
from scalelab.lab.load.study_runs import Point, Study
from scalelab.lab.show import figures
from scalelab.lab.tables import INTERVAL, Column, Table, Value
from scalelab.records import plots

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_CLAIMS = 30  # drawn
MOST_ROWS = 10  # of the leaderboard
LONGEST = 70  # characters of a claim's label
COLORS = {CONFIRMED: "#009E73", REFUTED: "#D55E00"}
CAPTIONS = {
    "differences": "Every claim of the report: difference with its 95% interval before correction."
    " Green: confirmed; orange: refuted; gray: undecided or not testable.",
    "score_by_cost": "Headline score with its 95% interval against the training FLOPs of a run."
    " Colour: system; shade: size or variant.",
}


def find_headline(study: Study, scores: StudyScores) -> tuple[str | None, str]:
    """Returns the score that ranks the rows, and why there is none ("" if there is one).

    It is one of the scores that the study's claims name; without claims, of its tasks and
    yardsticks; the loss if nothing else was measured. Scores that tell nothing are left out. Of the
    others, it is the one that separates the best and the worst row most surely.
    """
    candidates = _name_candidates(study, scores)
    reasons = {score: _why_not(study, scores, score) for score in candidates}
    telling = [score for score, reason in reasons.items() if not reason]
    if not telling:
        return None, "; ".join(filter(None, reasons.values()))
    return max(telling, key=lambda score: _separation(study, scores, score)), ""


def _why_not(study: Study, scores: StudyScores, score: str) -> str:
    """Returns why a score tells nothing: losses of several kinds, or its best row fails a check."""
    ranked = [row for row, _ in rank(study, scores, score)]
    is_loss = score in PRETRAINING_SCORES and score != "seconds"
    if fields := comparability.differing_losses(ranked, score) if is_loss else {}:
        return f"{title_of(score)} does not compare between rows of different {', '.join(fields)}"
    return scores.check_treatment(ranked[:1], score)[0]


def _name_candidates(study: Study, scores: StudyScores) -> list[str]:
    """Returns the scores that the study asks about and has measured, each once."""
    facts = study.facts
    systems = {point.system for point in study.points}
    asked = [
        claim_lines.parse(stated, systems, facts.variants, facts.measured).score
        for stated in facts.claims
    ] or compared_scores(study)
    measured = [
        score for score in dict.fromkeys(asked)
        if any(scores.value(point, score) for point in study.points)
    ]  # fmt: skip
    return measured or ["loss"]


def _separation(study: Study, scores: StudyScores, score: str) -> float:
    """Returns the difference of the best and the worst row / the smallest detectable difference."""
    ranked = rank(study, scores, score)
    if len(ranked) < 2:
        return 0.0
    found = scores.contrast({ranked[0][0]: 1.0, ranked[-1][0]: -1.0}, score)
    if found is None or not found.detectable:
        return 0.0
    return abs(found.value) / found.detectable


def rank(study: Study, scores: StudyScores, score: str) -> list[tuple[Point, Estimate]]:
    """Returns the rows that have a score, the best first."""
    known = [(point, scores.value(point, score)) for point in study.points]
    found = [(point, value) for point, value in known if value is not None]
    sign = 1 if score in PRETRAINING_SCORES else -1
    return sorted(found, key=lambda row: sign * row[1].value)


def answer(
    study: Study, scores: StudyScores, findings: Sequence[Finding], score: str | None,
    why_none: str = "",
) -> list[str]:  # fmt: skip
    """Returns the answer of a study: its best row, and its verdicts. One sentence each.

    Args:
      study: the study.
      scores: its scores.
      findings: its hypotheses with their verdicts.
      score: the headline score; None: no score ranks the rows.
      why_none: the reason, without a headline score.
    """
    sentences = [f"No score ranks the rows: {why_none}."] if why_none else []
    ranked = rank(study, scores, score) if score else []
    if score and ranked:
        best = ranked[0][0]
        shown = [_describe(own, score) for _, own in ranked]
        tied = [p.label for (p, _), x in zip(ranked, shown, strict=True)
                if x.split()[0] == shown[0].split()[0]]  # fmt: skip
        if len(tied) > 1:
            names = f"{len(tied)} rows" if len(tied) > 3 else " and ".join(tied)
            what = f"{names} are equal on {title_of(score)}"
        elif score in PRETRAINING_SCORES:
            what = f"{best.label} has the lowest {title_of(score)}"
        else:
            what = f"{best.label} scores highest on {title_of(score)}"
        text = f"{what}: {shown[0]}"
        if len(ranked) > 1:
            second, own = (ranked[len(tied) :] or ranked[1:])[0]
            difference = scores.contrast({best: 1.0, second: -1.0}, score)
            text += f", {second.label} {_describe(own, score)}"
            if difference is not None:
                text += f", difference {_describe(difference, score)}"
        sentences.append(f"{text}.")
    if not findings:
        return [*sentences, "The study tests no statement."]
    statements = "1 statement" if len(findings) == 1 else f"{len(findings)} statements"
    sentences.append(f"Verdicts on {statements}: {_count(f.verdict for f in findings)}.")
    open_claims = [c for f in findings if f.verdict not in COLORS for c in f.claims]
    if decided := _count(c.verdict for c in open_claims if c.verdict in COLORS):
        sentences.append(f"Parts of the open statements, one score each: {decided}.")
    return sentences


def _count(verdicts: Iterable[str]) -> str:
    """Returns verdicts with their numbers, the most frequent first: "2 refuted, 1 confirmed"."""
    return ", ".join(f"{num} {verdict}" for verdict, num in Counter(verdicts).most_common())


def tabulate_ranking(study: Study, scores: StudyScores, score: str | None) -> Table | None:
    """Returns the rows by their headline score, with their cost; None without two rows."""
    ranked = rank(study, scores, score) if score else []
    if score is None or len(ranked) < 2:
        return None
    columns = (
        Column("row", "row"), _column(score),
        Column("seeds", "seeds", "count"), Column("tokens", "tokens", "short"),
        Column("flops", "FLOPs", "short"), Column("seconds", "seconds", "seconds"),
    )  # fmt: skip
    rows = tuple(
        (point.label, Value(value.value, value.low, value.high), len(point.finished),
         *(_cost(point, name) for name in ("tokens", "flops", "seconds")))
        for point, value in ranked[:MOST_ROWS]
    )  # fmt: skip
    return Table("ranking", "Leaderboard", columns, rows)


def for_terminal(
    study: Study, sentences: Sequence[str], ranking: Table | None, findings: Sequence[Finding]
) -> str:
    """Returns the answer, the ranking and the verdicts as text of at most 100 columns."""
    parts = [study.facts.title, *(textwrap.fill(sentence, 100) for sentence in sentences)]
    if ranking is not None:
        texts = ranking.texts()
        parts.append("\n" + tables.plain(list(texts), texts.to_numpy().tolist()))
    width = max((len(finding.verdict) for finding in findings), default=0)
    parts += [f"{finding.verdict:<{width}}  {finding.text.rstrip('.')}" for finding in findings]
    return "\n".join(parts) + "\n"


def draw_differences(findings: Sequence[Finding]) -> "Figure | None":
    """Draws the effect of every claim with its interval; None if no claim has one."""
    found: dict[tuple[str, float], Claim] = {}  # a claim of two findings is drawn once
    for finding in findings:
        for claim in finding.claims:
            if claim.estimate is not None:
                found.setdefault((claim.what, claim.scale), claim)
    claims = list(found.values())[:MOST_CLAIMS]
    units = [unit for unit in (100.0, 1.0) if any(c.scale == unit for c in claims)]
    if not claims:
        return None
    sizes = [sum(c.scale == unit for c in claims) for unit in units]
    figure = plots.canvas(9.5, 0.8 * len(units) + 0.3 * len(claims))
    panels = figure.subplots(len(units), 1, squeeze=False, height_ratios=[n + 1 for n in sizes])
    for axis, unit in zip(panels[:, 0], units, strict=True):
        own = [claim for claim in claims if claim.scale == unit]
        for place, claim in enumerate(own):
            assert claim.estimate is not None
            value, low, high = (unit * x for x in (claim.estimate.value, claim.estimate.low,
                                                   claim.estimate.high))  # fmt: skip
            color = COLORS.get(claim.verdict, "#767676")
            axis.plot([low, high], [place, place], color=color, lw=2, solid_capstyle="butt")
            axis.plot([value], [place], color=color, marker="o", ms=6)
        names = [c.what if len(c.what) <= LONGEST else f"{c.what[:LONGEST]}..." for c in own]
        axis.set_yticks(range(len(own)), names)
        axis.set_ylim(len(own) - 0.5, -0.5)
        axis.axvline(0, color="black", lw=1)
        axis.set_xlabel("points (scores x 100)" if unit == 100 else "nats, seconds or as named")
        axis.grid(alpha=0.3, axis="x")
    return figure


def draw_cost(study: Study, scores: StudyScores, score: str | None) -> "Figure | None":
    """Draws the headline score of every row against its training FLOPs; None without two rows."""
    ranked = rank(study, scores, score) if score else []
    if score is None or len(ranked) < 2:
        return None
    scale = 1 if score in PRETRAINING_SCORES else 100
    looks = figures.row_styles(study.points)
    figure = plots.canvas(7.5, 4.2)
    axis = figure.subplots()
    for point, value in sorted(ranked, key=lambda row: study.points.index(row[0])):
        look: dict[str, Any] = looks[point] | {"linestyle": "none", "capsize": 3, "ms": 7}
        means, bars = with_bars([value], scale)
        axis.errorbar([_cost(point, "flops")], means, yerr=bars, label=point.label, **look)
    floor = scores.floor(score) if scale == 100 else None
    if floor is not None:
        axis.axhline(scale * floor, color="black", lw=1, ls=(0, (4, 2)), label="trivial score")
    plots.label_clock(axis, "training FLOPs of a run", log=True)
    low, high = axis.get_xlim()
    axis.set_xlim(min(low, high / 4), max(high, 4 * low))  # equal costs stand in the middle
    axis.set_ylabel(title_of(score) + (" x 100" if scale == 100 else " (nats)"))
    figure.legend(loc="outside right upper", frameon=False, fontsize="small")
    return figure


def _cost(point: Point, name: str) -> float:
    """Returns the mean cost of a row's finished runs."""
    values = [getattr(run.result, name) for run in point.finished]
    return sum(values) / len(values)


def _describe(value: Estimate, score: str) -> str:
    """Returns a number with its interval in the unit of tables: "65.4 [63.0, 67.8]"."""
    return _column(score).text(Value(value.value, value.low, value.high)).removesuffix(" [-]")


def _column(score: str) -> Column:
    kind = "loss" if score in PRETRAINING_SCORES else "percent"
    return Column("score", title_of(score), kind, (), INTERVAL)
