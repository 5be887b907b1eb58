"""Hypotheses of a study: makes claims from rows, and the findings of a report.

A study states hypotheses as lines (claim_lines.py), or as ids of its comparison (scores.py).
Without lines it gets a finding for every two systems: the first scores higher than the second in
the mean over the shapes and variants that both have. Without ids too, it gets one for every variant
beside the default. All tests of a report are corrected together (Holm).
"""

import dataclasses
import itertools
from collections.abc import Iterable, Sequence

from scalelab.eval import score_names
from scalelab.eval.names import BIAS
from scalelab.eval.score_names import MAIN, PARTS, PRETRAINING_SCORES, TASK_SCORES, title_of
from scalelab.helpers.names import check_names
from scalelab.lab.compare import claims, comparability
from scalelab.lab.compare.claims import ABOVE, BELOW, Claim, Finding, Region
from scalelab.lab.compare.scores import Block, Comparison, Row, Scores, mean_weights
from scalelab.lab.compare.study_scores import Best, StudyScores
from scalelab.lab.load.study_runs import Study
from scalelab.records.study_file import DEFAULT

RULE = "the first scores higher on every score named, refuted if it scores lower on one"
NO_PAIR = "no pair of rows"
VARIANT_RULE = "every score named is higher and the loss is lower, refuted if one is reversed"


def value(scores: Scores, row: Row, score: str) -> float | None:
    """Returns a score without its interval."""
    found = scores.value(row, score)
    return None if found is None else found.value


def weighted(scores: Scores, block: Block, score: str) -> float | None:
    """Returns the weighted sum of a block's scores; None if one is missing."""
    found = [(weight, value(scores, row, score)) for row, weight in block.items()]
    values = [weight * x for weight, x in found if x is not None]
    return sum(values) if len(values) == len(found) else None


def build_claim(
    scores: Scores,
    what: str,
    region: Region,
    blocks: Sequence[Block],
    score: str,
    missing: str,
    best: Best | None = None,
) -> Claim:
    """Makes the claim that the mean over blocks of a weighted sum of scores lies in a region.

    Leaves out and counts blocks without a score.

    Args:
      scores: the study's scores.
      what: the comparison in words.
      region: values for which the claim holds.
      blocks: row -> its weight, for each block.
      score: name of the score.
      missing: the reason if there is no block.
      best: the estimate of chosen rows; None: the rows are given.
    """
    title = title_of(score)
    usable = [b for b in blocks if weighted(scores, b, score) is not None]
    label = f"{what}, {title}, mean of {len(usable)}" if len(usable) > 1 else f"{what}, {title}"
    if len(usable) < len(blocks):
        label += f" ({len(blocks) - len(usable)} without)"
    if not blocks:
        return claims.claim(label, region, f"{missing} in this study")
    if not usable:
        absent = [
            part for part in PARTS[score]
            if all(value(scores, row, part) is None for row in scores.rows)
        ]  # fmt: skip
        rows_lack = not absent or absent == [score]
        lacking = f"{title} of these rows" if rows_lack else ", ".join(absent)
        return claims.claim(label, region, f"no {lacking} in this study")
    weights = mean_weights(usable)
    found = best.estimate if best else scores.contrast(weights, score)
    reason = f"{title} of these rows is not comparable, see the notes"
    checks = claims.PASSED if found is None else scores.check_treatment(weights, score)
    scale = 1.0 if score in PRETRAINING_SCORES else 100.0
    return claims.claim(label, region, reason if found is None else found, checks,
                        scale=scale, compared=what, score=title, weights=weights)  # fmt: skip


def state(
    comparison: Comparison, scores: Scores, ids: Iterable[str] | None = None
) -> list[Finding]:
    """States hypotheses of a comparison, by id (None: all), on a study's scores; without verdicts.

    Raises:
      ValueError: an unknown id.
    """
    known = comparison.HYPOTHESES
    ids = list(known if ids is None else ids)
    check_names(ids, known, "no hypothesis")
    return [known[name](scores) for name in known if name in ids]


def judge(study: Study, scores: StudyScores, comparison: Comparison) -> list[Finding]:
    """Returns findings with verdicts: hypotheses, claims, or every two systems and every variant.

    A remark of a finding may be the comparison's own, such as the verdict on published numbers.

    Raises:
      ValueError: the study asks for an unknown hypothesis.
    """
    ids = study.facts.ids
    asked = state(comparison, scores, ids) if ids else []
    remarks = getattr(comparison, "remarks", Comparison().remarks)(ids)
    stated = {c.what.partition(",")[0] for finding in asked for c in finding.claims}
    if study.facts.lines:
        asked += _stated(study, scores)
    else:
        pairs = list(itertools.combinations(dict.fromkeys(p.system for p in scores.rows), 2))
        # A claim "a minus b" of a hypothesis keeps its direction, so that Holm counts it once.
        pairs = [(b, a) if f"{b} minus {a}" in stated else (a, b) for a, b in pairs]
        variants = dict.fromkeys(point.variant for point in scores.rows) if not ids else ()
        pairs += [(name, DEFAULT) for name in variants if name != DEFAULT]
        asked += _between(study, scores, pairs)
    return [
        dataclasses.replace(f, remarks=(*f.remarks, *filter(None, [remarks.get(f.id)])))
        for f in claims.decide(asked)
    ]


def _between(study: Study, scores: StudyScores, asked: Iterable[tuple[str, str]]) -> list[Finding]:
    """Makes a finding for every two systems or variants: the first does better; not decided yet.

    They need two finished rows that differ in nothing else. Losses of a variant count where they
    are losses of the same thing.
    """
    found, rows = [], [row for row in scores.rows if row.finished]
    for first, second in asked:
        factor, other = ("variant", "system") if second == DEFAULT else ("system", "variant")
        pairs = [
            (a, b) for a, b in itertools.product(rows, rows)
            if (getattr(a, factor), getattr(b, factor)) == (first, second)
            and (a.shape, getattr(a, other)) == (b.shape, getattr(b, other))
        ]  # fmt: skip
        blocks: list[Block] = [{a: 1.0, b: -1.0} for a, b in pairs]
        regions = dict.fromkeys(compared_scores(study), ABOVE)
        names, text, rule = (first, second), "{} scores higher than {}", RULE
        if second == DEFAULT:
            names = (pairs[0][0].arm, pairs[0][1].arm) if pairs else names
            text, rule = "{} does better than {}", VARIANT_RULE
            if all(not comparability.differing_losses(pair) for pair in pairs):
                regions["loss"] = BELOW
        made = tuple(
            build_claim(scores, " minus ".join(names), region, blocks, score, "no pair")
            for score, region in regions.items()
        )
        if blocks and made:
            found.append(Finding("/".join(names), text.format(*names), rule, made))
    return found


def _stated(study: Study, scores: StudyScores) -> list[Finding]:
    """Makes a finding for every claim of the study's config; not decided yet."""
    from scalelab.lab.compare import claim_lines

    facts, found = study.facts, []
    for place, stated in enumerate(facts.lines, start=1):
        line = claim_lines.parse(stated, scores.rows, facts.measured)
        best = scores.choose(line.pairs, line.score, line.best) if line.best else None
        blocks = best.blocks if best else [{a[0]: 1.0, b[0]: -1.0} for a, b in line.pairs]
        why = best.why if best else NO_PAIR
        made = build_claim(scores, line.text, line.region, blocks, line.score, why, best)
        region = line.region.describe(made.scale)
        margin = "" if line.region in claims.DIRECTIONS else f", {region}"
        compared = made.compared and line.text + margin
        made = dataclasses.replace(made, compared=compared, chosen=best.chosen if best else "")
        text = f"{line.text} on {title_of(line.score)}{margin}"
        rule = f"the mean difference, left minus right, lies {region}"
        remarks = tuple(scores.remarks([line.score]))
        found.append(Finding(f"hypothesis {place}", text, rule, (made,), remarks=remarks))
    return found


def compared_scores(study: Study) -> list[str]:
    """Returns GLUE-Large if the study has its tasks, else every task's main score; evaluations.

    Evaluations of bias are left out: more is not better.
    """
    measured = set(study.facts.measured)
    shown = [s for s, (task, *_) in TASK_SCORES.items() if task in measured and MAIN[task] == s]
    if measured.issuperset(score_names.LARGE_TASKS):
        shown = ["large", *study.facts.evaluations]
    return [score for score in shown if score not in BIAS]
