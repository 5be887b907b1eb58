"""Hypotheses 7a, 7b and f1 to f5: comparisons of variants of one model.

Observation 7 of the thesis is about its variants of steps and batches. f1 to f5 are about a
question that the thesis leaves open (8.2): how much of the lead of MLM + NSP comes from the
objective, and how much from the format? The study `formats` crosses the two, with these variants:

  default              MLM + NSP on segment pairs
  mlm_on_pairs         MLM alone on the same pairs
  mlm_on_sentences     MLM on sentences of one document
  pairs_unique         as default, on more pairs: the corpus is read as often as with sentences
  mlm_on_pairs_unique  as mlm_on_pairs, in the same way
  left_to_right        a model that sees only the left side, on the same sentences

Each hypothesis has one claim: the mean over all systems and shapes (f5: shapes) with both variants
of the difference. Each of these is a case.

f3 and f4 compare at equal unique text, counted in passes over the corpus. They are undecided if the
passes are not recorded or differ by more than comparability.TOLERANCE.
"""

import dataclasses
from collections.abc import Callable, Sequence

from scalelab.lab.compare import claims
from scalelab.lab.compare.claims import ABOVE, BELOW, Finding, Region
from scalelab.lab.compare.comparability import TOLERANCE, are_equal
from scalelab.lab.compare.hypotheses import build_claim
from scalelab.lab.compare.scores import Row, Scores
from scalelab.records.study_file import DEFAULT
from scalelab.thesis import select
from scalelab.thesis.counts import SCORE, block_cases, make_finding
from scalelab.thesis.hypotheses import MARGIN, SIMILAR

PAIRS, SENTENCES, LEFT_TO_RIGHT = "mlm_on_pairs", "mlm_on_sentences", "left_to_right"
UNIQUE, PAIRS_UNIQUE = "pairs_unique", "mlm_on_pairs_unique"
PARTIAL = (
    "Unique text is counted in passes over the corpus, here {:.2g}: below one pass, pairs see more"
    " different text than as many passes of sentences, as part of a pair is text of other pairs."
)


@dataclasses.dataclass(frozen=True)
class VariantHypothesis:
    """A hypothesis about one variant's score minus another's, the second of each pair.

    Attributes:
      rule: the rule in words; empty: the difference is above 0.
      what: the comparison in words; empty: the pairs' names.
      region: the claimed region of the difference.
      weight: weight of the second variant.
      score: name of the score.
      equal_text: whether both must have read the same amount of unique text.
      any_system: whether the two may be different systems of one shape.
    """

    id: str
    text: str
    pairs: tuple[tuple[str, str], ...]
    rule: str = ""
    what: str = ""
    region: Region = ABOVE
    weight: float = 1.0
    score: str = SCORE
    equal_text: bool = False
    any_system: bool = False

    def __call__(self, scores: Scores) -> Finding:
        """Returns the finding; undecided if unique text must be equal and is not."""
        what = self.what or " and ".join(f"{better} minus {worse}" for better, worse in self.pairs)
        names = (self.id, self.text, self.rule or f"{what} is above 0 in the mean")
        rows = select.group(
            scores.rows, lambda row: ("" if self.any_system else row.system, row.shape)
        )
        named = [{row.variant: row for row in own} for own in rows.values()]
        blocks = [{own[better]: 1.0, own[worse]: -self.weight}
                  for better, worse in self.pairs
                  for own in named if better in own and worse in own]  # fmt: skip
        unequal = [_unequal_text(scores, list(block)) for block in blocks if self.equal_text]
        if any(unequal):
            refused = claims.claim(what, self.region, "; ".join(filter(None, unequal)))
            return make_finding(scores, *names, [refused], [], self.score)
        missing = "no row with both variants"
        claim = build_claim(scores, what, self.region, blocks, self.score, missing)
        cases = block_cases(scores, blocks, self.region, self.score)
        found = make_finding(scores, *names, [claim], cases, self.score)
        read = [x for block in blocks for row in block for x in scores.passes(row) if x]
        if not self.equal_text or not read or min(read) >= 1 / (1 + TOLERANCE):
            return found
        return dataclasses.replace(found, remarks=(*found.remarks, PARTIAL.format(min(read))))


HYPOTHESES: dict[str, Callable[[Scores], Finding]] = {
    made.id: made
    for made in (
        VariantHypothesis(
            "7a", "Twice the training steps gain little.", ((DEFAULT, "half_steps"),),
            f"they change the score by less than {MARGIN:g}", "default minus half the steps",
            SIMILAR,
        ),
        # At half the batch size the same number of steps reads half the examples.
        VariantHypothesis(
            "7b", "Twice the batch costs less time for each example.", ((DEFAULT, "half_batch"),),
            "as many examples take fewer seconds in batches of twice the size",
            "default minus twice half the batch", BELOW, weight=2.0, score="seconds",
        ),
        # f1 compares at two budgets: equal tokens, and equal unique text.
        VariantHypothesis(
            "f1", "On the same pairs, NSP adds to MLM.", ((DEFAULT, PAIRS), (UNIQUE, PAIRS_UNIQUE))
        ),
        VariantHypothesis(
            "f2", "At equal tokens (at scale full: equal steps), MLM does better on segment pairs"
            " than on sentences of one document.", ((PAIRS, SENTENCES),),
        ),
        VariantHypothesis(
            "f3", "At equal unique text, MLM does better on segment pairs than on sentences.",
            ((PAIRS_UNIQUE, SENTENCES),), equal_text=True,
        ),
        VariantHypothesis(
            "f4", "At equal unique text, MLM with NSP on pairs does better than MLM on sentences.",
            ((UNIQUE, SENTENCES),), equal_text=True,
        ),
        VariantHypothesis(
            "f5", "On the same sentences, MLM does better than a left-to-right language model.",
            ((SENTENCES, LEFT_TO_RIGHT),), any_system=True,
        ),
    )
}  # fmt: skip


def _unequal_text(scores: Scores, rows: Sequence[Row]) -> str:
    """Returns why the rows differ in unique text; "" if they do not, or have no run."""
    read = {row.label: scores.passes(row) for row in rows}
    unknown = [label for label, found in read.items() if None in found]
    if unknown:
        return f"the files of {' and '.join(unknown)} do not record passes over the corpus"
    known = {label: [x for x in found if x is not None] for label, found in read.items()}
    if not all(known.values()) or are_equal(x for found in known.values() for x in found):
        return ""
    means = " and ".join(f"{label} {sum(x) / len(x):.4g}" for label, x in known.items())
    return f"unique text is not equal to {TOLERANCE:.0%}: passes over the corpus, {means}"
