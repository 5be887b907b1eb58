"""Power of a planned study: the formula, planted spreads, and the packed studies."""

import numpy as np
import pytest
import scipy.stats
import seed_spread
import study_folders
import tiny

from scalelab.lab.compare.claims import Region
from scalelab.studies import power
from scalelab.studies.power import PlannedClaim, Spread
from scalelab.studies.spec import StudySpec

SPREAD = Spread("nano", "blimp", 0.02, 9, 2, "family")


def test_the_planned_difference_is_found_in_four_of_five_studies() -> None:
    """Two rows, four seeds: differences of spread 0.02 around the detectable one."""
    found = power.find_detectable(SPREAD, num_seeds=4, num_rows=2, num_pairs=1)
    drawn = np.random.default_rng(0).normal(found, 0.02, (4000, 4))
    p = scipy.stats.ttest_1samp(drawn, 0, axis=1).pvalue
    assert np.mean(p < 0.05) == pytest.approx(0.8, abs=0.04)
    more_rows = power.find_detectable(SPREAD, num_seeds=4, num_rows=9, num_pairs=1)
    assert more_rows < found  # they measure the spread too


def test_the_spread_of_planted_losses(tmp_path) -> None:
    """Differences of three rows over four seeds; a fourth row with a run left is not counted."""
    numbers = np.random.default_rng(0).normal(3, 0.1, (3, 4))
    runs = [{"system": "bert", "shape": f"2x32x{row + 1}", "seed": seed, "loss": float(x)}
            for row, own in enumerate(numbers) for seed, x in enumerate(own)]  # fmt: skip
    runs += [{"system": "bert", "shape": "2x32x9", "seed": s, "loss": 99.0 * s, "finished": s > 0}
             for s in range(4)]  # fmt: skip
    study_folders.write_study(tmp_path / "packed", runs)
    (found,) = seed_spread.measure_spreads(tmp_path)
    pairs = [np.var(numbers[a] - numbers[b], ddof=1) for a, b in ((0, 1), (0, 2), (1, 2))]
    expected = np.sqrt(np.mean(pairs))
    assert found == Spread("tiny", "loss", pytest.approx(expected, rel=1e-3), 3, 4, "invented")


def test_the_lines_of_a_plan(monkeypatch) -> None:
    monkeypatch.setattr(power, "load", lambda: {("nano", "blimp"): SPREAD})
    claims = [PlannedClaim("blimp", 1), PlannedClaim("blimp", 1), PlannedClaim("sst2", 1),
              PlannedClaim("blimp", 1, Region(-0.02, 0.02))]  # fmt: skip
    both, other, margin, note = power.describe(claims, StudySpec(scale="nano", seeds=3), 4)
    shown = 100 * power.find_detectable(SPREAD, 3, 4, 1)
    assert f"BLiMP (2 tests): 3 seeds will probably show {shown:.3g} points" in both
    assert "; half of that needs " in both and "9 rows x 2 seeds of family" in both
    assert "SST-2: not known at scale nano; no packed study has it" in other
    needed = int(margin.partition("the margin of 2 points needs ")[2].split()[0])
    at = [power.find_detectable(SPREAD, k, 4, 1) for k in (needed - 1, needed)]
    assert at[0] > 0.02 >= at[1]
    assert "80%" in note
    (line, _) = power.describe(claims[:1], StudySpec(scale="nano"), 4)
    assert "one seed gives no interval, 2 seeds will probably show" in line


@pytest.mark.parametrize(("scale", "nearest"), [
    ("micro", "small"), ("medium", "nano"), ("full", "nano"), ("mine", ""), ("nano", "nano"),
])  # fmt: skip
def test_another_scale_has_the_number_of_the_nearest_one(scale, nearest, monkeypatch) -> None:
    """And says so; a scale of one's own has none."""
    known = {(x, "blimp"): SPREAD._replace(scale=x) for x in ("synthetic", "small", "nano")}
    monkeypatch.setattr(power, "load", lambda: known)
    line, *_ = power.describe([PlannedClaim("blimp", 1)], StudySpec(scale=scale, seeds=3), 4)
    number = f"{100 * power.find_detectable(SPREAD, 3, 4, 1):.3g} points"
    named = f"at scale {nearest}, the nearest to {scale} that is packed: spread of 9 rows"
    assert (number in line) == bool(nearest)
    assert (named in line) == (nearest not in ("", scale))
    assert ("not known at scale mine; measured at nano, small, synthetic" in line) == (not nearest)


@pytest.mark.parametrize(
    "folder",
    [
        pytest.param("encoders", marks=pytest.mark.ci),
        pytest.param("", marks=pytest.mark.slow),  # all studies
    ],
)
def test_the_table_is_that_of_the_packed_studies(folder: str, tmp_path) -> None:
    (tmp_path / "results").symlink_to(tiny.ROOT / "results")
    if folder:
        (tmp_path / "some").mkdir()
        (tmp_path / "some" / folder).symlink_to(tiny.ROOT / "results" / folder)
    made = seed_spread.measure_spreads(tmp_path / ("some" if folder else "results"))
    known = [own for own in power.load().values() if folder in ("", own.study)]
    assert len(known) >= 3 and known == made
