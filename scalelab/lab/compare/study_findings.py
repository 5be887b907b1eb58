"""What a study says: its hypotheses, and which of its systems is better than which.

All claims of a report are corrected together (Holm). Two systems are compared on the mean over the
shapes and variants that both have, on GLUE-Large where the study has its tasks, else on each task.
"""

import dataclasses
import itertools

from scalelab.lab.compare import claims
from scalelab.lab.compare.claims import ABOVE, Finding
from scalelab.lab.evidence.evidence import LARGE, OF_TASKS, Evidence
from scalelab.lab.reading.study_runs import Study
from scalelab.thesis import hypotheses, published
from scalelab.thesis.parts import compare

ORDER = (hypotheses.MLM_NSP, hypotheses.MLM, hypotheses.CLM)
RULE = "the first scores higher on every score named, refuted if it scores lower on one"


def of_study(study: Study, evidence: Evidence) -> list[Finding]:
    """The findings of a study: its hypotheses, then which system is better than which.

    A hypothesis is held against the published tables too; a remark says what they give.

    Args:
      study: the study.
      evidence: its scores.

    Raises:
      ValueError: it asks for an unknown hypothesis.
    """
    ids = study.facts["hypotheses"]
    asked = hypotheses.evaluate(evidence, ids) if ids else []
    pairs = between_systems(study, evidence)
    before = {f.id: f for f in hypotheses.evaluate(published.evidence(), ids)} if ids else {}
    found = []
    for finding in claims.decide([*asked, *pairs]):
        if finding.id in before:
            said = before[finding.id]
            remark = f"On the published tables: {said.verdict}, {said.why}."
            finding = dataclasses.replace(finding, remarks=(*finding.remarks, remark))
        found.append(finding)
    return found


def between_systems(study: Study, evidence: Evidence) -> list[Finding]:
    """For every two systems whether the first scores higher than the second; not decided yet."""
    found = []
    scores = _scores(study)
    # As the statements of the thesis have them: a claim that is made twice then counts once.
    there = dict.fromkeys(point.system for point in study.points)
    systems = [name for name in ORDER if name in there] + [n for n in there if n not in ORDER]
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
        found.append(Finding(f"{one}/{two}", f"{one} scores higher than {two}", RULE, made, ()))
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
