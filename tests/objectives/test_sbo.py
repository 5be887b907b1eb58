"""The span boundary objective: its values by a loop over torch modules, and what it may see."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from scalelab import objectives, systems
from scalelab.nn.heads import tied_logits
from scalelab.systems import spanbert

V, T, WIDTH = 23, 40, 8
OPTIONS = spanbert.Options(position_width=5, num_positions=7)
KEY = jax.random.key(0)


TERMS = tiny.terms(spanbert, "span_mlm+sbo", rate=0.4, size=V)


def build() -> Any:
    sizes = systems.Sizes(2, WIDTH, 1, 16, T, dropout_rate=0.0, dtype=jnp.float32)
    return spanbert.build(sizes, OPTIONS, V)


def prepare() -> Any:
    batch = tiny.batch(spanbert, 0, length=T)
    batch["tokens"] %= V
    return tiny.prepare(batch, TERMS, KEY)


class Case:
    """A model of large weights, states as if the encoder had made them, and a masked batch."""

    def __init__(self, batch: Any) -> None:
        self.net = build()
        self.params = tiny.draw(self.net, TERMS, T)
        self.hidden = jnp.array(np.random.default_rng(1).normal(size=(8, T, WIDTH)))
        batch = batch | {"mlm_weights": batch["mlm_weights"].astype(np.float64)}
        self.batch = {k: jnp.array(x) for k, x in batch.items()}

    def apply(self, method: Any, params: Any = None) -> Any:
        return self.net.apply({"params": params or self.params}, method=method)

    def logits(self, hidden: jax.Array, **changed: jax.Array) -> jax.Array:
        """The scores [B, P, V] that the objective reads of given states."""
        batch, found = self.batch | changed, []

        def run(model: Any) -> None:
            class Seen:
                """Keeps what the objective asks the model for."""

                def boundary_features(self, *given: jax.Array) -> Any:
                    found.append(model.boundary_features(*given))
                    return found[0]

            TERMS[1].objective.losses(Seen(), batch, self.context(hidden))  # pyright: ignore

        self.apply(run)
        return tied_logits(*found[0])

    def context(self, hidden: jax.Array) -> objectives.Pass:
        ctx = objectives.Pass(KEY)
        ctx.token_hidden = lambda *_: hidden  # pyright: ignore
        return ctx

    def loss(self, params: Any, **changed: jax.Array) -> tuple[jax.Array, jax.Array]:
        batch, ctx = self.batch | changed, self.context(self.hidden)
        return self.apply(lambda m: TERMS[1].objective.losses(m, batch, ctx)["loss"], params)

    def places(self) -> list[list[int]]:
        """The hidden places of each row, ascending."""
        kept = np.asarray(self.batch["mlm_weights"]) > 0
        positions = np.asarray(self.batch["mlm_positions"])
        return [row[some].tolist() for row, some in zip(positions, kept, strict=True)]


@pytest.fixture
def case() -> Any:
    batch = prepare()
    with tiny.in_double():
        yield Case(batch)


def in_torch(params: Any) -> tuple[Any, Any]:
    import torch

    head = jax.tree.map(lambda x: torch.tensor(np.asarray(x)), params["boundary_head"])
    layers: list[Any] = []
    for name in ("first", "second"):
        kernel, norm = head[name]["kernel"], head[f"{name}_norm"]
        dense = torch.nn.Linear(*kernel.shape).double()
        scale = torch.nn.LayerNorm(kernel.shape[1], eps=1e-12).double()
        dense.load_state_dict({"weight": kernel.T, "bias": head[name]["bias"]})
        scale.load_state_dict({"weight": norm["scale"], "bias": norm["bias"]})
        layers += [dense, torch.nn.GELU(), scale]
    return torch.nn.Embedding.from_pretrained(head["positions"]["table"]), torch.nn.Sequential(
        *layers
    )


def by_loop(case: Case, *, first: int = 1, swapped: bool = False) -> float:
    """The loss, span after span; a span is a run of hidden places; `first` is its first position.

    Position 1 has row 0 of the table.
    """
    import torch

    positions, head = in_torch(case.params)
    hidden, table = (
        torch.tensor(np.asarray(x)) for x in (case.hidden, case.params["embed"]["tokens"]["table"])
    )
    bias, total = torch.tensor(np.asarray(case.params["boundary_head"]["bias"])), 0.0
    for row, places in enumerate(case.places()):
        for number, place in enumerate(places):
            start = end = place
            while start - 1 in places:
                start -= 1
            while end + 1 in places:
                end += 1
            ends = [hidden[row, start - 1], hidden[row, end + 1]][:: -1 if swapped else 1]
            position = min(place - start + first, OPTIONS.num_positions)
            scores = table @ head(torch.cat([*ends, positions.weight[position - 1]])) + bias
            target = int(case.batch["mlm_targets"][row, number])
            total += torch.nn.functional.cross_entropy(scores[None], torch.tensor([target])).item()
    return total


@pytest.mark.ci
@pytest.mark.parity
def test_the_loss_is_that_of_a_loop_over_torch_modules(case: Case) -> None:
    pytest.importorskip("torch")
    total, weight = case.loss(case.params)
    assert weight == sum(map(len, case.places())) > 60
    assert float(total) == pytest.approx(by_loop(case), rel=1e-10)
    for wrong in (by_loop(case, first=2), by_loop(case, swapped=True)):
        assert abs(wrong / float(total) - 1) > 1e-3


def test_a_span_is_read_from_its_two_neighbours_alone(case: Case) -> None:
    """Exactly: derivatives by all other states are 0, those inside the span among them."""
    jacobian = jax.jit(jax.jacrev(lambda row: case.logits(case.hidden.at[0].set(row))[0]))
    seen = np.abs(jacobian(case.hidden[0])).max(axis=(1, 3)) > 0  # [P, T]
    places = case.places()[0]
    for number, place in enumerate(places):
        start = min(p for p in places if {*range(p, place)} <= {*places})
        end = next(p for p in range(place, T) if p not in places)
        assert np.flatnonzero(seen[number]).tolist() == [start - 1, end]
    assert len(places) > 5
    inside = {"span_lefts": case.batch["span_lefts"] + 1}  # a wrong model: it reads the span
    wrong = jax.jit(jax.jacrev(lambda row: case.logits(case.hidden.at[0].set(row), **inside)[0]))
    assert np.abs(wrong(case.hidden[0])[0, :, places[0]]).max() > 0


def test_position_1_is_the_first_token_of_a_span(case: Case) -> None:
    offsets = case.batch["mlm_positions"] - case.batch["span_lefts"]
    used = case.batch["mlm_weights"] > 0
    gradient = jax.jit(jax.grad(lambda params, w: case.loss(params, mlm_weights=w)[0]))
    for offset in (1, 2, OPTIONS.num_positions):
        here = used & (jnp.minimum(offsets, OPTIONS.num_positions) == offset)
        assert here.any()
        found = gradient(case.params, here.astype(jnp.float64))
        rows = np.abs(found["boundary_head"]["positions"]["table"]).max(axis=1)
        assert np.flatnonzero(rows).tolist() == [offset - 1]


def test_the_encoder_is_trained_through_both_heads() -> None:
    """Each loss moves the shared table and layers; each head has one loss."""
    net, prepared = build(), prepare()

    @jax.jit
    @jax.jacrev
    def gradients(params: Any) -> Any:
        found, _ = objectives.forward(net, params, prepared, TERMS, objectives.Pass(KEY))
        return {name: pairs["loss"][0] for name, pairs in found.items()}

    made = jax.tree.map(lambda x: bool(np.any(x)), gradients(tiny.draw(net, TERMS, T)))
    for name, own, other in (
        ("span_mlm", "token_head", "boundary_head"), ("sbo", "boundary_head", "token_head"),
    ):  # fmt: skip
        moved = made[name]
        assert moved["embed"]["tokens"]["table"] and moved["stack"]["layer"]["ffn"]["outer"]["bias"]
        assert all(jax.tree.leaves(moved[own])) and not any(jax.tree.leaves(moved[other]))
