"""Checks whether models have learned anything: if not, their scores test no claim.

A study whose models have learned nothing beyond a trivial baseline cannot test what pre-training
does. `check` asks four things of the rows that a claim compares:

1. The objectives on which the claim rests beat their trivial baselines, in the mean over seeds, by
   the margin that each declares: a loss lies below the unigram entropy, an accuracy above chance.
   A claim rests on the objectives in which its rows differ. A validation loss also rests on all
   its terms, a zero-shot evaluation on the first loss over tokens, a fine-tuned score on the
   losses over tokens of the greatest weight. Another objective that fails is a remark.
2. These objectives were validated on FEW_EXAMPLES examples or more.
3. The best row's score is above the trivial score by FLOOR_MARGIN. Trivial is the best constant
   answer, or guessing (eval.names.TRIVIAL).
4. The models are ahead of the same models fine-tuned from random weights.

A number that is missing is not checked, and the finding says so. A check that fails says which
budget would do, as far as the curve so far tells.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from scalelab.config.pretraining import FEW_EXAMPLES, parse_objective
from scalelab.eval.names import EVALUATIONS
from scalelab.eval.score_names import PRETRAINING_SCORES, TITLES
from scalelab.lab.compare.claims import Treatment
from scalelab.lab.load import task_runs
from scalelab.lab.load.study_runs import Row
from scalelab.records.baselines import (
    UNIGRAM,
    Baseline,
    BaselineCheck,
    check_baselines,
    describe_budget,
)

if TYPE_CHECKING:
    from scalelab.lab.compare.study_scores import StudyScores

FLOOR_MARGIN = 0.05  # scores of models that have learned nothing differ by less
Curves = list[list[tuple[float, float]]]  # (tokens, number), a list for each run


def check(scores: "StudyScores", rows: Sequence[Row], score: str) -> Treatment:
    """Returns why some rows can test nothing, and what was not checked; see the module.

    All is "" if all checks passed, or if time is compared.
    """
    if score == "seconds":
        return Treatment()
    title = TITLES.get(score, score)
    reasons, missing, remarks = _check_objectives(rows, score, scores.baselines)
    values = {row: x.value for row in rows if (x := scores.value(row, score)) is not None}
    if values and score not in PRETRAINING_SCORES:
        best, floor = max(values, key=values.__getitem__), scores.floor(score)
        if floor is not None and values[best] - floor < FLOOR_MARGIN:
            curves = _score_curves(scores, best, score)
            given = values[best], floor + FLOOR_MARGIN
            budget = describe_budget(curves, _tokens(best), *given)
            reasons.append(
                f"{title} is at most {100 * values[best]:.1f}, but must exceed the trivial"
                f" score {100 * floor:.1f} by {100 * FLOOR_MARGIN:g}{budget}"
            )
        untrained = {row: scores.scratch.value(row, score) for row in values}
        gains = [values[row] - x.value for row, x in untrained.items() if x is not None]
        if gains and np.mean(gains) <= 0:
            gain = f"{100 * np.mean(gains):+.1f}"
            reasons.append(f"{title} is not ahead of the same models from random weights ({gain})")
        unknown = [row.label for row, x in untrained.items() if x is None]
        if unknown and score not in EVALUATIONS:  # chance says what random weights score
            missing[f"{title} against the same models from random weights"] = unknown
    unchecked = (f"{what} of {own[0]}{_more(own, ' and')}" for what, own in missing.items())
    return Treatment("; ".join(reasons), "; ".join(unchecked), "; ".join(remarks))


def _check_objectives(
    rows: Sequence[Row], score: str, baselines: Mapping[str, Baseline]
) -> tuple[list[str], dict[str, list[str]], list[str]]:
    """Returns reasons of objectives that fail, missing number -> rows without it, remarks."""
    sums = [parse_objective(str(row.runs[0].config.get("objective"))) for row in rows]
    options = [row.runs[0].config.get("objective_options") or {} for row in rows]
    gates = _differing(sums, options)
    for weights, own in zip(sums, options, strict=True):
        gates |= _rests_on(weights, own, score, baselines)
    failed: dict[str, list[tuple[Row, BaselineCheck]]] = {}
    missing: dict[str, list[str]] = {}
    for row, weights, own in zip(rows, sums, options, strict=True):
        for found in check_baselines(weights, own, _validation(row), baselines):
            if found.failure:
                failed.setdefault(found.objective, []).append((row, found))
            if found.lacking:
                missing.setdefault(found.lacking, []).append(row.label)
    reasons, remarks = list[str](), list[str]()
    for objective, cases in failed.items():
        row, found = cases[0]
        curves = _curves(row, found.metric)
        budget = describe_budget(curves, _tokens(row), found.value, found.wanted)
        (reasons if objective in gates else remarks).append(
            f"{objective} of {row.label} does not beat its baseline"
            f" ({found.failure}{_more(cases, ', and in')}){budget}"
        )
    phases = (run.result.phases for row in rows for run in row.finished if run.result)
    longest = (max(own, key=lambda phase: phase.max_len).valid_examples for own in phases if own)
    counts = list(filter(None, longest))
    if counts and gates and min(counts) < FEW_EXAMPLES:
        reasons.append(f"{min(counts)} validation examples, {FEW_EXAMPLES} needed")
    return reasons, missing, remarks


def _rests_on(
    weights: Mapping[str, float],
    options: Mapping[str, object],
    score: str,
    baselines: Mapping[str, Baseline],
) -> set[str]:
    """Returns the objectives of a sum on which a score rests, whatever it is compared with."""
    over_tokens = [x for x in weights if x in baselines and baselines[x](options)[0] == "loss"]
    if score == "loss" or not over_tokens:
        return set(weights)
    probed = score.startswith("probes.")  # reads the states of a model, as fine-tuning does
    if score == "bits_per_byte" or (score in EVALUATIONS and not probed):
        return {over_tokens[0]}
    most = max(weights[name] for name in over_tokens)
    return {name for name in over_tokens if weights[name] == most}


def _differing(
    sums: Sequence[Mapping[str, float]], options: Sequence[Mapping[str, object]]
) -> set[str]:
    """Returns the objectives in which rows differ: in weight, or all if a common option does."""
    common = set.intersection(*map(set, options)) if options else set()
    if any(own[name] != options[0][name] for own in options for name in common):
        return set().union(*sums)
    return {x for own in sums for x in own if any(own[x] != other.get(x) for other in sums)}


def _validation(row: Row) -> dict[str, float]:
    """Returns the last validation at the longest length, mean over the row's runs."""
    results = [run.result for run in row.finished if run.result]
    found = [
        (own.eval[max(own.eval, key=int)] if own.eval else {})
        | {UNIGRAM: own.unigram_nats, **own.unigrams} for own in results
    ]  # fmt: skip
    return pd.DataFrame(found, dtype=float).mean().dropna().to_dict()


# --- The budget that would do ---------------------------------------------------------------------


def _tokens(row: Row) -> float:
    return float(np.mean([run.result.tokens for run in row.finished if run.result]))


def _curves(row: Row, metric: str) -> Curves:
    """Returns the validations of each run by tokens, at the length that has most of them.

    A second phase of longer texts is short: its slope would say little.
    """
    longest = [max(run.curves.values(), key=len) for run in row.finished if run.curves]
    name = f"eval/{metric}"
    return [[(x["tokens"], x[name]) for x in lines if name in x] for lines in longest]


def _score_curves(scores: "StudyScores", row: Row, score: str) -> Curves:
    """Returns the scores of a row at shares of its budget and at the end, by tokens."""
    shares = sorted({share for run in row.finished for share in task_runs.by_share(run.tuned)})
    found = [
        *((x, scores.at(x).value(row, score)) for x in shares),
        (1.0, scores.value(row, score)),
    ]
    return [[(share * _tokens(row), x.value) for share, x in found if x]]


def _more(cases: Sequence[object], joined: str) -> str:
    """Returns " and 2 more rows" for three cases, "" for one."""
    num = len(cases) - 1
    return f"{joined} {num} more row{'s' * (num > 1)}" * (num > 0)
