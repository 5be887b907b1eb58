"""What a study says: its hypotheses, and which of its systems is better than which.

All claims of a report are corrected together (Holm). Two systems are compared on the mean over the
shapes and variants that both have, on GLUE-Large where the study has its tasks, else on each task.
"""

import itertools

from scalelab.lab import claims, hypotheses, published
from scalelab.lab.claims import ABOVE, CONFIRMED, REFUTED, Claim, Finding
from scalelab.lab.evidence import LARGE, OF_TASKS, Evidence
from scalelab.lab.hypothesis_parts import compare
from scalelab.lab.report_content import Finding as Shown
from scalelab.lab.study_runs import Study

WORDS = {CONFIRMED: "better", REFUTED: "worse"}


def of_study(study: Study, evidence: Evidence) -> list[Shown]:
    """The findings of a study, as its report shows them.

    Args:
      study: the study.
      evidence: its scores.

    Raises:
      ValueError: it asks for an unknown hypothesis.
    """
    ids = study.facts["hypotheses"]
    asked = hypotheses.evaluate(evidence, ids) if ids else []
    pairs = between_systems(study, evidence)
    decided = claims.decide([*asked, *pairs])
    before = {f.id: f for f in hypotheses.evaluate(published.evidence(), ids)} if ids else {}
    return [_shown(f, before.get(f.id)) for f in decided]


def between_systems(study: Study, evidence: Evidence) -> list[Finding]:
    """For every two systems, undecided yet, whether the first is better than the second."""
    found = []
    scores = _scores(study)
    systems = list(dict.fromkeys(point.system for point in study.points))
    for one, two in itertools.combinations(systems, 2):
        ours = {(p.shape, p.variant): p for p in study.points if p.system == one}
        theirs = {(p.shape, p.variant): p for p in study.points if p.system == two}
        blocks = [{ours[k]: 1.0, theirs[k]: -1.0} for k in ours if k in theirs]
        if not blocks or not scores:
            continue
        made = tuple(
            compare(evidence, f"{one} minus {two}", ABOVE, blocks, score, "no shape of both")
            for score in scores
        )
        found.append(Finding(f"{one}-{two}", f"{one} or {two}?", "", made, ()))
    return found


def _scores(study: Study) -> list[str]:
    """What systems are compared on: GLUE-Large, or the main score of each task."""
    tasks = set(study.facts["tasks"])
    if tasks.issuperset(OF_TASKS[part][0] for part in LARGE):
        return ["large"]
    main: dict[str, str] = {}
    for score, (task, _, _) in OF_TASKS.items():
        main.setdefault(task, score)
    return [score for task, score in main.items() if task in tasks]


def _shown(finding: Finding, before: Finding | None) -> Shown:
    """A finding in words, with what the published tables say of the same statement."""
    lines = [_line(claim) for claim in finding.claims]
    lines += [finding.counted.capitalize() + " single cases."] if finding.cases else []
    lines += [*finding.remarks]
    if before is not None:
        lines.append(f"On the published tables: {before.verdict}; {before.why}.")
    if finding.rule:
        return Shown(f"{finding.id}: {finding.statement}", finding.verdict, tuple(lines))
    return Shown(finding.statement, _of_pair(finding), tuple(lines))


def _of_pair(finding: Finding) -> str:
    """What is certain of two systems: on which scores the first is better, on which worse."""
    one = finding.id.partition("-")[0]
    said = []
    for claim in finding.claims:
        if claim.verdict in WORDS:
            score = claim.what.split(", ")[1]
            said.append(f"{one} {WORDS[claim.verdict]} on {score}")
    return "; ".join(said) or "undecided at this scale"


def _line(claim: Claim) -> str:
    """A claim with its effect, interval and p-value."""
    if claim.effect is None or claim.estimate is None or claim.corrected is None:
        return f"{claim.what}: {claim.why}."
    low, high = claim.estimate.low, claim.estimate.high
    return (
        f"{claim.what}: {claim.effect:+.4f} [{low:+.4f}, {high:+.4f}], claimed {claim.region},"
        f" corrected p {claim.corrected:.2g}: {claim.verdict}; the smallest difference that could"
        f" have been found is {claim.detectable:.4f} ({claim.why})."
    )
