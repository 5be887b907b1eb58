"""Signal and noise of scores: planted spreads, against scipy; and the program on run folders."""

import math

import law_folders
import numpy as np
import pandas as pd
import pytest
import tiny
from scipy import stats

from scalelab.lab import yardsticks
from scalelab.lab.compare.run_points import RunPoint

RESULTS = tiny.ROOT / "results/thesis_small"


def points(values: np.ndarray) -> list[RunPoint]:
    """Runs of systems x seeds."""
    return [
        RunPoint(f"s{i}", "2x8x1", {}, float(x), seed=seed)
        for i, row in enumerate(values) for seed, x in enumerate(row)
    ]  # fmt: skip


def test_planted_signal_and_noise() -> None:
    rng = np.random.default_rng(0)
    means, noise = np.linspace(0, 5, 200), 0.5
    values = means[:, None] + noise * rng.standard_normal((200, 3))
    made = yardsticks.measure(points(values))
    assert made["within"] == pytest.approx(noise, rel=0.1)
    assert made["between"] == pytest.approx(np.std(means, ddof=1), rel=0.05)
    assert made["ratio"] == made["between"] / made["within"]
    assert made["p"] == pytest.approx(stats.f_oneway(*values).pvalue)
    shared = np.var(means) / (np.var(means) + noise**2)  # correlation of two seeds
    assert made["agreement"] == pytest.approx(2 / np.pi * np.arcsin(shared), abs=0.05)


def test_noise_alone() -> None:
    values = np.random.default_rng(1).standard_normal((100, 2))
    made = yardsticks.measure(points(values))
    assert made["p"] > 0.05 and abs(made["agreement"]) < 0.2
    assert made["ratio"] == pytest.approx(1 / math.sqrt(2), rel=0.2)  # of means over two seeds


def test_what_one_seed_cannot_tell() -> None:
    made = yardsticks.measure(points(np.array([[0.1], [0.3]])))
    assert made["between"] == pytest.approx(np.std([0.1, 0.3], ddof=1))
    assert all(math.isnan(made[name]) for name in ("within", "ratio", "p", "agreement"))


def test_the_program_reads_packed_runs(capsys, tmp_path) -> None:
    """Two seeds of the thesis' small studies; an empty folder is refused."""
    out = law_folders.output(
        capsys, yardsticks, str(RESULTS), "--where=shape=2x64x2", f"--csv={tmp_path / 'x.csv'}"
    )
    assert "signal / noise" in out and "QNLI" in out
    table = pd.read_csv(tmp_path / "x.csv").set_index("score").loc["QNLI"]
    assert (table["systems"], table["runs"]) == (3, 6) and 0.005 < table["items"] < 0.01
    assert "no runs" in law_folders.fails(capsys, yardsticks, str(tmp_path))
