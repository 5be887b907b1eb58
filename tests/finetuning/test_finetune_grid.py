"""A recipe's grid takes the point that is best on dev, wherever it stands in the grid."""

import json
import pathlib
import types
from typing import Any

import pytest
import tiny

from scalelab.finetune import Options
from scalelab.finetuning import grid as finetune_grid
from scalelab.tasks.task import load_task

AXES = {"optim.learning_rate": (1e-3, 1e-5), "batch_size": (8, 32)}
SCORES = {(1e-3, 8): 0.2, (1e-3, 32): None, (1e-5, 8): 0.9, (1e-5, 32): 0.4}  # None: it failed


@pytest.mark.parametrize(("together", "groups"), [
    (1, [["1_8"], ["2_8"], ["1_32"], ["2_32"]]), (3, [["1_8", "2_8"], ["1_32", "2_32"]]),
])  # fmt: skip
def test_rates_train_together(monkeypatch, together: int, groups: list[list[str]]) -> None:
    """Points that differ in anything else have programs of their own."""
    named = {
        f"{rate}_{size}": {"optim.learning_rate": rate, "batch_size": size}
        for rate in (1, 2)
        for size in (8, 32)
    }
    assert finetune_grid._alike(named, together) == groups


def test_the_best_point_is_taken(tmp_path: pathlib.Path) -> None:
    asked = []

    def prepare(config: Any, part: str) -> Any:
        asked.append(part)
        dev = {"dev": {"matthews": SCORES[config.optim.learning_rate, config.batch_size]}}
        finished = {"eval": dev}
        return types.SimpleNamespace(claim=lambda seed: finished, result=lambda seed: finished)

    request = types.SimpleNamespace(
        task=load_task("cola"), options=Options(), workdir=tmp_path, prepare=prepare
    )
    values = tiny.config_module("finetune").get_config().to_dict()
    found = finetune_grid.best(request, values, AXES)
    assert (found["optim"]["learning_rate"], found["batch_size"]) == (1e-5, 8)
    assert found["epochs"] == values["epochs"] and len(asked) == 4
    text = (tmp_path / "grid.json").read_text()
    made = json.loads(text, parse_constant=pytest.fail)
    assert [point["score"] for point in made["points"]] == [0.2, None, 0.9, 0.4]
    best = {"optim.learning_rate": 1e-5, "batch_size": 8}
    assert made["chosen"] == best == finetune_grid.chosen(tmp_path, AXES)
    assert finetune_grid.chosen(tmp_path, {"batch_size": (8, 32)}) == {"batch_size": 8}
    with pytest.raises(ValueError, match="has no grid.json: the grid has not been run"):
        finetune_grid.chosen(tmp_path / "other", AXES)
