"""The thesis' tables: against themselves, dev-set sizes, and what is known to be wrong."""

import numpy as np
import pytest

from scalelab.config.pretraining import Shape
from scalelab.eval.score_names import LARGE, SCORES
from scalelab.records.study_file import DEFAULT
from scalelab.thesis import published
from scalelab.thesis.published import Row

BERT_5 = Row("bert", Shape(2, 128, 5), DEFAULT)


def cells():
    for name in published.TABLES:
        for row, found in published.read_table(name).items():
            yield name, row, found


def test_every_table_is_there() -> None:
    """Rows of 7.2 to 7.8 and B.1 to B.5, counted in the thesis."""
    numbers = [len(published.read_table(name)) for name in published.TABLES]
    assert numbers == [15, 15, 9, 6, 9, 2, 2, 15, 15, 9, 6, 3]
    assert tuple(next(iter(published.read_table("7.2").values()))) == (
        "large", "mnli_m", "mnli_mm", "qqp", "qnli", "sst2", "cola",
    )  # fmt: skip
    assert {score for _, _, found in cells() for score in found} <= set(SCORES)
    assert {row.system for _, row, _ in cells()} == {"bert", "gpt2", "roberta"}
    with pytest.raises(ValueError, match="7.9"):
        published.read_table("7.9")


def test_what_an_epoch_has() -> None:
    """Table 7.1: totals and averages as printed, and the protocol's steps out of them (7.3)."""
    found = published.epochs()
    assert {system for system, _ in found} == {"bert", "roberta", "gpt2"} and len(found) == 6
    assert found["bert", "short"] == (1_007_708, 110_888_186, 110.04)
    assert found["gpt2", "long"] == (60_591, 27_729_551, 457.65)
    for epoch in found.values():
        assert f"{epoch.tokens / epoch.sequences:.2f}" == f"{epoch.average:.2f}"
    for system, epochs, steps in (("bert", 6, 137_682), ("roberta", 10, 137_040)):
        count_phases = [found[system, name].sequences for name in ("short", "long")]
        assert epochs * (count_phases[0] // 64 + count_phases[1] // 16) == steps


def test_single_cells_as_printed() -> None:
    """Read off the thesis by eye, first and last rows."""
    small = Row("bert", Shape(2, 128, 2), DEFAULT)
    large = Row("bert", Shape(13, 832, 5), "fewer_long_epochs")
    half = Row("roberta", Shape(2, 256, 9), "half_batch")
    assert published.read_table("7.2")[small]["large"].value == pytest.approx(0.654)
    assert published.read_table("7.8")[large]["cola"].printed == "21.3"
    assert published.read_table("7.5")[half]["seconds"].value == 13101
    assert published.read_table("B.4")[half]["stsb"].value == pytest.approx(0.305)
    grid = published.read_table("7.6")
    assert grid[Row("bert", Shape(2, 46, 16), "short_only")].keys() == {"loss"}
    assert sum("large" in found for found in grid.values()) == 3


def test_glue_large_is_the_mean_of_three_but_where_doubted() -> None:
    for name, row, found in cells():
        if "qnli" in found:
            mean = np.mean([found[part].value for part in LARGE])
            sound = abs(mean - found["large"].value) < 0.0012
            assert sound == (found["large"].doubt is None), (name, row)


def test_small_tasks_are_shares_of_their_dev_sets() -> None:
    """Accuracies on 277, 71 and 872 examples, rounded to 0.1: no other number can be printed."""
    for score, size in (("rte", 277), ("wnli", 71), ("sst2", 872)):
        shares = {f"{100 * k / size:.1f}" for k in range(size + 1)}
        for name, row, found in cells():
            if score in found:
                fits = found[score].printed in shares
                copied = score == "sst2" and found[score].printed == found["large"].printed
                assert (fits and not copied) == (found[score].doubt is None), (name, row)


def test_tables_agree_where_they_print_one_number_twice() -> None:
    known = {}
    for _, row, found in cells():
        for score, cell in found.items():
            before = known.setdefault((row, score), cell)
            assert cell.value == pytest.approx(before.value, abs=0.0005)


def test_doubtful_cells_are_not_used() -> None:
    scores = published.read_scores()
    assert published.read_table("7.3")[BERT_5]["large"].doubt
    assert scores.value(BERT_5, "large").value == pytest.approx((0.621 + 0.750 + 0.686) / 3)
    roberta = Row("roberta", Shape(2, 256, 9), DEFAULT)
    assert scores.value(roberta, "sst2") is None
    assert scores.value(roberta, "large").value == pytest.approx(0.750)
    assert scores.difference(roberta, BERT_5, "sst2") is None
    assert scores.contrast({roberta: 1.0, BERT_5: -1.0}, "sst2") is None
    assert len(scores.remarks(SCORES)) == 7
    (remark,) = scores.remarks(["large"])
    assert "large 68.9" in remark


def test_evidence_has_values_without_intervals() -> None:
    scores = published.read_scores()
    a, b = (Row(system, Shape(2, 256, 9), DEFAULT) for system in ("roberta", "bert"))
    assert len(scores.rows) == 27 + 9 + 4 + 9 + 3  # 7.2 with 7.3, 7.4, 7.5, 7.6, 7.7 with 7.8
    assert scores.difference(a, b, "large").value == pytest.approx(0.036)
    found = scores.contrast({b: 0.5, a: -0.5, BERT_5: 0.5}, "qnli")
    assert found.value == pytest.approx(((0.825 - 0.783) + 0.686) / 2)
    assert not len(found.resamples)
    assert scores.value(b, "loss").value == 3.24
    assert scores.value(a, "loss") is None
