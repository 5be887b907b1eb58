"""ELECTRA's identities: which loss trains what, its samples, its variants and their splits."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from flax import linen as nn
from flax.traverse_util import flatten_dict
from scipy import optimize

from scalelab import objectives, step, systems
from scalelab.nn.heads import tied_logits, token_logits
from scalelab.resources import flops
from scalelab.systems import electra

V, RATE = 23, 0.3
SIZES = systems.Sizes(2, 8, 2, 16, tiny.LENGTH, dropout_rate=0.0)
KEY = jax.random.key(0)
Options = dict[str, Any]


terms = functools.partial(tiny.terms, electra, rate=RATE, size=V)


def make_batch(size: int = 4) -> Any:
    batch = tiny.batch(electra, 0, size=size)
    batch["tokens"] %= V
    return batch


@functools.partial(jax.jit, static_argnums=(0, 3))
def losses(net: Any, params: Any, batch: Any, chosen: Any) -> dict[str, Any]:
    """(sum, weight) of each objective's loss."""
    prepared = objectives.prepare(batch, chosen, KEY)
    found, _ = objectives.forward(net, params, prepared, chosen, objectives.Pass(KEY))
    return {name: pairs["loss"] for name, pairs in found.items()}


@functools.cache
def gradients(embeddings: str) -> Any:
    """Gradients of each objective's loss, by objective, of a model with shared or own
    embeddings."""
    chosen = terms("mlm+rtd")
    shared, own = (
        electra.build(SIZES, electra.Options(embed_width=6, embeddings=kind), V)
        for kind in ("shared", "own")
    )
    params, net = tiny.draw(shared, chosen), shared
    if embeddings == "own":
        params, net = params | {"generator_embed": params["embed"]}, own

    @jax.jit
    @jax.jacrev
    def found(params: Any) -> Any:
        made = losses(net, params, make_batch(), chosen)
        return {name: total for name, (total, _) in made.items()}

    return found(params)


def is_zero(tree: Any) -> bool:
    return all(not np.any(x) for x in jax.tree.leaves(tree))


def test_the_loss_is_mlm_and_50_times_rtd() -> None:
    """Clark et al. 2020, 2; by hand: means of 2 and 0.5 nats."""
    found: Any = {"mlm": {"loss": (6.0, 3.0)}, "rtd": {"loss": (4.0, 8.0)}}
    assert step.weighted_sum(tiny.parts("electra").terms, found) == 2 + 50 * 0.5


def test_each_loss_trains_its_own_net() -> None:
    """No gradient passes through the samples: exactly 0, not small."""
    grads = gradients("shared")
    for name in ("generator", "token_head"):
        assert is_zero(grads["rtd"][name]) and not is_zero(grads["mlm"][name])
    for name in ("discriminator", "replaced_head"):
        assert is_zero(grads["mlm"][name]) and not is_zero(grads["rtd"][name])


def test_a_shared_embedding_has_the_gradient_of_both_losses() -> None:
    """That of both embeddings of a model with two, each of which one loss alone trains."""
    grads, own = gradients("shared"), gradients("own")
    assert is_zero(own["mlm"]["embed"]) and is_zero(own["rtd"]["generator_embed"])
    both = jax.tree.map(jnp.add, grads["mlm"]["embed"], grads["rtd"]["embed"])
    pairs = zip(
        *map(jax.tree.leaves, (both, own["rtd"]["embed"], own["mlm"]["generator_embed"])),
        strict=True,
    )
    for whole, of_rtd, of_mlm in pairs:
        assert np.any(of_rtd) and np.any(of_mlm)
        tolerance = 1e-5 * float(jnp.abs(whole).max())
        np.testing.assert_allclose(whole, of_rtd + of_mlm, rtol=1e-5, atol=tolerance)


class Unigram:
    """A discriminator that sees one token at a time: its score is a table's."""

    def __init__(self, table: jax.Array) -> None:
        self.table = table

    def __call__(self, batch: Any, **_: Any) -> Any:
        return batch["tokens"], None

    def replaced_logits(self, tokens: jax.Array) -> jax.Array:
        return self.table[tokens]


def test_a_sample_that_equals_the_original_is_original() -> None:
    """With one ordinary token, every sample is the original."""
    num_special = len(electra.SPECIAL_TOKENS)
    (term,) = terms("rtd", size=num_special + 1, proposal="uniform")
    batch = make_batch()
    batch["tokens"] = np.full_like(batch["tokens"], num_special)
    prepared = jax.jit(term.objective.prepare)(batch, KEY)
    assert prepared["mlm_weights"].sum() > 10
    table = jnp.linspace(-1, 2, num_special + 1)
    total, weight = term.objective.losses(
        Unigram(table), prepared, objectives.Pass(KEY, accuracy=True)
    )["loss"]
    assert weight == batch["lengths"].sum()
    np.testing.assert_allclose(total / weight, np.log1p(np.exp(2.0)), rtol=1e-6)


def with_noise(tokens: np.ndarray, **options: Any) -> tuple[objectives.Term, Any]:
    """The term of a variant, and texts prepared for it."""
    size, length = tokens.shape
    batch = {"tokens": jnp.array(tokens, jnp.int32), "lengths": jnp.full(size, length)}
    (term,) = terms("rtd", proposal="uniform", **options)
    return term, jax.jit(term.objective.prepare)(batch | {"examples": jnp.arange(size)}, KEY)


def test_uniform_noise_is_noise_contrastive_estimation() -> None:
    """Texts of independent tokens of known frequencies p, noise q = 1/n, share r of noise.

    P(v, replaced) = r q (1 - p(v)) and P(v, original) = p(v) (1 - r + r q), since noise that equals
    the original is original. Their log ratio is the best score: there the loss is least.
    """
    num_special, size, length = len(electra.SPECIAL_TOKENS), 3000, 20
    n = V - num_special
    p = np.random.default_rng(0).dirichlet(np.ones(n))
    tokens = num_special + np.random.default_rng(1).choice(n, (size, length), p=p)
    term, prepared = with_noise(tokens)
    rate = int(np.ceil(RATE * length)) / length
    replaced, original = rate / n * (1 - p), p * (1 - rate + rate / n)
    assert replaced.sum() + original.sum() == pytest.approx(1)

    @jax.jit
    def loss(table: jax.Array) -> jax.Array:
        ctx = objectives.Pass(KEY)
        total, weight = term.objective.losses(Unigram(table), prepared, ctx)["loss"]
        return total / weight

    best = jnp.concatenate([jnp.zeros(num_special), jnp.log(replaced / original)])
    expected = -np.sum(
        replaced * np.log(replaced / (replaced + original))
        + original * np.log(original / (replaced + original))
    )
    count = size * length
    assert abs(loss(best) - expected) < 3 * 1.0 / np.sqrt(count)
    # The gradient by a score is (P(v) sigmoid - P(v, replaced)), here without sampling error 0.
    slope = np.asarray(jax.grad(loss)(best))[num_special:]
    assert np.all(np.abs(slope) < 5 * np.sqrt((replaced + original) / count))
    for change in (-0.5, 0.5):
        assert loss(best + change) > loss(best) + 0.01


def noise(options: Options) -> tuple[Any, Callable[[float], dict[str, Any]]]:
    """The baseline of a variant; a constant score -> the metrics of texts of uniform tokens."""
    num_special = len(electra.SPECIAL_TOKENS)
    tokens = np.random.default_rng(2).integers(num_special, V, (500, 20))
    term, prepared = with_noise(tokens, **options)
    unigrams = jnp.where(jnp.arange(V) < num_special, -30.0, 0.0)

    @dataclasses.dataclass
    class Constant:
        score: jax.Array

        def __call__(self, batch: Any, **_: Any) -> Any:
            return jnp.zeros((*batch["tokens"].shape, 1)), None

        def replaced_logits(self, hidden: jax.Array) -> jax.Array:
            return jnp.full(hidden.shape[:-1], self.score)

        def restored_features(self, hidden: jax.Array) -> Any:
            return hidden, jnp.zeros((V, 1)), unigrams

    @jax.jit
    def metrics(score: jax.Array) -> dict[str, Any]:
        ctx, model = objectives.Pass(KEY, accuracy=True), Constant(score)
        pairs = term.objective.losses(model, prepared, ctx)
        return {f"rtd_{name}": total / weight for name, (total, weight) in pairs.items()}

    baseline = objectives.load_baselines()["rtd"](options)
    return baseline, lambda score: jax.tree.map(float, metrics(score))


@pytest.mark.parametrize(
    "options",
    [{}, {"positions": "masked"}, {"target": "token"}, {"positions": "masked", "target": "token"}],
    ids=str,
)
def test_the_baseline_of_a_variant_is_the_best_constant(options: Options) -> None:
    baseline, metrics = noise(options)
    best = optimize.minimize_scalar(lambda score: metrics(score)["rtd_loss"], bounds=(-5, 5)).fun
    nats = np.log(V - len(electra.SPECIAL_TOKENS))
    if baseline.value is None:  # the unigrams
        assert best == pytest.approx(nats, rel=1e-5)
        return
    assert baseline.value(metrics(0.0)) is None or options.get("target") != "token"
    found = baseline.value(metrics(0.0) | {"unigram_nats": nats})
    # Tokens that are the input's by chance cost a little less than a copy.
    assert -1e-5 < found - best < (0.03 if options.get("target") else 1e-5)
    assert baseline.value({}) is None


VARIANTS = [
    {"positions": "all", "target": "replaced"},
    {"positions": "masked", "target": "replaced"},
    {"positions": "masked", "target": "token"},
    {"positions": "all", "target": "token"},
]


def by_loops(net: Any, params: Any, batch: Any, objective: Any) -> tuple[float, int]:
    """The variant's loss, place after place, in float64."""
    ctx = objectives.Pass(KEY)

    def run(method: Any) -> np.ndarray:
        apply = jax.jit(lambda params: net.apply({"params": params}, method=method))
        return np.asarray(apply(params), np.float64)

    def samples(model: Any) -> Any:
        hidden = ctx.token_hidden(model, batch)
        return jax.nn.softmax(token_logits(model, hidden))

    chances = run(samples)
    filled = np.array(batch["tokens"])
    original, masked = filled.copy(), set()
    key = ctx.key("sample")
    for row, example in enumerate(np.asarray(batch["examples"])):
        places = np.asarray(batch["mlm_positions"][row])
        uniforms = np.asarray(jax.random.uniform(jax.random.fold_in(key, example), places.shape))
        for i, place in enumerate(places):
            if batch["mlm_weights"][row][i] > 0:
                filled[row, place] = np.searchsorted(
                    np.cumsum(chances[row, place]), uniforms[i], side="right"
                )
                original[row, place] = batch["mlm_targets"][row][i]
                masked.add((row, int(place)))
    read = batch | {"tokens": jnp.asarray(filled)}
    scores = np.zeros(filled.shape)
    if "replaced_head" in params:
        scores = run(lambda m: m.replaced_logits(m(read, train=False)[0]))
    options, total, count = objective.options, 0.0, 0
    if options.target == "token":
        logits = run(lambda m: tied_logits(*m.restored_features(m(read, train=False)[0])))
    for row, length in enumerate(np.asarray(batch["lengths"])):
        for place in range(length):
            if options.positions == "masked" and (row, place) not in masked:
                continue
            count += 1
            replaced = 1 / (1 + np.exp(-scores[row, place]))
            same = filled[row, place] == original[row, place]
            if options.target == "replaced":
                total -= np.log(1 - replaced if same else replaced)
                continue
            exps = np.exp(logits[row, place] - logits[row, place].max())
            chance = exps[original[row, place]] / exps.sum()
            if options.positions == "all":
                chance = (1 - replaced) * same + replaced * chance
            total -= np.log(chance)
    return total, count


@pytest.mark.parametrize("options", VARIANTS, ids=lambda o: "-".join(o.values()))
def test_variants_are_those_of_loops(options: Options) -> None:
    chosen = terms("mlm+rtd", **options)
    net = electra.build(SIZES, electra.Options(), V)
    params, batch = tiny.draw(net, chosen), make_batch()
    total, weight = losses(net, params, batch, chosen)["rtd"]
    prepared = tiny.prepare(batch, chosen, KEY)
    expected, count = by_loops(net, params, prepared, chosen[1].objective)
    assert weight == count
    np.testing.assert_allclose(total, expected, rtol=2e-5)
    parts = {"replaced": {"replaced_head"}, "token": {"restored_head"}}[options["target"]]
    if options == VARIANTS[3]:
        parts = {"replaced_head", "restored_head"}
    assert {n for n in params if n in ("replaced_head", "restored_head")} == parts


def test_the_samples_get_no_gradient_and_cost_once() -> None:
    """The generator's head on P positions, once more, has no backward pass."""
    parts = tiny.parts("electra")
    params = nn.unbox(parts.abstract_parameters(parts.config.short.max_len))
    cost = flops.count_phases(params, parts.net, parts.terms, parts.config)[0]
    flat = flatten_dict(params, sep="/")
    table, dense = flat[parts.net.TOKEN_TABLE], flat["token_head/dense/kernel"]
    predictions = tiny.BATCH * 3  # 15% of 16, rounded up
    assert cost.forward_only == 2 * predictions * (dense.size + table.size)
