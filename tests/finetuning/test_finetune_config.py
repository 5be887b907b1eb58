"""configs/finetune.py, the recipes and their grids: strict, complete, each field of use."""

import json
import math

import pytest
import tiny

from scalelab.config import finetuning as finetune_config
from scalelab.config.finetuning import override
from scalelab.finetuning import plan
from scalelab.tasks import recipes


def values(arguments: str = "") -> dict:
    return tiny.config_module("finetune").get_config(arguments).to_dict()


@pytest.mark.parametrize("name", recipes.RECIPES)
def test_every_recipe_resolves(name: str) -> None:
    recipe = recipes.get(name)
    config = finetune_config.resolve(values(f"recipe={name}"))
    assert config.recipe == name and recipe.source
    for fields in (*recipe.tasks.values(), *({k: v[0]} for k, v in recipe.grid.items())):
        finetune_config.resolve(override(values(f"recipe={name}"), fields))


def test_overrides_of_a_task() -> None:
    assert values("recipe=layerwise,task=rte")["epochs"] == 10.0
    assert values("recipe=layerwise,task=cola")["epochs"] == 3.0
    before = values()
    assert override(before, {"optim.eps": 1e-8})["optim"]["eps"] == 1e-8
    assert before["optim"]["eps"] == 1e-6
    with pytest.raises(ValueError, match="'optim.epps': .*'optim.eps'"):
        override(before, {"optim.epps": 1})


AXES = {"optim.learning_rate": (1e-3, 1e-5), "batch_size": (8, 32)}


def test_the_best_point_is_taken(tmp_path) -> None:
    fields = plan.grid_points(AXES).values()
    points = [*zip(fields, (0.2, -math.inf, 0.9, 0.4), strict=True)]
    best = {"optim.learning_rate": 1e-5, "batch_size": 8}
    assert plan.write_choice(tmp_path, points, 0) == best
    made = json.loads((tmp_path / "grid.json").read_text(), parse_constant=pytest.fail)
    assert [point["score"] for point in made["points"]] == [0.2, None, 0.9, 0.4]
    assert made["chosen"] == best == plan.read_choice(tmp_path, AXES)
    assert plan.read_choice(tmp_path, {"batch_size": (8, 32)}) == {"batch_size": 8}
    with pytest.raises(ValueError, match="has no grid.json"):
        plan.read_choice(tmp_path / "other", AXES)
