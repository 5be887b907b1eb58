"""Statements f1 to f5: what of MLM + NSP is the objective, what the format. See hypotheses.py.

Not of the thesis, which says what they would need (8.2), but of the study `formats`, whose variants
cross objective and format: "baseline" is MLM + NSP on segment pairs, "mlm_on_pairs" MLM alone on
the same, "mlm_on_sentences" MLM on sentences of one document; "pairs_unique" and
"mlm_on_pairs_unique" are trained on so many more pairs that they pass over the corpus as often as
the sentences; "left_to_right" is a net that sees one side only, on the same sentences. Rows: of one
system and shape, or for f5 of one shape. Each has one claim, the mean over what has both variants;
cases are these.

f3 and f4 are of equal unique text, which is counted in passes over the corpus. They are undecided
where the runs' own files do not tell their passes, or tell ones that differ by more than
matched.TOLERANCE. Below one pass equal passes are not equal unique text: a pair may repeat what
another has, and a part of a pass lacks some of these others, so that pairs then see more different
text, by at most as much as a pass of pairs has more tokens; the finding says so.
"""

import dataclasses
from collections.abc import Sequence

from scalelab.lab.compare import claims, matched
from scalelab.lab.compare.claims import ABOVE, Finding
from scalelab.lab.evidence.evidence import Evidence
from scalelab.lab.reading.study_runs import BASELINE
from scalelab.thesis import select
from scalelab.thesis.parts import Blocks, block_cases, compare, make_finding
from scalelab.thesis.select import Row

PAIRS, SENTENCES, LEFT_TO_RIGHT = "mlm_on_pairs", "mlm_on_sentences", "left_to_right"
UNIQUE, PAIRS_UNIQUE = "pairs_unique", "mlm_on_pairs_unique"
BELOW = (
    "Unique text is counted in passes over the corpus, here {:.2g}: below one pass, pairs see more"
    " different text than as many passes of sentences, as part of a pair is text of other pairs."
)


def gain_of_nsp(evidence: Evidence, score: str) -> Finding:
    """f1: NSP adds to MLM on the same pairs.

    Claim: with NSP minus without, of as many tokens, is above 0; both budgets enter that have both.
    """
    pairs = ((BASELINE, PAIRS), (UNIQUE, PAIRS_UNIQUE))
    return _finding(evidence, score, "f1", "On the same pairs, NSP adds to MLM.", pairs)


def gain_of_pairs(evidence: Evidence, score: str) -> Finding:
    """f2: MLM gains from pairs of segments, with the budget that the study holds equal.

    That is tokens; at scale full steps, as the protocol has it, and tokens to 6%. Claim: MLM on
    pairs minus MLM on sentences is above 0.
    """
    said = (
        "At equal tokens (at scale full: equal steps), MLM does better on segment pairs than on"
        " sentences of one document."
    )
    return _finding(evidence, score, "f2", said, ((PAIRS, SENTENCES),))


def gain_of_pairs_unique(evidence: Evidence, score: str) -> Finding:
    """f3: MLM gains from pairs of segments, at equal unique text.

    Claim as in f2, with the pairs that see as much different text.
    """
    said = "At equal unique text, MLM does better on segment pairs than on sentences."
    return _of_equal_text(evidence, score, "f3", said, (PAIRS_UNIQUE, SENTENCES))


def gain_of_both(evidence: Evidence, score: str) -> Finding:
    """f4: MLM with NSP on pairs beats MLM on sentences, at equal unique text.

    Claim: the former minus the latter is above 0.
    """
    said = "At equal unique text, MLM with NSP on pairs does better than MLM on sentences."
    return _of_equal_text(evidence, score, "f4", said, (UNIQUE, SENTENCES))


def gain_of_both_sides(evidence: Evidence, score: str) -> Finding:
    """f5: a net that sees both sides beats one that sees the left side, on the same text.

    Claim: MLM on sentences minus the left-to-right language model, of whatever system, is above 0.
    """
    both, left = (
        {row.shape: row for row in evidence.rows if row.variant == variant}
        for variant in (SENTENCES, LEFT_TO_RIGHT)
    )
    blocks = [{both[shape]: 1.0, left[shape]: -1.0} for shape in both if shape in left]
    said = "On the same sentences, MLM does better than a left-to-right language model."
    return _made(evidence, score, "f5", said, blocks, ((SENTENCES, LEFT_TO_RIGHT),))


def _finding(
    evidence: Evidence, score: str, name: str, said: str, pairs: Sequence[tuple[str, str]]
) -> Finding:
    """A finding on differences of variants of one system and shape."""
    return _made(evidence, score, name, said, _blocks(evidence, pairs), pairs)


def _of_equal_text(
    evidence: Evidence, score: str, name: str, said: str, pair: tuple[str, str]
) -> Finding:
    """A finding on two variants, if they passed over their corpus equally often."""
    blocks = _blocks(evidence, [pair])
    unequal = "; ".join(filter(None, (_unequal_text(evidence, list(block)) for block in blocks)))
    found = _made(evidence, score, name, said, blocks, [pair], unequal)
    read = [x for block in blocks for row in block for x in evidence.passes(row) if x is not None]
    if unequal or not read or min(read) >= 1 / (1 + matched.TOLERANCE):
        return found
    return dataclasses.replace(found, remarks=(*found.remarks, BELOW.format(min(read))))


def _unequal_text(evidence: Evidence, rows: Sequence[Row]) -> str:
    """Why rows do not count as trained on equal unique text; "": they do, or have no run yet."""
    read = {row.label: evidence.passes(row) for row in rows}
    unknown = [label for label, found in read.items() if None in found]
    if unknown:
        return f"the files of {' and '.join(unknown)} do not tell how often it read its corpus"
    known = {label: [x for x in found if x is not None] for label, found in read.items()}
    if not all(known.values()) or matched.are_equal(x for found in known.values() for x in found):
        return ""
    means = (f"{label} {sum(found) / len(found):.4g}" for label, found in known.items())
    return f"unique text is not equal to {matched.TOLERANCE:.0%}: passes over the corpus, " + (
        " and ".join(means)
    )


def _blocks(evidence: Evidence, pairs: Sequence[tuple[str, str]]) -> Blocks:
    return [
        {better: 1.0, worse: -1.0}
        for one, two in pairs for better, worse in select.by_variants(evidence, one, two)
    ]  # fmt: skip


def _made(
    evidence: Evidence, score: str, name: str, said: str, blocks: Blocks,
    pairs: Sequence[tuple[str, str]], refused: str = "",
) -> Finding:  # fmt: skip
    """A finding of one claim; with `refused`, why there is nothing to compare, undecided."""
    what = " and ".join(f"{one} minus {two}" for one, two in pairs)
    rule = f"{what} is above 0 in the mean"
    if refused:
        return make_finding(
            evidence, name, said, rule, [claims.claim(what, ABOVE, refused)], [], score
        )
    claim = compare(evidence, what, ABOVE, blocks, score, "no row with both variants")
    return make_finding(
        evidence, name, said, rule, [claim], block_cases(evidence, blocks, ABOVE, score), score
    )
