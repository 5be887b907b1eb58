"""Classes of `transformers` with random weights, and their arrays in our tree by our maps."""

from collections.abc import Callable
from typing import Any

import declared
import numpy as np
import pytest
import tiny
import torch
import transformers
from flax import traverse_util

from scalelab import objectives, systems
from scalelab.interop import convert, maps
from scalelab.interop.convert import Sizes
from scalelab.interop.mapping import OUTPUT, Architecture, Map

STDDEV = 0.5  # at the usual 0.02 a wrong model would pass
VOCAB = declared.Peer.vocab_size
PAD = VOCAB - 1  # for classifiers that look for the last token before padding

transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
torch.set_num_threads(1)  # tiny shapes; threads that wait for each other take longer


def make(
    system: str,
    shape: tuple[int, int, int],
    max_len: int,
    head: str = "pretraining",
    *,
    vocab_size: int | None = None,
    seed: int = 0,
    name: str | None = None,
    **more: Any,
) -> Any:
    """A model in float64 for evaluation, every parameter drawn anew, to float32's digits.

    Args:
      system: ours.
      shape: (A, H, L).
      max_len: positions that a text may use.
      head: "pretraining", or "classify".
      vocab_size: rows of the embedding; None: as declared.
      seed: of the weights.
      name: another class than that of `head`.
      more: fields of its config.
    """
    peer = PEERS[system]
    given = {"vocab_size": vocab_size or peer.vocab_size, "attn_implementation": "eager"}
    given |= peer.settings(shape, max_len) | options(system, shape[2])
    if head == "classify" and peer.needs_pad:
        given["pad_token_id"] = PAD
    made = getattr(transformers, name or CLASSES[system][head == "classify"])
    model = made(made.config_class(**given | more))
    if more.get("tie_word_embeddings") is False and (output := model.get_output_embeddings()):
        # T5's classes tie until they load a checkpoint with two tables.
        output.weight = torch.nn.Parameter(output.weight.clone())
    return randomise(model.double().eval(), seed)


EXPECTED = {name: declared.get(name).peer for name in tiny.SYSTEMS}
PEERS = {name: peer for name, peer in EXPECTED.items() if isinstance(peer, declared.Peer)}
CLASSES = {name: (peer.pretraining, peer.classifier) for name, peer in PEERS.items()}
# Classes whose pre-training test_parity.py and test_parity_steps.py compare.
TEXTS = [name for name, peer in PEERS.items() if peer.own_test is None]
DECODERS = [name for name in CLASSES if systems.load(name).SEES == "left"]
ENCODERS = [name for name in CLASSES if systems.load(name).PREDICTS == "masked"]
CONSTANTS = {peer.constant for peer in PEERS.values()}
OBJECTIVES = {
    name: peer.objectives or tuple(declared.get(name).first_losses) for name, peer in PEERS.items()
}
PAIRS = {  # objective of the head for pairs
    name: found for name, names in OBJECTIVES.items() for found in names
    if objectives.load(found).HEADS == ("pair",)
}  # fmt: skip
# Every system; one without a peer is skipped with its reason.
REASONS = {name: getattr(peer, "own_test", peer) for name, peer in EXPECTED.items()}
EVERY = [
    pytest.param(name, marks=pytest.mark.skip(reason=reason)) if reason else name
    for name, reason in REASONS.items()
]


def options(system: str, num_layers: int) -> dict[str, Any]:
    """Fields of config.json that only this family has."""
    return PEERS[system].options(num_layers)


def randomise(model: Any, seed: int) -> Any:
    """Draws every parameter that is trained, norm scales around 1."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if not p.requires_grad:  # sinusoids
                continue
            drawn = STDDEV * torch.randn(p.shape, generator=generator, dtype=torch.float64)
            is_scale = p.ndim == 1 and name.endswith("weight")
            p.copy_((drawn + 1.0 if is_scale else drawn).float())
            if name in CONSTANTS:
                p.zero_()
    return model


def architecture_of(model: Any) -> tuple[Map, Architecture]:
    there = {name for name, _ in model.named_parameters()}
    fitting = [
        (m, a) for m in maps.load_all() for a in m.variants if a.name == type(model).__name__
    ]
    firsts = {(m.heads[n][0].tensors[0].format(0), n) for m, _ in fitting for n in m.extras}
    firsts |= {(m.tied[0][0], OUTPUT) for m, _ in fitting if m.tied}
    extras = {extra for name, extra in firsts if name in there}
    return next((m, a) for m, a in fitting if extras == set(a.extras))


def in_our_tree(model: Any, value: Callable[[torch.nn.Parameter], Any]) -> dict[str, Any]:
    """A tree like our parameters of `value` of each of theirs; classifiers: {"body", "head"}."""
    family, architecture = architecture_of(model)
    found = {
        name: np.zeros(p.shape) if name in CONSTANTS else np.asarray(value(p))
        for name, p in model.named_parameters()
    }
    config = model.config
    options = {field.name: getattr(config, field.key) for field in family.options}
    sizes = Sizes(
        config.num_attention_heads,
        config.num_hidden_layers,
        config.vocab_size,
        config.vocab_size,
        num_groups=options.get("num_groups", 1),
    )
    flat = convert.to_parameters(family.rows(architecture), found.__getitem__, sizes)
    tree = traverse_util.unflatten_dict(flat, sep="/")
    if not architecture.kind:
        return tree
    head = tree.pop("head")
    return {"body": tree, "head": head}


def weights(model: Any) -> dict[str, Any]:
    """Its parameters as ours, float32; float64 where that is what float32 means."""
    import jax
    import jax.numpy as jnp

    tree = in_our_tree(model, lambda p: p.detach().numpy())
    return jax.tree.map(lambda x: jnp.array(x, jnp.float32), tree)


def gradients(model: Any) -> dict[str, Any]:
    """Gradients of its parameters as ours."""
    return in_our_tree(
        model, lambda p: np.zeros(p.shape) if p.grad is None else p.grad.detach().numpy()
    )
