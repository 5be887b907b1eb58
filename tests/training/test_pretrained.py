"""Opening a pre-training run: its very parameters, nothing changed in it, and what it refuses."""

import json
import pathlib
import shutil
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
import tiny

from scalelab.training import pretrained

Runs = Callable[[str], pathlib.Path]


def snapshot(folder: pathlib.Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.mark.parametrize("system", tiny.SYSTEMS)
def test_it_opens_and_changes_nothing(pretrained_runs: Runs, system: str) -> None:
    path = pretrained_runs(system)
    before = snapshot(path)
    opened = pretrained.load(path)
    assert snapshot(path) == before
    assert opened.step == 3 and opened.finished
    assert opened.tokenizer.vocab_size == 300
    net = opened.net
    batch = {k: v[:, :16] if v.ndim == 2 else v for k, v in tiny.batch(opened.system, 0).items()}
    hidden, _ = net.apply({"params": opened.params}, batch, train=False)
    assert np.isfinite(hidden).all()
    assert all(isinstance(x, jax.Array) for x in jax.tree.leaves(opened.params))


def test_the_parameters_are_those_of_the_last_step(pretrained_runs: Runs, tmp_path) -> None:
    path = pretrained_runs("roberta")
    run = shutil.copytree(path, tmp_path / "run")
    earlier = pretrained.load(run).params
    shutil.rmtree(run / "checkpoints/3/state")
    kept = snapshot(run)
    opened = pretrained.load(run)  # falls back, and moves nothing
    assert opened.step == 0 and snapshot(run) == kept
    moved = jax.tree.map(lambda a, b: float(abs(a - b).max()), earlier, opened.params)
    assert max(jax.tree.leaves(moved)) > 0


def edit(path: pathlib.Path, **fields: Any) -> None:
    """Sets fields of a json file, those of a group one by one."""
    values = json.loads(path.read_text())
    for name, value in fields.items():
        values[name] = values[name] | value if isinstance(value, dict) else value
    path.write_text(json.dumps(values))


def swap_pieces(path: pathlib.Path) -> None:
    """Swaps the ids of two pieces in tokenizer.json."""
    values = json.loads(path.read_text())
    vocabulary = values["model"]["vocab"]
    a, b = list(vocabulary)[-2:]
    vocabulary[a], vocabulary[b] = vocabulary[b], vocabulary[a]
    path.write_text(json.dumps(values))


TOKENIZER, MAP = "tokenizer/tokenizer.json", "tokenizer/special_tokens_map.json"


@pytest.mark.parametrize(("damage", "message"), [
    (lambda run: shutil.rmtree(run), "no run folder"),
    (lambda run: shutil.rmtree(run / "tokenizer"), "has no tokenizer"),
    (lambda run: edit(run / MAP, mask_token="[MASK]"), r"tokenizer.json .*\[MASK\]"),
    (lambda run: (run / MAP).write_text("{}"), "run/tokenizer .*mask"),
    (lambda run: edit(run / "config.json", tokenizer={"vocab_size": 290}), "300 pieces.* 290"),
    (lambda run: swap_pieces(run / TOKENIZER), "run/tokenizer has changed"),
    (lambda run: [(run / "result.json").unlink(), swap_pieces(run / TOKENIZER)], "has changed"),
    (lambda run: shutil.rmtree(run / "checkpoints"), "has no checkpoints"),
    (lambda run: edit(run / "config.json", task="rte"), "'rte'.*pre-training run"),
])  # fmt: skip
def test_what_it_refuses(pretrained_runs: Runs, tmp_path, damage, message: str) -> None:
    shutil.copytree(pretrained_runs("roberta"), tmp_path / "run")
    damage(tmp_path / "run")
    with pytest.raises(ValueError, match=message):
        pretrained.load(tmp_path / "run")
