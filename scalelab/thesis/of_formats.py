"""Hypotheses f1 to f5: which part of MLM + NSP's lead is the objective, and which the format.

The thesis leaves them open (8.2); the study `formats` crosses objective and format. Its variants:
"baseline" is MLM + NSP on segment pairs, "mlm_on_pairs" MLM alone on the same pairs,
"mlm_on_sentences" MLM on sentences of one document; "pairs_unique" and "mlm_on_pairs_unique" train
on so many more pairs that they pass over the corpus as often as the sentences; "left_to_right" is a
net that sees one side only, on the same sentences. Rows: of one system and shape, for f5 of one
shape. Each has one claim, the mean over all rows with both variants; cases are these.

f3 and f4 are of equal unique text, counted in passes over the corpus. They are undecided where the
runs do not record their passes, or record ones that differ by more than comparability.TOLERANCE.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence

from scalelab.lab.compare import claims, comparability
from scalelab.lab.compare.claims import ABOVE, Finding
from scalelab.lab.compare.evidence import Evidence
from scalelab.lab.compare.hypotheses import Block, Row, block_cases, build_claim, make_finding
from scalelab.lab.load.study_runs import BASELINE
from scalelab.thesis import select

PAIRS, SENTENCES, LEFT_TO_RIGHT = "mlm_on_pairs", "mlm_on_sentences", "left_to_right"
UNIQUE, PAIRS_UNIQUE = "pairs_unique", "mlm_on_pairs_unique"
PARTIAL = (
    "Unique text is counted in passes over the corpus, here {:.2g}: below one pass, pairs see more"
    " different text than as many passes of sentences, as part of a pair is text of other pairs."
)

Pair = tuple[str, str]  # variants: better, worse


@dataclasses.dataclass(frozen=True)
class Gain:
    """A hypothesis that some variants score higher than others.

    Attributes:
      id: of the hypothesis.
      statement: in words.
      pairs: of variants, (better, worse).
      equal_text: whether both must have read equally much unique text.
      any_system: whether the two may be of different systems, of one shape.
    """

    id: str
    statement: str
    pairs: tuple[Pair, ...]
    equal_text: bool = False
    any_system: bool = False


GAINS = (
    # Both budgets enter: equal tokens, and equal unique text.
    Gain("f1", "On the same pairs, NSP adds to MLM.", ((BASELINE, PAIRS), (UNIQUE, PAIRS_UNIQUE))),
    Gain("f2", "At equal tokens (at scale full: equal steps), MLM does better on segment pairs than"
         " on sentences of one document.", ((PAIRS, SENTENCES),)),
    Gain("f3", "At equal unique text, MLM does better on segment pairs than on sentences.",
         ((PAIRS_UNIQUE, SENTENCES),), equal_text=True),
    Gain("f4", "At equal unique text, MLM with NSP on pairs does better than MLM on sentences.",
         ((UNIQUE, SENTENCES),), equal_text=True),
    Gain("f5", "On the same sentences, MLM does better than a left-to-right language model.",
         ((SENTENCES, LEFT_TO_RIGHT),), any_system=True),
)  # fmt: skip


def evaluate_gain(evidence: Evidence, score: str, *, gain: Gain) -> Finding:
    """Makes the finding of one gain, undecided where unique text had to be equal and is not."""
    what = " and ".join(f"{better} minus {worse}" for better, worse in gain.pairs)
    rule = f"{what} is above 0 in the mean"
    make = functools.partial(make_finding, evidence, gain.id, gain.statement, rule, score=score)
    blocks = _blocks(evidence, gain)
    unequal = [_unequal_text(evidence, list(block)) for block in blocks if gain.equal_text]
    if any(unequal):
        refused = claims.claim(what, ABOVE, "; ".join(filter(None, unequal)))
        return make(made=[refused], cases=[])
    made = build_claim(evidence, what, ABOVE, blocks, score, "no row with both variants")
    found = make(made=[made], cases=block_cases(evidence, blocks, ABOVE, score))
    read = [x for block in blocks for row in block for x in evidence.passes(row) if x is not None]
    if not gain.equal_text or not read or min(read) >= 1 / (1 + comparability.TOLERANCE):
        return found
    return dataclasses.replace(found, remarks=(*found.remarks, PARTIAL.format(min(read))))


HYPOTHESES: dict[str, Callable[[Evidence, str], Finding]] = {
    gain.id: functools.partial(evaluate_gain, gain=gain) for gain in GAINS
}


def _blocks(evidence: Evidence, gain: Gain) -> list[Block]:
    if gain.any_system:
        ((better, worse),) = gain.pairs
        both, left = (
            {row.shape: row for row in evidence.rows if row.variant == variant}
            for variant in (better, worse)
        )
        return [{both[shape]: 1.0, left[shape]: -1.0} for shape in both if shape in left]
    return [
        {better: 1.0, worse: -1.0}
        for one, two in gain.pairs for better, worse in select.by_variants(evidence, one, two)
    ]  # fmt: skip


def _unequal_text(evidence: Evidence, rows: Sequence[Row]) -> str:
    """Returns why rows are not of equal unique text; "": they are, or have no run."""
    read = {row.label: evidence.passes(row) for row in rows}
    unknown = [label for label, found in read.items() if None in found]
    if unknown:
        return f"the files of {' and '.join(unknown)} do not record passes over the corpus"
    known = {label: [x for x in found if x is not None] for label, found in read.items()}
    if not all(known.values()) or comparability.are_equal(
        x for found in known.values() for x in found
    ):
        return ""
    means = (f"{label} {sum(found) / len(found):.4g}" for label, found in known.items())
    return (
        f"unique text is not equal to {comparability.TOLERANCE:.0%}: passes over the corpus, "
        + (" and ".join(means))
    )
