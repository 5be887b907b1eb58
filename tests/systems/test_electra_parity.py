"""ELECTRA's discriminator against transformers' ElectraForPreTraining, with uniform replacements.

The generator, as ElectraForMaskedLM, and the classifier are in the tests of every family.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scalelab import objectives, systems
from scalelab.nn import ffn
from scalelab.systems import electra

pytestmark = pytest.mark.parity
torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install '.[parity]'")
import peers  # noqa: E402
import sides  # noqa: E402
import test_parity_steps as steps  # noqa: E402

NAME = "ElectraForPreTraining"
# The second is as wide as its embedding, so without a projection.
SHORT = pytest.param(((3, 84, 1), 3), marks=pytest.mark.ci)
CASES = [((7, 84, 5), 128), ((1, 11, 2), 7), SHORT]
DOUBLE, SINGLE = 1e-10, 1e-4


def make_terms(vocab_size: int = peers.VOCAB, mask_rate: float = 0.3) -> Any:
    setting = objectives.Setting(vocab_size, systems.special_ids(electra), mask_rate)
    return objectives.make({"rtd": 1.0}, setting, {"proposal": "uniform"})


def inputs(batch: Any, rng: jax.Array) -> dict[str, torch.Tensor]:
    """A prepared batch with its replacements; label 1 means replaced."""
    fill = make_terms(mask_rate=0.3)[0].objective.fill
    if batch["tokens"].shape[0] == 4:  # real text
        fill = make_terms(steps.real_text.VOCAB, 0.15)[0].objective.fill
    batch = {name: jnp.asarray(x) for name, x in batch.items()}
    original, filled = fill(None, batch, objectives.Pass(rng))
    arrays = {"input_ids": filled, "labels": filled != original}
    arrays["attention_mask"] = sides.valid_places(batch)
    places = np.arange(filled.shape[1])
    arrays["token_type_ids"] = places >= batch["second_starts"][:, None]
    return {name: torch.tensor(np.asarray(x, np.int64)) for name, x in arrays.items()}


def compare(shape: sides.Shape, length: int, *, sign: int = 1) -> dict[str, float]:
    """Errors against theirs in float64; `sign` -1: their labels mean original."""
    terms, key = make_terms(), jax.random.key(0)
    batch = terms[0].objective.prepare(sides.make_batch("electra", length), key)
    given = inputs(batch, key)
    net = sides.build("electra", shape, max(length, 2), dtype=jnp.float32)
    model = peers.make("electra", shape, max(length, 2), name=NAME)

    def loss_fn(params: Any) -> Any:
        def forward(model: Any) -> Any:
            ctx = objectives.Pass(key)
            hidden = ctx.hidden(model, batch | {"tokens": jnp.array(given["input_ids"].numpy())})
            out = {"hidden": hidden, "logits": model.replaced_logits(hidden)}
            total, weight = terms[0].objective.losses(model, batch, ctx)["loss"]
            return out, total / weight

        (out, loss), states = sides.nn.apply(forward, net, mutable=[sides.STATES])(
            {"params": params}
        )
        layers = next(x for x in jax.tree.leaves(states))
        return loss, out | {"hidden_states": layers, "rtd loss": loss}

    params = peers.weights(model)
    (_, found), grads = jax.jit(jax.value_and_grad(loss_fn, has_aux=True))(params)
    if sign < 0:
        given["labels"] = 1 - given["labels"]
    out = model(**given, output_hidden_states=True)
    # Theirs is of labels in float32: here it is taken anew.
    valid = given["attention_mask"] == 1
    labels = given["labels"][valid].double()
    loss = torch.nn.functional.binary_cross_entropy_with_logits(out.logits[valid], labels)
    assert sides.relative(out.loss.item(), loss.item()) < 1e-5
    loss.backward()
    exact = {
        "valid": {"tokens": valid.numpy()},
        "hidden_states": np.stack([h.detach().numpy() for h in out.hidden_states[1:]]),
        "hidden": out.hidden_states[-1].detach().numpy(),
        "logits": out.logits.detach().numpy(),
        "rtd loss": loss.item(),
        "gradients": peers.gradients(model),
    }
    rounding = DOUBLE if jax.config.jax_enable_x64 else 1e-5
    return sides.errors("electra", found | {"gradients": grads}, exact, rounding)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_float64(case: Any) -> None:
    with sides.in_double():
        found = compare(*case)
    assert len(found) > 20 and max(found.values()) < DOUBLE


def test_float32() -> None:
    assert max(compare((3, 24, 3), 13).values()) < SINGLE


@pytest.mark.ci
def test_what_is_wrong_does_not_agree(monkeypatch) -> None:
    """Label 1 means replaced; and the head's activation is the exact gelu."""
    found = compare((3, 24, 3), 13, sign=-1)
    assert found["rtd loss"] > 0.1 and found["logits"] < SINGLE

    head = electra.ReplacedHead
    monkeypatch.setattr(electra, "ReplacedHead", lambda _, *rest: head(ffn.gelu_tanh, *rest))
    found = compare((3, 24, 3), 13)
    assert found["hidden"] < 5e-6 and found["logits"] > 5e-5


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
def test_five_steps(monkeypatch) -> None:
    vocab_size = steps.real_text.VOCAB
    model = peers.make("electra", steps.SHAPE, steps.LENGTH, vocab_size=vocab_size, name=NAME)
    monkeypatch.setattr(sides, "make_terms", lambda *_, **__: make_terms(vocab_size, 0.15))
    params = peers.weights(model)
    ended, batches = steps.ours("electra", params)
    rngs = iter([jax.random.fold_in(jax.random.key(7), t) for t in range(steps.STEPS)])
    monkeypatch.setattr(sides, "inputs", lambda _, batch: inputs(batch, next(rngs)))
    expected = steps.theirs("electra", model, batches)
    assert steps.distance(ended, expected) < 1e-4 < steps.distance(params, expected) / 10
