"""Curves of one run and of two, and the look of lines: told apart by more than colour."""

import itertools
import pathlib

import numpy as np
import pytest
import run_folders

from scalelab.lab.show import pair, plots
from scalelab.runs import records


@pytest.fixture
def saved(monkeypatch) -> list:
    figures = []
    monkeypatch.setattr(plots, "save", lambda figure, *_, **__: figures.append(figure))
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
    plots.draw_curves(run_of_two_lengths(tmp_path / "a"), "a run")
    lines = {line.get_label(): looks(line) for line in saved[0].axes[0].get_lines()}
    assert list(lines) == ["training", "valid 128", "valid 512"]
    for first, second in itertools.combinations(lines.values(), 2):
        assert first["marker"] != second["marker"] and first["dash"] != second["dash"]


def test_two_runs_differ_in_dash_and_lengths_in_marker(tmp_path, saved) -> None:
    a, b = (records.read_run(run_of_two_lengths(tmp_path / n, k)) for k, n in enumerate("ab"))
    pair.draw(tmp_path / "x.png", [a], [b])
    lines = {line.get_label(): looks(line) for line in saved[0].axes[0].get_lines()}
    assert list(lines) == [f"{n} {k}" for n in "AB" for k in ("training", "valid 128", "valid 512")]
    for kind in ("training", "valid 128", "valid 512"):
        assert lines[f"A {kind}"]["dash"] != lines[f"B {kind}"]["dash"]
    for letter in "AB":
        markers = {lines[f"{letter} {kind}"]["marker"] for kind in ("valid 128", "valid 512")}
        assert len(markers) == 2


def test_styles_differ_and_are_the_palettes() -> None:
    styles = [tuple(plots.style(i).values()) for i in range(252)]
    assert len(set(styles)) == 252
    for first, second in zip(styles, styles[1:], strict=False):
        assert all(a != b for a, b in zip(first, second, strict=True))


# RGB in linear light to the cones, and what a missing cone leaves (Viénot, Brettel and Mollon 1999,
# Color Res. Appl. 24:243, Table 1 and equations 4 and 5).
CONES = np.array(
    [[17.8824, 43.5161, 4.11935], [3.45565, 27.1554, 3.86714], [0.0299566, 0.184309, 1.46709]]
)
WITHOUT_RED = np.array([[0, 2.02344, -2.52581], [0, 1, 0], [0, 0, 1]])
WITHOUT_GREEN = np.array([[1, 0, 0], [0.494207, 0, 1.24827], [0, 0, 1]])
TABLEAU = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2")


def nearest_pair(colors, loss) -> float:
    """Least distance of two colours, each 0 to 1 in RGB, as one without a cone sees them."""
    rgb = np.array([[int(c[i : i + 2], 16) / 255 for i in (1, 3, 5)] for c in colors]) ** 2.2
    seen = (np.linalg.inv(CONES) @ loss @ CONES @ rgb.T).T.clip(0, 1) ** (1 / 2.2)
    apart = np.linalg.norm(seen[:, None] - seen[None], axis=-1)
    return apart[np.triu_indices(len(seen), 1)].min()


@pytest.mark.parametrize("loss", [WITHOUT_RED, WITHOUT_GREEN])
def test_the_colour_blind_tell_the_colours_apart(loss) -> None:
    assert nearest_pair(plots.COLORS, loss) > 0.12 > nearest_pair(TABLEAU, loss)
