"""Every family against its class in Hugging Face transformers.

Hidden states of every layer, logits, losses and the gradient of every parameter, with weights so
large (deviation 0.5) that a wrong model fails; and wrong models do fail. The weights come over by
the maps of `scalelab.interop`.

At odd shapes such weights make scores of attention in the tens and hundreds. A softmax as steep as
that multiplies what float32 rounds: PyTorch's own float32 is up to 1e-3 from its float64. So
float64 is the proof; in float32 we must be within 1e-4, or about as near as PyTorch's is.
"""

import copy
from collections.abc import Iterator
from typing import Any

import declared
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util

from scalelab import systems
from scalelab.interop import maps
from scalelab.nn import ffn
from scalelab.nn.layer import PostNorm, PreNorm

pytestmark = pytest.mark.parity
pytest.importorskip("torch", reason="PyTorch is not installed: pip install '.[parity]'")
import peers  # noqa: E402
import sides  # noqa: E402
from sides import errors  # noqa: E402

UNTIED = {"tie_word_embeddings": False}
# In float32, of values and of gradients; at small shapes most are 1.2e-6 and 1.6e-5 apart.
SMALL, ODD = (5e-6, 1e-4), (1e-4, 1e-4)
DOUBLE = 1e-10
ROUNDINGS = 5  # times PyTorch's: two ways of rounding differ from each other, and between machines
POSITIONS = "positions/table"
WRONG = 5e-5  # a wrong model is further away, in float64


def limits(
    name: str, model: Any, length: int, exact: Any, least: tuple[float, float]
) -> tuple[float, float]:
    """What ours may be apart in float32, values and gradients: `least`, or more as PyTorch's is."""
    rounded = errors(name, sides.theirs(name, copy.deepcopy(model).float(), length), exact)
    worst = [
        max((e for k, e in rounded.items() if sides.is_gradient(k) == which), default=0.0)
        for which in (False, True)
    ]
    return max(least[0], ROUNDINGS * worst[0]), max(least[1], ROUNDINGS * worst[1])


@pytest.fixture(scope="module")
def small() -> dict[str, Any]:
    """At a small shape the model and results of every family, and its limits, made once."""
    made = {}
    for name in peers.TEXTS:
        peer = peers.PEERS[name]
        model, length = peers.make(name, *peer.small), peer.small[1]
        exact = sides.theirs(name, model, length)
        made[name] = model, exact, limits(name, model, length, exact, SMALL)
    return made


def beyond(errors: dict[str, float], limit: float, gradient_limit: float) -> dict[str, float]:
    """Errors that are too large."""
    limits = {k: gradient_limit if sides.is_gradient(k) else limit for k in errors}
    return {k: e for k, e in errors.items() if not e < limits[k]}


@pytest.mark.ci
@pytest.mark.parametrize("name", peers.EVERY)
def test_agrees_with_hugging_face(name: str, small: dict[str, Any]) -> None:
    model, theirs, tolerances = small[name]
    run = sides.ours(name, *peers.PEERS[name].small, gradients=True)
    found = errors(name, run(peers.weights(model)), theirs)
    assert len(found) > 15
    assert beyond(found, *tolerances) == {}


def marked(name: str, *more: Any) -> Any:
    """Parameters of a test; `ci` has systems with inputs of their own, and BERT's head of pairs."""
    is_ci = name == "bert" or peers.PEERS[name].inputs
    return pytest.param(name, *more, marks=pytest.mark.ci if is_ci else ())


CASES = [marked(name, *case, {}) for name in peers.TEXTS for case in peers.PEERS[name].shapes]
CASES += [
    (name, *peers.PEERS[name].small, UNTIED)
    for name in peers.TEXTS
    if not any(field.key in UNTIED for field in maps.load(name).fixed)
]
CASES += [("albert", *case, {"name": "AlbertForMaskedLM"}) for case in peers.PEERS["albert"].shapes]


@pytest.fixture
def masked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """ALBERT predicts masked tokens alone, where that is what its class does."""
    if request.node.callspec.params["more"] not in ({}, UNTIED):
        monkeypatch.setitem(peers.OBJECTIVES, "albert", ("mlm",))
        monkeypatch.delitem(peers.PAIRS, "albert")
        sides.prepare.cache_clear()
    yield
    sides.prepare.cache_clear()


@pytest.mark.usefixtures("masked")
@pytest.mark.parametrize(("name", "shape", "length", "more"), CASES, ids=lambda x: str(x or "tied"))
def test_agrees_at_odd_shapes(
    name: str, shape: sides.Shape, length: int, more: dict[str, Any]
) -> None:
    """In both precisions, with a table of its own in the head, and without a head for pairs."""
    model = peers.make(name, shape, max(length, 2), **more)
    exact = sides.theirs(name, model, length)
    gradients = "gradients" in exact
    assert gradients == (length > 1 or name not in peers.DECODERS)  # one token has no next one
    output = "untied" if more == UNTIED else None

    def ours(changed: Any = None, rounding: float = 1e-5) -> dict[str, float]:
        run = sides.ours(name, shape, length, gradients=gradients, output_embedding=output)
        params = peers.weights(model)
        return errors(name, run(changed(params) if changed else params), exact, rounding)

    with sides.in_double():
        found = ours(rounding=DOUBLE)
        assert any(map(sides.is_gradient, found)) == gradients
        assert any("output_embed" in key for key in found) == (output is not None)
        assert beyond(found, DOUBLE, DOUBLE) == {}
    least = SMALL if (shape, length) == peers.PEERS[name].small else ODD
    tolerances = limits(name, model, length, exact, least)
    assert beyond(ours(), *tolerances) == {}
    if output:
        table = maps.load(name).token_table

        def tie(params: Any) -> Any:
            flat = traverse_util.flatten_dict(params, sep="/")
            flat[table.replace("embed/tokens", "output_embed")] = flat[table]
            return traverse_util.unflatten_dict(flat, sep="/")

        assert ours(tie)["logits"] > WRONG
    elif more:
        assert not any("pair" in key for key in found) and "['token_head']['bias']" in found
        roll = lambda head: head | {"bias": np.roll(head["bias"], 1)}  # noqa: E731
        changed = lambda params: params | {"token_head": roll(params["token_head"])}  # noqa: E731
        assert ours(changed)["logits"] > 1e-3


def unscaled(patch: pytest.MonkeyPatch, module: Any) -> None:
    """Attention scores are not divided by sqrt(K)."""
    del module
    einsum, factor = jnp.einsum, 8**0.5  # K = 8 at all `small` shapes

    def wrong(spec: str, *args: Any, **kwargs: Any) -> Any:
        out = einsum(spec, *args, **kwargs)
        return out * factor if spec == "btnk,bsnk->bnts" else out

    patch.setattr(jnp, "einsum", wrong)


# Names in a family's module, and what is wrong in their place.
OTHERS = {
    "ACTIVATIONS": {"gelu": ffn.gelu_tanh, "gelu_tanh": ffn.gelu_exact, "relu": ffn.gelu_exact},
    "PostNorm": PreNorm,
    "PreNorm": PostNorm,
    "LAYER_NORM_EPSILON": 1e-2,
}


def mutations(name: str) -> dict[str, declared.Mutation]:
    """The wrong models of a system: other parts, unscaled scores, and those that it declares."""
    there = [field for field in OTHERS if hasattr(systems.load(name), field)]
    made = {f"not {f}": lambda patch, to, f=f: patch.setattr(to, f, OTHERS[f]) for f in there}
    found = made | {"unscaled scores": unscaled} | dict(peers.PEERS[name].mutations)
    assert len(found) >= 4, f"too few: tests/systems/{name}.py has to declare `mutations`"
    return found


MUTATIONS = {name: mutations(name) for name in peers.TEXTS}


@pytest.mark.parametrize(
    ("name", "mutation"), [marked(name, m) for name, found in MUTATIONS.items() for m in found]
)
def test_a_wrong_net_does_not_agree(
    name: str, mutation: str, small: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, theirs, _ = small[name]
    MUTATIONS[name][mutation](monkeypatch, systems.load(name))
    with sides.in_double():
        run = sides.ours(name, *peers.PEERS[name].small)
        found = errors(name, run(peers.weights(model)), theirs)
    assert found["logits"] > WRONG
    if mutation not in peers.PEERS[name].mutations:  # all layers are wrong
        for what in ("hidden", *(f"{states} 0" for states in peers.PEERS[name].states)):
            assert found[what] > WRONG, what


@pytest.mark.parametrize("name", peers.TEXTS)
def test_positions_matter(name: str, small: dict[str, Any]) -> None:
    """Off by one, as where RoBERTa's offset is taken wrongly, is not the same model."""
    model, theirs, _ = small[name]
    with sides.in_double():
        params = traverse_util.flatten_dict(peers.weights(model), sep="/")
        tables = {p: jnp.roll(x, 1, axis=0) for p, x in params.items() if p.endswith(POSITIONS)}
        if not tables:
            pytest.skip("no table of positions")
        shifted = traverse_util.unflatten_dict(params | tables, sep="/")
        found = sides.ours(name, *peers.PEERS[name].small)(shifted)
    assert errors(name, found, theirs)["hidden"] > WRONG
