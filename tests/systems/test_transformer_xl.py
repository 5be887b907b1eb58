"""Transformer-XL: its attention by a loop, its memory by one long pass, and XLNet's class."""

import contextlib
import functools
from collections.abc import Iterator
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from scalelab import objectives, systems
from scalelab.nn import relative
from scalelab.nn.attention import WEIGHTS
from scalelab.nn.masks import Context, Mask
from scalelab.nn.memory import Memory
from scalelab.systems import transformer_xl
from scalelab.systems.transformer_xl import attention as relative_attention

B, T, M, L, N, K = 2, 4, 6, 2, 2, 4
D = N * K


@pytest.fixture(autouse=True)
def in_double() -> Iterator[None]:
    with tiny.in_double():
        yield


def make(memory_len: int = M, *, max_len: int = T, clip: int = 0, **sizes: Any) -> Any:
    given = {"norm_epsilon": 1e-5, "dtype": jnp.float64} | sizes
    made = systems.Sizes(N, D, L, 4 * D, max_len, 0.0, **given)
    return transformer_xl.build(made, transformer_xl.Options(memory_len, clip), tiny.VOCAB)


@functools.cache
def draw(clip: int = 0) -> Any:
    return tiny.draw(make(clip=clip), tiny.terms(transformer_xl, "clm"))


@functools.cache
def tokens(length: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(1, tiny.VOCAB, (B, length))


def batch_of(rows: np.ndarray, **more: Any) -> dict[str, Any]:
    size, length = rows.shape
    return {"tokens": rows, "lengths": np.full(size, length), "examples": np.arange(size)} | more


@functools.partial(jax.jit, static_argnums=0)
def apply(net: Any, params: Any, carried: Any, batch: Any) -> tuple[Any, Any]:
    given = {"params": params, "carried": carried}
    (hidden, _), changed = net.apply(given, batch, train=False, mutable=["carried"])
    return hidden, changed.get("carried", {})


def read(net: Any, params: Any, rows: np.ndarray, carried: Any, **more: Any) -> tuple[Any, Any]:
    return apply(net, params, carried, batch_of(rows, **more))


def read_all(net: Any, params: Any, rows: np.ndarray, width: int = T) -> np.ndarray:
    """Reads the rows in segments behind one another: states [B, all tokens, D]."""
    carried: Any = {}
    found = []
    for start in range(0, rows.shape[1], width):
        hidden, carried = read(net, params, rows[:, start : start + width], carried)
        found.append(np.asarray(hidden))
    return np.concatenate(found, axis=1)


# --- Attention -------------------------------------------------------------------------------


def attention_of(clip: int) -> tuple[relative_attention.RelativeAttention, dict[str, Any]]:
    net, params = make(clip=clip), draw(clip)["body"]["stack"]["layer"]["attention"]
    return net.body.stack.layer.attention, jax.tree.map(lambda x: x[0], params)


def by_hand(p: Any, x: Any, memory: Any, sizes: Any, clip: int) -> np.ndarray:
    """Queries i and keys j one by one: the four terms of Dai et al. 2019, 3.3; or Shaw et al."""
    found = np.zeros((B, T, D))
    every = np.concatenate([memory, x], axis=1)
    frequencies = 10000.0 ** (-np.arange(0, D, 2) / D)
    for b, i in np.ndindex(B, T):
        keys = range(M - sizes[b], M + i + 1)
        for n in range(N):
            kernel = {name: p[name]["kernel"][:, n] for name in ("query", "key", "value")}
            query, scores, values = x[b, i] @ kernel["query"], [], []
            for j in keys:
                distance = M + i - j
                key, value = (every[b, j] @ kernel[name] for name in ("key", "value"))
                if clip:
                    row = min(distance, clip)
                    scores.append(query @ (key + p["distances"]["key_table"][row]))
                    values.append(value + p["distances"]["value_table"][row])
                    continue
                angles = distance * frequencies
                sinusoid = np.concatenate([np.sin(angles), np.cos(angles)])
                place = sinusoid @ p["distances"]["key"]["kernel"][:, n]
                u, v = (p["distances"][f"{name}_bias"][n] for name in "uv")
                scores.append(query @ key + query @ place + u @ key + v @ place)
                values.append(value)
            weights = np.exp(np.array(scores) / K**0.5)
            mixed = weights @ np.array(values) / weights.sum()
            found[b, i] += mixed @ p["out"]["kernel"][n]
    return found


def apart_from_the_loop(clip: int) -> float:
    attention, params = attention_of(clip)
    rng, sizes = np.random.default_rng(1), np.array([M, 2])
    x, states = rng.normal(size=(B, T, D)), rng.normal(size=(B, M, D))
    positions = jnp.broadcast_to(M + jnp.arange(T), (B, T))
    mask = Mask(lengths=jnp.full(B, M + T), query_positions=positions, causal=True)
    ctx = Context(mask, positions, jnp.arange(B))
    memory = Memory(states, sizes)
    found, after = attention.apply({"params": params}, x, ctx, memory)
    np.testing.assert_array_equal(after.states, np.concatenate([states, x], 1)[:, -M:])
    assert after.sizes.tolist() == [M, min(M, 2 + T)]
    return np.abs(found - by_hand(params, x, states, sizes, clip)).max()


def swap(patch: pytest.MonkeyPatch) -> None:
    distances = relative.Distances
    patch.setattr(relative, "Distances", lambda k, x, u, v: distances(k, x, v, u))


def shift_by_one(patch: pytest.MonkeyPatch) -> None:
    move = relative_attention.to_keys
    patch.setattr(relative_attention, "to_keys", lambda x: jnp.roll(move(x), 1, axis=-1))


def open_memory(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(jax.lax, "stop_gradient", lambda x: x)


@contextlib.contextmanager
def mutant(mutate: Any) -> Iterator[None]:
    """Changes the model; compiled programs are forgotten before and after."""
    with pytest.MonkeyPatch.context() as patch:
        mutate(patch)
        apply.clear_cache()
        yield
    apply.clear_cache()


@pytest.mark.parametrize("clip", [0, 1, 3, 50])
def test_attention_is_that_of_a_loop(clip: int) -> None:
    assert apart_from_the_loop(clip) < 1e-10
    for mutate in (shift_by_one, *[swap] * (clip == 0)):
        with mutant(mutate):
            assert apart_from_the_loop(clip) > 1e-3, mutate


def weights_of(i: int, contents: np.ndarray, planted: relative.Distances) -> np.ndarray:
    """Attention weights [N, i + 1] of query i behind a memory of i tokens, with given vectors."""
    attention, params = attention_of(0)
    at = jnp.full((1, 1), i)
    ctx = Context(Mask(jnp.array([i + 1]), query_positions=at, causal=True), at, jnp.arange(1))
    _, found = attention.clone(distances=lambda _: planted).apply(
        {"params": params}, contents[None, i : i + 1], ctx,
        Memory(contents[None, :i], jnp.array([i])), mutable=["intermediates"],
    )  # fmt: skip
    return np.asarray(found["intermediates"][WEIGHTS][0][0, :, 0])


def test_the_four_terms_of_absolute_positions_are_the_absolute_scores() -> None:
    """Dai et al. 2019, 3.3, with U_j for R_{i-j}, and W_q U_i for u and v.

    Then they add up to (E_i + U_i)^T W_q^T W_k (E_j + U_j); any three of them do not.
    """
    _, params = attention_of(0)
    query, key = (params[name]["kernel"] for name in ("query", "key"))
    contents, places = np.random.default_rng(0).normal(size=(2, T, D))
    for i in range(1, T):
        keys = np.einsum("sd,dnk->snk", places[: i + 1], key)
        content, u = (np.einsum("d,dnk->nk", x[i], query) for x in (contents, places))
        absolute = np.einsum("sd,dnk->snk", contents[: i + 1] + places[: i + 1], key)
        scores = np.einsum("nk,snk->ns", content + u, absolute) / K**0.5
        wanted = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
        found, *without = (
            weights_of(i, contents, relative.Distances(keys, None, *biases))
            for biases in ((u, u), (u - content, u), (u, u - content), (0 * u, u), (u, 0 * u))
        )
        np.testing.assert_allclose(found, wanted, atol=1e-12)
        assert min(np.abs(x - wanted).max() for x in without) > 1e-3


def test_moves_between_keys_and_distances() -> None:
    """The shift is a look-up of the distance i - j; the way back keeps each weight."""
    x = np.random.default_rng(0).normal(size=(2, T, M + T))
    seen = np.arange(M + T) <= M + np.arange(T)[:, None]
    distance = M + np.arange(T)[:, None] - np.arange(M + T)
    index = np.broadcast_to(np.where(seen, M + T - 1 - distance, 0), x.shape)
    wanted = np.where(seen, np.take_along_axis(x, index, axis=-1), 0)
    np.testing.assert_array_equal(np.where(seen, relative_attention.to_keys(x), 0), wanted)
    back = np.asarray(relative_attention.to_distances(jnp.asarray(wanted)))
    np.testing.assert_array_equal(np.where(seen, relative_attention.to_keys(back), 0), wanted)
    np.testing.assert_allclose(back.sum(axis=-1), wanted.sum(axis=-1))
    positions = jnp.broadcast_to(M + jnp.arange(T), (1, T))
    mirrored = relative_attention.mirror(positions, M + T)(jnp.asarray(x[:1, None, :, ::-1]))
    np.testing.assert_array_equal(mirrored[:, 0], wanted[:1])


def test_no_array_has_queries_keys_and_head_size() -> None:
    length = 64
    net, params = make(length, max_len=length), draw()
    rows = np.ones((1, length), np.int32)
    run = functools.partial(net.apply, train=False, mutable=["carried"])
    text = jax.make_jaxpr(run)({"params": params}, batch_of(rows))

    def sizes(jaxpr: Any) -> Iterator[int]:
        for equation in jaxpr.eqns:
            yield from (int(np.prod(x.aval.shape)) for x in equation.outvars)
            for inner in jax.extend.core.jaxprs_in_params(equation.params):
                yield from sizes(inner)

    scores = N * length * 2 * length
    assert scores <= max(sizes(text.jaxpr)) < 2 * scores


# --- Memory ----------------------------------------------------------------------------------


@pytest.mark.parametrize("clip", [0, 3])
def test_segments_with_a_full_memory_are_one_long_pass(clip: int) -> None:
    rows, params = tokens(3 * T), draw(clip)
    whole, _ = read(make(0, max_len=3 * T, clip=clip), params, rows, {})
    found = read_all(make(3 * T, clip=clip), params, rows)
    np.testing.assert_allclose(found, whole, atol=1e-10)
    short = read_all(make(2, clip=clip), params, rows)
    assert np.abs(short - whole)[:, T + 3 :].max() > 1e-3


def test_the_receptive_field_grows_by_the_memory_in_each_layer() -> None:
    """A layer reads M states before its segment; with segments of M tokens that is M a layer."""
    width, rows, params = 2, tokens(12), draw()
    net = make(width, max_len=width)
    before = read_all(net, params, rows, width)[:, -1]
    moved = []
    for place in range(rows.shape[1]):
        changed = rows.copy()
        changed[:, place] = changed[:, place] % (tiny.VOCAB - 1) + 1
        moved.append((read_all(net, params, changed, width)[:, -1] != before).any())
    first = rows.shape[1] - width - L * width
    assert moved == [place >= first for place in range(rows.shape[1])]


def gradient_through_memory(params: Any) -> float:
    """Largest gradient of the second segment's states that flows through the first segment's."""
    net, rows = make(), tokens(2 * T)

    def loss(through: Any) -> jax.Array:
        _, carried = read(net, through, rows[:, :T], {})
        return jnp.sum(read(net, params, rows[:, T:], carried)[0] ** 2 * jnp.arange(D))

    return max(float(jnp.abs(x).max()) for x in jax.tree.leaves(jax.grad(loss)(params)))


def test_no_gradient_flows_into_the_memory() -> None:
    assert gradient_through_memory(draw()) == 0
    with mutant(open_memory):
        assert gradient_through_memory(draw()) > 1e-3


def test_a_constant_added_to_all_positions_changes_nothing() -> None:
    """An empty memory of M places moves queries and keys by M."""
    rows, params = tokens(T), draw()
    found = [read(make(places), params, rows, {})[0] for places in (0, 1, 40)]
    for other in found[1:]:
        np.testing.assert_allclose(other, found[0], atol=1e-12)


def test_a_memory_ends_with_its_document() -> None:
    """Row 0 begins a document in the second segment; row 1 had two tokens in the first one."""
    net, params, rows, next_rows = make(), draw(), tokens(T), tokens(T, 1)
    lengths, continues = np.array([T, 2]), np.array([0, 1])
    _, carried = read(net, params, rows, {}, lengths=lengths)
    found, after = read(net, params, next_rows, carried, continues=continues)
    alone, _ = read(net, params, next_rows, {})
    np.testing.assert_allclose(found[0], alone[0], atol=1e-12)
    joined = np.concatenate([rows[1:, :2], next_rows[1:]], axis=1)
    wanted, _ = read(make(0, max_len=2 + T), params, joined, {})
    np.testing.assert_allclose(found[1], wanted[0, 2:], atol=1e-10)
    sizes = jax.tree.leaves(after["sizes"])[0]
    assert sizes.tolist() == [[T, 2 + T]] * L
    padded, kept = read(net, params, next_rows, after, lengths=np.zeros(B, int))  # empty rows
    for old, new in zip(jax.tree.leaves(after), jax.tree.leaves(kept), strict=True):
        np.testing.assert_array_equal(new, old)
    assert np.isfinite(padded).all()


def test_examples_whose_format_does_not_continue_documents_begin_them() -> None:
    net, params, rows = make(), draw(), tokens(T)
    _, carried = read(net, params, tokens(T, 1), {})
    terms, ctx = tiny.terms(transformer_xl, "clm"), objectives.Pass(jax.random.key(0))

    def loss(carried: Any, **more: Any) -> float:
        batch = objectives.prepare(batch_of(rows, **more), terms, jax.random.key(0))
        found, _ = objectives.forward(net, params, batch, terms, ctx, carried)
        return float(found["clm"]["loss"][0])

    begun = loss(None)
    assert loss(carried) == pytest.approx(begun, rel=1e-12)
    assert loss(carried, continues=np.ones(B, int)) != pytest.approx(begun, rel=1e-3)


@pytest.mark.parametrize(("options", "message"), [
    (dict(memory_len=-1), "system_options.memory_len = -1"),
    (dict(memory_len=1.5), "memory_len: expected int, got float 1.5"),
    (dict(clip=-2), "system_options.clip = -2"),
    (dict(memory_len=62_832), "memory_len = 62832: .* set it to 62815 or less"),
])  # fmt: skip
def test_options_without_a_meaning_are_refused(options: dict[str, Any], message: str) -> None:
    fields = {f"system_options__{name}": value for name, value in options.items()}
    with pytest.raises(ValueError, match=message):
        tiny.parts("transformer_xl", **fields)


# --- transformers ----------------------------------------------------------------------------


def xlnet(**more: Any) -> tuple[Any, Any]:
    """XLNet's class that reads from left to right, and its parameters in our tree."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    import peers
    from transformers import XLNetConfig, XLNetModel

    config = XLNetConfig(
        vocab_size=tiny.VOCAB, d_model=D, n_layer=L, n_head=N, d_inner=4 * D, attn_type="uni",
        ff_activation="relu", layer_norm_eps=1e-5, mem_len=M, **more,
    )  # fmt: skip
    model = peers.randomise(XLNetModel(config).double().eval(), 0)
    theirs = {name: value.detach().numpy() for name, value in model.named_parameters()}

    def stack(name: str) -> np.ndarray:
        return np.stack([theirs[f"layer.{n}.{name}"] for n in range(L)])

    def norm(name: str) -> dict[str, np.ndarray]:
        return {"scale": stack(f"{name}.weight"), "bias": stack(f"{name}.bias")}

    def linear(name: str) -> dict[str, np.ndarray]:
        return {"kernel": stack(f"{name}.weight").swapaxes(1, 2), "bias": stack(f"{name}.bias")}

    names = {"query": "q", "key": "k", "value": "v"}
    attention: dict[str, Any] = {
        ours: {"kernel": stack(f"rel_attn.{n}")} for ours, n in names.items()
    }
    attention["out"] = {"kernel": np.moveaxis(stack("rel_attn.o"), 1, 3)}
    attention["distances"] = {
        "key": {"kernel": stack("rel_attn.r")},
        "u_bias": stack("rel_attn.r_w_bias"), "v_bias": stack("rel_attn.r_r_bias"),
    }  # fmt: skip
    layer = {
        "attention": attention, "attention_norm": norm("rel_attn.layer_norm"),
        "ffn": {"inner": linear("ff.layer_1"), "outer": linear("ff.layer_2")},
        "ffn_norm": norm("ff.layer_norm"),
    }  # fmt: skip
    table = theirs["word_embedding.weight"] / D**0.5
    tree = {"body": {"embed": {"tokens": {"table": table}}, "stack": {"layer": layer}}}

    def run(rows: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """States of segments behind one another, and gradients of the sum of their squares."""
        found, mems = [], None
        with mock.patch.object(torch.Tensor, "float", torch.Tensor.double):
            for start in range(0, rows.shape[1], T):
                out = model(torch.tensor(rows[:, start : start + T]), mems=mems, use_mems=True)
                found.append(out.last_hidden_state)
                mems = out.mems
        states = torch.cat(found, dim=1)
        (states**2 * torch.arange(D)).sum().backward()
        gradients = {name: p.grad for name, p in model.named_parameters()}
        names_of_biases = {"r": "r", "u_bias": "r_w_bias", "v_bias": "r_r_bias"}
        shown = {
            ours: gradients[f"layer.0.rel_attn.{n}"].numpy()
            for ours, n in (names | names_of_biases).items()
        }
        return states.detach().numpy(), shown

    return run, tree


@pytest.mark.parity
def test_segments_and_gradients_are_those_of_xlnet() -> None:
    """In three segments, the last one with a memory that has dropped the first tokens."""
    run, tree = xlnet()
    rows = tokens(3 * T)
    states, gradients = run(rows)

    def ours() -> tuple[float, float]:
        net = make()

        def loss(params: Any) -> tuple[jax.Array, jax.Array]:
            carried: Any = {}
            found = []
            for start in range(0, 3 * T, T):
                hidden, carried = read(net, params, rows[:, start : start + T], carried)
                found.append(hidden)
            hidden = jnp.concatenate(found, axis=1)
            return jnp.sum(hidden**2 * jnp.arange(D)), hidden

        found, hidden = jax.grad(loss, has_aux=True)(tree)
        attention = found["body"]["stack"]["layer"]["attention"]
        own = {name: attention[name]["kernel"][0] for name in ("query", "key", "value")}
        distances = attention["distances"]
        own |= {name: distances[name][0] for name in ("u_bias", "v_bias")}
        own["r"] = distances["key"]["kernel"][0]
        apart = max(np.abs(own[n] - g).max() / np.abs(g).max() for n, g in gradients.items())
        return np.abs(hidden - states).max(), float(apart)

    assert max(ours()) < 1e-10
    for mutate in (swap, shift_by_one, open_memory):
        with mutant(mutate):
            # An open memory moves gradients alone.
            assert ours()[mutate is open_memory] > 1e-3, mutate
