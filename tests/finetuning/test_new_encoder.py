"""A new encoder before BART's: beside two of PyTorch's, and which parameters its method trains."""

import dataclasses
import functools
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from test_finetune import config
from test_methods import changed
from test_texts import TASK, planted
from test_words import one_bucket  # noqa: F401

from scalelab import finetune, systems
from scalelab.finetuning import new_encoder, warm_start
from scalelab.finetuning.run import TaskRun
from scalelab.nn.heads import token_logits
from scalelab.tasks.task import Splits
from scalelab.training.pretrained import load_trained

SHAPE, LENGTH, VOCAB = (2, 8, 2), 7, 40
FIRST = {"method": "new_encoder", "new_encoder_layers": 2}


@pytest.fixture
def prepare(
    wikitext: pathlib.Path, cache_dir: pathlib.Path, tmp_path: pathlib.Path
) -> Callable[..., TaskRun]:
    """prepare(initial run or None, name, **fields of the config) -> TaskRun; BART has 3 layers."""
    bart = tiny.write_run(
        tmp_path / "bart", "bart", wikitext, cache_dir, model__num_layers=3, spread=0.5
    )
    splits = Splits(planted(32, 0), {"dev": planted(8, 1)}, {})

    def make(init: pathlib.Path | None, name: str, **fields: Any) -> TaskRun:
        start = warm_start.open_start(str(init or bart))
        small = {"epochs": 1.0, "batch_size": 16, "max_len": 60, "optim.learning_rate": 1e-2}
        given = config(cache_dir, **(small | {"head.kind": "words", "optim.weight_decay": 0.1}),
                       **fields)  # fmt: skip
        return TaskRun(TASK, splits, start, given, tmp_path / name)

    return make


def train(run: TaskRun) -> tuple[set[str], Any]:
    """Trains a seed: the paths of parameters whose bytes changed, and all parameters."""
    before = jax.device_get(run.first_params(0))
    finetune.train([run], 0, run.workdir)
    return changed(before, after := load_trained(run.folder(0))), after


def test_the_first_step_trains_what_is_new_and_next_to_it_the_second_all(prepare) -> None:
    first = prepare(None, "first", **FIRST)
    moved, made = train(first)
    kernels = {f"body/encoder/layer/attention/{n}/kernel#0" for n in ("query", "key", "value")}
    rest = {path for path in moved if "/new_encoder/" not in path}
    assert rest == kernels | {"body/source_embed/positions/table"}
    new = made["body"]["source_embed"]["new_encoder"]
    assert len(new["stack"]["layer"]["ffn"]["inner"]["kernel"]) == 2
    fresh = {p.partition("#")[0].split("new_encoder/")[1] for p in moved if "new_encoder/" in p}
    assert {"embed/tokens/table", "embed/norm/scale", "stack/layer/attention/out/kernel"} <= fresh

    init = first.folder(0)
    second = prepare(init, "second", new_encoder_layers=2)
    assert not changed(made["body"], second.first_params(0)["body"])
    moved, _ = train(second)
    assert {"body/decoder/embed/tokens/table", "body/encoder/layer/ffn/inner/kernel#2"} <= moved
    for fields in ({}, {"new_encoder_layers": 1}):
        with pytest.raises(ValueError, match="--config.new_encoder_layers"):
            prepare(init, "other", **fields)


@pytest.mark.parametrize("system", ["t5", "bert", "rnnsearch"])
def test_other_models_are_refused(system: str) -> None:
    with pytest.raises(ValueError, match=r"new_encoder_layers = 2.*bart and mass"):
        new_encoder.add_new_encoder(tiny.parts(system).net, 2)


@pytest.mark.parametrize(("fields", "message"), [
    ({"method": "new_encoder"}, "needs config.new_encoder_layers"),
    ({"new_encoder_layers": 0}, "new_encoder_layers"),
    (FIRST | {"method": "adapters", "adapter_width": 2}, "does not go with.*adapters"),
    (FIRST | {"optim.layer_decay": 0.9}, "does not go with.*layer_decay"),
])  # fmt: skip
def test_what_it_does_not_go_with_is_refused(fields, message, cache_dir: pathlib.Path) -> None:
    with pytest.raises(ValueError, match=message):
        config(cache_dir, **fields)


@pytest.mark.ci
@pytest.mark.parity
def test_it_is_bart_on_the_states_of_another_encoder() -> None:
    """Values and gradients in float64, with padded sources; other inputs of the encoder differ."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install '.[parity]'")
    import peers

    make = functools.partial(peers.make, "bart", max_len=LENGTH, vocab_size=VOCAB)
    bart, other = make(SHAPE), make(SHAPE, seed=1)
    rng = np.random.default_rng(0)
    sizes = systems.Sizes(*SHAPE, ffn_width=32, max_len=LENGTH, dropout_rate=0.0)
    batch = {"source": rng.integers(5, VOCAB, (3, LENGTH)), "source_lengths": np.array([7, 4, 1]),
             "tokens": rng.integers(5, VOCAB, (3, 5)), "lengths": np.array([5, 5, 5]),
             "examples": np.arange(3)}  # fmt: skip
    weights = rng.normal(size=(3, 5, VOCAB))
    seen = torch.tensor(np.arange(LENGTH) < batch["source_lengths"][:, None]).long()
    states = other.model.encoder(torch.tensor(batch["source"]), seen).last_hidden_state
    given = {"attention_mask": seen, "decoder_input_ids": torch.tensor(batch["tokens"])}
    expected = bart(inputs_embeds=states, **given).logits
    (expected * torch.tensor(weights)).sum().backward()

    def join(main: Any, new: Any) -> Any:
        """The parameters of both; those of BART's own source tokens are the decoder's too."""
        embed = new["source_embed"] | {"tokens": new["decoder"]["embed"]["tokens"]}
        made = {"embed": embed, "stack": new["encoder"]}
        return main | {"source_embed": main["source_embed"] | {"new_encoder": made}}

    def loss(params: Any) -> tuple[jax.Array, jax.Array]:
        net = systems.load("bart").build(dataclasses.replace(sizes, dtype=jnp.float32), None, VOCAB)
        net = new_encoder.add_new_encoder(net, SHAPE[2])
        hidden, _ = net.apply({"params": params}, batch, train=False)
        logits = net.apply({"params": params}, hidden, method=token_logits)
        return (logits * weights).sum(), logits

    with tiny.in_double():
        params = join(peers.weights(bart), peers.weights(other))
        grads, logits = jax.grad(loss, has_aux=True)(params)
        own = params["source_embed"]
        wrong = own | {"positions": jax.tree.map(jnp.zeros_like, own["positions"])}
        _, without = loss(params | {"source_embed": wrong})
        grads, logits, without = jax.device_get((grads, logits, without))
    np.testing.assert_allclose(logits, expected.detach().numpy(), atol=1e-10)
    assert np.abs(without - logits).max() > 0.1
    theirs = join(peers.gradients(bart), peers.gradients(other))
    for path, own in jax.tree_util.tree_leaves_with_path(grads):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        its = functools.reduce(lambda tree, key: tree[key.key], path, theirs)
        limit = 1e-10 * max(1.0, float(np.abs(its).max()))
        assert np.abs(own - its).max() < limit, name
