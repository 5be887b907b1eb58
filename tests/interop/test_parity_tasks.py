"""Classes with a head for a task against transformers: scores, losses, gradients of everything."""

import contextlib
import functools
from collections.abc import Iterator
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from scalelab import systems
from scalelab.config.finetuning import Head
from scalelab.finetuning import kinds
from scalelab.finetuning.step import FinetuneStep, make_head
from scalelab.interop import maps
from scalelab.interop.mapping import Architecture
from scalelab.nets.classifier import Classifier
from scalelab.nn import heads

pytestmark = pytest.mark.parity
torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install '.[parity]'")
import peers  # noqa: E402
import sides  # noqa: E402
from sides import relative  # noqa: E402

SHAPE, LENGTH = (3, 24, 2), 9
DOUBLE = 1e-10
# Problem -> labels of our batch; two rows of `choices` are one example.
LABELS = {
    "classify": np.array([2, 0, 1, 1], np.int32),
    "regression": np.array([0.5, 4.0, -1.0, 2.5], np.float32),
    "tags": np.array(
        [[0, 2, 1, 0, 3, 0, 0, 1, 0], [0, 1] + [0] * 7, [3] + [0] * 8, [0, 2] + [0] * 7]
    ),
    "choices": np.array([1, 0]),
    "spans": np.array([[1, 3], [0, 4], [0, 0], [2, 7]]),
}
CASES = [
    (system, architecture, problem)
    for system in peers.CLASSES
    for architecture in maps.load(system).architectures
    for problem in LABELS
    if architecture.kind == ("classify" if problem == "regression" else problem)
]


@contextlib.contextmanager
def in_double() -> Iterator[None]:
    """Computes in float64, the head too, whose dtype is a default."""
    double = functools.partial(heads.Linear, dtype=np.float64)
    with sides.in_double(), mock.patch.object(heads, "Linear", double):
        yield


def make_batch(system: str) -> sides.Batch:
    lengths = np.array([9, 5, 1, 8], np.int32)
    tokens = np.random.default_rng(0).integers(5, peers.PAD, (4, LENGTH))
    module = systems.load(system)
    pad = systems.special_ids(module).get("pad", peers.PAD)
    if module.HAS_SOURCE:  # their classifier reads the state of the last end token
        tokens[np.arange(4), lengths - 1] = systems.special_ids(module)["eos"]
    return {
        "tokens": np.where(np.arange(LENGTH) < lengths[:, None], tokens, pad).astype(np.int32),
        "lengths": lengths,
        "second_starts": lengths // 2,
        "examples": np.arange(4, dtype=np.int32),
    }


def ours(system: str, problem: str, reads: str, params: Any) -> dict[str, Any]:
    name = "classify" if problem == "regression" else problem
    kind, labels, num_rows = kinds.load(name), LABELS[problem], 2 if problem == "choices" else 1
    names = ["a", "b", "c"] if problem in ("classify", "tags") else None
    own = Head(maps.load(system).head_kind(name), 0.1)
    outputs, adaptation = kinds.num_outputs(name, names), systems.load(system).ADAPTATION
    head, _ = make_head(own, outputs, SHAPE[1], adaptation)
    module = systems.load(system)
    form = (module.ADAPTATION.source, 2) if module.HAS_SOURCE else ()  # 2: id of </s>
    body = sides.build(system, SHAPE, LENGTH, dtype=jnp.float32)  # float64 in double
    net = Classifier(body, head, reads, num_rows, kind.vectors, *form)
    learner = FinetuneStep(net, optax.identity(), kind.loss)
    batch = make_batch(system) | {"labels": labels, "weights": np.ones(len(labels), np.float32)}

    def loss_fn(params: Any) -> tuple[jax.Array, jax.Array]:
        scores = learner.scores(params, batch)
        total, weight = learner.loss(scores, batch)
        return total / weight, scores

    (value, scores), grads = jax.jit(jax.value_and_grad(loss_fn, has_aux=True))(params)
    scores = np.asarray(scores)[..., 0] if problem == "choices" else np.asarray(scores)
    return {"loss": value, "scores": scores, "gradients": grads}


def theirs(system: str, problem: str, model: Any) -> dict[str, Any]:
    with peers.PEERS[system].exact():
        return run_theirs(system, problem, model)


def run_theirs(system: str, problem: str, model: Any) -> dict[str, Any]:
    labels, batch = LABELS[problem], make_batch(system)
    inputs = {
        k: torch.tensor(np.asarray(x, np.int64))
        for k, x in sides.inputs_of_text(system, batch).items()
        if k != "labels"
    }
    if problem == "choices":
        inputs = {k: x.reshape(-1, 2, LENGTH) for k, x in inputs.items()}
    if problem == "spans":  # their loss is of the places of padding, too
        out = model(**inputs)
        logits = torch.stack([out.start_logits, out.end_logits], dim=-1)
        valid = torch.tensor(sides.valid_places(batch))[..., None]
        masked = logits.masked_fill(~valid, -torch.inf)
        loss = torch.nn.functional.cross_entropy(masked, torch.tensor(labels))
    else:
        given = np.where(labels > 0, labels - 1, -100) if problem == "tags" else labels
        out = model(**inputs, labels=torch.tensor(given.astype(labels.dtype.kind + "8")))
        logits, loss = out.logits, out.loss
    loss.backward()
    return {
        "loss": loss.item(), "scores": logits.detach().numpy(), "gradients": peers.gradients(model)
    }  # fmt: skip


def compare_gradients(system: str, found: Any, expected: Any) -> None:
    gradients = sides.leaves(found)
    for name, b in sides.leaves(expected).items():
        a = gradients[name]
        if name == "['head']['out']['bias']" and maps.load(system).last_shift:
            continue  # their class has none
        # The same added to all scores of a softmax changes nothing.
        if "['key']['bias']" in name or np.abs(b).max() < 1e-9:
            assert np.abs(a).max() < 1e-9 and np.abs(b).max() < 1e-9, name
        else:
            assert relative(a, b) < DOUBLE, name


@pytest.mark.parametrize(
    ("system", "architecture", "problem"), CASES, ids=lambda x: getattr(x, "name", x)
)
def test_agrees_with_hugging_face(system: str, architecture: Architecture, problem: str) -> None:
    """Another token that is read, or other places, are another model."""
    count = {"regression": 1, "classify": 3, "tags": 3}.get(problem, 2)
    more: dict[str, Any] = {"name": architecture.name, "num_labels": count}
    if architecture.kind == "classify":
        more["problem_type"] = {"classify": "single_label_classification"}.get(problem, problem)
    model = peers.make(system, SHAPE, LENGTH, "classify", **more)
    reads, expected = systems.load(system).ADAPTATION.reads, theirs(system, problem, model)
    with in_double():
        params = peers.weights(model)
        found = ours(system, problem, reads, params)
    by_token = problem in ("tags", "spans")
    valid = sides.valid_places(make_batch(system)) if by_token else slice(None)
    scores = expected["scores"][valid]
    assert relative(found["loss"], expected["loss"]) < DOUBLE
    assert relative(found["scores"][valid], scores) < DOUBLE
    compare_gradients(system, found["gradients"], expected["gradients"])
    if by_token:
        wrong = found["scores"][:, ::-1]
    else:
        with in_double():
            other = "last" if reads == "first" else "first"
            wrong = ours(system, problem, other, params)["scores"]
    assert relative(wrong[valid], scores) > 1e-2
