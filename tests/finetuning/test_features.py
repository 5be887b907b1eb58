"""Feature-based transfer: a frozen model's layers, side by side or summed with learned weights."""

import functools
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from test_bilstm import WIDTH, pytorchs_lstm
from test_finetune import config, records

from scalelab import finetune
from scalelab.finetuning import warm_start
from scalelab.finetuning.run import TaskRun
from scalelab.finetuning.step import compiled
from scalelab.interop import exporting
from scalelab.tasks.task import Splits, load_task
from scalelab.training.pretrained import load_trained

LAYERS = 5


@pytest.fixture(scope="module")
def bert(wikitext, cache_dir, tmp_path_factory) -> pathlib.Path:
    """The run folder of a BERT of five layers."""
    folder = tmp_path_factory.mktemp("bert")
    return tiny.write_run(folder, "bert", wikitext, cache_dir, model__num_layers=LAYERS)


@pytest.fixture
def prepare(bert, cache_dir, tmp_path):
    """prepare(**fields) -> TaskRun of RTE."""

    def make(**fields: Any) -> TaskRun:
        task, start = load_task("rte"), warm_start.open_start(str(bert))
        splits = Splits(records(task, 24, 0), {"dev": records(task, 8, 1)}, {})
        return TaskRun(task, splits, start, config(cache_dir, **fields), tmp_path / "task")

    return make


def test_features_are_the_top_layers_in_their_order(prepare) -> None:
    """Other parameters of a layer move the states of it and of the layers above, no others."""
    run = prepare(feature_layers=4)
    body, batch = run.first_params(0)["body"], run.train.gather(np.arange(8), 32)
    features = jax.jit(lambda body: run.learner.features({"body": body}, batch))
    before = features(body)
    for changed in range(LAYERS):
        layers = jax.tree.map(lambda x, k=changed: x.at[k].add(0.5), body["stack"]["layer"])
        after = features(body | {"stack": body["stack"] | {"layer": layers}})
        moved = np.any(np.split(np.asarray(after != before), 4, axis=-1), axis=(1, 2, 3))
        assert moved.tolist() == [layer >= changed for layer in range(1, LAYERS)]


@pytest.mark.parity
@pytest.mark.parametrize("count", [4, LAYERS + 1])
def test_the_layers_are_those_of_transformers(count: int, prepare, bert, tmp_path) -> None:
    """The top four of five, or all and the embeddings, the last one last; or their mean."""
    torch = pytest.importorskip("torch")
    from transformers import BertModel

    run, mixing = (prepare(feature_layers=count, feature_mix=mix) for mix in (None, "weighted"))
    exporting.run(bert, tmp_path / "out")
    batch = run.train.gather(np.arange(6), 32)
    places = np.arange(32)
    given = {
        "input_ids": batch["tokens"],
        "attention_mask": places < batch["lengths"][:, None],
        "token_type_ids": places >= batch["second_starts"][:, None],
    }
    model = BertModel.from_pretrained(tmp_path / "out").eval()
    with torch.no_grad():
        tensors = {name: torch.tensor(x.astype(np.int64)) for name, x in given.items()}
        layers = model(**tensors, output_hidden_states=True).hidden_states[-count:]
    layers = [layer.numpy() for layer in layers]
    real = given["attention_mask"]
    params = run.first_params(0)
    found = np.asarray(run.learner.features(params, batch))
    np.testing.assert_allclose(found[real], np.concatenate(layers, axis=-1)[real], atol=1e-5)
    made = mixing.first_params(0)
    head = made["head"]

    def expected(layers: list[np.ndarray]) -> np.ndarray:
        vectors = np.mean(layers, axis=0)[:, 0]
        dense = np.tanh(vectors @ head["dense"]["kernel"] + head["dense"]["bias"])
        return dense @ head["out"]["kernel"] + head["out"]["bias"]

    program = compiled(mixing.learner, mixing.mesh)
    scores = program.predict(*program.place(made), batch)
    np.testing.assert_allclose(scores, expected(layers), atol=1e-6)
    assert np.abs(scores - expected(layers[1:])).max() > 5e-5


@pytest.mark.parity
def test_a_bilstm_reads_the_weighted_sum(prepare) -> None:
    """It equals PyTorch's BiLSTM over the sum of Peters et al. 2018, equation 1."""
    run = prepare(feature_layers=3, feature_mix="weighted", head__lstm_width=WIDTH)
    params, batch = run.first_params(0), run.train.gather(np.arange(8), 32)
    rng, scores, scale = np.random.default_rng(0), np.array([0.5, -1.0, 2.0]), 1.7
    draw = lambda x: rng.normal(0, 0.5, x.shape).astype(np.float32)  # noqa: E731
    params["head"] = jax.tree.map(draw, params["head"]) | {
        "layer_weights": jnp.array(scores, jnp.float32), "layer_scale": jnp.array([scale]),
    }  # fmt: skip
    layers = np.split(np.asarray(run.learner.features(params, batch)), 3, axis=-1)
    shares = np.exp(scores) / np.exp(scores).sum()
    mixed = scale * sum(share * layer for share, layer in zip(shares, layers, strict=True))
    program = compiled(run.learner, run.mesh)
    found = program.predict(*program.place(params), batch)
    expected = functools.partial(pytorchs_lstm, params["head"], lengths=batch["lengths"])
    np.testing.assert_allclose(found, expected(mixed), atol=1e-5)
    assert np.abs(found - expected(scale * np.mean(layers, axis=0))).max() > 0.01


@pytest.mark.parametrize("width", [None, WIDTH])
def test_the_net_stays_and_the_weights_of_layers_are_learnt(width: int | None, prepare) -> None:
    mixed = {"feature_layers": LAYERS, "feature_mix": "weighted", "head__lstm_width": width}
    run, tuned = prepare(**mixed), prepare()
    batch = run.train.gather(np.arange(8), 32)

    def norms(run: TaskRun) -> tuple[float, float]:
        def loss(params: Any) -> jax.Array:
            return run.learner.loss(run.learner.scores(params, batch), batch)[0]

        found = jax.jit(jax.grad(loss))(run.first_params(0))
        return tuple(
            sum(float(abs(x).sum()) for x in jax.tree.leaves(found[part]))
            for part in ("body", "head")
        )

    assert norms(run)[0] == 0 < norms(run)[1] and min(norms(tuned)) > 0
    before = jax.device_get(run.first_params(0))
    finetune.train([run], 0, run.workdir)
    after = load_trained(run.folder(0))
    jax.tree.map(np.testing.assert_array_equal, after["body"], before["body"])
    for name in ("layer_weights", "layer_scale"):
        assert after["head"][name].shape == before["head"][name].shape
        assert abs(after["head"][name] - before["head"][name]).max() > 1e-3
    again = functools.partial(finetune.results.evaluate_again, run, 0)
    assert again() == run.result(0)["eval"]


def test_what_cannot_be_mixed_is_refused(prepare) -> None:
    with pytest.raises(ValueError, match="RTE: config.feature_layers = 7 exceeds the 6 layers"):
        prepare(feature_layers=7)
    with pytest.raises(ValueError, match="feature_mix needs config.feature_layers"):
        prepare(feature_mix="weighted")


def test_the_lowest_layer_of_elmo_is_its_embeddings_twice(wikitext, cache_dir, tmp_path) -> None:
    """Peters et al. 2018, equation 1: j = 0 is the token, for both streams."""
    folder = tiny.write_run(tmp_path / "elmo", "elmo", wikitext, cache_dir, model__num_layers=2)
    task, start = load_task("rte"), warm_start.open_start(str(folder))
    splits = Splits(records(task, 24, 0), {"dev": records(task, 8, 1)}, {})
    fields = {"feature_layers": 3, "feature_mix": "weighted", "head__lstm_width": WIDTH}
    run = TaskRun(task, splits, start, config(cache_dir, **fields), tmp_path / "task")
    params, batch = run.first_params(0), run.train.gather(np.arange(8), 32)
    assert params["head"]["layer_weights"].shape == (3,)
    features = np.asarray(run.learner.features(params, batch))
    table = params["body"]["embed"]["tokens"]["table"]
    tokens = table[batch["tokens"]] * table.shape[1] ** 0.5
    np.testing.assert_allclose(features[..., : 2 * table.shape[1]], np.tile(tokens, 2), rtol=1e-6)
