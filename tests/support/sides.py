"""Our models and the classes of transformers on the same batch, and how far apart they are.

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
from declared import valid_places
from flax import linen as nn
from flax import traverse_util

from scalelab import formats, objectives, systems
from scalelab.config.fields import make_options
from scalelab.interop import config_json, maps
from scalelab.nn.heads import token_logits
from scalelab.nn.stack import STATES

Shape = tuple[int, int, int]
Found = dict[str, Any]
Batch = dict[str, np.ndarray]
FLOAT32 = jnp.float32


def build(system: str, shape: Shape, max_len: int, **more: Any) -> nn.Module:
    """Our model of a shape (A, H, L)."""
    vocab_size = more.pop("vocab_size", peers.PEERS[system].vocab_size)
    others = {"ffn_width": 4 * shape[1], "max_len": max_len, "dropout_rate": 0.1}
    module = systems.load(system)
    family, fields = maps.load(system), peers.options(system, shape[2])
    read = [f for f in family.options if f.key in fields and fields.get(f.switch or f.key)]
    given = dict(family.required) | {field.name: fields[field.key] for field in read}
    chosen = [c for c in (*family.choices, *family.option_choices) if c.key in fields]
    found = {choice.name: config_json.read_choice(choice, fields) for choice in chosen}
    given |= {name: value for name, value in found.items() if value is not None}
    others |= {name: given[name] for name in given.keys() & {"activation", "norm_epsilon"}}
    options = make_options(module, given)
    return module.build(systems.Sizes(*shape, **others | more), options, vocab_size)


def make_terms(system: str, vocab_size: int, mask_rate: float) -> tuple[Any, ...]:
    names = "+".join(peers.OBJECTIVES[system])
    return tiny.terms(systems.load(system), names, rate=mask_rate, size=vocab_size)


def make_batch(system: str, length: int) -> Batch:
    """Random tokens without special ones in all arrays of tokens, padded as the family pads.

    A text has so many tokens; the format says how many an array has of it.
    """
    module, rng = systems.load(system), np.random.default_rng(1)
    roles = [role for role, _ in module.SPECIAL_TOKENS]
    vocab_size, batch = peers.PEERS[system].vocab_size, {}
    pad = roles.index("pad") if "pad" in roles else 0
    for array in (array for array in tiny.arrays_of(module) if array.is_counted):
        size = _, most = array.shape(length, 3)
        lengths = np.maximum(1, np.array([most, 2 * most // 3, most // 3], np.int32))
        batch[formats.lengths_name(array.name)] = lengths
        batch[array.name] = rng.integers(len(roles), vocab_size, size).astype(np.int32)
        batch[array.name][~valid_places(batch, array.name)] = pad
    batch |= {"second_starts": batch["lengths"] // 2, "examples": np.arange(3, dtype=np.int32)}
    return batch | {name: np.array([0, 1, 1], np.int32) for name in tiny.label_names()}


@functools.cache
def prepare(system: str, length: int) -> tuple[tuple[Any, ...], Batch]:
    """The family's objectives and a batch that they have prepared."""
    made = make_terms(system, peers.PEERS[system].vocab_size, mask_rate=0.3)
    # The same draws for both precisions.
    with jax.enable_x64(False), mock.patch.object(jnp, "float32", FLOAT32):
        batch = make_batch(system, length)
        for term in made:
            change = getattr(term.objective, "prepare", lambda batch, _: batch)
            batch = change(batch, jax.random.key(0))
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
        out = {"hidden": hidden, "logits": token_logits(model, hidden)}
        if system in peers.PAIRS:
            out["pair_logits"] = model.pair_logits(hidden)
        losses = {
            f"{k} loss": total / jnp.maximum(weight, 1) for k, (total, weight) in terms.items()
        }
        return out | losses, sum(losses.values())

    def loss_fn(params: Any) -> tuple[jax.Array, Found]:
        apply = nn.apply(forward, net, mutable=[STATES, "intermediates"])
        (out, loss), found = apply({"params": params})
        for output, (begin, _) in peers.PEERS[system].outputs.items():
            if output not in peers.PEERS[system].states:
                _, (out[output], *_) = below(found["intermediates"], begin)
                continue
            (*outside, _, _, _), layers = below(found[STATES], begin)
            # Their last states are behind the norm that ends a stack of pre-norm layers.
            beside = functools.reduce(dict.__getitem__, outside, params)
            has_norm = any(name.endswith("norm") for name in beside)
            out[output] = layers[:-1] if has_norm else layers
        return loss, out | {"loss": loss}

    if not gradients:
        return jax.jit(lambda params: loss_fn(params)[1])
    with_gradients = jax.jit(jax.value_and_grad(loss_fn, has_aux=True))

    def run(params: Any) -> Found:
        (_, out), grads = with_gradients(params)
        return out | {"gradients": grads}

    return run


def below(collection: Any, begin: str) -> tuple[list[str], Any]:
    """The path, and the value, of the one leaf of a collection whose path has this beginning."""
    named = traverse_util.flatten_dict(collection, sep="/").items()
    ((path, value),) = ((path, value) for path, value in named if path.startswith(begin))
    return path.split("/"), value


def inputs(system: str, batch: Batch) -> dict[str, torch.Tensor]:
    """A prepared batch as the class of transformers takes it."""
    arrays = (peers.PEERS[system].inputs or functools.partial(inputs_of_text, system))(batch)
    return {name: torch.tensor(np.asarray(x, np.int64)) for name, x in arrays.items()}


def inputs_of_text(system: str, batch: Batch) -> Batch:
    """Inputs of a class that reads a text alone."""
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
    if maps.load(system).pads_left:
        places = np.arange(valid.shape[1]) + batch["lengths"][:, None]
        arrays = {n: np.take_along_axis(x, places % valid.shape[1], 1) for n, x in arrays.items()}
    return arrays


def theirs(system: str, model: Any, length: int) -> Found:
    """A class of transformers, in the precision of its parameters."""
    peer, batch = peers.PEERS[system], prepare(system, length)[1]
    given = inputs(system, batch)
    model.zero_grad()
    with peer.exact():
        out = model(**given, output_hidden_states=True, output_attentions=True)
    logits = out.prediction_logits if system in peers.PAIRS else out.logits
    found = {name: np.stack([x.detach().numpy() for x in out[name]]) for name in peer.outputs}
    found["hidden"] = found[peer.states[-1]][-1]
    found |= {name: found[name][1:] for name in peer.states}  # the first are embeddings
    found["valid"] = {name: valid_places(batch, name) for _, name in peer.outputs.values()}
    found["logits"] = logits.detach().numpy()
    scores, labels = logits, given["labels"]
    if peer.inputs is None and systems.load(system).PREDICTS == "next":
        scores, labels = logits[:, :-1], labels[:, 1:]
        if not labels.numel():
            return found  # one token says nothing of a next one
    # Their losses of next tokens are of logits rounded to float32: here they are taken anew.
    cross_entropy, pair = torch.nn.functional.cross_entropy, peers.PAIRS.get(system)
    (of_tokens,) = {*peers.OBJECTIVES[system]} - {pair}
    losses = {f"{of_tokens} loss": cross_entropy(scores.flatten(0, 1), labels.flatten())}
    if pair:
        label, pairs = peer.pair[0], out[peer.pair[1]]
        found["pair_logits"] = pairs.detach().numpy()
        losses[f"{pair} loss"] = cross_entropy(pairs, given[label])
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
    apart = {
        name: relative(found[name], exact[name])
        for name in exact
        if name == "pair_logits" or name.endswith("loss")
    }
    for name in ("hidden", "logits"):
        valid = exact["valid"]["tokens"]
        apart[name] = relative(found[name][valid], exact[name][valid])
    for output, (_, array) in peers.PEERS[system].outputs.items():
        if output not in exact:
            continue
        for i, both in enumerate(zip(found[output], exact[output], strict=False)):
            if both[1].ndim == 4:  # weights [B, N, T, S] -> [B, T, N, S]
                both = [np.swapaxes(x, 1, 2) for x in both]
            apart[f"{output} {i}"] = relative(*(x[exact["valid"][array]] for x in both))
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
        parts = enumerate(x) if "['layer']" in name else [(None, x)]
        found |= {name if i is None else f"{name} {i}": np.asarray(part) for i, part in parts}
    return found
