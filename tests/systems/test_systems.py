"""Each family's own promises: initialisation, sizes, shapes, and how the families relate."""

import functools
import re
import typing
from typing import Any

import declared
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from flax import linen as nn
from flax import traverse_util

from scalelab import objectives, systems
from scalelab.config import pretraining
from scalelab.config.fields import make_options
from scalelab.helpers import names
from scalelab.nn import ffn
from scalelab.nn.heads import token_logits

SYSTEMS = names.module_names("systems")
# The smallest, widest and deepest shapes of the thesis' experiments (protocol, 7.5), and odd ones.
SHAPES = [(2, 128, 2), (2, 544, 2), (2, 128, 36), (2, 204, 7), (7, 469, 4), (13, 832, 5)]


def make(name: str, shape: tuple[int, int, int], *, vocab_size: int = 30_000, **kwargs: Any) -> Any:
    rest = {"ffn_width": 4 * shape[1], "max_len": 512, "dropout_rate": 0.1} | kwargs
    module = systems.load(name)
    return module.build(systems.Sizes(*shape, **rest), make_options(module, {}), vocab_size)


def make_batch(batch_size: int = 2, length: int = 8) -> dict[str, jax.Array]:
    return {
        "tokens": jnp.full((batch_size, length), 9, jnp.int32),
        "lengths": jnp.full((batch_size,), length, jnp.int32),
        "second_starts": jnp.full((batch_size,), length // 2, jnp.int32),
        "source": jnp.full((batch_size, length), 9, jnp.int32),
        "source_lengths": jnp.full((batch_size,), length, jnp.int32),
        "units": jnp.zeros((batch_size, length), jnp.int32),
        "examples": jnp.arange(batch_size),
    } | {name: jnp.zeros((batch_size,), jnp.int32) for name in tiny.label_names()}


def make_terms(name: str, chosen: tuple[str, ...] | None = None) -> tuple[objectives.Term, ...]:
    chosen = chosen or tuple(declared.get(name).first_losses)
    return tiny.terms(systems.load(name), "+".join(chosen), size=30_000)


def losses(model: Any, batch: dict[str, jax.Array], terms: tuple[objectives.Term, ...]) -> Any:
    key = jax.random.key(0)
    prepared = objectives.prepare(batch, terms, key)
    return objectives.apply_objectives(model, prepared, terms, objectives.Pass(key))


def init(net: Any, terms: tuple[objectives.Term, ...], length: int = 8) -> Any:
    """Parameters that the objectives use, unboxed."""

    def forward(model: Any) -> Any:
        return losses(model, make_batch(length=length), terms)

    return jax.jit(lambda key: nn.unbox(nn.init(forward, net)(key)))(jax.random.key(1))["params"]


@functools.partial(jax.jit, static_argnums=0)
def hidden_states(net: Any, params: Any, batch: Any) -> jax.Array:
    return net.apply({"params": params}, batch, train=False)[0]


@pytest.mark.parametrize("name", SYSTEMS)
def test_the_layers_compute_with_the_activation_and_epsilon_of_the_config(name: str) -> None:
    def program(**fields: Any) -> str:
        net, terms = make(name, (2, 8, 1), vocab_size=50, **fields), make_terms(name)
        params = jax.eval_shape(lambda: init(net, terms))
        run = lambda params, batch: net.apply({"params": params}, batch, train=False)[0]  # noqa: E731
        return str(jax.make_jaxpr(run)(params, make_batch()))

    if not declared.get(name).transformer:
        with pytest.raises(ValueError, match="config.model.activation = silu"):
            program(activation="silu")
        return
    own, changed = program(), program(activation="silu", norm_epsilon=11 / 64)
    epsilon = f"{11 / 64}:f32[]"
    assert own.count("logistic") == own.count(epsilon) == 0
    assert changed.count("logistic") > 0 and "erf" not in changed
    assert changed.count("tanh") == declared.get(name).num_tanh
    assert changed.count(epsilon) == changed.count("rsqrt") == own.count("rsqrt")


def test_activations_of_the_config_are_those_of_the_layers() -> None:
    for name, function in ffn.ACTIVATIONS.items():
        pretraining.Net(activation=name)
        assert np.isfinite(function(jnp.float32(0.5)))
    (choices, _) = typing.get_args(pretraining.Net.__annotations__["activation"])
    words = re.findall("'(.+?)'", typing.get_args(choices)[1][0])
    assert words == [*ffn.ACTIVATIONS]


def flat(tree: Any) -> dict[str, Any]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {"/".join(k.key for k in path): leaf for path, leaf in leaves}


@pytest.mark.parametrize(
    "name",
    [n if n in ("bert", "gpt2") else pytest.param(n, marks=pytest.mark.ci) for n in SYSTEMS],
)
def test_initialisation(name: str) -> None:
    said = declared.get(name)
    if said.counted:
        pytest.skip("parameters are not drawn")
    params = flat(init(make(name, (2, 64, 3), vocab_size=2000), make_terms(name)))
    assert len(params) > (10 if said.transformer else 2) or said.static
    for path, value in params.items():
        value = np.asarray(value)
        if path.endswith("scale"):
            np.testing.assert_array_equal(value, 1.0, err_msg=path)
        elif path.endswith("bias"):
            np.testing.assert_array_equal(value, 0.0, err_msg=path)
        else:
            expected = next(std for end, std in said.stddevs.items() if path.endswith(end))
            if path in said.zero_rows:
                zero = (value == 0).all(axis=1)
                assert np.nonzero(zero)[0].tolist() == [said.zero_rows[path]]
                value = value[~zero]
            spread = expected * 5 / (2 * value.size) ** 0.5
            assert abs(value.std() - expected) < spread, f"{path}: {value.std()}"
            assert abs(value.mean()) < 5 * expected / value.size**0.5, path
            if said.uniform and path.endswith("kernel"):
                assert 0.95 < np.abs(value).max() / (3**0.5 * expected) <= 1.0, path
            elif said.largest is not None:
                assert np.abs(value).max() <= said.largest + 1e-9, path
            elif value.size > 10_000:
                assert np.abs(value).max() > 3 * expected, path


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "x".join(map(str, s)))
@pytest.mark.parametrize("name", declared.marked(SYSTEMS))
def test_any_shape_builds_with_the_declared_kernels(name: str, shape: tuple[int, int, int]) -> None:
    num_heads, width, num_layers = shape
    module, made, body = systems.load(name), make_terms(name), declared.get(name).body
    params = flat(jax.eval_shape(lambda: init(make(name, shape), made)))
    matrices = [p for k, p in params.items() if re.match(body, k) and k.endswith("kernel")]
    net = pretraining.Net(num_heads, width, num_layers)
    assert sum(p.size for p in matrices) == systems.n_model(module, net)
    if not declared.get(name).transformer:
        return
    queries = [p for k, p in params.items() if re.match(f"{body}.*/query/kernel", k)]
    assert len(queries) == 1 or module.HAS_SOURCE
    assert {q.shape[1:] for q in queries} == {(width, num_heads, width // num_heads)}
    if not hasattr(module, "n_model"):
        squares = 12 + 16 if module.HAS_SOURCE else 12  # a layer of the decoder has 16
        assert sum(p.size for p in matrices) == squares * num_layers * width**2
        assert queries[0].shape[0] == num_layers


@pytest.mark.parametrize(
    ("name", "case"), [(n, case) for n in SYSTEMS for case in declared.get(n).num_parameters]
)
def test_number_of_parameters(name: str, case: tuple[str, int, int]) -> None:
    objective, vocab_size, max_len = case
    net = make(name, (12, 768, 12), vocab_size=vocab_size, max_len=max_len)
    params = jax.eval_shape(lambda: init(net, make_terms(name, tuple(objective.split("+")))))
    expected = declared.get(name).num_parameters[case]
    assert sum(p.size for p in jax.tree.leaves(params)) == expected


@pytest.mark.parametrize("name", SYSTEMS)
def test_more_tokens_than_positions(name: str) -> None:
    """A table of positions has an end; a model without one takes any length."""
    nets, terms = [make(name, (2, 8, 1), max_len=n) for n in (4, 8)], make_terms(name)
    short, long = (jax.eval_shape(lambda net=net: init(net, terms, length=4)) for net in nets)
    if short == long:
        jax.eval_shape(lambda: init(nets[0], terms))
        return
    with pytest.raises(ValueError, match="4 positions.* 8 "):
        init(nets[0], terms)


def test_a_net_without_a_pair_head_says_so() -> None:
    net = make("roberta", (2, 8, 1), vocab_size=20)
    with pytest.raises(ValueError, match="no pair head"):
        init(net, make_terms("roberta", ("mlm", "nsp")))


@pytest.mark.parametrize("name", [pytest.param("roberta", marks=pytest.mark.slow), "gpt2"])
def test_late_positions_wait_for_the_long_phase(name: str) -> None:
    """Gradients of positions that no example reaches are exactly 0, all others are not."""
    net, made, short = make(name, (2, 16, 2), vocab_size=50, max_len=24), make_terms(name), 10
    rng = np.random.default_rng(0)
    shapes = jax.eval_shape(lambda: init(net, made))
    params = jax.tree.map(lambda x: np.float32(0.1 * rng.normal(size=x.shape)), shapes)
    batch = make_batch(2, short)
    batch["tokens"] = jax.random.randint(jax.random.key(3), (2, short), 6, 50)

    def loss(params: Any) -> jax.Array:
        found = nn.apply(lambda model: losses(model, batch, made), net)({"params": params})
        return sum(pairs["loss"][0] for pairs in found.values())

    gradient = np.abs(jax.jit(jax.grad(loss))(params)["embed"]["positions"]["table"]).max(axis=1)
    # The last token of an example predicts nothing and is seen by nobody in a causal model.
    used = short - (systems.load(name).SEES == "left")
    assert (gradient[:used] > 0).all() and (gradient[used:] == 0).all()


@pytest.mark.slow
def test_roberta_is_bert_without_segments() -> None:
    """With segment vectors of 0 and one epsilon, the two compute the same."""
    bert = make("bert", (2, 16, 2), vocab_size=50, dropout_rate=0.0)
    roberta = make("roberta", (2, 16, 2), vocab_size=50, dropout_rate=0.0)
    params = init(bert, make_terms("bert", ("mlm",)))
    params = jax.tree.map(lambda x: x + 0.3 * jax.random.normal(jax.random.key(4), x.shape), params)
    segments = params["embed"].pop("segments")
    batch = make_batch(2, 12)
    batch["tokens"] = jax.random.randint(jax.random.key(5), (2, 12), 0, 50)
    theirs = hidden_states(roberta, params, batch)
    params["embed"]["segments"] = jax.tree.map(jnp.zeros_like, segments)
    ours = hidden_states(bert, params, batch)
    np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-4)
    params["embed"]["segments"] = segments
    with_segments = hidden_states(bert, params, batch)
    assert np.abs(with_segments - theirs).max() > 0.01


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_system_exports_what_the_loop_needs(name: str) -> None:
    module = systems.load(name)
    roles, texts = zip(*module.SPECIAL_TOKENS, strict=True)
    assert len(set(roles)) == len(roles) and len(set(texts)) == len(texts)
    kinds = {role.rstrip("0123456789") for role in roles}
    assert kinds <= {"pad", "unk", "cls", "sep", "mask", "bos", "eos", "sentinel_"}
    assert len(module.FRAME) == 3
    assert {text for part in module.FRAME for text in part} <= set(texts)
    assert bool({"token", "copy"} & {*module.HEADS}) == (module.PREDICTS is not None)
    assert module.HAS_SOURCE == (module.SEES == "source + left")
    assert module.PREDICTS in {term.objective.predicts for term in make_terms(name)}
    sees = {"next": {"left", "source + left"}, "masked": {"both"}}
    if "previous" in module.HEADS:  # two streams side by side
        sees["next"] = {"both"}
    assert module.SEES in sees.get(module.PREDICTS, set.union(*sees.values()))
    config = tiny.config(name)
    assert config.tokenizer.kind == declared.get(name).tokenizer
    assert config.objective_weights.keys() == declared.get(name).first_losses.keys()
    form = config.data.format
    objectives.check([*config.objective_weights], heads=module.HEADS, sees=module.SEES, format=form)


@pytest.mark.parametrize("name", declared.marked(SYSTEMS))
def test_an_untied_net_scores_with_a_table_of_its_own(name: str) -> None:
    """One more table, of the embedding's size and initialisation, which alone scores tokens."""
    made = make_terms(name)
    if declared.get(name).counted:
        with pytest.raises(ValueError, match="config.model.output_embedding = untied"):
            make(name, (2, 16, 1), output_embedding="untied")
        return
    tied = jax.eval_shape(lambda: init(make(name, (2, 16, 1), vocab_size=40), made))
    net = make(name, (2, 16, 1), vocab_size=40, output_embedding="untied")
    untied = init(net, made)
    found, path = flat(untied), net.TOKEN_TABLE
    (own,) = found.keys() - flat(tied).keys()
    table, embedded = found[own], found[path]
    assert own.endswith("output_embed/table")
    assert table.shape == embedded.shape == (40, embedded.shape[1])
    assert 0.5 < table.std() / embedded.std() < 2 or abs(4 * table.std() - 1) < 0.1  # T5: D^-0.5

    dense = untied.get("token_head", {}).get("dense")
    width = dense["kernel"].shape[0] if dense else 16

    @jax.jit
    def logits(params: Any) -> jax.Array:
        params = traverse_util.unflatten_dict(params, sep="/")
        states = jnp.ones((1, 2, width))
        return nn.apply(lambda m: token_logits(m, states), net)({"params": params})

    assert jnp.array_equal(logits(found), logits(found | {path: embedded + 1}))
    assert not jnp.array_equal(logits(found), logits(found | {own: table + 1}))


def test_what_the_user_changed_is_no_departure() -> None:
    rate = systems.Departure("optim.learning_rate", 2.5e-4, "a paper, 2")
    objective = systems.Departure("objective", "clm", "a paper, 3")
    fields = {"optim.learning_rate": 2e-3, "objective": "clm", "seed": 0}
    assert systems.active_departures([rate, objective], fields) == (objective,)
    fields |= {"optim.learning_rate": 2.5e-4}
    assert systems.active_departures([rate, objective], fields) == (rate, objective)


def test_the_files_of_a_system_are_short() -> None:
    """DESIGN, R6; a family with modules of its own is a folder."""
    folder = tiny.ROOT / "scalelab" / "systems"
    paths = [*folder.glob("[a-z]*.py"), *folder.glob("*/*.py")]
    assert len(paths) > len(SYSTEMS)
    for path in paths:
        assert len(path.read_text().splitlines()) <= 200, path
