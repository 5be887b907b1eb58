"""Word vectors: equations by loops, optima on planted counts, the drawn noise, gensim's steps."""

import functools
import itertools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tiny

from scalelab import objectives, systems
from scalelab.objectives import word_vectors
from scalelab.systems import word2vec

B, T, D = 4, 9, 5
LENGTHS = np.array([T, 6, 2, 1])
ROWS = np.random.default_rng(0).integers(0, tiny.VOCAB, (B, T))
BATCH = {"tokens": ROWS, "lengths": LENGTHS, "examples": np.arange(B)}
KINDS = list(itertools.product(("skip_gram", "cbow"), ("negative_sampling", "nce")))


@pytest.fixture(autouse=True)
def in_double() -> Iterator[None]:
    with tiny.in_double():
        yield


def make(size: int = tiny.VOCAB, width: int = D, **options: Any) -> Any:
    sizes = systems.Sizes(
        1, width, 1, 4 * width, T, 0.0, dtype=jnp.float64, output_embedding="untied"
    )
    net = word2vec.build(sizes, None, size)
    setting = objectives.Setting(size, {}, 0.15)
    return net, objectives.make({"word_vectors": 1.0}, setting, options)


def loss_of(net: Any, terms: Any, params: Any, batch: Any) -> jax.Array:
    found, _ = objectives.forward(net, params, batch, terms, objectives.Pass(jax.random.key(0)))
    total, weight = found["word_vectors"]["loss"]
    return total / weight


def by_hand(params: Any, batch: Any, options: word_vectors.Options, shift: int = 0) -> float:
    """The loss by the papers' equations, pair by pair."""
    vectors = np.asarray(params["embed"]["tokens"]["table"])
    others = np.asarray(params["output_embed"]["table"])
    k = options.negatives
    ids = [ROWS[b, t] for b in range(B) for t in range(LENGTHS[b])]
    q = np.bincount(ids, minlength=tiny.VOCAB) ** options.noise_power
    q = q / q.sum()
    losses = []

    def score(v: np.ndarray, token: int) -> float:
        s = v @ others[token]
        return s - np.log(k * q[token]) if options.loss == "nce" else s

    def add(v: np.ndarray, true: int, noise: np.ndarray) -> None:
        parts = [np.log1p(np.exp(score(v, token))) for token in noise]
        losses.append(np.log1p(np.exp(-score(v, true))) + sum(parts))

    for b, t in np.ndindex(B, T):
        noise = batch["noise_tokens"][b, t]
        near = [ROWS[b, j] for j in range(LENGTHS[b])
                if j != t + shift and abs(j - t - shift) <= batch["reach"][b, t]]  # fmt: skip
        if t < LENGTHS[b] and options.pairs == "skip_gram":
            for token in near:
                add(vectors[ROWS[b, t]], token, noise)
        elif t < LENGTHS[b] and near:
            add(np.mean([vectors[token] for token in near], axis=0), ROWS[b, t], noise)
    return float(np.mean(losses))


@pytest.mark.parametrize(("pairs", "loss"), KINDS)
def test_the_loss_is_that_of_the_equations(pairs: str, loss: str) -> None:
    given = {"pairs": pairs, "loss": loss, "window": 3, "negatives": 2}
    net, terms = make(**given)
    batch = tiny.prepare(BATCH, terms, jax.random.key(1))
    params, options = tiny.draw(net, terms), word_vectors.Options(**given)
    ours = jax.jit(lambda params: loss_of(net, terms, params, batch))(params)
    assert float(ours) == pytest.approx(by_hand(params, batch, options), abs=1e-10)
    assert abs(float(ours) - by_hand(params, batch, options, shift=1)) > 1e-4


def test_windows_and_noise_are_drawn_as_described() -> None:
    """Noise by the frequencies of real tokens to the power of 0.75; windows uniform in 1 to W."""
    counts = np.array([0, 64, 16, 4, 1])
    tokens = np.repeat(np.arange(5), counts)
    rows = np.zeros((100, 96), int)
    rows[0, : len(tokens)] = tokens
    batch = {"tokens": rows, "lengths": np.zeros(100, int), "examples": np.arange(100)}
    batch["lengths"][0] = len(tokens)
    _, terms = make(size=5, window=4, negatives=10)
    made = tiny.prepare(batch, terms, jax.random.key(0))
    wanted = counts**0.75 / (counts**0.75).sum()
    drawn = np.bincount(made["noise_tokens"].ravel(), minlength=5) / made["noise_tokens"].size
    assert drawn[0] == 0
    np.testing.assert_allclose(drawn, wanted, atol=4 * (0.25 / made["noise_tokens"].size) ** 0.5)
    assert np.abs(drawn - counts / counts.sum()).max() > 0.05
    reach = np.bincount(made["reach"].ravel(), minlength=6) / made["reach"].size
    np.testing.assert_allclose(reach, [0, 0.25, 0.25, 0.25, 0.25, 0], atol=0.02)
    np.testing.assert_allclose(made["noise_logs"], np.log(wanted[made["noise_tokens"]]), rtol=1e-9)


PLANTED = np.array([[4, 2, 1], [2, 5, 3], [1, 3, 3]])  # symmetric counts


@pytest.mark.parametrize("loss", ["negative_sampling", "nce"])
@pytest.mark.parametrize("k", [1, 3])
def test_the_optimum_on_planted_counts(loss: str, k: int) -> None:
    """PMI - log k (Levy and Goldberg 2014), and log p(neighbor given token), which sums to 1.

    Texts of two tokens have the planted pairs, and every pair meets every noise token as often as
    q says, so the loss has its expected value. Vectors are as wide as the vocabulary.
    """
    size, total = len(PLANTED), PLANTED.sum()
    pairs = np.repeat(np.argwhere(PLANTED), PLANTED.ravel(), axis=0)
    frequent = np.repeat(np.arange(size), PLANTED.sum(axis=1))
    rows = np.repeat(pairs, total, axis=0)
    noise = np.stack([np.tile(np.roll(frequent, n), total) for n in range(k)], axis=-1)
    net, terms = make(size, size, loss=loss, window=1, negatives=k, noise_power=1.0)
    batch = {"tokens": rows, "lengths": np.full(len(rows), 2), "examples": np.arange(len(rows))}
    q, given = terms[0].objective.noise(batch), PLANTED.sum(axis=1) / total
    np.testing.assert_allclose(q, given, rtol=1e-12)
    batch |= {"reach": np.ones_like(rows), "token_logs": np.log(q)[rows]}
    batch["noise_tokens"] = np.stack([noise, noise], axis=1)
    batch["noise_logs"] = np.log(q)[batch["noise_tokens"]]
    tx = optax.adam(optax.cosine_decay_schedule(0.1, 600))

    def step(now: Any, _: None) -> Any:
        gradient = jax.grad(lambda params: loss_of(net, terms, params, batch))(now[0])
        changes, state = tx.update(gradient, now[1])
        return (optax.apply_updates(now[0], changes), state), None

    params = tiny.draw(net, terms)
    (params, _), _ = jax.jit(lambda now: jax.lax.scan(step, now, None, length=600))(
        (params, tx.init(params))
    )
    scores = params["embed"]["tokens"]["table"] @ params["output_embed"]["table"].T
    pmi = np.log(PLANTED / total) - np.log(np.outer(given, given))
    logs = np.log(PLANTED / PLANTED.sum(axis=1, keepdims=True))
    wanted, other = (pmi - np.log(k), logs) if loss == "negative_sampling" else (logs, pmi)
    np.testing.assert_allclose(scores, wanted, atol=1e-3)
    assert np.abs(scores - other).max() > 0.1


# --- gensim ----------------------------------------------------------------------------------

WORDS, NOISE = "abcd", 3  # the sentence is a b c; all noise is d
# The tokens that are read and the true one, in gensim's order.
STEPS = {
    "skip_gram": [([1], 0), ([0], 1), ([2], 1), ([1], 2)],
    "cbow": [([1], 0), ([0, 2], 1), ([1], 2)],
}


def gensims(pairs: str, tables: Any, rate: float, k: int, window: int = 1) -> list[Any]:
    """The sum of the losses of the sentence, and both tables after it."""
    gensim = pytest.importorskip(
        "gensim", reason="gensim is not installed: pip install '.[parity]'"
    )
    from gensim.models import word2vec_inner

    model = gensim.models.Word2Vec(
        vector_size=len(WORDS), window=window, min_count=1, sample=0, negative=k, hs=0,
        sg=int(pairs == "skip_gram"), cbow_mean=1, shrink_windows=False, compute_loss=True,
    )  # fmt: skip
    model.build_vocab([list(WORDS)])
    rows = [model.wv.key_to_index[word] for word in WORDS]
    model.cum_table[:] = np.where(np.arange(len(WORDS)) < rows[NOISE], 0, 2**31 - 1)
    model.wv.vectors[rows], model.syn1neg[rows] = tables
    model.running_training_loss = 0.0
    given, work = (model, [["a", "b", "c"]], rate), np.zeros((2, len(WORDS)), np.float32)
    if pairs == "skip_gram":
        word2vec_inner.train_batch_sg(*given, work[0], True)
    else:
        word2vec_inner.train_batch_cbow(*given, *work, True)
    return [model.running_training_loss, model.wv.vectors[rows], model.syn1neg[rows]]


def in_gensims_table(tables: Any, read: list[int], true: int, sign: int) -> Any:
    """Each table, moved to where its scores with the other one have gensim's rounded sigmoids.

    word2vec_inner.pyx reads the sigmoid of s in row (s + 6) * 83, which has that of 0.012 row - 6.
    With `sign` = -1 noise tokens have the sigmoids of -s, as in the loss.
    """
    vectors, others = (x.copy() for x in tables)
    x, rows, signs = vectors[read].mean(axis=0), [true, NOISE], np.array([1, sign])
    scores = others[rows] @ x
    moves = signs * (np.floor((signs * scores + 6) * 83) * 0.012 - 6) - scores
    vectors[read] += np.linalg.pinv(others[rows]) @ moves
    others[rows] += np.outer(moves, x) / (x @ x)
    return vectors, others


def text_of(pairs: str, read: list[int], true: int) -> tuple[np.ndarray, np.ndarray]:
    """A text [1, T] and the reach of its windows, of which one is not empty."""
    if pairs == "skip_gram":
        return np.array([[*read, true]]), np.array([[1, 0]])
    return np.array([[0, 1, 2]]), np.eye(3, dtype=int)[[true]]


@functools.partial(jax.jit, static_argnums=(0, 1))
def total_loss(pairs: str, k: int, tables: Any, text: Any) -> jax.Array:
    """The sum of our losses of a text."""
    (row, reach), (net, terms) = text, make(len(WORDS), len(WORDS), pairs=pairs, negatives=k)
    batch = {"tokens": row, "lengths": jnp.array([row.size]), "examples": jnp.arange(1)}
    batch |= {"reach": reach, "noise_tokens": jnp.full((*row.shape, k), NOISE)}
    batch |= {"token_logs": jnp.zeros(row.shape), "noise_logs": jnp.zeros((*row.shape, k))}
    params = {"embed": {"tokens": {"table": tables[0]}}, "output_embed": {"table": tables[1]}}
    found, _ = objectives.forward(net, params, batch, terms, objectives.Pass(jax.random.key(0)))
    return found["word_vectors"]["loss"][0]


def ours(pairs: str, tables: Any, rate: float, k: int, factor: Any = len) -> list[Any]:
    """As `gensims`, by one gradient after another; `factor`: of the tokens that are read."""
    total, gradient = 0.0, jax.grad(total_loss, argnums=2)
    for read, true in STEPS[pairs]:
        given, text = (pairs, k), text_of(pairs, read, true)
        total += total_loss(*given, (tables[0], in_gensims_table(tables, read, true, -1)[1]), text)
        vectors, others = in_gensims_table(tables, read, true, 1)
        changes = (
            factor(read) * gradient(*given, (vectors, tables[1]), text)[0],
            gradient(*given, (tables[0], others), text)[1],
        )
        tables = [np.asarray(x - rate * change) for x, change in zip(tables, changes, strict=True)]
    return [float(total), *tables]


@pytest.mark.parity
@pytest.mark.ci
@pytest.mark.parametrize("pairs", STEPS)
def test_losses_and_steps_are_gensims(pairs: str) -> None:
    """Steps follow one another, as do those of equal noise tokens: two of them only at rate 0.

    As word2vec.c, gensim moves each token of a mean by the gradient of the whole mean.
    """
    tables = np.random.default_rng(0).normal(0, 0.5, (2, len(WORDS), len(WORDS)))
    for rate, k in ((1.0, 1), (0.0, 2)):
        wanted, found = gensims(pairs, tables, rate, k), ours(pairs, tables, rate, k)
        for own, other in zip(found, wanted, strict=True):
            np.testing.assert_allclose(own, other, atol=1e-6)
        assert abs(found[0] - gensims(pairs, tables, rate, k, window=2)[0]) > 1e-2
    apart = np.abs(
        ours(pairs, tables, 1.0, 1, lambda read: 1)[1] - gensims(pairs, tables, 1.0, 1)[1]
    )
    assert (apart.max() > 1e-2) == (pairs == "cbow")
    # The texts of the steps are the windows of the sentence.
    alone = sum(total_loss(pairs, 1, tuple(tables), text_of(pairs, *step)) for step in STEPS[pairs])
    whole = total_loss(pairs, 1, tuple(tables), (np.array([[0, 1, 2]]), np.ones((1, 3), int)))
    assert float(whole) == pytest.approx(float(alone), abs=1e-10)
