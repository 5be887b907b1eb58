"""The thesis' observations: on its own tables, and on invented studies whose truth is known."""

import numpy as np
import pytest
from planted import PLANTED, Invented, by_system, only, ranked

from scalelab.config.pretraining import Shape
from scalelab.lab.compare import claims, estimates, hypotheses
from scalelab.records.study_file import DEFAULT
from scalelab.thesis import comparison, counts, published
from scalelab.thesis.published import Row


def evaluate(scores, ids=None):
    """Tested, or counted where no value has an interval."""
    if isinstance(scores, published.Published):
        return counts.evaluate(comparison, scores, ids)
    return claims.decide(hypotheses.state(comparison, scores, ids))


# Counted by hand in the tables.
PUBLISHED = {
    "1a": ("confirmed", 12, 12),
    "1b": ("undecided", 8, 12),
    "2a": ("confirmed", 5, 6),  # in most cases; gpt2 does not grow with depth
    "2b": ("undecided", 4, 6),  # roberta's last steps gain most
    "2c": ("confirmed", 5, 6),  # two that differ are enough; bert and roberta grow alike with width
    "2d": ("confirmed", 3, 3),
    "3": ("undecided", 4, 6),  # not gpt2
    "4a": ("undecided", 6, 15),  # within 2 points, that is; Table 7.6's three shapes are
    "4b": ("confirmed", 3, 3),
    "5": ("undecided", 2, 3),
    "6": ("undecided", 0, 0),
    "7a": ("confirmed", 2, 2),
    "7b": ("confirmed", 2, 2),
} | {f"f{i}": ("undecided", 0, 0) for i in range(1, 6)}  # what the thesis leaves open


def test_on_the_published_tables() -> None:
    found = evaluate(published.read_scores())
    assert {
        f.id: (f.verdict, sum(c.holds for c in f.cases), len(f.cases)) for f in found
    } == PUBLISHED
    by_id = {f.id: f for f in found}
    assert "8 of 12" in by_id["1b"].counted
    assert {c.label for c in by_id["1b"].cases if not c.holds} == {
        "2x128x2", "2x192x2", "2x288x2", "2x384x2",
    }  # fmt: skip
    assert "doubt" not in by_id["1a"].why and "68.9" in by_id["1a"].remarks[0]
    assert "no curves" in by_id["6"].why
    assert all(c.corrected is None for f in found for c in f.claims)


def test_effects_on_the_published_tables() -> None:
    """Means of differences, worked out from the tables by hand."""
    found = {c.what: c.effect for f in evaluate(published.read_scores()) for c in f.claims}
    assert found["more minus fewer heads, GLUE-Large, mean of 3"] == pytest.approx(
        (78.4 - 72.3 + 66.0 - 65.0 + 70.9 - 66.5) / 300
    )
    assert found["default minus half the steps, GLUE-Large, mean of 2"] == pytest.approx(0.0125)
    assert found["largest minus smallest width, CoLA, mean of 3"] == pytest.approx(0.298 / 3)
    wide = (77.1 - 72.3 + 78.6 - 72.3 + 63.6 - 64.9 + 63.8 - 65.0 + 72.9 - 64.3 + 75.0 - 66.5) / 600
    assert found["width and depth grown minus width alone, GLUE-Large, mean of 6"] == (
        pytest.approx(wide)
    )


def test_ids_are_chosen() -> None:
    scores = published.read_scores()
    assert [f.id for f in evaluate(scores, ["7a", "1b"])] == ["1b", "7a"]
    with pytest.raises(ValueError, match="no hypothesis '8'"):
        evaluate(scores, ["8"])


@pytest.mark.parametrize("name", comparison.HYPOTHESES)
def test_what_is_planted_is_found(name: str) -> None:
    true, false = (evaluate(Invented(truth, 0.001), [name])[0] for truth in PLANTED[name])
    assert (true.verdict, false.verdict) == ("confirmed", "refuted")
    noise = [evaluate(Invented(PLANTED[name][0], 5.0, seed=k), [name])[0] for k in range(5)]
    assert sum(found.verdict == "undecided" for found in noise) >= 3


def test_one_pretraining_each_decides_nothing() -> None:
    """A seed is one split, order and masking for all shapes: shapes do not stand in for seeds."""
    truth = only("large", by_system(0.7, 0.65, 0.6))
    found = evaluate(Invented(truth, 0.01, num_seeds=1), ["1a", "4b", "5"])
    assert {f.verdict for f in found} == {"undecided"}
    assert all(estimates.SINGLE_SEED in f.why for f in found)


def test_an_empty_study_says_what_it_lacks() -> None:
    found = evaluate(Invented(lambda row, score: None, 0.1))
    assert {f.verdict for f in found} == {"undecided"}
    assert all("0 of 0" in f.counted for f in found)
    why = {f.id: f.why for f in found}
    assert "no mnli_m, qqp, qnli" in why["1a"]
    assert "no CoLA" in why["2d"]
    assert "no curves" in why["6"]


@pytest.mark.slow
def test_null_studies_confirm_nothing() -> None:
    """Where nothing differs, one claim of a report or more is told in 5% of studies at most."""
    names = ("1a", "1b", "2a", "2b", "2c", "2d", "3", "4b")
    num, found_effects = 60, 0
    for seed in range(num):
        scores = Invented(only("large", lambda row: 0.65), 0.02, seed=seed)
        scores.value = lambda row, score, e=scores: estimates.without_interval(
            float(e.numbers[row, score].mean())
        )
        found = evaluate(scores, names)
        found_effects += any(
            c.verdict != "undecided" and not (c.region.low < 0 < c.region.high)
            for f in found for c in f.claims
        )  # fmt: skip
    assert found_effects <= 7  # 3 expected at most; more than 7 in 1% of cases


@pytest.mark.slow
def test_a_reliable_loss_is_seldom_called_unreliable() -> None:
    """Scores follow the loss exactly, under noise as large as their steps: rank order is lost."""

    def truth(row, score):
        return ranked(1)(row, score) if row.system == "bert" and row.variant == DEFAULT else None

    found = [evaluate(Invented(truth, 0.05, seed=seed), ["5"])[0] for seed in range(40)]
    assert np.mean([f.claims[0].effect < 0.9 for f in found]) > 0.3
    assert sum(f.verdict == "confirmed" for f in found) <= 5


def test_equal_seconds_are_read_where_both_end_at_one_length() -> None:
    """Ahead in the short phase, behind at the end of the budget; or ended before the other's."""
    small, large = (Row("bert", shape, DEFAULT) for shape in (Shape(2, 64, 2), Shape(2, 128, 2)))
    scores = Invented(lambda row, score: None, 0.0, rows=[small, large])
    short = np.array([(1.0, 9.0), (10.0, 8.0)])

    def both(curve):
        return dict.fromkeys((0, 1), curve)

    scores.found_curves = {
        small: both({128: short, 512: np.array([(11.0, 9.0), (20.0, 8.5)])}),
        large: both({128: short - [0, 1], 512: np.array([(12.0, 9.0), (20.0, 8.7)])}),
    }

    def found() -> tuple[float, str]:
        (made,) = evaluate(scores, ["6"])[0].claims
        return made.effect, made.what

    effect, what = found()
    assert effect == pytest.approx(0.2) and what.endswith("(20 s, length 512)")
    scores.found_curves[small] = both({128: short, 512: np.array([(20.1, 8.5)])})
    assert found() == (pytest.approx(0.2), what)
    scores.found_curves[small] = both({128: short, 512: np.array([(11.0, 9.0), (11.3, 8.5)])})
    effect, what = found()
    assert effect == pytest.approx(-1) and what.endswith("(10 s, length 128)")
    slow = Row("bert", Shape(2, 256, 2), DEFAULT)
    scores.rows.append(slow)
    scores.found_curves[slow] = both({128: short * [0.8, 1]})
    assert found()[1].endswith("(8 to 10 s, length 128)")
