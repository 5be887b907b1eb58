"""best(field): validation chooses the value of each arm, anew in every resample."""

import dataclasses
import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.stats
import study_folders

from scalelab.config.pretraining import Shape
from scalelab.lab.compare import claims, hypotheses, study_scores
from scalelab.lab.compare.scores import Comparison
from scalelab.lab.load import study_runs

FIELDS = ("optim.learning_rate",)


def make(table: dict[str, tuple]) -> tuple[study_scores.StudyScores, dict]:
    """Scores of rows variant -> losses [P] and seconds [P], and these rows by variant."""
    rows = {}
    for variant, (losses, seconds) in table.items():
        runs = [
            SimpleNamespace(
                name=variant, seed=seed, config={"objective": "mlm"}, finished=True, tuned={},
                result=SimpleNamespace(loss=loss, seconds=x, eval={}),
            ) for seed, (loss, x) in enumerate(zip(losses, seconds, strict=True))
        ]  # fmt: skip
        rows[variant] = study_runs.Row("bert", Shape(2, 8, 1), variant, tuple(runs))
    study = SimpleNamespace(points=tuple(rows.values()), workdir="")
    return study_scores.StudyScores(study), rows


def arms(rows: dict) -> list:
    """The pair of the arms "a..." and "b..."."""
    return [tuple(tuple(row for name, row in rows.items() if name[0] == side) for side in "ab")]


TABLE = {  # in arm a, a0 and a1 are the best of some draws of seeds; in b it is always b1
    "a0": ([3.00, 3.10, 3.30], [100.0, 104.0, 103.0]),
    "a1": ([3.10, 3.12, 3.05], [111.0, 112.0, 116.0]),
    "a2": ([4.00, 4.10, 4.20], [50.0, 51.0, 52.0]),
    "b0": ([3.50, 3.50, 3.50], [90.0, 91.0, 92.0]),
    "b1": ([3.20, 3.30, 3.25], [100.0, 101.0, 103.0]),
}


def brute_force(table: dict[str, tuple], num_levels: int = 400) -> np.ndarray:
    """All 27 draws of three seeds; a draw has its share of Student's distribution."""
    draws = list(itertools.product(range(3), repeat=3))
    values = []
    for draw in draws:
        best = [
            min((np.mean([table[v][0][s] for s in draw]), v) for v in table if v[0] == side)[1]
            for side in "ab"
        ]
        sums = np.subtract(table[best[0]][1], table[best[1]][1])
        means = np.array([np.mean(sums[list(other)]) for other in draws])
        own = np.mean(sums[list(draw)])
        below, equal = (means < own - 1e-9).mean(), (abs(means - own) < 1e-9).mean()
        levels = below + equal * (np.arange(num_levels) + 0.5) / num_levels
        error = np.std(sums, ddof=1) / np.sqrt(3)
        values.append(np.mean(sums) + error * scipy.stats.t.ppf(levels, 2))
    return np.concatenate(values)


def test_resamples_are_those_of_a_bootstrap_by_hand() -> None:
    scores, rows = make(TABLE)
    found = scores.choose(arms(rows), "seconds", FIELDS)
    assert [[row.variant for row in pair] for pair in found.blocks] == [["a1", "b1"]]
    share = np.mean([
        np.mean(np.take(TABLE["a1"][0], draw)) < np.mean(np.take(TABLE["a0"][0], draw))
        for draw in itertools.product(range(3), repeat=3)
    ])  # fmt: skip
    assert 0.5 < share < 0.9
    words = found.chosen.split(", ")
    assert words[0].startswith("learning_rate chosen by validation loss: bert 2x8x1 a1 (in ")
    said = float(words[0].partition("(in ")[2].partition("%")[0]) / 100
    assert said == pytest.approx(share, abs=0.03)
    assert words[1] == "bert 2x8x1 b1 (in 100% of the resamples)"
    sums = np.subtract(TABLE["a1"][1], TABLE["b1"][1])
    error = np.std(sums, ddof=1) / np.sqrt(3)
    levels = np.array([0.025, 0.1, 0.2, 0.7, 0.9, 0.975])
    plain = np.mean(sums) + error * scipy.stats.t.ppf(levels, 2)
    mixed = np.quantile(brute_force(TABLE), levels)
    assert mixed[1] < plain[1] - 1  # the choice counts
    expected = np.where(levels < 0.5, np.minimum(plain, mixed), np.maximum(plain, mixed))
    ours = np.quantile(found.estimate.resamples, levels)
    np.testing.assert_allclose(ours, expected, atol=0.4)
    assert found.estimate.value == pytest.approx(np.mean(sums))
    assert (found.estimate.low, found.estimate.high) == pytest.approx(expected[[0, -1]], abs=0.4)


def test_one_clearly_best_value_is_the_plain_contrast() -> None:
    table = {k: x for k, x in TABLE.items() if k != "a0"}
    scores, rows = make(table)
    found = scores.choose(arms(rows), "seconds", FIELDS)
    plain = scores.contrast({rows["a1"]: 1.0, rows["b1"]: -1.0}, "seconds")
    assert found.estimate is plain and found.chosen.count("100% of the resamples") == 2


def test_missing_and_diverged_runs_are_not_chosen() -> None:
    scores, rows = make(TABLE | {"a3": ([1.0, 1.0, np.nan], [1.0, 1.0, 1.0])})
    short = dataclasses.replace(rows["a1"], runs=rows["a1"].runs[:2])
    found = scores.choose([((rows["a0"], short, rows["a3"]), (rows["b1"],))], "seconds", FIELDS)
    assert [[row.variant for row in pair] for pair in found.blocks] == [["a0", "b1"]]
    left = "left out, as runs are missing or diverged: bert 2x8x1 a1, bert 2x8x1 a3"
    assert found.chosen.endswith(left)
    none = dataclasses.replace(rows["a0"], runs=())
    assert scores.choose([((none,), (rows["b1"],))], "seconds", FIELDS).blocks == []


def test_an_arm_tuned_on_noise_is_seldom_confirmed() -> None:
    """Five equal rates against one, where seconds follow the loss that chooses: nothing is true."""
    rng, num, confirmed = np.random.default_rng(0), 60, 0
    for _ in range(num):
        noise = rng.normal(size=(6, 2, 3))
        table = {f"{'aaaaab'[k]}{k}": (3 + 0.01 * x, 100 + 0.8 * x + 0.6 * y)
                 for k, (x, y) in enumerate(noise)}  # fmt: skip
        scores, rows = make(table)
        found = scores.choose(arms(rows), "seconds", FIELDS)
        confirmed += claims.BELOW.p_values(found.estimate.resamples)[0] < 0.05
    assert confirmed <= 0.05 * num


HIGH = "optim.learning_rate=0.01"
HIGH_MASKED = "mask_rate_0p4_learning_rate_0p01"
RATES = {
    "default": (), "learning_rate_0p01": (HIGH,), "mask_rate_0p4": ("mask_rate=0.4",),
    HIGH_MASKED: ("mask_rate=0.4", HIGH),
}  # fmt: skip


def tune(workdir, losses: dict[str, tuple]) -> tuple[study_scores.StudyScores, list]:
    """Scores and claims of BERT at two mask rates and two learning rates, three seeds each."""
    wrong = dict(zip(RATES, (16, 25, 26, 8), strict=True))
    planned = [
        {"system": "bert", "shape": "2x32x2", "seed": seed, "variant": variant,
         "loss": losses[variant][seed], "tasks": {"sst2": {0: wrong[variant] + seed}}}
        for variant in RATES for seed in range(3)
    ]  # fmt: skip
    lines = [["mask_rate=0.4 best(learning_rate) > mask_rate=0.15", "sst2"],
             ["mask_rate=0.4 > mask_rate=0.15", "sst2"]]  # fmt: skip
    study_folders.write_study(
        workdir, planned, tasks=["sst2"], variants=RATES, hypotheses=lines, comparison=None,
        config=lambda run: {
            "mask_rate": 0.4 if "0p4" in run["variant"] else 0.15,
            "optim": {"learning_rate": 0.01 if "0p01" in run["variant"] else 0.001},
        },
    )  # fmt: skip
    study = study_runs.read(workdir)
    scores = study_scores.StudyScores(study)
    return scores, [f.claims[0] for f in hypotheses.judge(study, scores, Comparison())]


def test_a_claim_names_the_best_rate_of_each_arm(tmp_path) -> None:
    """The high rate is best with many masks, the low one with few; scores follow."""
    means = zip(RATES, (3.0, 3.5, 3.6, 3.1), strict=True)
    scores, (best, mean) = tune(tmp_path, {k: (x, x + 0.1, x + 0.2) for k, x in means})
    assert best.effect == pytest.approx(8 / 60) and mean.effect == pytest.approx(3.5 / 60)
    arms = ("mask_rate=0.4 learning_rate=0.01", "mask_rate=0.15 learning_rate=0.001")
    assert all(f"bert 2x32x2 {arm} (in 100% of the resamples)" in best.chosen for arm in arms)
    plain = scores.contrast({scores.rows[3]: 1.0, scores.rows[0]: -1.0}, "sst2")
    assert best.estimate is plain


def test_a_choice_that_seeds_do_not_share_widens_the_interval(tmp_path) -> None:
    """With two of three seeds for the high rate, some resamples choose the low one."""
    few = {k: (3.0, 3.0, 3.0) if k == "default" else (3.5, 3.5, 3.5) for k in RATES}
    losses = few | {"mask_rate_0p4": (3.3, 3.3, 3.0), HIGH_MASKED: (3.1, 3.1, 3.2)}
    scores, (best, _) = tune(tmp_path, losses)
    assert "mask_rate=0.4 learning_rate=0.01 (in 7" in best.chosen  # 20 of 27 draws
    plain = scores.contrast({scores.rows[3]: 1.0, scores.rows[0]: -1.0}, "sst2")
    assert best.estimate is not None and plain is not None
    assert best.effect == plain.value and best.estimate.high >= plain.high
    assert best.estimate.low < plain.low - 0.05  # the low rate has 10 points less than few masks
    assert best.verdict == "undecided"
