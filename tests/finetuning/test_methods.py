"""Adapters and gradual unfreezing: what is trained, by bytes, and when."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from flax.traverse_util import flatten_dict
from test_finetune import config, records
from test_words import one_bucket, prepare, translator  # noqa: F401

from scalelab import finetune, step
from scalelab.finetuning import methods, warm_start
from scalelab.finetuning.run import TaskRun
from scalelab.finetuning.step import compiled
from scalelab.finetuning.training import Finetuning
from scalelab.nn import axes
from scalelab.tasks.task import Splits, load_task
from scalelab.training.pretrained import load_trained

ADAPTERS = {"method": "adapters", "adapter_width": 2}
FIELDS = {"epochs": 1.0, "batch_size": 8, "optim.weight_decay": 0.1, "optim.learning_rate": 1e-2}


@pytest.fixture
def bert(wikitext, cache_dir, tmp_path):
    """bert(**fields of the config) -> TaskRun of RTE, on three layers; some weights are -0.0."""
    path = tiny.write_run(
        tmp_path / "bert", "bert", wikitext, cache_dir, model__num_layers=3, spread=0.5
    )
    start = warm_start.open_start(str(path))
    params = start.opened.params
    signed = jax.tree.map(lambda x: x.at[(0,) * x.ndim].set(-0.0), params)
    start = dataclasses.replace(start, bodies=lambda seed: signed)

    def make(**fields: Any) -> TaskRun:
        task = load_task("rte")
        splits = Splits(records(task, 36, 0), {"dev": records(task, 9, 1)}, {})
        return TaskRun(task, splits, start, config(cache_dir, **fields), tmp_path / "task")

    return make


def changed(before: Any, after: Any) -> set[str]:
    """Paths of the parameters whose bytes differ; of stacked ones, each layer's with its index."""
    found = set()
    for path, old in flatten_dict(before, sep="/").items():
        new, old = np.asarray(flatten_dict(after, sep="/")[path]), np.asarray(old)
        if "/layer/" in path:
            found |= {
                f"{path}#{i}" for i in range(len(old)) if old[i].tobytes() != new[i].tobytes()
            }
        elif old.tobytes() != new.tobytes():
            found.add(path)
    return found


@pytest.mark.parametrize("system", ["bert", "translator"])
def test_only_adapters_norms_and_head_are_trained(system, bert, prepare) -> None:  # noqa: F811
    run = bert(**ADAPTERS) if system == "bert" else prepare(system, "text", **FIELDS, **ADAPTERS)
    before = jax.device_get(run.first_params(0))
    finetune.train([run], 0, run.workdir)
    moved = {path.partition("#")[0] for path in changed(before, load_trained(run.folder(0)))}
    names = axes.names_by_path(jax.eval_shape(run.learner.fresh, jax.random.key(0)))
    trained = {path for path in flatten_dict(before, sep="/") if methods.is_trained(path, names)}
    assert moved <= trained
    assert {p.split("/")[-3] for p in trained if "adapter" in p} == {"adapter"}
    rest = {p for p in trained - moved if "key" not in p}  # some gradients of norms may be 0
    assert not {p for p in rest if "adapter" in p or "head" in p.split("/")[0]}
    state = run.first_state(0, run.first_params(0))
    size = sum(flatten_dict(before, sep="/")[path].size for path in trained)
    counted = sum(x.size for x in jax.tree.leaves(state.opt_state) if x.ndim)
    assert counted == 2 * size  # both moments of these, none of the others


@pytest.mark.parametrize("system", ["bert", "translator"])
def test_a_new_adapter_changes_no_output(system, bert, prepare) -> None:  # noqa: F811
    def outputs(**fields: Any) -> tuple[TaskRun, Any, np.ndarray]:
        run = bert(**fields) if system == "bert" else prepare(system, "text", **FIELDS, **fields)
        params, batch = run.first_params(0), run.train.gather(np.arange(6), 60)
        scores = jax.jit(lambda params: run.learner.scores(params, batch))
        return run, params, np.asarray(scores(params))

    _, _, plain = outputs()
    run, params, adapted = outputs(**ADAPTERS)
    np.testing.assert_allclose(plain, adapted, rtol=1e-6, atol=1e-7)  # programs round differently
    large = jax.tree_util.tree_map_with_path(
        lambda path, x: x + ("adapter" in jax.tree_util.keystr(path)), params
    )
    batch = run.train.gather(np.arange(6), 60)
    assert (np.asarray(run.learner.scores(large, batch)) != adapted).any()
    places = [p for p in flatten_dict(params, sep="/") if p.endswith("adapter/inner/kernel")]
    assert len(places) == 1 + run.has_source  # behind the networks of each stack
    assert {flatten_dict(params, sep="/")[p].shape[-1] for p in places} == {2}


def take_steps(run: TaskRun, num_steps: int) -> list[Any]:
    """The parameters before each step and after the last."""
    training, found = Finetuning(run, 0), []
    for _ in range(num_steps):
        found.append(jax.device_get(training.state.params))
        if training.next_program() is None:
            with training.compiling() as parts:
                training.blocks = step.compile_blocks(parts)
        blocks, arrays = training.next_program() or pytest.fail()
        rows, rates = training.plan_block(1)
        training.state, _, _ = blocks(training.state, arrays, rows, rates, np.True_)
    return [*found, jax.device_get(training.state.params)]


def test_layers_unfreeze_from_the_last_to_the_first(bert) -> None:
    """Ten steps, three layers and the embeddings: stages of 2.5 steps."""
    run = bert(method="gradual_unfreezing", epochs=2.0, optim__weight_decay=0.1)
    assert run.num_steps == 10
    made = take_steps(run, 10)
    ledger = []
    for before, after in zip(made, made[1:], strict=False):
        moved = changed(before, after)
        layers = {int(path.partition("#")[2]) for path in moved if "#" in path}
        assert any(path.startswith("head/") for path in moved)
        ledger.append((min(layers), any(path.startswith("body/embed/") for path in moved)))
        assert layers == set(range(min(layers), 3))
    layer_2, layer_1, layer_0 = [(2, False)] * 3, [(1, False)] * 2, [(0, False)] * 3
    assert ledger == [*layer_2, *layer_1, *layer_0, *[(0, True)] * 2]


def test_a_table_that_scores_answers_is_open_from_the_start(prepare) -> None:  # noqa: F811
    fields = {"epochs": 1.0, "batch_size": 24, "optim.learning_rate": 1e-2}
    run = prepare("translator", "text", method="gradual_unfreezing", **fields)
    made = take_steps(run, 1)
    moved = changed(*made)
    assert any("embed/tokens/table" in path for path in moved)
    last = {path.partition("#")[2] for path in moved if "#" in path}
    assert last == {str(run.start.opened.config.model.num_layers - 1)}


def test_shared_layers_open_with_their_last_layer() -> None:
    names = {"a": (axes.GROUPS, "width"), "b": (axes.LAYERS, "width"), "c": ("width",)}
    tx = methods.unfreeze(names, 4, 4, ())
    ones = {"a": jnp.ones((2, 3)), "b": jnp.ones((4, 3)), "c": jnp.ones(3)}
    state, ledger = tx.init(ones), []
    for _ in range(4):
        updates, state = tx.update(ones, state, ones)
        assert updates["c"].all()
        ledger.append([updates[name][:, 0].tolist() for name in "ab"])
    assert ledger == [
        [[0, 1], [0, 0, 0, 1]],
        [[0, 1], [0, 0, 1, 1]],
        [[1, 1], [0, 1, 1, 1]],
        [[1, 1], [1, 1, 1, 1]],
    ]


@pytest.mark.parametrize(("fields", "message"), [
    ({"method": "adaptors"}, "method = 'adaptors'.*'adapters'"),
    ({"method": "adapters"}, "adapter_width"),
    ({"method": "adapters", "adapter_width": 0}, "adapter_width"),
    ({"adapter_width": 8}, "config.method"),
    ({"method": "gradual_unfreezing", "feature_layers": 1}, "feature_layers"),
    (ADAPTERS | {"sharing": "hard"}, "config.method"),
])  # fmt: skip
def test_what_no_method_can_be_is_refused(fields, message, cache_dir) -> None:
    with pytest.raises(ValueError, match=message):
        config(cache_dir, **fields)


def test_adapters_of_the_initial_weights_are_kept_or_refused(bert) -> None:
    run = bert(**ADAPTERS)
    own = run.first_params(0)["body"]
    grown = jax.tree.map(lambda x: x + 1, own)
    same = run.learner.first_params(1, grown)["body"]
    assert not changed(grown, same)
    for other in (bert(), bert(method="adapters", adapter_width=3)):
        with pytest.raises(ValueError, match="adapter_width"):
            other.learner.first_params(1, grown)
    assert compiled(run.trained, run.mesh) is compiled(bert(**ADAPTERS).trained, run.mesh)
