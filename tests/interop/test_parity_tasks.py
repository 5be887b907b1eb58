"""Classifiers and regressions against transformers: scores, losses, gradients of everything."""

from typing import Any

import jax
import numpy as np
import optax
import pytest

from scalelab import systems
from scalelab.finetuning.step import FinetuneStep, losses
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
    if maps.load(system).head_kind == "double":
        head = TwoLayerHead(count, SHAPE[1], 0.1, init, adaptation.activation)
    body = sides.build(system, SHAPE, LENGTH)
    net = Classifier(body, head, reads or adaptation.reads)
    learner = FinetuneStep(net, optax.identity(), regression)

    def loss_fn(params: Any) -> tuple[jax.Array, jax.Array]:
        scores, _ = learner.scores(params, make_batch(system), train=False)
        return losses(scores, labels, regression).mean(), scores

    (loss, scores), grads = jax.jit(jax.value_and_grad(loss_fn, has_aux=True))(params)
    return {"loss": loss, "scores": scores, "gradients": grads}


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
    family, gradients = maps.load(system), sides.leaves(found["gradients"])
    for name, b in sides.leaves(expected["gradients"]).items():
        a = gradients[name]
        if name == "['head']['out']['bias']" and family.last_shift:
            continue  # their class has none
        if "['key']['bias']" in name:
            assert np.abs(a).max() < 1e-4 and np.abs(b).max() < 1e-9
        else:
            assert relative(a, b) < 1e-4, name
    if count > 1:
        wrong = "last" if systems.load(system).ADAPTATION.reads == "first" else "first"
        assert relative(ours(system, params, labels, wrong)["scores"], expected["scores"]) > 1e-2
