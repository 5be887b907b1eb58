"""A recipe's grid takes the point that is best on dev, wherever it stands in the grid."""

import json
import math
import pathlib

import pytest

from scalelab.finetuning import grid

AXES = {"optim.learning_rate": (1e-3, 1e-5), "batch_size": (8, 32)}


@pytest.mark.parametrize(("most", "sizes"), [(1, [1, 1, 1, 1]), (3, [2, 2])])
def test_rates_train_in_one_program(most: int, sizes: list[int]) -> None:
    """Points that differ in anything else have programs of their own."""
    groups, fields = grid.vmappable(AXES, most), grid.points(AXES)
    assert [len(names) for names in groups] == sizes
    assert all(len({fields[name]["batch_size"] for name in names}) == 1 for names in groups)


def test_the_best_point_is_taken(tmp_path: pathlib.Path) -> None:
    scores = dict(zip(grid.points(AXES), (0.2, -math.inf, 0.9, 0.4), strict=True))  # one failed
    best = {"optim.learning_rate": 1e-5, "batch_size": 8}
    assert grid.write_choice(tmp_path, AXES, scores, 0) == best
    made = json.loads((tmp_path / "grid.json").read_text(), parse_constant=pytest.fail)
    assert [point["score"] for point in made["points"]] == [0.2, None, 0.9, 0.4]
    assert made["chosen"] == best == grid.read_choice(tmp_path, AXES)
    assert grid.read_choice(tmp_path, {"batch_size": (8, 32)}) == {"batch_size": 8}
    with pytest.raises(ValueError, match="has no grid.json"):
        grid.read_choice(tmp_path / "other", AXES)
