"""Classifiers and regressions against transformers: scores, losses, gradients of everything."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from scalelab import systems
from scalelab.finetuning.step import FinetuneStep, losses
from scalelab.nets.classifier import Classifier
from scalelab.nn.heads import OneLayerHead, TwoLayerHead

pytestmark = pytest.mark.parity
torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install '.[parity]'")
import peers  # noqa: E402
import sides  # noqa: E402

SHAPE, LENGTH, CLASSES = (3, 24, 2), 9, 3


def make_batch(system: str) -> dict[str, np.ndarray]:
    lengths = np.array([9, 5, 1, 8], np.int32)
    tokens = np.random.default_rng(0).integers(5, peers.PAD, (4, LENGTH))
    pad = {"bert": 0, "roberta": 1}.get(system, peers.PAD)
    return {
        "tokens": np.where(np.arange(LENGTH) < lengths[:, None], tokens, pad).astype(np.int32),
        "lengths": lengths,
        "boundaries": lengths // 2,
        "examples": np.arange(4, dtype=np.int32),
    }


def ours(system: str, params: Any, labels: np.ndarray, reads: str | None = None) -> dict[str, Any]:
    module = systems.load(system)
    num_heads, width, num_layers = SHAPE
    body = module.build(
        num_heads=num_heads,
        width=width,
        num_layers=num_layers,
        ffn_width=4 * width,
        vocab_size=peers.VOCAB,
        max_len=LENGTH,
        dropout_rate=0.1,
    )
    regression = labels.dtype == np.float32
    count, init = 1 if regression else CLASSES, jax.nn.initializers.zeros
    double = system in ("bert", "roberta")
    head = TwoLayerHead(count, width, 0.1, init) if double else OneLayerHead(count, 0.1, init)
    net = Classifier(body, head, reads or module.ADAPTATION.reads)
    learner = FinetuneStep(net, optax.identity(), regression)
    batch = make_batch(system)

    def loss_fn(params: Any) -> tuple[jax.Array, jax.Array]:
        scores, _ = learner.scores(params, batch, train=False)
        return losses(scores, labels, regression).mean(), scores

    (loss, scores), grads = jax.jit(jax.value_and_grad(loss_fn, has_aux=True))(params)
    return {"loss": loss, "scores": scores, "gradients": grads}


def theirs(system: str, model: Any, labels: np.ndarray) -> dict[str, Any]:
    batch = make_batch(system)
    inputs = {"input_ids": torch.tensor(batch["tokens"].astype(np.int64))}
    inputs["attention_mask"] = torch.tensor(np.arange(LENGTH) < batch["lengths"][:, None]).long()
    if system == "bert":
        segments = np.arange(LENGTH) >= batch["boundaries"][:, None]
        inputs["token_type_ids"] = torch.tensor(segments).long()
    regression = labels.dtype == np.float32
    inputs["labels"] = torch.tensor(labels).double() if regression else torch.tensor(labels).long()
    out = model(**inputs)
    out.loss.backward()
    return {
        "loss": out.loss.item(),
        "scores": out.logits.detach().numpy(),
        "gradients": peers.gradients(model),
    }


def relative(a: Any, b: Any) -> float:
    return float(np.abs(np.asarray(a) - b).max() / max(np.abs(b).max(), 1e-6))


LABELS = {
    "classification": np.array([2, 0, 1, 1], np.int32),
    "regression": np.array([0.5, 4.0, -1.0, 2.5], np.float32),
}


@pytest.mark.parametrize("kind", LABELS)
@pytest.mark.parametrize("system", peers.CLASSES)
def test_a_task(system: str, kind: str) -> None:
    labels = LABELS[kind]
    regression = kind == "regression"
    problem = "regression" if regression else "single_label_classification"
    model = peers.make(
        system, SHAPE, LENGTH, "classify", num_labels=1 if regression else CLASSES,
        problem_type=problem,
    )  # fmt: skip
    params = peers.weights(model)
    expected, found = theirs(system, model, labels), ours(system, params, labels)
    assert relative(found["loss"], expected["loss"]) < 1e-5
    assert relative(found["scores"], expected["scores"]) < 1e-5
    gradients = sides.leaves(found["gradients"])
    for name, b in sides.leaves(expected["gradients"]).items():
        a = gradients[name]
        if name == "['head']['out']['bias']" and system in ("gpt", "gpt2"):
            continue  # their class has none
        if "['key']['bias']" in name:
            assert np.abs(a).max() < 1e-4 and np.abs(b).max() < 1e-9
        else:
            assert relative(a, b) < 1e-4, name
    if kind == "classification":
        wrong = "last" if systems.load(system).ADAPTATION.reads == "first" else "first"
        assert relative(ours(system, params, labels, wrong)["scores"], expected["scores"]) > 1e-2
    assert jnp.isfinite(found["loss"])
