"""Signal and noise of scores: planted spreads, against scipy; and the program on run folders."""

import json
import math
import pathlib
import shutil

import law_folders
import numpy as np
import pandas as pd
import pytest
import run_folders
import task_folders
import tiny
from scipy import stats

from scalelab.lab import signal_to_noise
from scalelab.lab.compare import run_points

RESULTS = tiny.ROOT / "results/thesis_small"


def points(values: np.ndarray) -> pd.DataFrame:
    """Runs of systems x seeds."""
    found = [(i, seed, x) for i, row in enumerate(values) for seed, x in enumerate(row)]
    return pd.DataFrame(found, columns=["key", "seed", "value"])


def test_planted_signal_and_noise() -> None:
    rng = np.random.default_rng(0)
    means, noise = np.linspace(0, 5, 200), 0.5
    values = means[:, None] + noise * rng.standard_normal((200, 3))
    made = signal_to_noise.measure(points(values))
    assert made["within"] == pytest.approx(noise, rel=0.1)
    assert made["between"] == pytest.approx(np.std(means, ddof=1), rel=0.05)
    assert made["ratio"] == made["between"] / made["within"]
    assert made["p"] == pytest.approx(stats.f_oneway(*values).pvalue)
    error = math.sqrt(0.8 / (4 * 200) + 1 / (2 * 400))  # delta method; uniform means, normal noise
    assert made["error"] == pytest.approx(made["ratio"] * error, rel=0.2)
    shared = np.var(means) / (np.var(means) + noise**2)  # correlation of two seeds
    assert made["agreement"] == pytest.approx(2 / np.pi * np.arcsin(shared), abs=0.05)


def test_noise_alone() -> None:
    values = np.random.default_rng(1).standard_normal((100, 2))
    made = signal_to_noise.measure(points(values))
    assert made["p"] > 0.05 and abs(made["agreement"]) < 0.2
    assert made["ratio"] == pytest.approx(1 / math.sqrt(2), rel=0.2)  # means over two seeds


def test_what_one_seed_cannot_tell() -> None:
    made = signal_to_noise.measure(points(np.array([[0.1], [0.3]])))
    assert made["between"] == pytest.approx(np.std([0.1, 0.3], ddof=1))
    assert all(math.isnan(made[name]) for name in ("within", "ratio", "error", "p", "agreement"))


def test_the_program_reads_packed_runs(capsys, tmp_path) -> None:
    """Two seeds of the thesis' small studies; an empty folder is refused."""
    out = law_folders.output(
        capsys, signal_to_noise, str(RESULTS), "--where=shape=2x64x2", f"--csv={tmp_path / 'x.csv'}"
    )
    assert "signal / noise" in out and "QNLI" in out
    table = pd.read_csv(tmp_path / "x.csv").set_index("score").loc["QNLI"]
    assert (table["systems"], table["runs"]) == (3, 6) and 0.005 < table["items"] < 0.01
    assert "no runs" in law_folders.fails(capsys, signal_to_noise, str(tmp_path))


# --- Early ranks ----------------


def write_curve(
    folder: pathlib.Path, losses, *, long_at=0, token_loss="mlm_loss", **config
) -> None:
    """A finished run with a validation each 100 steps; from `long_at` on at length 128.

    50 steps before each, it evaluates pairs; their accuracy is a tenth of the loss.
    """
    run_folders.write(folder, config=run_folders.config_of(**config))
    text = ""
    for k, loss in enumerate(losses, 1):
        text += run_folders.line_of(100 * k - 50, 9.0, **{"eval/pairs_accuracy": loss / 10})
        line = json.loads(run_folders.eval_line(100 * k, loss, 128 if k >= long_at else 32))
        line |= {f"eval/{token_loss}": loss, "eval/perplexity": math.exp(loss)}
        text += json.dumps(line | {"eval/bits_per_byte": loss / 3}) + "\n"
    (folder / "metrics.jsonl").write_text(text)


# At the end a < b < c; before: c < b < a, b < a < c, a < b < c.
CURVES = {"a": [9.0, 7.0, 4.0, 3.0], "b": [8.0, 6.0, 5.0, 3.5], "c": [7.0, 7.5, 6.0, 4.0]}


def test_ranks_by_hand(capsys, tmp_path) -> None:
    """Three learning rates, a with two seeds around its curve: tau is -1, 1/3, 1, 1."""
    for k, (name, losses) in enumerate(CURVES.items()):
        for seed, sign in ((0, 1), (1, -1)) if name == "a" else ((0, 0),):
            own = [loss + 2.5 * sign for loss in losses]  # by one seed alone b or a wins everywhere
            write_curve(tmp_path / f"{name}{seed}", own, seed=seed, optim__learning_rate=0.1 + k)
    found = signal_to_noise.early_ranks(run_points.load([tmp_path])).to_dict("records")
    for row, score, final in zip(found, ("bits per byte", "pairs"), (0.75, 0.625), strict=True):
        assert {name: x for name, x in row.items() if name != "budget"} == {
            "score": score, "shape": "2x128x2", "systems": 3, "evaluations": 4,
            "25%": pytest.approx(-1), "50%": pytest.approx(1 / 3), "75%": pytest.approx(1),
            "final from": final,
        }  # fmt: skip
    assert "final from" in law_folders.output(capsys, signal_to_noise, tmp_path)
    two = law_folders.fails(capsys, signal_to_noise, tmp_path, "--where=optim.learning_rate<2")
    assert "has scores" in two


def test_ranks_of_evaluations(capsys, monkeypatch, tmp_path) -> None:
    """CURVES as wrong answers at shares of the budget; scores of other items do not count."""
    monkeypatch.setitem(task_folders.METRICS, "blimp", ("accuracy",))

    def add(folder: pathlib.Path, num_wrong: float, texts: str = "t") -> None:
        task_folders.write_run(folder / "blimp", "blimp", 0, int(num_wrong))
        config = {"task": "blimp", "seed": 0, "system": "bert", "texts": texts}
        config["model"] = run_folders.config_of()["model"]
        (folder / "blimp/seed0/config.json").write_text(json.dumps(config))

    for k, (name, wrong) in enumerate(CURVES.items()):
        for seed, sign in ((0, 1), (1, -1)) if name == "a" else ((0, 0),):
            run = tmp_path / f"{name}{seed}"
            config = run_folders.config_of(seed=seed, optim__learning_rate=0.1 + k)
            run_folders.write(run, config=config)
            parts = ("early/0.25", "early/0.5", "early/0.75", "tasks")
            for part, num in zip(parts, wrong, strict=True):
                add(run / part, 2 * num + 5 * sign)
            add(run / "early/0.9", 9 * k, texts="other")
    (row,) = signal_to_noise.early_ranks(run_points.load([tmp_path])).to_dict("records")
    assert (row["score"], row["systems"], row["evaluations"]) == ("BLiMP", 3, 4)
    assert [row[part] for part in ("25%", "50%", "75%")] == pytest.approx([-1, 1 / 3, 1])
    assert row["final from"] == 0.75
    shutil.rmtree(tmp_path / "b0/early/0.75")  # where one system has no score, none is compared
    (row,) = signal_to_noise.early_ranks(run_points.load([tmp_path])).to_dict("records")
    assert (row["evaluations"], row["75%"], row["final from"]) == (3, pytest.approx(1 / 3), 1.0)
    assert (
        "BLiMP" in law_folders.output(capsys, signal_to_noise, tmp_path).partition("final from")[2]
    )


def test_ranks_of_the_same_thing_alone(tmp_path) -> None:
    """Bits per byte of masked tokens, at one length; the same pairs, of all systems."""
    for name, system in zip(CURVES, ("bert", "roberta", "albert"), strict=True):
        write_curve(tmp_path / system, CURVES[name], system=system, long_at=2 if name == "c" else 0)
    write_curve(tmp_path / "gpt2", [1.0, 9.0, 1.0, 9.0], system="gpt2", token_loss="clm_loss")
    other = {"eval__pairs": "other", "eval__pairs_every_words": 9}
    write_curve(tmp_path / "gpt", CURVES["a"], system="gpt", token_loss="clm_loss", **other)
    row, pairs = signal_to_noise.early_ranks(run_points.load([tmp_path])).to_dict("records")
    assert (pairs["systems"], pairs["evaluations"]) == (4, 4)
    assert (row["systems"], row["evaluations"]) == (3, 3)
    assert math.isnan(row["25%"]) and row["50%"] == pytest.approx(1 / 3)
    assert row["final from"] == 0.75


OPTIONS = {"system": "roberta", "objective": "span_mlm", "data__format": "segment_pair"}
OPTIONS["token_loss"] = "span_mlm_loss"


@pytest.mark.parametrize(
    ("fields", "is_ranked"),
    [
        ({}, True),
        ({"data__format": "doc_sentences"}, True),  # without the other format's options
        ({"format_options__short_rate": 0.5}, False),
        ({"objective_options__span_p": 0.5}, False),
        ({"objective": "span_mlm+sbo"}, True),  # the loss of tokens is that of span_mlm
        ({"token_loss": "mlm_loss"}, False),
    ],
)
def test_bits_per_byte_rank_runs_of_one_loss(fields, is_ranked, tmp_path) -> None:
    for k, (name, losses) in enumerate(CURVES.items()):
        own = OPTIONS | (fields if name == "c" else {}) | {"optim__learning_rate": 0.1 + k}
        write_curve(tmp_path / name, losses, **own)
    found = signal_to_noise.early_ranks(run_points.load([tmp_path])).to_dict("records")
    assert [row["score"] for row in found] == ["bits per byte"] * is_ranked + ["pairs"]
