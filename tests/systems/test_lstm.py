"""Recurrent models: a loop by hand, torch.nn, segments as one long pass, decoding, attention."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from scalelab import systems
from scalelab.finetuning import methods
from scalelab.nn.recurrence import CELLS, recur
from scalelab.systems import lstm

B, T, D, L = 3, 5, 4, 2
ROWS = np.random.default_rng(0).integers(1, tiny.VOCAB, (B, 2 * T))


@pytest.fixture(autouse=True)
def in_double() -> Iterator[None]:
    with tiny.in_double():
        yield


def make(cell: str = "lstm", attention: bool = False) -> tuple[Any, Any]:
    sizes = systems.Sizes(1, D, L, 4 * D, 2 * T, 0.0, dtype=jnp.float64)
    net = lstm.build(sizes, lstm.Options(cell, attention), tiny.VOCAB)
    return net, tiny.draw(net, tiny.terms(lstm, "clm"))


def batch_of(rows: np.ndarray, **more: Any) -> dict[str, Any]:
    size, length = rows.shape
    return {"tokens": rows, "lengths": np.full(size, length), "examples": np.arange(size)} | more


def read(net: Any, params: Any, rows: np.ndarray, carried: Any = None, **more: Any) -> Any:
    """States, and what the rows carry."""
    given = {"params": params} | ({} if carried is None else {"carried": carried})
    (hidden, _), after = jax.jit(
        lambda given, batch: net.apply(given, batch, train=False, mutable=["carried"])
    )(given, batch_of(rows, **more))
    return hidden, after["carried"]


def by_hand(cell: str, given: Any, kernel: Any, bias: Any, state: dict[str, Any]) -> Any:
    """The equations of torch.nn's pages, a step after another."""
    found, (h, c) = [], (state["hidden"], state.get("cell"))
    sigmoid = lambda x: 1 / (1 + jnp.exp(-x))  # noqa: E731
    for x in given:
        u = h @ kernel + bias
        if cell == "rnn":
            h = jnp.tanh(x + u)
        elif cell == "gru":
            r, z = sigmoid(x[:, :D] + u[:, :D]), sigmoid(x[:, D : 2 * D] + u[:, D : 2 * D])
            h = (1 - z) * jnp.tanh(x[:, 2 * D :] + r * u[:, 2 * D :]) + z * h
        else:
            i, f, g, o = ((x + u)[:, k * D : (k + 1) * D] for k in range(4))
            c = sigmoid(f) * c + sigmoid(i) * jnp.tanh(g)
            h = sigmoid(o) * jnp.tanh(c)
        found.append(h)
    return jnp.stack(found)


@pytest.mark.parametrize("cell", CELLS)
def test_the_scan_and_its_gradients_are_those_of_a_loop(cell: str) -> None:
    rng, gates = np.random.default_rng(1), CELLS[cell].num_gates * D
    given, kernel, bias = (rng.normal(size=s) for s in ((T, B, gates), (D, gates), gates))
    start = {name: rng.normal(size=(B, D)) for name in CELLS[cell].names}
    weights = rng.normal(size=(T, B, D))

    def losses(run: Any) -> Any:
        return jax.value_and_grad(lambda *a: (run(*a, start) * weights).sum(), (0, 1, 2))(
            given, kernel, bias
        )

    ours = losses(lambda *a: recur(CELLS[cell], *a)[0])
    theirs = losses(lambda *a: by_hand(cell, *a))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12), ours, theirs
    )


def test_the_gradient_at_lag_k_is_the_kth_power_of_the_kernel() -> None:
    """At the zero state, where tanh has slope 1; so it shrinks with the spectral radius."""
    kernel = np.random.default_rng(2).normal(size=(D, D)) / 4
    given, start = jnp.zeros((T, 1, D)), {"hidden": jnp.zeros((1, D))}
    last = jax.jacobian(lambda x: recur(CELLS["rnn"], x, kernel, jnp.zeros(D), start)[0][-1, 0])
    for lag, found in enumerate(last(given)[:, ::-1, 0].swapaxes(0, 1)):
        np.testing.assert_allclose(found.T, np.linalg.matrix_power(kernel, lag), atol=1e-14)


@pytest.mark.parametrize("cell", CELLS)
def test_segments_are_one_long_pass_and_end_with_their_document(cell: str) -> None:
    """Row 1 has two tokens in the first segment; row 2 begins a document in the second."""
    net, params = make(cell)
    lengths, goes_on = np.array([T, 2, T]), np.array([1, 1, 0])
    first, carried = read(net, params, ROWS[:, :T], lengths=lengths)
    second, after = read(net, params, ROWS[:, T:], carried, continues=goes_on)
    whole, _ = read(net, params, ROWS)
    np.testing.assert_allclose(first[0], whole[0, :T], atol=1e-12)
    np.testing.assert_allclose(second[0], whole[0, T:], atol=1e-12)
    joined = np.concatenate([ROWS[1:2, :2], ROWS[1:2, T:]], axis=1)
    np.testing.assert_allclose(second[1], read(net, params, joined)[0][0, 2:], atol=1e-12)
    np.testing.assert_allclose(second[2], read(net, params, ROWS[2:, T:])[0][0], atol=1e-12)
    _, kept = read(net, params, ROWS[:, T:], after, lengths=np.zeros(B, int))
    jax.tree.map(np.testing.assert_array_equal, kept, after)


def test_no_gradient_flows_into_the_segment_before() -> None:
    net, params = make()

    def loss(before: Any) -> jax.Array:
        _, carried = read(net, before, ROWS[:, :T])
        return (read(net, params, ROWS[:, T:], carried)[0] ** 2).sum()

    assert not any(np.any(x) for x in jax.tree.leaves(jax.grad(loss)(params)))


@pytest.mark.parametrize(("cell", "attention"), [("gru", False), ("lstm", True), ("rnn", True)])
def test_decoding_is_the_whole_pass(cell: str, attention: bool) -> None:
    """The contract has the LSTM; here the prompts differ in length, too."""
    net, params = make(cell, attention)
    whole, _ = read(net, params, ROWS)
    lengths, cache = np.array([4, 1, 3]), net.init_cache(B, 2 * T)
    step = jax.jit(
        lambda batch, cache: net.apply({"params": params}, batch, train=False, cache=cache)
    )
    hidden, cache = step(batch_of(ROWS[:, :4], lengths=lengths), cache)
    rows = np.arange(B)
    np.testing.assert_allclose(hidden[rows, lengths - 1], whole[rows, lengths - 1], atol=1e-12)
    for k in range(T):
        hidden, cache = step(batch_of(ROWS[rows, lengths + k][:, None]), cache)
        np.testing.assert_allclose(hidden[:, 0], whole[rows, lengths + k], atol=1e-12)


def test_attention_reads_the_states_before_by_their_products() -> None:
    """Luong et al. 2015, equations 5, 7 and 8; nothing is before the first state."""
    plain, attending = (make(attention=flag) for flag in (False, True))
    params = attending[1]
    kernel = params["body"]["stack"]["attention"]["combine"]["kernel"]
    found, _ = read(*attending, ROWS)
    rest = params["body"] | {"stack": {"stack": params["body"]["stack"]["stack"]}}
    states, _ = read(plain[0], {"body": rest}, ROWS)
    for b, i in np.ndindex(B, 2 * T):
        scores = np.exp(states[b, :i] @ states[b, i])
        context = scores @ states[b, :i] / scores.sum() if i else np.zeros(D)
        wanted = np.tanh(np.concatenate([context, states[b, i]]) @ kernel)
        np.testing.assert_allclose(found[b, i], wanted, atol=1e-10)


def test_a_cell_without_a_name_is_refused() -> None:
    with pytest.raises(ValueError, match="system_options.cell = 'lsmt'.*'lstm'"):
        tiny.parts("lstm", system_options__cell="lsmt")


def test_adapters_are_refused() -> None:
    with pytest.raises(ValueError, match="no feed-forward network"):
        methods.add_adapters(make()[0], 2)


def torchs(cell: str, tree: Any, rows: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """States of torch.nn with our parameters, and gradients of its kernels of the last layer."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    model = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU, "rnn": torch.nn.RNN}[cell](
        D, D, num_layers=L, batch_first=True, dtype=torch.float64
    )
    layer = tree["body"]["stack"]["stack"]["layer"]
    for n in range(L):
        put = lambda kind, x, n=n: getattr(model, f"{kind}_l{n}").data.copy_(  # noqa: E731
            torch.tensor(np.asarray(x))
        )
        put("weight_ih", layer["input"]["kernel"][n].T)
        put("weight_hh", layer["recurrent_kernel"][n].T)
        put("bias_ih", layer["input"]["bias"][n])
        own = layer.get("recurrent_bias", np.zeros((L, 0)))[n]
        put("bias_hh", np.pad(own, (CELLS[cell].num_gates * D - len(own), 0)))
    x = torch.tensor(np.asarray(tree["body"]["embed"]["tokens"]["table"])[rows] * D**0.5)
    states, _ = model(x)
    (states**2 * torch.arange(D)).sum().backward()
    gradients = {
        f"{k}{n}": getattr(model, f"weight_{k}_l{n}").grad for k in ("ih", "hh") for n in range(L)
    }
    gradients["bias"] = model.bias_hh_l0.grad
    return states.detach().numpy(), {name: x.numpy() for name, x in gradients.items()}


def apart(cell: str) -> tuple[float, float]:
    """Largest differences of states and of gradients from torch's."""
    net, params = make(cell)
    states, gradients = torchs(cell, params, ROWS)

    def loss(params: Any) -> tuple[jax.Array, jax.Array]:
        hidden, _ = read(net, params, ROWS)
        return (hidden**2 * jnp.arange(D)).sum(), hidden

    found, hidden = jax.grad(loss, has_aux=True)(params)
    layer = found["body"]["stack"]["stack"]["layer"]
    ours = {f"ih{n}": layer["input"]["kernel"][n].T for n in range(L)}
    ours |= {f"hh{n}": layer["recurrent_kernel"][n].T for n in range(L)}
    ours["bias"] = layer.get("recurrent_bias", layer["input"]["bias"])[0]
    gradients["bias"] = gradients["bias"][-len(ours["bias"]) :]
    differences = [np.abs(ours[n] - x).max() / np.abs(x).max() for n, x in gradients.items()]
    return float(np.abs(hidden - states).max()), float(max(differences))


RIGHT = dict(CELLS)


def reversed_gates(given: Any, recurrent: Any, state: Any) -> Any:
    swap = lambda x: jnp.concatenate(jnp.split(x, 4, axis=-1)[::-1], axis=-1)  # noqa: E731
    return RIGHT["lstm"].update(swap(given), swap(recurrent), state)


def reset_for_update(given: Any, recurrent: Any, state: Any) -> Any:
    swap = lambda x: jnp.concatenate([x[:, D : 2 * D], x[:, :D], x[:, 2 * D :]], axis=-1)  # noqa: E731
    return RIGHT["gru"].update(swap(given), swap(recurrent), state)


WRONG = {"lstm": reversed_gates, "gru": reset_for_update}


@pytest.mark.parity
@pytest.mark.parametrize("cell", CELLS)
def test_states_and_gradients_are_torchs(cell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert max(apart(cell)) < 1e-10
    if cell in WRONG:
        monkeypatch.setitem(CELLS, cell, RIGHT[cell]._replace(update=WRONG[cell]))
        assert apart(cell)[0] > 1e-3
