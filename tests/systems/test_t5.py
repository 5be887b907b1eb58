"""T5's buckets, and version 1.1; tests/interop/test_parity.py compares T5 with its class."""

import contextlib
import dataclasses
import json
import pathlib
import shutil
from collections.abc import Iterator
from functools import partial
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from flax import linen as nn
from flax import traverse_util
from safetensors.numpy import load_file

from scalelab import objectives, systems
from scalelab.finetuning import methods
from scalelab.interop import config_json, exporting, importing, maps
from scalelab.nn import buckets, ffn
from scalelab.nn.heads import token_logits
from scalelab.nn.masks import Context, Mask
from scalelab.resources import flops
from scalelab.systems import t5
from scalelab.training import pretrained


@pytest.mark.parity
@pytest.mark.parametrize("causal", [False, True])
def test_buckets_are_those_of_transformers(causal: bool) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    from transformers.models.t5.modeling_t5 import T5Attention

    distance = np.arange(-600, 601)
    found = T5Attention._relative_position_bucket(torch.tensor(distance), not causal)
    np.testing.assert_array_equal(buckets.bucket(jnp.asarray(distance), causal), found.numpy())


def test_buckets_by_hand() -> None:
    """The exact ones, and both ends of the logarithmic ones."""
    distance = jnp.array([0, -1, -7, -8, -127, -128, -900, 1, 7, 8, 900])
    assert buckets.bucket(distance, False).tolist() == [0, 1, 7, 8, 15, 15, 15, 17, 23, 24, 31]
    assert buckets.bucket(distance, True).tolist() == [0, 1, 7, 8, 31, 31, 31, 0, 0, 0, 0]


# --- Version 1.1: a gated feed-forward network, and a table of its own for scores ----------------

GATED = {"feed_forward_proj": "gated-gelu"}
UNTIED = {"tie_word_embeddings": False}
CLASSES = ("T5ForConditionalGeneration", "MT5ForConditionalGeneration")
VERSION_1_1: dict[str, Any] = {
    "model__output_embedding": "untied",
    "model__activation": "gelu_tanh",
    "system_options__ffn": "gated",
}
# config.json of google/t5-v1_1-base.
PUBLISHED = {
    "architectures": ["T5ForConditionalGeneration"], "d_ff": 2048, "d_kv": 64, "d_model": 768,
    "decoder_start_token_id": 0, "dropout_rate": 0.1, "eos_token_id": 1,
    "feed_forward_proj": "gated-gelu", "initializer_factor": 1.0, "is_encoder_decoder": True,
    "layer_norm_epsilon": 1e-06, "model_type": "t5", "num_decoder_layers": 12, "num_heads": 12,
    "num_layers": 12, "output_past": True, "pad_token_id": 0, "relative_attention_num_buckets": 32,
    "tie_word_embeddings": False, "use_cache": True, "vocab_size": 32128,
}  # fmt: skip


@pytest.fixture
def gated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the models of both sides gated."""
    pytest.importorskip("torch", reason="PyTorch is not installed: pip install '.[parity]'")
    import peers

    peer = dataclasses.replace(peers.PEERS["t5"], options=lambda _: GATED, exact=exact)
    monkeypatch.setitem(peers.PEERS, "t5", peer)


@contextlib.contextmanager
def exact() -> Iterator[None]:
    """Their norms round to float32."""
    from transformers.models.mt5 import modeling_mt5
    from transformers.models.t5 import modeling_t5

    def forward(norm: Any, x: Any) -> Any:
        return norm.weight * x * (x.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt()

    with (
        mock.patch.object(modeling_t5.T5LayerNorm, "forward", forward),
        mock.patch.object(modeling_mt5.MT5LayerNorm, "forward", forward),
    ):
        yield


def apart(model: Any, shape: Any, length: int, output: str | None, **changed: Any) -> Any:
    """Relative errors of our model with its parameters, in float64, and its expected results."""
    import peers
    import sides

    expected = sides.theirs("t5", model, length)
    with sides.in_double():
        run = sides.ours("t5", shape, length, gradients=True, output_embedding=output)
        params = traverse_util.flatten_dict(peers.weights(model), sep="/")
        for to, source in changed.items():
            names = [n for n in params if n.endswith(f"ffn/{to}/kernel")]
            new = {n: params[n.replace(f"/{to}/", f"/{source}/")] for n in names}
            params = params | new | {n.replace(f"/{to}/", f"/{source}/"): params[n] for n in names}
        found = run(traverse_util.unflatten_dict(params, sep="/"))
        return sides.errors("t5", found, expected, 1e-10)


@pytest.mark.parity
@pytest.mark.usefixtures("gated")
@pytest.mark.parametrize(
    ("name", "shape", "length", "more"),
    [
        (CLASSES[0], (3, 24, 2), 150, {}), (CLASSES[0], (3, 24, 2), 150, UNTIED),
        (CLASSES[0], (7, 84, 1), 20, UNTIED), (CLASSES[1], (3, 21, 5), 40, UNTIED),
    ],
)  # fmt: skip
def test_version_1_1_agrees_with_its_classes(
    name: str, shape: Any, length: int, more: dict[str, Any]
) -> None:
    import peers

    model = peers.make("t5", shape, length, name=name, **more)
    found = apart(model, shape, length, "untied" if more else None)
    gates = [key for key in found if "['gate']" in key]
    assert len(gates) == 2 * shape[2] and any("output_embed" in key for key in found) == bool(more)
    assert {key: e for key, e in found.items() if not e < 1e-10} == {}


@pytest.mark.parity
def test_heads_of_another_size_than_their_share_of_the_width(monkeypatch) -> None:
    """As in t5-3b; here seven heads of 5 in a width of 30."""
    pytest.importorskip("torch", reason="PyTorch is not installed: pip install '.[parity]'")
    import peers

    peer = dataclasses.replace(peers.PEERS["t5"], options=lambda _: {"d_kv": 5}, exact=exact)
    monkeypatch.setitem(peers.PEERS, "t5", peer)
    found = apart(peers.make("t5", shape := (7, 30, 2), 20), shape, 20, None)
    assert found and {key: e for key, e in found.items() if not e < 1e-10} == {}


@pytest.mark.parity
@pytest.mark.usefixtures("gated")
@pytest.mark.parametrize("wrong", ["ReLU", "exact GELU", "the gate is activated", "scaled"])
def test_a_wrong_gate_does_not_agree(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import peers

    model = peers.make("t5", shape := (3, 24, 2), 40, **UNTIED)
    other = {"ReLU": jax.nn.relu, "exact GELU": ffn.gelu_exact}.get(wrong, ffn.gelu_tanh)
    monkeypatch.setattr(t5, "ACTIVATIONS", {"gelu_tanh": other})
    if wrong == "scaled":
        monkeypatch.setattr(t5, "PlainHead", t5.ScaledHead)
    swapped = {"inner": "gate"} if wrong == "the gate is activated" else {}
    found = apart(model, shape, 40, "untied", **swapped)
    assert found["logits"] > 1e-4 and (wrong == "scaled") == (found["hidden"] < 1e-10)


def test_a_constant_gate_scales_the_output() -> None:
    """The last feature of the input is 1, and the gate reads it alone: all its outputs are 3."""
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(2, 5, 8)), jnp.float32).at[..., -1].set(1.0)
    init = jax.nn.initializers.normal(1.0)
    made = partial(ffn.FeedForward, 12, ffn.gelu_tanh, out_kernel_init=init, bias_init=None)
    plain, gate = made(init), made((init, init))
    ctx = Context(Mask(), jnp.zeros((1, 5), jnp.int32), jnp.arange(2))
    params = nn.unbox(gate.init(jax.random.key(0), x, ctx))["params"]
    assert {name: sub["kernel"].shape for name, sub in params.items()} == {
        "inner": (8, 12), "gate": (8, 12), "outer": (12, 8),
    }  # fmt: skip
    constant = jnp.zeros((8, 12)).at[-1].set(3.0)
    found = gate.apply({"params": params | {"gate": {"kernel": constant}}}, x, ctx)
    expected = 3 * plain.apply({"params": {k: params[k] for k in ("inner", "outer")}}, x, ctx)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    assert np.abs(gate.apply({"params": params}, x, ctx) - expected).max() > 1


# --- Options of the architecture study, and the size of heads ------------------------------------


@pytest.mark.ci
def test_shared_layers_are_tied_copies() -> None:
    """Their gradients are the sums of both copies' gradients; decoding is the whole pass."""
    sizes = systems.Sizes(3, 24, 2, ffn_width=40, max_len=32, dropout_rate=0.0)
    terms = tiny.terms(t5, "seq2seq", size=tiny.VOCAB)
    shared, plain = (t5.build(sizes, t5.Options(layers=x), tiny.VOCAB) for x in ("shared", None))
    params, batch = tiny.draw(shared, terms), tiny.batch(t5, 0)

    def copied(params: Any) -> Any:
        own, (decoder, stack) = params["encoder"]["stack"]["layer"], (params["decoder"], "stack")
        layer = decoder[stack][stack]["layer"] | own
        inner = decoder[stack] | {stack: {"layer": layer}}
        return params | {"decoder": decoder | {stack: inner}}

    def run(net: Any, params: Any) -> jax.Array:
        hidden, _ = net.apply({"params": params}, batch, train=False)
        return jnp.sum(jnp.sin(3 * hidden))

    both = [jax.jit(jax.value_and_grad(lambda p, net=net, to=to: run(net, to(p))))(params)
            for net, to in ((shared, lambda p: p), (plain, copied))]  # fmt: skip
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-3), *both)
    other = jax.tree.map(lambda x: x + 0.1, copied(params)["decoder"]["stack"]["stack"])
    wrong = copied(params)
    wrong["decoder"]["stack"] = wrong["decoder"]["stack"] | {"stack": other}
    assert abs(run(plain, wrong) - both[0][0]) > 1
    cache = shared.apply({"params": params}, batch, tiny.LENGTH, method="encode")
    read = {name: batch[name] for name in ("tokens", "lengths", "examples")}
    found, _ = shared.apply({"params": params}, read, train=False, cache=cache)
    whole, _ = shared.apply({"params": params}, batch, train=False)
    real = np.arange(batch["tokens"].shape[1]) < batch["lengths"][:, None]
    np.testing.assert_allclose(found[real], whole[real], rtol=1e-3, atol=1e-3)


def test_shared_layers_share_their_adapters() -> None:
    made = tiny.parts("t5", system_options__layers="shared")
    adapted = methods.add_adapters(made.net, 4)
    both = [
        traverse_util.flatten_dict(objectives.abstract_variables(net, made.terms, max_len=16))
        for net in (made.net, adapted)
    ]
    assert both[0].keys() < both[1].keys()
    new = {path[:-2] for path in both[1].keys() - both[0].keys()}
    assert new == {("params", "encoder", "stack", "layer", "ffn", "adapter")}


@pytest.mark.parametrize(
    ("options", "num_kernels"), [({"layers": "shared"}, 10), ({"head_size": 3}, 16)]
)
def test_n_model_of_an_option_is_its_kernels(options: dict[str, Any], num_kernels: int) -> None:
    given = {f"system_options__{name}": value for name, value in options.items()}
    made = tiny.parts("t5", **given)
    params = traverse_util.flatten_dict(nn.unbox(made.abstract_parameters()), sep="/")
    sizes = [x.size for path, x in params.items() if path.endswith("kernel")]
    assert len(sizes) == num_kernels
    assert sum(sizes) == systems.n_model(t5, made.config.model, made.config.system_options)


def test_a_gate_in_two_thirds_of_the_width_has_as_many_parameters() -> None:
    """Shazeer 2020, 2; and the arm of the study has the nearest whole width."""

    def size(width: int, **options: str) -> int:
        sizes = systems.Sizes(2, 12, 3, width, 16, 0.0)
        net, terms = t5.build(sizes, t5.Options(**options), 97), tiny.terms(t5, "seq2seq")
        made = objectives.abstract_variables(net, terms, max_len=16)["params"]
        return sum(x.size for x in jax.tree.leaves(made))

    assert size(32, ffn="gated") == size(48) != size(48, ffn="gated")
    study = tiny.config_module("studies/seq2seq_parts").get_config("scale=synthetic")
    (width,) = (int(x.split("=")[1]) for x in study.variants.gated if "ffn_width" in x)
    (shape,) = {s for stage in study.stages.values() for s in stage.shapes}
    assert abs(width - 2 / 3 * 4 * int(shape.split("x")[1])) <= 0.5


def test_no_class_has_shared_layers(wikitext: pathlib.Path, tmp_path: pathlib.Path) -> None:
    tiny.write_run(
        tmp_path / "run", "t5", wikitext, tmp_path / "cache", system_options__layers="shared"
    )
    with pytest.raises(ValueError, match="system_options.layers is 'shared'"):
        exporting.run(tmp_path / "run", tmp_path / "out")


def test_a_second_table_begins_as_in_the_reference_code() -> None:
    """With deviation D^-0.5, as a dense layer of mesh_tensorflow: scores are those of a guess."""
    sizes = systems.Sizes(2, 64, 1, 64, 16, 0.0, output_embedding="untied")
    net, terms = t5.build(sizes, t5.Options(), 500), tiny.terms(t5, "seq2seq", size=500)
    made = objectives.init_variables(jax.random.key(0), net, terms, max_len=16)["params"]
    table = nn.unbox(made)["decoder"]["output_embed"]["table"]
    assert table.shape == (500, 64)
    np.testing.assert_allclose(table.std(), 64**-0.5, rtol=0.02)


def test_parameters_and_flops_of_the_published_base_model() -> None:
    """247,577,856 parameters; two FLOPs each of the products of a position."""
    family = maps.load("t5")
    fields, rate, remarks = config_json.read_fields(family, PUBLISHED)
    assert (fields["activation"], fields["ffn"], rate, remarks) == ("gelu_tanh", "gated", 0.1, [])
    assert family.untied(PUBLISHED) and not family.untied(PUBLISHED | {"tie_word_embeddings": True})
    own = {name: fields[name] for name in ("num_heads", "width", "num_layers", "ffn_width")}
    sizes = {f"model__{name}": value for name, value in own.items()} | {"model__max_len": 16}
    sizes |= {"model__output_embedding": "untied", "model__activation": "gelu_tanh"}
    both = {}
    for gated in (None, "gated"):
        made = tiny.parts("t5", system_options__ffn=gated, tokenizer__vocab_size=32128, **sizes)
        params = objectives.abstract_variables(made.net, made.terms, max_len=16)["params"]
        (cost,) = flops.count_phases(params, made.net, made.terms, made.config)
        count = sum(x.size for x in jax.tree.leaves(params))
        n_model = systems.n_model(t5, made.config.model, made.config.system_options)
        both[gated] = count, n_model, cost.body
        batch = made.config.short.batch_size
    assert both["gated"][0] == 247_577_856
    more = 768 * 2048 * 12  # one map of each side
    assert both["gated"][0] - both[None][0] == both["gated"][1] - both[None][1] == 2 * more
    source, target = (x.shape(16, batch)[1] for x in tiny.arrays_of(t5) if x.is_counted)
    assert both["gated"][2] - both[None][2] == 2 * more * batch * (source + target)


@pytest.mark.parametrize(
    ("activation", "word"),
    [("gelu_tanh", "gated-gelu"), ("gelu", "gated-gelu_python"), (None, "gated-relu")],
)
def test_version_1_1_there_and_back(
    wikitext: pathlib.Path, tmp_path: pathlib.Path, activation: str | None, word: str
) -> None:
    """An import of either class has the same parameters and sizes."""
    own = dict(VERSION_1_1, model__activation=activation, model__ffn_width=40)
    run, out = tmp_path / "run", tmp_path / "out"
    tiny.write_run(run, "t5", wikitext, tmp_path / "cache", 0.5, **own)
    exporting.run(run, out)
    made = json.loads((out / "config.json").read_text())
    assert (made["feed_forward_proj"], made["tie_word_embeddings"]) == (word, False)
    before = pretrained.load(run)
    for name in ("t5", "mt5"):
        (out / "config.json").write_text(json.dumps(made | {"model_type": name}))
        importing.run(str(out), tmp_path / name)
        after = pretrained.load(tmp_path / name)
        jax.tree.map(np.testing.assert_array_equal, before.params, after.params)
        assert "output_embed" in after.params["decoder"]
        own = {"ffn": "gated", "head_size": before.config.model.width // 2, "layers": None}
        assert after.config.system_options == own
        assert after.config.model == before.config.model


@pytest.mark.parity
def test_an_untied_model_of_one_table(wikitext, tmp_path) -> None:
    """Transformers 5 makes a new untied model with one table, and does not scale its states."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    import transformers

    tiny.write_run(tmp_path / "run", "t5", wikitext, tmp_path / "cache", 0.5, **VERSION_1_1)
    exporting.run(tmp_path / "run", out := tmp_path / "out")
    config = transformers.T5Config.from_pretrained(out)
    source, target = np.array([[5, 9, 7, 1]]), np.array([[0, 8, 6]])
    batch = {"source": source, "source_lengths": [4], "tokens": target, "lengths": [3]}
    batch = {key: np.asarray(x, np.int32) for key, x in (batch | {"examples": [0]}).items()}

    def score(net: Any) -> jax.Array:
        return token_logits(net, net(batch, train=False)[0])

    for name in ("T5", "MT5"):
        given = {
            k: x
            for k, x in config.to_dict().items()
            if k not in ("model_type", "tie_word_embeddings")
        }
        own = getattr(transformers, f"{name}Config")(**given | {"tie_word_embeddings": False})
        model = getattr(transformers, f"{name}ForConditionalGeneration")(own).eval()
        folder = tmp_path / name
        model.save_pretrained(folder)
        for file in out.glob("*token*"):
            shutil.copy(file, folder)
        assert "lm_head.weight" not in load_file(folder / "model.safetensors")
        importing.run(str(folder), tmp_path / f"{name}-run")
        opened = pretrained.load(tmp_path / f"{name}-run")
        ours = nn.apply(score, opened.net)({"params": opened.params})
        with torch.no_grad():
            ids = {"input_ids": torch.tensor(source), "decoder_input_ids": torch.tensor(target)}
            theirs = model(**ids).logits.numpy()[..., : ours.shape[-1]]
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parity
def test_transformers_loads_version_1_1_untied(wikitext, tmp_path) -> None:
    """What it saves again is imported, too: its config.json then calls the model tied."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    import transformers

    tiny.write_run(tmp_path / "run", "t5", wikitext, tmp_path / "cache", 0.5, **VERSION_1_1)
    exporting.run(tmp_path / "run", out := tmp_path / "out")
    model = transformers.T5ForConditionalGeneration.from_pretrained(out).eval()
    assert not torch.equal(model.lm_head.weight, model.shared.weight)
    model.save_pretrained(tmp_path / "again")
    for file in out.glob("*token*"):
        shutil.copy(file, tmp_path / "again")
    assert json.loads((tmp_path / "again/config.json").read_text())["tie_word_embeddings"]
    importing.run(str(tmp_path / "again"), tmp_path / "back")
    before, after = (pretrained.load(tmp_path / name) for name in ("run", "back"))
    jax.tree.map(np.testing.assert_array_equal, before.params, after.params)


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"feed_forward_proj": "relu"}, "gate/kernel"),
     ({"feed_forward_proj": "gated-tanh"}, "gated-tanh"),
     ({"tie_word_embeddings": True}, "lm_head.weight differs from shared.weight")],
    ids=str,
)  # fmt: skip
def test_a_config_that_contradicts_the_tensors(wikitext, tmp_path, changes, message) -> None:
    tiny.write_run(tmp_path / "run", "t5", wikitext, tmp_path / "cache", **VERSION_1_1)
    exporting.run(tmp_path / "run", out := tmp_path / "out")
    config = json.loads((out / "config.json").read_text())
    (out / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(ValueError, match=message):
        importing.run(str(out), tmp_path / "back")


def test_a_tokenizer_without_sentinels_is_refused(wikitext, tmp_path) -> None:
    tiny.write_run(tmp_path / "run", "t5", wikitext, tmp_path / "cache")
    exporting.run(tmp_path / "run", out := tmp_path / "out")
    importing.run(str(out), tmp_path / "sound")
    for file in out.glob("*.json"):
        file.write_text(file.read_text().replace("<extra_id_", "<other_id_"))
    with pytest.raises(ValueError, match="no special token '<extra_id_0>', which t5 needs"):
        importing.run(str(out), tmp_path / "back")
    assert not (tmp_path / "back").exists()
