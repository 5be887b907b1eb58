"""Our nets and the classes of transformers on the same batch, and how far apart they are.

Both sides give hidden states of every layer, logits, losses and the gradient of every parameter, in
float32 or in float64.
"""

import functools
from collections.abc import Callable
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import peers
import tiny
import torch
from flax import linen as nn

from scalelab import objectives, systems
from scalelab.config.fields import make_options
from scalelab.interop import maps
from scalelab.nn.stack import STATES

Shape = tuple[int, int, int]
Found = dict[str, Any]
Batch = dict[str, np.ndarray]
FLOAT32 = jnp.float32


def build(system: str, shape: Shape, max_len: int, **more: Any) -> nn.Module:
    """Our net of a shape (A, H, L)."""
    vocab_size = more.pop("vocab_size", peers.VOCAB)
    others = {"ffn_width": 4 * shape[1], "max_len": max_len, "dropout_rate": 0.1}
    module = systems.load(system)
    family, fields = maps.load(system), peers.options(system, shape[2])
    read = [f for f in family.options if f.switch is None or fields.get(f.switch)]
    given = dict(family.required) | {field.name: fields[field.key] for field in read}
    options = make_options(module, given)
    return module.build(systems.Sizes(*shape, **others | more), options, vocab_size)


def make_terms(system: str, vocab_size: int, mask_rate: float) -> tuple[Any, ...]:
    module = systems.load(system)
    ids = {role: i for i, (role, _) in enumerate(module.SPECIAL_TOKENS)}
    names = peers.OBJECTIVES[system]
    setting = objectives.Setting(vocab_size, ids, mask_rate)
    return objectives.make(dict.fromkeys(names, 1.0), setting)


def make_batch(system: str, length: int) -> Batch:
    """Random tokens without special ones, ragged; padding as the family pads."""
    module = systems.load(system)
    roles = [role for role, _ in module.SPECIAL_TOKENS]
    lengths = np.maximum(1, np.array([length, 2 * length // 3, length // 3]))
    tokens = np.random.default_rng(1).integers(len(roles), peers.VOCAB, (3, length))
    pad = roles.index("pad") if "pad" in roles else 0
    return {
        "tokens": np.where(np.arange(length) < lengths[:, None], tokens, pad).astype(np.int32),
        "lengths": lengths.astype(np.int32),
        "second_starts": (lengths // 2).astype(np.int32),
        "examples": np.arange(3, dtype=np.int32),
    } | {name: np.array([0, 1, 1], np.int32) for name in tiny.label_names()}


def valid_places(batch: Batch) -> np.ndarray:
    """Which places [B, T] are no padding."""
    return np.arange(batch["tokens"].shape[1]) < batch["lengths"][:, None]


@functools.cache
def prepare(system: str, length: int) -> tuple[tuple[Any, ...], Batch]:
    """The family's objectives and a batch that they have prepared."""
    made = make_terms(system, peers.VOCAB, mask_rate=0.3)
    # The same draws for both precisions.
    with jax.enable_x64(False), mock.patch.object(jnp, "float32", FLOAT32):
        batch = make_batch(system, length)
        for term in made:
            batch = term.objective.prepare(batch, jax.random.key(0))
    return made, jax.device_get(batch)


in_double = tiny.in_double


def ours(
    system: str,
    shape: Shape,
    length: int,
    *,
    gradients: bool = False,
    output_embedding: str | None = None,
    **changed: np.ndarray,
) -> Callable[[Any], Found]:
    """Our system, compiled, as a function of its parameters."""
    made, batch = prepare(system, length)
    dtype = jnp.float32  # float64 in double
    batch = {k: x.astype(dtype) if x.dtype.kind == "f" else x for k, x in (batch | changed).items()}
    more = {"dtype": dtype, "output_embedding": output_embedding}
    net = build(system, shape, max(length, 2), **more)

    def forward(model: Any) -> tuple[Found, jax.Array]:
        ctx = objectives.Pass(jax.random.key(0))
        hidden = ctx.hidden(model, batch)
        found = objectives.apply_objectives(model, batch, made, ctx)
        terms = {name: pairs["loss"] for name, pairs in found.items()}
        out = {"hidden": hidden, "logits": model.token_logits(hidden)}
        if system in peers.PAIRS:
            out["pair_logits"] = model.pair_logits(hidden)
        losses = {
            f"{k} loss": total / jnp.maximum(weight, 1) for k, (total, weight) in terms.items()
        }
        return out | losses, sum(losses.values())

    def loss_fn(params: Any) -> tuple[jax.Array, Found]:
        apply = nn.apply(forward, net, mutable=[STATES, "intermediates"])
        (out, loss), found = apply({"params": params})
        (layers,) = jax.tree.leaves(found[STATES])
        weights, *_ = jax.tree.leaves(found["intermediates"])
        return loss, out | {"layers": layers, "attention": weights, "loss": loss}

    if not gradients:
        return jax.jit(lambda params: loss_fn(params)[1])
    with_gradients = jax.jit(jax.value_and_grad(loss_fn, has_aux=True))

    def run(params: Any) -> Found:
        (_, out), grads = with_gradients(params)
        return out | {"gradients": grads}

    return run


def inputs(system: str, batch: Batch) -> dict[str, torch.Tensor]:
    """A prepared batch as the class of transformers takes it."""
    valid = valid_places(batch)
    labels = np.where(valid, batch["tokens"], -100)
    if "mlm_positions" in batch:
        labels = np.full(valid.shape, -100)
        for row, chosen in enumerate(batch["mlm_weights"] > 0):
            labels[row, batch["mlm_positions"][row][chosen]] = batch["mlm_targets"][row][chosen]
    arrays = {"input_ids": batch["tokens"], "attention_mask": valid, "labels": labels}
    if "token_type_ids" in maps.load(system).inputs:
        arrays["token_type_ids"] = np.arange(valid.shape[1]) >= batch["second_starts"][:, None]
    if system in peers.PAIRS:
        (label,) = objectives.load(peers.PAIRS[system]).NEEDS
        arrays |= {peers.PEERS[system].pair[0]: batch[label]} if label in batch else {}
    return {name: torch.tensor(np.asarray(x, np.int64)) for name, x in arrays.items()}


def theirs(system: str, model: Any, length: int) -> Found:
    """A class of transformers, in the precision of its parameters."""
    given = inputs(system, prepare(system, length)[1])
    model.zero_grad()
    out = model(**given, output_hidden_states=True, output_attentions=True)
    logits = out.prediction_logits if system in peers.PAIRS else out.logits
    found = {
        "layers": np.stack([h.detach().numpy() for h in out.hidden_states[1:]]),
        "attention": np.stack([a.detach().numpy() for a in out.attentions]),
        "hidden": out.hidden_states[-1].detach().numpy(),
        "logits": logits.detach().numpy(),
    }
    causal = systems.load(system).PREDICTS == "next"
    if causal and length == 1:
        return found  # one token says nothing of a next one
    # Their losses of next tokens are of logits rounded to float32: here they are taken anew.
    cross_entropy, labels = torch.nn.functional.cross_entropy, given["labels"]
    if causal:
        losses = {"clm loss": cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())}
    else:
        losses = {"mlm loss": cross_entropy(logits.flatten(0, 1), labels.flatten())}
    if system in peers.PAIRS:
        label, scores = peers.PEERS[system].pair
        pairs = out[scores]
        found["pair_logits"] = pairs.detach().numpy()
        losses[f"{peers.PAIRS[system]} loss"] = cross_entropy(pairs, given[label])
    total = sum(losses.values())
    assert relative(out.loss.item(), total.item()) < 1e-5
    total.backward()
    found |= {name: loss.item() for name, loss in losses.items()}
    return found | {"loss": total.item(), "gradients": peers.gradients(model)}


def relative(a: Any, b: Any) -> float:
    """Largest difference, in units of the largest value of b."""
    b = np.asarray(b)
    return float(np.abs(np.asarray(a) - b).max() / max(np.abs(b).max(), 1e-6))


def is_gradient(name: str) -> bool:
    """Whether an error is that of a gradient."""
    return name.startswith("[")


def errors(system: str, found: Found, exact: Found, rounding: float = 1e-5) -> dict[str, float]:
    """Relative error of everything; what stands on padding is left out.

    Args:
      system: the family.
      found: of either side.
      exact: of theirs, in float64.
      rounding: what may be left of a gradient that is 0, in units of the largest gradient.
    """
    valid = valid_places(prepare(system, exact["hidden"].shape[1])[1])
    apart = {
        name: relative(found[name], exact[name])
        for name in exact
        if name == "pair_logits" or name.endswith("loss")
    }
    for name in ("hidden", "logits"):
        apart[name] = relative(found[name][valid], exact[name][valid])
    # Their last hidden states are behind the norm that ends a net of pre-norm layers.
    ends_in_norm = any("norm/scale" in row.paths for row in maps.load(system).body)
    for i in range(len(exact["layers"]) - ends_in_norm):
        apart[f"layer {i}"] = relative(found["layers"][i][valid], exact["layers"][i][valid])
    for i in range(len(exact.get("attention", ()))):
        maps_of_layer = (x["attention"][i].swapaxes(1, 2)[valid] for x in (found, exact))
        apart[f"attention {i}"] = relative(*maps_of_layer)
    if "gradients" not in found or "gradients" not in exact:
        return apart
    a, b = (leaves(x["gradients"]) for x in (found, exact))
    assert a.keys() == b.keys()
    largest = max(np.abs(g).max() for g in b.values())
    for name, g in b.items():
        # Adding the same to all scores of a query changes nothing, and of one token the softmax is
        # 1: what is left of such gradients is rounding.
        if np.abs(g).max() < 1e-9 * largest:
            assert np.abs(a[name]).max() < rounding * largest, name
        else:
            apart[name] = relative(a[name], g)
    return apart


def leaves(tree: Any) -> dict[str, np.ndarray]:
    """A tree's arrays by name, layers of a stack apart: one must not hide another's error."""
    found = {}
    for path, x in jax.tree_util.tree_leaves_with_path(tree):
        name = jax.tree_util.keystr(path)
        parts = enumerate(x) if "['stack']" in name else [(None, x)]
        found |= {name if i is None else f"{name} {i}": np.asarray(part) for i, part in parts}
    return found
