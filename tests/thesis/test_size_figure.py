"""GLUE-Large against N: panels, lines and error bars."""

import pytest
import reported_study

from scalelab.lab.compare.study_scores import StudyScores
from scalelab.lab.load import study_runs
from scalelab.thesis import size_figure


def test_score_by_size_draws_the_estimates(tmp_path) -> None:
    shapes = ((2, 16, 2), (2, 32, 2), (2, 16, 4), (4, 64, 8))
    reported_study.write(
        tmp_path, systems=("bert",), shapes=shapes, seeds=1, tasks=("mnli", "qqp", "qnli")
    )
    study = study_runs.read(tmp_path)
    scores = StudyScores(study)
    figure = size_figure.draw(study, scores)
    panels = {axis.get_title(): axis for axis in figure.axes}
    assert list(panels) == ["width", "depth", "other shapes"]
    width = panels["width"].containers[0].lines[0]
    expected = [100 * scores.value(p, "large").value for p in study.points[:2]]
    assert list(width.get_xdata()) == [12 * 2 * 16**2, 12 * 2 * 32**2]
    assert list(width.get_ydata()) == expected
    bars = panels["width"].containers[0].lines[2][0].get_segments()
    ends = [scores.value(p, "large") for p in study.points[:2]]
    for bar, end in zip(bars, ends, strict=True):
        assert bar[:, 1] == pytest.approx([100 * end.low, 100 * end.high])


def test_single_and_several_dimensions_are_lines_of_their_own() -> None:
    """Figure 7.2, of the shapes of thesis_7_5_2 at scale full."""
    shapes = ((2, 204, 7), (2, 256, 9), (8, 544, 2), (2, 384, 2), (2, 128, 18), (2, 544, 2),
              (2, 128, 36))  # fmt: skip
    points = [study_runs.Row("bert", study_runs.Shape(*s), "default", ()) for s in shapes]
    found = size_figure.group_panels(points)
    assert {title: [[str(p.shape) for p in line] for line in lines] for title, lines in found} == {
        "width": [["2x384x2", "2x544x2"]],
        "depth": [["2x128x18", "2x128x36"]],
        "other shapes": [["2x204x7", "2x256x9"], ["8x544x2"]],
    }
    assert size_figure.group_panels(points[2:3]) == [("all shapes", [points[2:3]])]
