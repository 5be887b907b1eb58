"""Frontiers of run folders: envelopes, what is drawn, what is kept apart."""

import math
import re

import matplotlib.image
import pytest
import run_folders
from law_folders import budgets, fails, output, write

from scalelab.lab import frontier
from scalelab.lab.compare import run_points
from scalelab.lab.compare.run_points import RunPoint


def test_the_envelope_by_hand() -> None:
    cost = [4.0, 1.0, 2.0, 2.0, 3.0, 5.0, 6.0]
    score = [0.7, 0.5, 0.4, 0.6, 0.6, 0.65, math.nan]
    assert frontier.envelope(cost, score, rising=True) == [1, 3, 0]
    assert frontier.envelope(cost, score, rising=False) == [1, 2]
    assert frontier.envelope([], [], rising=True) == []
    assert frontier.envelope([1.0, 1.0], [0.5, 0.5], rising=True) == [0]


def test_the_frontier_is_drawn_against_each_clock(tmp_path, capsys) -> None:
    write(tmp_path / "runs", (16, 32, 64), num_seeds=1)
    text = output(capsys, frontier, tmp_path / "runs", f"--figure={tmp_path / 'best.png'}")
    rows = [line.split() for line in text.splitlines()]
    assert [row[2] for row in rows if row[0] == "N"] == ["2x16x2", "2x32x2", "2x64x2"]
    assert not [row for row in rows if row[0] == "tokens"]  # all cost the same
    assert matplotlib.image.imread(tmp_path / "best.png").std() > 0.05
    assert "no such folder" in fails(capsys, frontier, tmp_path / "nowhere")


def test_each_system_has_its_own_envelope(tmp_path) -> None:
    """Losses of different objectives do not compare; nor need the dearer system be worse."""
    reached = (("bert", 1, 3.0), ("gpt2", 2, 5.0), ("bert", 3, 4.0))
    points = [RunPoint(name, f"2x16x{k}", {"seconds": k}, y) for name, k, y in reached]
    rows = [line[1:] for line in frontier.draw(points, "loss", tmp_path / "best.png")]
    assert rows == [["bert", "2x16x1", "1", "3.0000", "1"], ["gpt2", "2x16x2", "2", "5.0000", "1"]]


def test_the_frontier_is_of_means_over_seeds(tmp_path) -> None:
    """The luckiest seed of a wide net does not beat a narrow one that is better on average."""
    runs = (("2x16x2", 3.0), ("2x16x2", 3.2), ("2x32x2", 2.9), ("2x32x2", 3.9))
    points = [RunPoint("bert", shape, {"n_model": len(shape) + (shape > "2x2"), "seconds": k}, y)
              for k, (shape, y) in enumerate(runs)]  # fmt: skip
    small, large = run_points.means(points)
    assert (small.value, large.value) == (pytest.approx(3.1), pytest.approx(3.4))
    assert (small.clocks["seconds"], large.num_seeds) == (0.5, 2)
    rows = frontier.draw(points, "loss", tmp_path / "best.png")
    assert [row[2:] for row in rows if row[0] == "N"] == [["2x16x2", "6", "3.1000", "2"]]
    # Runs of another config are not seeds of it.
    other = RunPoint("bert", "2x16x2", {"seconds": 1.0}, 9.0, fields={"short.batch_size": 32})
    assert len(run_points.means([*points, other])) == 3


def test_frontiers_of_what_does_not_compare_are_apart(tmp_path, capsys) -> None:
    """A budget is a cost, so it is one envelope against costs; against N it is not."""
    budgets(tmp_path / "runs", (16, 32))
    config = run_folders.config_of(
        shape="2x16x2", optim__learning_rate=7e-4, optim__warmup_steps=10
    )
    run_folders.write(tmp_path / "runs/rate", config=config, steps=400)
    where = f"--figure={tmp_path / 'best.svg'}"
    text = output(capsys, frontier, tmp_path / "runs", where)
    assert "optim.total_steps=800" in (tmp_path / "best.svg").read_text()
    rows = [re.split(r" {2,}", line) for line in text.splitlines()]
    names = {
        clock: list(dict.fromkeys(r[1] for r in rows if r[0] == clock)) for clock in ("N", "tokens")
    }
    rate = run_folders.config_of()["optim"]["learning_rate"]
    assert names["tokens"] == [
        f"bert, optim.learning_rate={rate}",
        "bert, optim.learning_rate=0.0007",
    ]
    steps = [f"optim.total_steps={x}" for x in (400, 800, 400)]
    rates = [f"optim.learning_rate={x}" for x in (rate, rate, 0.0007)]
    assert names["N"] == [f"bert, {x}, {y}" for x, y in zip(rates, steps, strict=True)]
    assert re.search(r"\* .* N: bert: .*optim.learning_rate, optim.total_steps", text)
    assert "different budgets" in text
    pooled = output(capsys, frontier, tmp_path / "runs", where, "--allow=optim.learning_rate")
    assert "bert, optim.learning_rate" not in pooled and "allowed to differ" in pooled
