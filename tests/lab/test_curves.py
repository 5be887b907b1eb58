"""Pictures of one run and of two: no line is told by its colour alone, and each is named."""

import itertools
import pathlib

import pytest
import run_folders

from scalelab.lab import curves, palette
from scalelab.lab.all_runs import run_pair
from scalelab.lab.reading import run_files


@pytest.fixture
def saved(monkeypatch) -> list:
    figures = []
    monkeypatch.setattr(palette, "save", lambda figure, *_, **__: figures.append(figure))
    return figures


def run_of_two_lengths(folder: pathlib.Path, offset: float = 0.0) -> pathlib.Path:
    run_folders.write(folder, offset=offset)
    lines = [run_folders.eval_line(step, 6 + offset, 512) for step in (410, 420)]
    with (folder / "metrics.jsonl").open("a") as file:
        file.writelines(lines)
    return folder


def looks(line) -> dict[str, object]:
    dash = line._unscaled_dash_pattern[1]  # what set_linestyle was given; no accessor has it
    return {
        "colour": line.get_color(),
        "marker": line.get_marker(),
        "dash": None if dash is None else tuple(dash),
        "fill": line.get_markerfacecolor(),
    }


def test_lengths_differ_in_marker_and_dash(tmp_path, saved) -> None:
    curves.draw(run_of_two_lengths(tmp_path / "a"), "a run")
    first, *_, last = saved[0].axes
    lines = {line.get_label(): looks(line) for line in first.get_lines()}
    assert list(lines) == ["training", "valid 128", "valid 512"]
    for one, two in itertools.combinations(lines.values(), 2):
        assert one["marker"] != two["marker"] and one["dash"] != two["dash"]
    assert sorted(text.get_text() for text in last.texts) == sorted(lines)


def test_one_point_is_seen_and_the_unit_is_that_of_the_loss(tmp_path, saved) -> None:
    folder = tmp_path / "run"
    run_folders.write(folder)
    path = folder / "metrics.jsonl"
    losses = [line for line in path.read_text().splitlines(True) if "train/loss" in line]
    for count, marker in ((1, "o"), (2, "None")):
        path.write_text("".join(losses[:count]))
        curves.draw(folder, "a run", "squared error")
        axis = saved.pop().axes[0]
        assert axis.get_lines()[0].get_marker() == marker
        assert axis.get_ylabel() == "loss (squared error)"


def test_two_runs_differ_in_dash_and_lengths_in_marker(tmp_path, saved) -> None:
    a, b = (run_files.open_run(run_of_two_lengths(tmp_path / n, k)) for k, n in enumerate("ab"))
    run_pair.draw(tmp_path / "x.png", a, b)
    first, *_, last = saved[0].axes
    lines = {line.get_label(): looks(line) for line in first.get_lines()}
    assert list(lines) == [f"{n} {k}" for n in "AB" for k in ("training", "valid 128", "valid 512")]
    for kind in ("training", "valid 128", "valid 512"):
        assert lines[f"A {kind}"]["dash"] != lines[f"B {kind}"]["dash"]
    for letter in "AB":
        markers = {lines[f"{letter} {kind}"]["marker"] for kind in ("valid 128", "valid 512")}
        assert len(markers) == 2
    assert sorted(text.get_text() for text in last.texts) == sorted(lines)
