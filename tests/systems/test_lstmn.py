"""The memory-network of Cheng et al. 2016: a loop by hand, wrong variants, causality, decoding."""

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest
import tiny
from flax import linen as nn
from test_lstm import ROWS, B, D, L, T, batch_of

from scalelab import systems
from scalelab.systems import lstm


@pytest.fixture(autouse=True)
def in_double() -> Iterator[None]:
    with tiny.in_double():
        yield


def make(cell: str = "lstmn") -> tuple[Any, Any]:
    """A model with weights of standard deviation 0.5."""
    sizes = systems.Sizes(1, D, L, 4 * D, 2 * T, 0.0, dtype=np.float64)
    net, rng = lstm.build(sizes, lstm.Options(cell), tiny.VOCAB), np.random.default_rng(1)
    params = tiny.draw(net, tiny.terms(lstm, "clm"))
    return net, jax.tree.map(lambda x: rng.normal(0, 0.5, x.shape), params)


def read(net: Any, params: Any, rows: np.ndarray) -> np.ndarray:
    given = {"params": params}
    return np.asarray(net.apply(given, batch_of(rows), train=False)[0])


def by_hand(params: Any, rows: np.ndarray, wrong: str = "") -> np.ndarray:
    """Equations 4 to 9, a row, a layer and a token at a time; `wrong` names a variant."""
    sigmoid = lambda x: 1 / (1 + np.exp(-x))  # noqa: E731
    x = params["embed"]["tokens"]["table"][rows] * D**0.5
    for layer in range(L):
        own = jax.tree.map(lambda y, n=layer: y[n], params["stack"]["stack"]["layer"])
        states = np.zeros_like(x)
        for b in range(len(rows)):
            hidden, cells, mean = [], [], np.zeros(D)
            for t, token in enumerate(x[b]):
                last = np.zeros(D) if wrong == "query" else mean @ own["read_kernel"]
                query = token @ own["query"]["kernel"] + last
                scores = [np.tanh(h @ own["state_kernel"] + query) @ own["score_kernel"]
                          for h in hidden]  # fmt: skip
                if wrong == "last":  # a plain LSTM
                    scores = [0.0 if i == t - 1 else -1e9 for i in range(t)]
                shares = np.exp(scores) / np.sum(np.exp(scores))
                mean = sum((s * h for s, h in zip(shares, hidden, strict=True)), np.zeros(D))
                cell = sum((s * c for s, c in zip(shares, cells, strict=True)), np.zeros(D))
                if wrong == "cell" and t:
                    cell = cells[-1]
                gates = token @ own["input"]["kernel"] + own["input"]["bias"]
                i, f, g, o = np.split(gates + mean @ own["recurrent_kernel"], 4)
                cells.append(sigmoid(f) * cell + sigmoid(i) * np.tanh(g))
                hidden.append(sigmoid(o) * np.tanh(cells[-1]))
            states[b] = hidden
        x = states
    return x


def test_it_is_a_loop_over_the_tape() -> None:
    net, params = make()
    found = read(net, params, ROWS)
    np.testing.assert_allclose(found, by_hand(params, ROWS), atol=1e-10, rtol=1e-10)
    for wrong in ("query", "last", "cell"):
        assert np.abs(found - by_hand(params, ROWS, wrong)).max() > 1e-5, wrong


def test_no_state_reads_later_tokens() -> None:
    net, params = make()
    found, changed = read(net, params, ROWS), ROWS.copy()
    changed[:, T] = (changed[:, T] + 1) % tiny.VOCAB
    moved = np.abs(read(net, params, changed) - found).max(axis=(0, 2))
    assert not moved[:T].any() and (moved[T:] > 1e-4).all()


def test_the_first_token_is_an_lstms() -> None:
    """Its tape is empty, as the LSTM's state is 0; the second token's is not."""
    net, params = make()
    plain, _ = make("lstm")
    layer = dict(params["stack"]["stack"]["layer"])
    for name in ("query", "state_kernel", "read_kernel", "score_kernel"):
        del layer[name]
    rest = {"body": params | {"stack": {"stack": {"layer": layer}}}}
    found, expected = read(net, params, ROWS), read(plain, rest, ROWS)
    np.testing.assert_allclose(found[:, 0], expected[:, 0], atol=1e-12)
    # One earlier state has all the weight, in the first layer: the second token is an LSTM's too.
    np.testing.assert_allclose(found[:, 1], expected[:, 1], atol=1e-12)
    assert np.abs(found[:, 2:] - expected[:, 2:]).max() > 1e-3


def test_decoding_is_the_whole_pass() -> None:
    """With prompts of different lengths."""
    net, params = make()
    whole, rows = read(net, params, ROWS), np.arange(B)
    lengths, cache = np.array([4, 1, 3]), net.init_cache(B, 2 * T)
    given = {"params": params}
    step = jax.jit(lambda batch, cache: net.apply(given, batch, train=False, cache=cache))
    hidden, cache = step(batch_of(ROWS[:, :4], lengths=lengths), cache)
    np.testing.assert_allclose(hidden[rows, lengths - 1], whole[rows, lengths - 1], atol=1e-12)
    for k in range(T):
        hidden, cache = step(batch_of(ROWS[rows, lengths + k][:, None]), cache)
        np.testing.assert_allclose(hidden[:, 0], whole[rows, lengths + k], atol=1e-12)


def test_sizes_and_refusals() -> None:
    parts = tiny.parts("lstm", system_options__cell="lstmn")
    layer = nn.unbox(parts.abstract_parameters())["stack"]["stack"]["layer"]
    kernels = [x for name, x in layer.items() if name.endswith("kernel")]
    kernels += [layer[name]["kernel"] for name in ("input", "query")]
    config = parts.config
    n_model = systems.n_model(systems.load("lstm"), config.model, config.system_options)
    assert n_model == sum(x.size for x in kernels)
    with pytest.raises(ValueError, match="cell = 'lstmn' attends"):
        tiny.parts("lstm", system_options__cell="lstmn", system_options__attention=True)
