"""XLNet: its two streams by loops, its likelihoods by enumeration, its memory, and its class."""

import contextlib
import dataclasses
import functools
import itertools
import types
from collections.abc import Iterator
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tiny

from scalelab import objectives, systems
from scalelab.nn.heads import tied_logits
from scalelab.systems import xlnet
from scalelab.systems.xlnet import attention
from scalelab.systems.xlnet import net as two_streams

B, T, M, L, N, K = 2, 6, 4, 2, 2, 3
D = N * K
CLS, MASK = 2, 4
# Special tokens see no target; the two rows have the orders 4 1 3 and 0 5.
RANKS = np.array([[0, 2, 0, 3, 1, 0], [1, 0, 0, 0, 0, 2]])
PLACES = np.array([[4, 1, 3], [0, 5, 0]])


@pytest.fixture(autouse=True)
def in_double() -> Iterator[None]:
    with tiny.in_double():
        yield


def make(memory_len: int | None = None, vocab_size: int = tiny.VOCAB, **sizes: Any) -> Any:
    given = {"dtype": jnp.float64, "norm_epsilon": 1e-5} | sizes
    made = systems.Sizes(N, D, L, 4 * D, T, 0.0, **given)
    return xlnet.build(made, xlnet.Options(memory_len), vocab_size)


@functools.cache
def draw(vocab_size: int = tiny.VOCAB) -> Any:
    return tiny.draw(make(vocab_size=vocab_size), tiny.terms(xlnet, "plm", size=vocab_size))


@functools.cache
def tokens(length: int = T, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(len(xlnet.ROLES), tiny.VOCAB, (B, length))


def batch_of(rows: np.ndarray, **more: Any) -> dict[str, Any]:
    size, length = rows.shape
    given = {"tokens": rows, "lengths": np.full(size, length), "examples": np.arange(size)}
    return given | {name: np.asarray(x) for name, x in more.items()}


def ordered(rows: np.ndarray, ranks: Any = RANKS, places: Any = PLACES, **more: Any) -> Any:
    return batch_of(rows, ranks=ranks, mlm_positions=places, **more)


@functools.partial(jax.jit, static_argnums=(0, 1))
def run(net: Any, method: str, params: Any, batch: Any, carried: Any = None) -> tuple[Any, Any]:
    """States [B, T, D], and the memory after a pass that has one before."""
    given = {"params": params} | ({} if carried is None else {"carried": carried})
    mutable = [] if carried is None else ["carried"]
    found, changed = net.apply(given, batch, train=False, method=method, mutable=mutable)
    return (found[0] if method == "__call__" else found), changed.get("carried", {})


def queries(net: Any, params: Any, batch: Any, carried: Any = None) -> np.ndarray:
    return np.asarray(run(net, "token_states", params, batch, carried)[0])


def content(net: Any, params: Any, batch: Any, carried: Any = None) -> np.ndarray:
    return np.asarray(run(net, "__call__", params, batch, carried)[0])


@contextlib.contextmanager
def mutant(mutate: Any) -> Iterator[None]:
    """Changes the model; compiled programs are forgotten before and after."""
    with pytest.MonkeyPatch.context() as patch:
        mutate(patch)
        jax.clear_caches()
        yield
    jax.clear_caches()


# --- One place at a time, by loops -----------------------------------------------------------


def norm(x: np.ndarray, p: Any) -> np.ndarray:
    centered = x - x.mean()
    return centered / np.sqrt((centered**2).mean() + 1e-5) * p["scale"] + p["bias"]


def layer(p: Any, query: np.ndarray, place: int, segment: int, seen: list[Any]) -> np.ndarray:
    """A state after one layer; `seen` has (state, place, segment) of the visible tokens."""
    own, mixed = p["attention"], np.zeros(D)
    frequencies = 10000.0 ** (-np.arange(0, D, 2) / D)
    for n in range(N):
        kernel = {name: own[name]["kernel"][:, n] for name in ("query", "key", "value")}
        distances, scores, values = own["distances"], [], []
        for state, other, its_segment in seen:
            angles = (place - other) * frequencies
            sinusoid = np.concatenate([np.sin(angles), np.cos(angles)])
            q = query @ kernel["query"]
            score = (q + distances["u_bias"][n]) @ (state @ kernel["key"])
            score += (q + distances["v_bias"][n]) @ (sinusoid @ distances["key"]["kernel"][:, n])
            vector = own["segment_table"][int(its_segment != segment), n]
            scores.append(score + (q + own["segment_bias"][n]) @ vector)
            values.append(state @ kernel["value"])
        weights = np.exp(np.array(scores) / K**0.5)
        mixed += weights @ np.array(values) / weights.sum() @ own["out"]["kernel"][n]
    x = norm(query + mixed, p["attention_norm"])
    inner = x @ p["ffn"]["inner"]["kernel"] + p["ffn"]["inner"]["bias"]
    inner = np.asarray(jax.nn.gelu(inner, approximate=False))
    return norm(x + inner @ p["ffn"]["outer"]["kernel"] + p["ffn"]["outer"]["bias"], p["ffn_norm"])


def one_target(params: Any, row: np.ndarray, ranks: Any, segments: Any, target: int) -> Any:
    """The state that predicts one place, in a pass for this place alone."""
    params = jax.tree.map(np.asarray, params)
    layers = params["stack"]["layer"]
    states = [params["embed"]["tokens"]["table"][token] for token in row]
    query = params["query_embed"]["vector"]
    for k in range(L):
        p = jax.tree.map(lambda x, k=k: x[k], layers)
        keys = list(zip(states, range(len(row)), segments, strict=True))
        before = [keys[j] for j in np.flatnonzero(ranks < ranks[target])]
        query = layer(p, query, target, segments[target], before)
        states = [
            layer(
                p, state, i, s, [key for key, r in zip(keys, ranks, strict=True) if r <= ranks[i]]
            )
            for state, i, s in keys
        ]
    return query


def swap(patch: pytest.MonkeyPatch) -> None:
    """The biases of contents and distances change places."""
    distances = xlnet.SinusoidDistances.__call__

    def wrong(self: Any, x: Any) -> Any:
        found = distances(self, x)
        return found.replace(content_bias=found.position_bias, position_bias=found.content_bias)

    patch.setattr(xlnet.SinusoidDistances, "__call__", wrong)


def shift(patch: pytest.MonkeyPatch) -> None:
    """Distances are one too large."""
    move = attention.to_keys
    patch.setattr(attention, "to_keys", lambda x, at, n: jnp.roll(move(x, at, n), 1, axis=-1))


def see_itself(patch: pytest.MonkeyPatch) -> None:
    """A query sees its own token."""
    made = two_streams.Order
    patch.setattr(two_streams, "Order", lambda ranks, at, limits: made(ranks, at, limits + 1))


def one_segment(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(two_streams.TwoStreams, "_segments", lambda self, batch: 0 * batch["tokens"])


WRONG = (swap, shift, see_itself, one_segment)


def test_two_streams_are_passes_for_single_targets() -> None:
    """With two segments, and the class token as a third."""
    rows, starts = tokens().copy(), np.array([3, 2])
    rows[:, -1] = CLS
    segments = np.where(rows == CLS, 2, np.arange(T) >= starts[:, None])
    ranks = np.where(rows == CLS, 0, RANKS)
    cases = [(0, 4), (0, 1), (0, 3), (1, 0)]
    wanted = [one_target(draw(), rows[b], ranks[b], segments[b], at) for b, at in cases]

    def found() -> np.ndarray:
        places = np.array([[4, 1, 3], [0, 0, 0]])
        states = queries(make(), draw(), ordered(rows, ranks, places, second_starts=starts))
        return np.stack([states[case] for case in cases])

    np.testing.assert_allclose(found(), wanted, atol=1e-10)
    for mutate in WRONG:
        with mutant(mutate):
            assert np.abs(found() - wanted).max() > 1e-3, mutate


# --- Likelihoods -----------------------------------------------------------------------------


def log_chances(rows: np.ndarray, order: tuple[int, ...]) -> np.ndarray:
    """log p of each row, its tokens predicted one after another in an order."""
    size, length = rows.shape
    # Segments are known before any token: no token of these texts is the class token.
    net, params = make(vocab_size=8, special_ids={"cls": 8, "mask": 9}), draw(8)
    places = np.broadcast_to(order, rows.shape)
    ranks = np.broadcast_to(1 + np.argsort(order), rows.shape)
    states = queries(net, params, ordered(rows, ranks, places))
    read = nn.apply(lambda model, x: tied_logits(*model.token_features(x)), net)
    scores = jax.nn.log_softmax(read({"params": params}, states))
    return np.asarray(jnp.take_along_axis(scores, rows[..., None], axis=2)).sum(axis=(1, 2))


def test_every_order_is_a_distribution_over_texts() -> None:
    """Over all 8^3 texts the probabilities add up to 1; with a leak they would not."""
    rows = np.array([*itertools.product(range(8), repeat=3)])
    found = {order: log_chances(rows, order) for order in itertools.permutations(range(3))}
    for order, values in found.items():
        assert np.exp(values).sum() == pytest.approx(1, abs=1e-9), order
    assert len({values[83] for values in found.values()}) == 6  # orders are different models
    with mutant(see_itself):
        assert abs(np.exp(log_chances(rows, (0, 1, 2))).sum() - 1) > 1e-3


def test_the_order_from_left_to_right_is_a_language_model() -> None:
    """A token is predicted from the tokens before it: the rest of the row need not be there."""
    rows, places = tokens(), np.broadcast_to(np.arange(T), (B, T))
    whole = queries(make(), draw(), ordered(rows, 1 + places, places))
    for stop in range(1, T + 1):
        cut = rows[:, :stop].copy()
        cut[:, -1] = MASK  # the predicted token itself is not seen
        at = places[:, :stop]
        alone = queries(make(), draw(), ordered(cut, 1 + at, at))
        np.testing.assert_allclose(alone[:, -1], whole[:, stop - 1], atol=1e-10)


def test_who_sees_whom() -> None:
    """A query sees neither its token nor later ones; the content of its place sees its token."""
    before, all_before = (f(make(), draw(), ordered(tokens())) for f in (queries, content))
    for place in range(T):
        rows = tokens().copy()
        rows[:, place] = 5 + (rows[:, place] - 4) % (tiny.VOCAB - 5)
        after = queries(make(), draw(), ordered(rows))
        for b, at in [(0, 4), (0, 1), (0, 3), (1, 0), (1, 5)]:
            moved = not np.array_equal(after[b, at], before[b, at])
            assert moved == (RANKS[b, place] < RANKS[b, at]), (place, b, at)
        assert (content(make(), draw(), ordered(rows)) != all_before).any(axis=2).all()


def test_a_masked_token_is_the_last_of_an_order() -> None:
    """Evaluations mask a token; the query of its place sees all other tokens, and no mask."""
    rows, place = tokens().copy(), 2
    wanted = queries(make(), draw(), ordered(rows, np.eye(T)[[place] * B].astype(int), [[2]] * B))
    rows[:, place] = MASK
    found = queries(make(), draw(), batch_of(rows))
    np.testing.assert_allclose(found[:, place], wanted[:, place], atol=1e-12)
    other = make(special_ids={"cls": CLS, "mask": 9})
    assert np.abs(queries(other, draw(), batch_of(rows)) - found)[:, place].max() > 1e-3


# --- Memory ----------------------------------------------------------------------------------


def test_segments_with_a_memory_are_one_pass() -> None:
    """The second segment's tokens are later in the order than all of the first segment's."""
    first, second = tokens(M, 1), tokens(T, 2)
    joined = np.concatenate([first, second], axis=1)
    ranks = np.concatenate([np.zeros((B, M), int), 1 + RANKS], axis=1)
    whole = queries(make(), draw(), ordered(joined, ranks, M + PLACES))

    def loss(through: Any, params: Any) -> tuple[Any, Any]:
        _, carried = run(make(M), "__call__", through, batch_of(first), {})
        states, after = run(make(M), "token_states", params, ordered(second), carried)
        return jnp.sum(states**2 * jnp.arange(D)), (states, after)

    (_, (found, after)), gradients = jax.value_and_grad(loss, has_aux=True)(draw(), draw())
    for b, at in [(0, 4), (0, 1), (0, 3), (1, 0), (1, 5)]:
        np.testing.assert_allclose(found[b, at], whole[b, M + at], atol=1e-10)
    assert max(float(jnp.abs(x).max()) for x in jax.tree.leaves(gradients)) == 0
    alone = queries(make(M), draw(), ordered(second, continues=[0, 1]), after)
    fresh = queries(make(), draw(), ordered(second))
    np.testing.assert_allclose(alone[0, 4], fresh[0, 4], atol=1e-10)
    assert np.abs(alone[1, 0] - fresh[1, 0]).max() > 1e-3


def test_a_pass_without_a_memory_makes_none() -> None:
    """As in a fine-tuning: its state has no memory, and its rows continue no others."""
    given = make(M), draw(), prepared(tokens(), [T] * B), tiny.terms(xlnet, "plm")
    (found, carried), (fresh, memory) = (
        objectives.forward(*given, objectives.Pass(jax.random.key(0)), before)
        for before in ({}, None)
    )
    assert carried == {} and set(memory) == {"memory", "sizes"}
    assert float(found["plm"]["loss"][0]) == pytest.approx(float(fresh["plm"]["loss"][0]))


def test_no_array_has_queries_keys_and_head_size() -> None:
    length = 64
    net, rows = make(length), np.full((1, length), 9)
    batch = ordered(rows, np.eye(length, dtype=int)[:1], [[0]])
    apply = functools.partial(net.apply, train=False, mutable=["carried"], method="token_states")
    text = jax.make_jaxpr(jax.grad(lambda p: apply({"params": p}, batch)[0].sum()))(draw())
    found = [0]

    def visit(jaxpr: Any) -> None:
        for equation in jaxpr.eqns:
            found.extend(int(np.prod(x.aval.shape)) for x in equation.outvars)
            for inner in jax.extend.core.jaxprs_in_params(equation.params):
                visit(inner)

    visit(text.jaxpr)
    by_distance = N * (length + 1) * (3 * length - 1)
    assert by_distance <= max(found) < 2 * by_distance


def test_a_memory_longer_than_the_sinusoids_is_refused() -> None:
    most = int(2 * np.pi * 10_000) - T  # the slowest sinusoid
    assert make(most).memory_len == most
    with pytest.raises(ValueError, match=f"memory_len = {most + 1}: .* set it to {most} or less"):
        make(most + 1)


# --- Objective -------------------------------------------------------------------------------


def prepared(rows: np.ndarray, lengths: Any, key: int = 0, **options: int) -> dict[str, Any]:
    terms = tiny.terms(xlnet, "plm", **options)
    batch = batch_of(rows.astype(np.int32), lengths=np.asarray(lengths, np.int32))
    return tiny.prepare(batch, terms, jax.random.key(key))


@pytest.mark.parametrize(("every", "longest"), [(6, 5), (6, 1), (1, 5), (4, 3)])
def test_one_in_k_tokens_is_predicted(every: int, longest: int) -> None:
    """Never special ones or padding; the ranks 1, 2, ... are in a random order."""
    size, length = 400, 32
    rng = np.random.default_rng(0)
    rows, lengths = rng.integers(5, tiny.VOCAB, (size, length)), rng.integers(0, 33, size)
    rows[:, 7] = 3  # a special token inside
    made = prepared(rows, lengths, predict_every=every, max_span=longest)
    np.testing.assert_array_equal(made["tokens"], rows)
    runs = []
    for b in range(size):
        text = [t for t in range(lengths[b]) if t != 7]
        count = int(made["mlm_weights"][b].sum())
        places = made["mlm_positions"][b][:count]
        assert count == -(-len(text) // every) and set(places) <= set(text)
        assert len(set(places)) == count and not made["mlm_positions"][b][count:].any()
        np.testing.assert_array_equal(made["mlm_targets"][b][:count], rows[b, places])
        assert sorted(made["ranks"][b][places]) == list(range(1, count + 1))
        assert np.count_nonzero(made["ranks"][b]) == count
        runs.append(np.isin([p + 1 for p in places], places).sum() / max(count, 1))
    if longest > 1 < every:
        single = prepared(rows, lengths, predict_every=every, max_span=1)["ranks"] > 0
        neighbors = (single[:, 1:] & single[:, :-1]).sum() / single.sum()
        assert np.mean(runs) > 1.2 * neighbors
    whole = made["ranks"][lengths == 32]
    firsts = [np.flatnonzero(row == 1)[0] < np.median(np.flatnonzero(row)) for row in whole]
    if len(firsts) > 5:
        assert 0 < np.mean(firsts) < 1
    assert (prepared(rows, lengths, 1, predict_every=every)["ranks"] != made["ranks"]).any()


def test_two_objectives_that_choose_tokens_are_refused() -> None:
    terms = tiny.terms(xlnet, "mlm+plm")
    with pytest.raises(ValueError, match="plm and mlm"):
        objectives.prepare(batch_of(tokens()), terms, jax.random.key(0))


# --- transformers ----------------------------------------------------------------------------


def peer(shape: tuple[int, int, int], **more: Any) -> tuple[Any, Any]:
    """The class with random weights in float64, and its parameters in our tree."""
    pytest.importorskip("torch", reason="PyTorch is not installed")
    import peers

    model = peers.make("xlnet", shape, 64, layer_norm_eps=1e-5, **more)
    return model, jax.tree.map(np.asarray, peers.weights(model))


def build_like(shape: tuple[int, int, int], memory_len: int | None = None) -> Any:
    sizes = systems.Sizes(*shape, 4 * shape[1], 64, 0.0, dtype=jnp.float64, norm_epsilon=1e-5)
    return xlnet.build(sizes, xlnet.Options(memory_len), 61)


def given_to_theirs(batch: dict[str, Any]) -> dict[str, Any]:
    """Permutation mask, target mapping, segments and labels of a prepared batch."""
    import torch

    ranks, places = batch["ranks"], batch["mlm_positions"]
    length = ranks.shape[1]
    segments = np.arange(length) >= batch["second_starts"][:, None]
    made = {
        "input_ids": torch.tensor(batch["tokens"]),
        "attention_mask": torch.tensor(np.arange(length) < batch["lengths"][:, None]).double(),
        "token_type_ids": torch.tensor(np.where(batch["tokens"] == CLS, 2, segments)),
        "perm_mask": torch.tensor((ranks[:, None, :] > ranks[:, :, None]) * 1.0),
        "target_mapping": torch.tensor(np.eye(length)[places] * batch["mlm_weights"][..., None]),
        "labels": torch.tensor(np.where(batch["mlm_weights"] > 0, batch["mlm_targets"], -100)),
    }
    # A query has the mask of its place before the token itself is allowed: not its own rank.
    own = torch.tensor(((ranks[:, :, None] == ranks[:, None, :]) & (ranks > 0)[:, :, None]) * 1.0)
    return made | {"perm_mask": made["perm_mask"] + own}


def batch_like(length: int, seed: int = 0) -> dict[str, Any]:
    """Pairs of texts with padding, and a class token; every second token is predicted."""
    rng = np.random.default_rng(seed)
    rows, lengths = rng.integers(5, 61, (3, length)), np.array([length, 1 + length // 2, 2])
    rows[0, -1] = CLS
    made = prepared(rows, lengths, seed, predict_every=2)
    made |= {"second_starts": np.array([length // 2, 2, 1])}
    return {n: x.astype(np.int64 if x.dtype.kind == "i" else float) for n, x in made.items()}


@functools.partial(jax.jit, static_argnums=0)
def loss_of(net: Any, params: Any, batch: Any, carried: Any = None) -> tuple[Any, Any]:
    """The mean loss; the scores of the predicted tokens, and the memory."""
    terms = tiny.terms(xlnet, "plm", size=61)
    ctx = objectives.Pass(jax.random.key(0))

    def forward(model: Any) -> Any:
        found = terms[0].objective.losses(model, batch, ctx)["loss"]
        hidden = ctx.token_hidden(model, batch)
        chosen = jnp.take_along_axis(hidden, batch["mlm_positions"][..., None], axis=1)
        return found[0] / found[1], tied_logits(*model.token_features(chosen))

    given = {"params": params} | ({} if carried is None else {"carried": carried})
    mutable = [] if carried is None else ["carried"]
    (loss, scores), changed = nn.apply(forward, net, mutable=mutable)(given)
    return loss, (scores, changed.get("carried"))


@functools.partial(jax.jit, static_argnums=0)
def graded_loss(net: Any, params: Any, batch: Any) -> Any:
    return jax.value_and_grad(loss_of, argnums=1, has_aux=True)(net, params, batch)


def apart(ours: Any, theirs: Any) -> float:
    """Largest difference of any array, in units of its largest value."""
    import sides

    ours, theirs = sides.leaves(ours), sides.leaves(theirs)
    assert ours.keys() == theirs.keys()
    largest = max(np.abs(x).max() for x in theirs.values())
    return max(
        float(np.abs(ours[name] - x).max() / max(np.abs(x).max(), 1e-9 * largest))
        for name, x in theirs.items()
    )


@pytest.fixture
def exact() -> Iterator[None]:
    """Their class computes its sinusoids in float64."""
    pytest.importorskip("torch", reason="PyTorch is not installed")
    import declared

    with declared.get("xlnet").peer.exact():
        yield


@pytest.mark.parity
@pytest.mark.ci
def test_ranks_say_what_the_permutation_masks_of_transformers_say() -> None:
    """And the labels of its collator. Its inputs are not compared: they lose predicted tokens."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    from transformers import DataCollatorForPermutationLanguageModeling

    torch.manual_seed(0)
    rows = np.random.default_rng(0).integers(5, 61, (3, 24))
    ids = {"mask_token": "m", "mask_token_id": MASK, "pad_token": "p", "pad_token_id": 0}
    no_special = types.SimpleNamespace(**ids, get_special_tokens_mask=lambda x, **_: [0] * len(x))
    collator = DataCollatorForPermutationLanguageModeling(no_special)
    _, hidden, _, labels = collator.torch_mask_tokens(torch.tensor(rows))
    is_target = labels.numpy() != -100
    assert 1 < is_target.sum(axis=1).min() < 24
    ranks = (hidden.numpy() * is_target[:, :, None]).sum(axis=1).astype(np.int64)
    more = {"mlm_targets": rows, "mlm_weights": is_target * 1.0, "second_starts": np.full(3, 24)}
    places = np.broadcast_to(np.arange(24), rows.shape)
    given = given_to_theirs(batch_of(rows, ranks=ranks, mlm_positions=places, **more))
    assert torch.equal(given["perm_mask"], hidden.double())
    assert torch.equal(given["labels"], labels)


@pytest.mark.parity
@pytest.mark.ci
@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize(
    ("shape", "length"), [((3, 24, 2), 13), ((7, 84, 3), 40), ((1, 10, 2), 2)], ids=str
)
def test_an_order_is_that_of_their_class(shape: tuple[int, int, int], length: int) -> None:
    """Scores, loss and the gradient of every parameter, with padding, segments and a class."""
    import peers

    model, params = peer(shape)
    batch = batch_like(length)
    out = model(**given_to_theirs(batch), use_mems=False)
    out.loss.backward()
    scores, gradients = out.logits.detach().numpy(), peers.gradients(model)
    counted = batch["mlm_weights"] > 0

    def ours() -> tuple[float, float, float]:
        (loss, (found, _)), own = graded_loss(build_like(shape), params, batch)
        return (
            abs(loss - out.loss.item()) / out.loss.item(),
            apart({"scores": found[counted]}, {"scores": scores[counted]}),
            apart(own, gradients),
        )

    assert max(ours()) < 1e-10
    for mutate in WRONG if length == 13 else ():
        with mutant(mutate):
            assert ours()[1] > 1e-3, mutate


@pytest.mark.parity
@pytest.mark.ci
@pytest.mark.usefixtures("exact")
def test_a_memory_is_that_of_their_class() -> None:
    """Three segments; the memory of the last one has dropped the first tokens."""
    shape, length = (3, 24, 2), 6
    model, params = peer(shape, mem_len=9)
    net, carried, mems = build_like(shape, 9), {}, None
    for seed in range(3):
        batch = batch_like(length, seed)
        batch["lengths"] = np.full(3, length)
        out = model(**given_to_theirs(batch), mems=mems, use_mems=True)
        loss, (_, carried) = loss_of(net, params, batch, carried)
        assert abs(float(loss) - out.loss.item()) < 1e-10 * out.loss.item()
        mems = out.mems
    forgotten, _ = loss_of(net, params, batch, {})
    assert abs(float(forgotten) - out.loss.item()) > 1e-3


@pytest.mark.parity
@pytest.mark.usefixtures("exact")
def test_five_steps_are_those_of_their_class() -> None:
    """AdamW with clipping; PyTorch decays what we decay."""
    import peers
    import torch

    from scalelab.optim import adamw

    shape, length, rate = (3, 24, 2), 16, 1e-3
    model, params = peer(shape)
    batches = [batch_like(length, k) for k in range(5)]
    tx = adamw.adamw(beta1=0.9, beta2=0.999, eps=1e-6, weight_decay=0.1, clip_norm=1.0)
    state, net, ours = tx.init(params), build_like(shape), params
    for batch in batches:
        gradients = graded_loss(net, ours, batch)[1]
        updates, state = tx.update(gradients, state, ours)
        ours = optax.apply_updates(ours, jax.tree.map(lambda x: rate * x, updates))
    plain = [n for n, p in model.named_parameters() if p.ndim == 1 and "mask" not in n]
    plain += [n for n, _ in model.named_parameters() if n.endswith(("r_bias", "w_bias", "s_bias"))]
    groups = [
        {"params": [p for n, p in model.named_parameters() if (n in plain) == which],
         "weight_decay": 0.0 if which else 0.1}
        for which in (False, True)
    ]  # fmt: skip
    optimizer = torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.999), eps=1e-6)
    for batch in batches:
        optimizer.zero_grad()
        model(**given_to_theirs(batch), use_mems=False).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    ended = peers.in_our_tree(model, lambda p: p.detach().numpy())
    assert apart(ours, ended) < 1e-9 < apart(params, ended) / 1000


@pytest.mark.parity
def test_their_tokenizer_there_and_back(tmp_path) -> None:
    """Ids, the frame with <cls> at the end, token types and the side of padding."""
    transformers = pytest.importorskip("transformers")
    import real_text

    from scalelab.data.tokenizers import Tokenizer
    from scalelab.interop import maps
    from scalelab.interop import tokenizer as tokenizer_lib

    special = ["<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>"]
    letters = sorted({c for line in real_text.lines() for c in line if c.isascii()})
    pieces = [*special, "▁", *letters, "▁the", "tion", "▁License"]
    theirs = transformers.XLNetTokenizer([(piece, -float(i)) for i, piece in enumerate(pieces)])
    theirs.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "xlnet"}')
    read = tokenizer_lib.read(tmp_path)
    read.save(tmp_path / "run")
    ours = Tokenizer.load(tmp_path / "run")
    assert [ours.special_ids[role] for role in xlnet.ROLES] == [5, 0, 3, 4, 6]
    assert [*dataclasses.astuple(ours.frame())] == [(), (4,), (4, 3)]
    for line in real_text.lines():
        wanted = theirs(line, add_special_tokens=False)["input_ids"]
        np.testing.assert_array_equal(ours.encode(line), wanted)
    family, out = maps.load("xlnet"), tmp_path / "out"
    out.mkdir()
    tokenizer_lib.export(
        tmp_path / "run", out, read.roles, family, split_special_tokens=False,
        model_max_length=64, frame=xlnet.FRAME,
    )  # fmt: skip
    again = transformers.AutoTokenizer.from_pretrained(out)
    for texts in (("the License", "of the"), ("the",)):
        given, found = (t(*texts, return_token_type_ids=True).items() for t in (theirs, again))
        assert dict(given) == dict(found)
    assert again.padding_side == "left" and again.cls_token == "<cls>"
