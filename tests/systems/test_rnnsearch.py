"""RNNsearch: a loop over rows, places and pairs; torch.nn's cells; decoding; sizes."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from scalelab import systems
from scalelab.nn.attention import WEIGHTS
from scalelab.nn.recurrence import CELLS
from scalelab.systems import rnnsearch
from scalelab.systems.rnnsearch.compatibility import SCORES

B, S, T, D, L = 3, 4, 6, 5, 2
HALF = D // 2
SIZES = systems.Sizes(1, D, L, 4 * D, 9, 0.0, dtype=jnp.float64)
RNG = np.random.default_rng(0)
BATCH = {
    "source": RNG.integers(1, tiny.VOCAB, (B, S)), "source_lengths": np.array([S, 1, 3]),
    "tokens": RNG.integers(1, tiny.VOCAB, (B, T)), "lengths": np.array([T, T, 2]),
    "examples": np.arange(B),
}  # fmt: skip
SLOPES = RNG.normal(size=(B, T, D)) * (np.arange(T) < BATCH["lengths"][:, None])[..., None]


@pytest.fixture(autouse=True)
def in_double() -> Iterator[None]:
    with tiny.in_double():
        yield


def make(
    score: str | None = "additive", cell: str = "gru", query: str | None = None
) -> tuple[Any, Any]:
    sizes = dataclasses.replace(SIZES, num_layers=1 if query else L)
    net = rnnsearch.build(sizes, rnnsearch.Options(score, cell, query), tiny.VOCAB)
    return net, tiny.draw(net, tiny.terms(rnnsearch, "seq2seq"), S)


def read(net: Any, params: Any) -> jax.Array:
    return jax.jit(lambda p: net.apply({"params": p}, BATCH, train=False)[0])(params)


# --- By hand: one row, one place, one pair at a time, with NumPy or PyTorch -----------------------

State = dict[str, Any]


def equations(cell: str, w: Any, n: int, x: Any, context: Any, state: State) -> State:
    """A step of torch.nn's GRU or LSTM, as its page has it."""
    sigmoid = lambda x: 1 / (1 + np.exp(-x))  # noqa: E731
    given = x @ w["input"]["kernel"][n] + w["input"]["bias"][n]
    if context is not None:
        given = given + context @ w["context_kernel"][n]
    recurrent, h = state["hidden"] @ w["recurrent_kernel"][n], state["hidden"]
    if cell == "gru":
        (a, b, c), (d, e, f) = np.split(given, 3), np.split(recurrent, 3)
        new = np.tanh(c + sigmoid(a + d) * (f + w["recurrent_bias"][n]))
        return {"hidden": (1 - sigmoid(b + e)) * new + sigmoid(b + e) * h}
    i, f, g, o = np.split(given + recurrent, 4)
    kept = sigmoid(f) * state["cell"] + sigmoid(i) * np.tanh(g)
    return {"hidden": sigmoid(o) * np.tanh(kept), "cell": kept}


def torchs(cell: str, w: Any, n: int, x: Any, context: Any, state: State) -> State:
    """The same by torch.nn.GRUCell or LSTMCell, which reads x and the context side by side."""
    import torch

    kernel, size = w["input"]["kernel"][n], len(state["hidden"])
    if context is not None:
        x, kernel = torch.cat([x, context]), torch.cat([kernel, w["context_kernel"][n]])
    own = w["recurrent_bias"][n] if cell == "gru" else torch.zeros(0, dtype=torch.float64)
    zeros = torch.zeros(kernel.shape[1] - len(own), dtype=torch.float64)
    given = {"weight_ih": kernel.T, "weight_hh": w["recurrent_kernel"][n].T}
    given |= {"bias_ih": w["input"]["bias"][n], "bias_hh": torch.cat([zeros, own])}
    module = {"gru": torch.nn.GRUCell, "lstm": torch.nn.LSTMCell}[cell](len(x), size)
    before = state["hidden"] if cell == "gru" else (state["hidden"], state["cell"])
    after = torch.func.functional_call(module, given, (x, before))
    return dict(zip(CELLS[cell].names, (after,) if cell == "gru" else after, strict=True))


@dataclasses.dataclass
class ByHand:
    """The model of one row; `wrong` is "query", "padding" or nothing."""

    lib: Any  # numpy or torch
    step: Callable[..., State]
    cell: str
    score: str | None
    query: str | None
    params: Any
    wrong: str = ""

    @property
    def num_layers(self) -> int:
        return len(self.params["encoder"]["layer"]["forward"]["input"]["bias"])

    def zeros(self, size: int) -> State:
        return {
            name: self.lib.zeros(size, dtype=self.lib.float64) for name in CELLS[self.cell].names
        }

    def embed(self, row: np.ndarray) -> list[Any]:
        return [self.params["decoder"]["embed"]["tokens"]["table"][int(i)] * D**0.5 for i in row]

    def encode(self, row: np.ndarray) -> list[Any]:
        states, layer = self.embed(row), self.params["encoder"]["layer"]
        for n in range(self.num_layers):
            sides = []
            for side, size in (("forward", D - HALF), ("backward", HALF)):
                state, found = self.zeros(size), []
                for x in states if side == "forward" else states[::-1]:
                    state = self.step(self.cell, layer[side], n, x, None, state)
                    found.append(state["hidden"])
                sides.append(found if side == "forward" else found[::-1])
            states = [self.lib.concatenate(pair) for pair in zip(*sides, strict=True)]
        return states

    def look(self, w: Any, n: int, hidden: Any, states: list[Any]) -> Any:
        """The context of a state."""
        if self.score is None:
            return self.lib.concatenate([states[-1][: D - HALF], states[0][D - HALF :]])
        scores = [hidden @ state for state in states]
        if self.score == "additive":
            own = w["compatibility"]
            mixed = lambda h: hidden @ own["query_kernel"][n] + h @ own["key_kernel"][n]  # noqa: E731
            scores = [self.lib.tanh(mixed(h)) @ own["out_kernel"][n] for h in states]
        chances = self.lib.exp(self.lib.stack(scores))
        return sum(a * h for a, h in zip(chances / chances.sum(), states, strict=True))

    def decode(self, row: np.ndarray, states: list[Any]) -> Any:
        """The states [T, D] that predict tokens."""
        inputs = given = self.embed(row)
        w, contexts = self.params["decoder"]["stack"]["stack"]["layer"], []
        for n in range(self.num_layers):
            state = self.zeros(D)
            state["hidden"] = self.lib.tanh(states[0][-HALF:] @ w["start"]["kernel"][n])
            found, contexts, context = [], [], 0 * given[0]
            for x in given:
                before = self.look(w, n, state["hidden"], states)
                fed = None if self.query else context if self.wrong == "query" else before
                state = self.step(self.cell, w, n, x, fed, state)
                context = before
                if (self.query is None) == (self.wrong == "query"):
                    context = self.look(w, n, state["hidden"], states)
                found.append(state["hidden"])
                contexts.append(context)
            given = found
        out = self.params["decoder"]["stack"]["out"]["kernel"]
        rows = zip(given, inputs, contexts, strict=True)
        pairs = self.lib.stack([self.lib.concatenate(row) @ out for row in rows])
        return self.lib.maximum(pairs[:, ::2], pairs[:, 1::2])

    def states(self) -> Any:
        """[B, T, D], with 0 behind the target."""
        found = []
        for b, (source, tokens) in enumerate(zip(BATCH["source"], BATCH["tokens"], strict=True)):
            length = S if self.wrong == "padding" else BATCH["source_lengths"][b]
            found.append(self.decode(tokens, self.encode(source[:length])))
        return self.lib.stack(found)


CASES = [
    ("additive", "gru", None), ("dot", "lstm", None), (None, "gru", None),
    ("dot", "gru", "current"), ("additive", "lstm", "current"),
]  # fmt: skip


@pytest.mark.parametrize(("score", "cell", "query"), CASES)
def test_the_model_is_a_loop_over_places_and_pairs(
    score: str | None, cell: str, query: str | None
) -> None:
    net, params = make(score, cell, query)
    found = np.asarray(read(net, params))
    hand = ByHand(np, equations, cell, score, query, jax.tree.map(np.asarray, params))
    np.testing.assert_allclose(found, hand.states(), atol=1e-10)
    for wrong in ("query", "padding") if score else ("padding",):
        apart = np.abs(dataclasses.replace(hand, wrong=wrong).states() - found).max(axis=(1, 2))
        # Row 0 has no padding. Row 1 has one state, so all its contexts are alike.
        rows = [True, query is None, True] if wrong == "query" else [False, True, True]
        assert (apart > 1e-3).tolist() == rows, wrong


@pytest.mark.ci
@pytest.mark.parity
@pytest.mark.parametrize(("score", "cell", "query"), CASES)
def test_states_and_gradients_are_those_of_torchs_cells(
    score: str | None, cell: str, query: str | None
) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    net, params = make(score, cell, query)
    leaves = jax.tree.map(lambda x: torch.tensor(np.asarray(x), requires_grad=True), params)
    states = ByHand(torch, torchs, cell, score, query, leaves).states()
    (states * torch.tensor(SLOPES)).sum().backward()
    ours = jax.jit(
        jax.grad(lambda p: (net.apply({"params": p}, BATCH, train=False)[0] * SLOPES).sum())
    )
    np.testing.assert_allclose(read(net, params), states.detach().numpy(), atol=1e-10)
    for (path, found), leaf in zip(
        jax.tree_util.tree_leaves_with_path(ours(params)), jax.tree.leaves(leaves), strict=True
    ):
        theirs = leaf.grad.numpy()
        assert np.abs(theirs).max() > 1e-3, path
        np.testing.assert_allclose(
            found, theirs, atol=1e-10 * np.abs(theirs).max(), err_msg=str(path)
        )


# --- Decoding, alignments, options ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("score", "query"), [("location", None), (None, None), ("general", "current")]
)
def test_decoding_step_by_step_is_the_whole_pass(score: str | None, query: str | None) -> None:
    """The tests of all systems with a source have the default, with another cache."""
    net, params = make(score, query=query)
    whole, rows = np.asarray(read(net, params)), np.arange(B)
    step = jax.jit(lambda batch, c: net.apply({"params": params}, batch, train=False, cache=c))
    read_source = {n: BATCH[n] for n in ("source", "source_lengths", "examples")}
    cache = net.apply({"params": params}, read_source, T, method="encode")
    done = np.array([2, 1, 3])
    batch = {"tokens": BATCH["tokens"][:, :3], "lengths": done, "examples": rows}
    hidden, cache = step(batch, cache)
    np.testing.assert_allclose(hidden[rows, done - 1], whole[rows, done - 1], atol=1e-12)
    for k in range(3):
        tokens = BATCH["tokens"][rows, done + k][:, None]
        hidden, cache = step({"tokens": tokens, "lengths": 0 * done + 1, "examples": rows}, cache)
        np.testing.assert_allclose(hidden[:, 0], whole[rows, done + k], atol=1e-12)


def test_alignments_are_distributions_over_the_real_source() -> None:
    net, params = make()
    _, kept = net.apply({"params": params}, BATCH, train=False, mutable=["intermediates"])
    (weights,) = jax.tree.leaves(kept)
    assert WEIGHTS in str(jax.tree_util.tree_structure(kept)) and weights.shape == (L, B, 1, T, S)
    padding = np.arange(S) >= BATCH["source_lengths"][:, None]
    np.testing.assert_allclose(weights.sum(axis=-1), 1, rtol=1e-12)
    assert not np.any(weights * padding[:, None, None])


@pytest.mark.parametrize("score", [None, *SCORES])
def test_n_model_counts_the_kernels_of_every_score_and_cell(score: str | None) -> None:
    for cell, query in [(cell, None) for cell in CELLS] + [("gru", score and "current")]:
        options, terms = rnnsearch.Options(score, cell, query), tiny.terms(rnnsearch, "seq2seq")
        sizes = dataclasses.replace(SIZES, num_layers=1 if query else L)
        shapes = tiny.draw(rnnsearch.build(sizes, options, tiny.VOCAB), terms, S)
        kernels = [
            x.size for path, x in jax.tree_util.tree_leaves_with_path(shapes)
            if path[-1].key.endswith("kernel")
        ]  # fmt: skip
        assert sum(kernels) == rnnsearch.n_model(sizes, options)


def test_a_score_without_a_name_is_refused() -> None:
    with pytest.raises(ValueError, match="system_options.score = 'addditive'.*'additive'.*None"):
        tiny.parts("rnnsearch", system_options__score="addditive")


def test_a_query_without_a_score_and_in_several_layers_is_refused() -> None:
    with pytest.raises(ValueError, match="'current': set a system_options.score"):
        make(None, query="current")
    options = rnnsearch.Options("dot", "gru", "current")
    with pytest.raises(ValueError, match=f"'current' with {L} layers"):
        rnnsearch.build(SIZES, options, tiny.VOCAB)
