"""Classifiers and regressions against transformers: scores, losses, gradients of everything."""

from typing import Any

import jax
import numpy as np
import optax
import pytest

from scalelab import systems
from scalelab.finetuning import kinds
from scalelab.finetuning.kinds import classify
from scalelab.finetuning.step import FinetuneStep, make_head
from scalelab.interop import maps
from scalelab.nets.classifier import Classifier
from scalelab.nn.heads import OneLayerHead, TwoLayerHead

pytestmark = pytest.mark.parity
torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install '.[parity]'")
import peers  # noqa: E402
import sides  # noqa: E402
from sides import relative  # noqa: E402

SHAPE, LENGTH, CLASSES = (3, 24, 2), 9, 3


def make_batch(system: str) -> sides.Batch:
    lengths = np.array([9, 5, 1, 8], np.int32)
    tokens = np.random.default_rng(0).integers(5, peers.PAD, (4, LENGTH))
    pad = systems.special_ids(systems.load(system)).get("pad", peers.PAD)
    return {
        "tokens": np.where(np.arange(LENGTH) < lengths[:, None], tokens, pad).astype(np.int32),
        "lengths": lengths,
        "second_starts": lengths // 2,
        "examples": np.arange(4, dtype=np.int32),
    }


def ours(system: str, params: Any, labels: np.ndarray, reads: str | None = None) -> dict[str, Any]:
    regression = labels.dtype == np.float32
    count, init = 1 if regression else CLASSES, jax.nn.initializers.zeros
    adaptation = systems.load(system).ADAPTATION
    head: Any = OneLayerHead(count, 0.1, init)
    if maps.load(system).head_kind() == "double":
        head = TwoLayerHead(count, SHAPE[1], 0.1, init, adaptation.activation)
    body = sides.build(system, SHAPE, LENGTH)
    net = Classifier(body, head, reads or adaptation.reads)
    learner, weights = FinetuneStep(net, optax.identity(), classify.loss), np.ones(4, np.float32)

    def loss_fn(params: Any) -> tuple[jax.Array, jax.Array]:
        scores = learner.scores(params, make_batch(system), train=False)
        return learner.loss(scores, {"labels": labels, "weights": weights})[0] / 4, scores

    (value, scores), grads = jax.jit(jax.value_and_grad(loss_fn, has_aux=True))(params)
    return {"loss": value, "scores": scores, "gradients": grads}


def theirs(system: str, model: Any, labels: np.ndarray) -> dict[str, Any]:
    batch = make_batch(system)
    inputs = sides.inputs(system, batch)
    out = model(**inputs | {"labels": torch.tensor(labels.astype(labels.dtype.kind + "8"))})
    out.loss.backward()
    return {
        "loss": out.loss.item(),
        "scores": out.logits.detach().numpy(),
        "gradients": peers.gradients(model),
    }


LABELS = {
    "single_label_classification": np.array([2, 0, 1, 1], np.int32),
    "regression": np.array([0.5, 4.0, -1.0, 2.5], np.float32),
}


def compare_gradients(system: str, found: Any, expected: Any) -> None:
    gradients = sides.leaves(found)
    for name, b in sides.leaves(expected).items():
        a = gradients[name]
        if name == "['head']['out']['bias']" and maps.load(system).last_shift:
            continue  # their class has none
        # The same added to all scores of a softmax changes nothing.
        if "['key']['bias']" in name or np.abs(b).max() < 1e-9:
            assert np.abs(a).max() < 1e-4 and np.abs(b).max() < 1e-9, name
        else:
            assert relative(a, b) < 1e-4, name


@pytest.mark.parametrize("problem", LABELS)
@pytest.mark.parametrize("system", peers.CLASSES)
def test_a_task(system: str, problem: str) -> None:
    labels, count = LABELS[problem], 1 if problem == "regression" else CLASSES
    more = {"num_labels": count, "problem_type": problem}
    model = peers.make(system, SHAPE, LENGTH, "classify", **more)
    params = peers.weights(model)
    expected, found = theirs(system, model, labels), ours(system, params, labels)
    assert relative(found["loss"], expected["loss"]) < 1e-5
    assert relative(found["scores"], expected["scores"]) < 1e-5
    compare_gradients(system, found["gradients"], expected["gradients"])
    if count > 1:
        wrong = "last" if systems.load(system).ADAPTATION.reads == "first" else "first"
        assert relative(ours(system, params, labels, wrong)["scores"], expected["scores"]) > 1e-2


# Kind -> labels of our batch; two rows of `choices` are one example.
KINDS = {
    "tags": np.array(
        [[0, 2, 1, 0, 3, 0, 0, 1, 0], [0, 1] + [0] * 7, [3] + [0] * 8, [0, 2] + [0] * 7]
    ),
    "choices": np.array([1, 0]),
    "spans": np.array([[1, 3], [0, 4], [0, 0], [2, 7]]),
}
OTHERS = [
    (system, architecture)
    for system in peers.CLASSES
    for architecture in maps.load(system).architectures
    if architecture.kind in KINDS
]


@pytest.mark.parametrize(("system", "architecture"), OTHERS, ids=lambda x: getattr(x, "name", x))
def test_other_kinds_of_head(system: str, architecture: Any) -> None:
    """Tags, choices and spans: scores, loss and all gradients; another token read differs."""
    name, kind = architecture.kind, kinds.load(architecture.kind)
    labels, num_rows = KINDS[name], 2 if name == "choices" else 1
    tags = ["a", "b", "c"] if name == "tags" else None
    model = peers.make(
        system, SHAPE, LENGTH, "classify", name=architecture.name, num_labels=3 if tags else 2
    )
    batch = make_batch(system)
    count = len(batch["tokens"]) // num_rows
    inputs = {
        k: x.reshape(-1, 2, LENGTH) if num_rows > 1 else x
        for k, x in sides.inputs(system, batch).items()
        if k != "labels"
    }
    out = model(**inputs)
    if name == "spans":
        logits = torch.stack([out.start_logits, out.end_logits], dim=-1)
        padded = (
            torch.arange(LENGTH)[None, :, None] >= torch.tensor(batch["lengths"])[:, None, None]
        )
        masked = logits.masked_fill(padded, -torch.inf)
        loss = torch.nn.functional.cross_entropy(masked, torch.tensor(labels))
    else:
        logits = out.logits
        given = torch.tensor(np.where(labels > 0, labels - 1, -100) if tags else labels)
        loss = model(**inputs, labels=given).loss
    loss.backward()

    adaptation = systems.load(system).ADAPTATION
    head = make_head(
        maps.load(system).head_kind(name),
        kinds.num_outputs(name, tags),
        SHAPE[1],
        0.1,
        adaptation.activation,
    )
    batch |= {"labels": labels, "weights": np.ones(count, np.float32)}

    def ours(params: Any, reads: str) -> Any:
        net = Classifier(sides.build(system, SHAPE, LENGTH), head, reads, num_rows, kind.vectors)
        learner = FinetuneStep(net, optax.identity(), kind.loss)

        def loss_fn(params: Any) -> tuple[jax.Array, jax.Array]:
            scores = learner.scores(params, batch, train=False)
            total, weight = learner.loss(scores, batch)
            return total / weight, scores

        return jax.jit(jax.value_and_grad(loss_fn, has_aux=True))(params)

    (value, scores), gradients = ours(peers.weights(model), "first")
    expected = logits.detach().numpy()
    found = np.asarray(scores)[..., 0] if num_rows > 1 else np.asarray(scores)
    valid = sides.valid_places(batch) if num_rows == 1 else np.ones(found.shape, bool)
    assert relative(found[valid], expected[valid]) < 1e-5
    assert relative(value, loss.item()) < 1e-5
    compare_gradients(system, gradients, peers.gradients(model))
    wrong = (
        np.asarray(ours(peers.weights(model), "last")[0][1])[..., 0]
        if num_rows > 1
        else found[:, ::-1]
    )
    assert relative(wrong[valid], expected[valid]) > 1e-2
