"""Five training steps on real text: ours, and PyTorch's AdamW on the class of transformers."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from scalelab import step, systems
from scalelab.objectives import named_key, prepare
from scalelab.optim import adamw
from scalelab.state import TrainState

pytestmark = pytest.mark.parity
torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install '.[parity]'")
import peers  # noqa: E402
import real_text  # noqa: E402
import sides  # noqa: E402
import transformers  # noqa: E402

SHAPE, LENGTH = (3, 24, 2), 16
RATE, DECAY, CLIP, EPS, WARMUP, TOTAL = 1e-3, 0.1, 1.0, 1e-6, 3, 10
STEPS = 5
SOURCES = [system for system in peers.TEXTS if systems.load(system).HAS_SOURCE]


def ours(system: str, params: Any) -> tuple[Any, list[Any]]:
    """Parameters after the steps, and the batches that the objectives made for them."""
    more = {"vocab_size": real_text.VOCAB, "dropout_rate": 0.0, "dtype": jnp.float32}
    net = sides.build(system, SHAPE, LENGTH, **more)
    made = sides.make_terms(system, real_text.VOCAB, mask_rate=0.15)
    tx = adamw.adamw(beta1=0.9, beta2=0.999, eps=EPS, weight_decay=DECAY, clip_norm=CLIP)
    root = jax.random.key_data(jax.random.key(7))
    state = TrainState(jnp.zeros((), jnp.int32), params, tx.init(params), root)
    run = jax.jit(step.make_train_step(net, made, tx))
    prepared = []
    with jax.set_mesh(tiny.one_device()):
        for t in range(STEPS):
            batch = real_text.batch(system, t, length=LENGTH)
            rng = jax.random.fold_in(jax.random.wrap_key_data(root), t)
            prepared.append(jax.device_get(prepare(batch, made, named_key(rng, "mask"))))
            rate = RATE * adamw.linear(t, WARMUP, TOTAL)
            state, metrics = run(state, batch, jnp.float32(rate))
            assert metrics["finite"][0] == 1
    return state.params, prepared


def theirs(
    system: str,
    model: Any,
    batches: list[Any],
    *,
    decay_all: bool = False,
    clip: float = CLIP,
    warmup: int = WARMUP,
) -> Any:
    """Parameters after the steps, in our tree; without dropout: the model is in eval mode."""
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    plain = {n: p for n, p in trained.items() if p.ndim == 1 and not decay_all}
    groups = [
        {"params": [p for n, p in trained.items() if n not in plain], "weight_decay": DECAY},
        {"params": list(plain.values()), "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.999), eps=EPS)
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, warmup, TOTAL)
    for batch in batches:
        optimizer.zero_grad()
        with peers.PEERS[system].exact():
            model(**sides.inputs(system, batch)).loss.backward()
        # PyTorch's own clipping adds 1e-6 to the norm.
        gradients = [p.grad for p in trained.values() if p.grad is not None]
        factor = (clip / torch.nn.utils.get_total_norm(gradients)).clamp(max=1.0)
        torch._foreach_mul_(gradients, factor)
        optimizer.step()
        schedule.step()
    found = peers.in_our_tree(model, lambda p: p.detach().numpy().copy())
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(start[name])
    return found


def distance(a: Any, b: Any) -> float:
    """Largest relative difference of any parameter, each layer's by itself."""
    a, b = sides.leaves(a), sides.leaves(b)
    assert a.keys() == b.keys()
    return max(float(np.abs(a[name] - y).max() / np.abs(y).max()) for name, y in b.items())


def peer(system: str) -> Any:
    """Their model, whose constants are not trained."""
    model = peers.make(system, SHAPE, LENGTH, vocab_size=real_text.VOCAB)
    for name, p in model.named_parameters():
        p.requires_grad_(p.requires_grad and name not in peers.CONSTANTS)
    return model


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
@pytest.mark.parametrize("system", peers.TEXTS)
def test_five_steps(system: str) -> None:
    model = peer(system)
    params = peers.weights(model)
    ended, batches = ours(system, params)
    expected = theirs(system, model, batches)
    assert distance(ended, expected) < 1e-4 < distance(params, expected) / 10
    wrong = {
        "decay of biases and norms": {"decay_all": True},
        "no clipping": {"clip": 1e9},
        "no warm-up": {"warmup": 0},
    }
    for name, change in wrong.items():
        assert distance(ended, theirs(system, model, batches, **change)) > 1e-4, name


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
@pytest.mark.parametrize("system", SOURCES)
def test_five_steps_in_double(system: str) -> None:
    model = peer(system)
    with sides.in_double():
        ended, batches = ours(system, peers.weights(model))
    assert distance(ended, theirs(system, model, batches)) < 1e-10
    slightly = theirs(system, model, batches, clip=CLIP * (1 + 1e-6))
    assert distance(ended, slightly) > 1e-10
