"""The folder of a classifier, fine-tuned or imported: do its config.json and parameters fit?"""

import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from flax import linen as nn

from scalelab import objectives as objectives_lib
from scalelab import systems
from scalelab.nets.classifier import Classifier
from scalelab.nn.heads import OneLayerHead, TwoLayerHead

SIZES = ("num_heads", "width", "num_layers", "ffn_width", "max_len", "dropout_rate")


def flat(params: Any) -> dict[str, Any]:
    """Parameters {"body", "head"} by path, those of the net without "body/"."""
    leaves = jax.tree_util.tree_leaves_with_path(params)
    named = {jax.tree_util.keystr(p, simple=True, separator="/"): x for p, x in leaves}
    return {name.removeprefix("body/"): x for name, x in named.items()}


def shapes(
    system: str, net: Mapping[str, Any], kind: str, num_classes: int, vocab_size: int
) -> dict[str, Any]:
    """Shapes of a classifier's parameters by path, those of the net without "body/".

    Args:
      system: its family.
      net: its sizes, by the names of SIZES.
      kind: of the head, "double" or "single".
      num_classes: C.
      vocab_size: V.
    """
    module: Any = systems.load(system)
    body = module.build(
        **{name: net[name] for name in SIZES} | {"ffn_width": net["ffn_width"] or 4 * net["width"]},
        vocab_size=vocab_size,
    )
    zeros = nn.initializers.zeros_init()
    if kind == "double":
        head = TwoLayerHead(num_classes, net["width"], 0.0, zeros)
    else:
        head = OneLayerHead(num_classes, 0.0, zeros)
    whole = Classifier(body, head, module.ADAPTATION.reads)
    batch = objectives_lib.example_batch(1, has_pairs=False)
    made = jax.eval_shape(
        lambda: nn.unbox(whole.init(jax.random.key(0), batch, train=False)["params"])
    )
    return flat(made)


def check_config(path: pathlib.Path, values: Mapping[str, Any]) -> None:
    """Refuses a config.json that is not what a fine-tuning, or an import, leaves.

    Raises:
      ValueError: with what is missing, or is not as it should be.
    """
    net, head = values.get("net"), values.get("head")
    net, head = (x if isinstance(x, Mapping) else {} for x in (net, head))
    found = {name: values.get(name) for name in ("system", "labels", "regression")}
    found |= {f"net.{name}": net.get(name) for name in SIZES} | {"head.kind": head.get("kind")}
    labels = found["labels"]
    rate = net.get("dropout_rate")
    fits = {name: type(net.get(name)) is int and net[name] > 0 for name in SIZES}
    fits |= {
        "ffn_width": net.get("ffn_width") is None or fits["ffn_width"],
        "dropout_rate": type(rate) in (int, float) and 0 <= rate < 1,
    }
    fits = {f"net.{name}": good for name, good in fits.items()} | {
        "system": isinstance(found["system"], str),
        "labels": (labels is None and found["regression"] is True)
        or (isinstance(labels, list) and labels and all(type(x) is str for x in labels)),
        "regression": isinstance(found["regression"], bool),
        "head.kind": found["head.kind"] in ("single", "double"),
    }
    wrong = [f"{name} = {str(found[name])[:60]}" for name, good in fits.items() if not good]
    if wrong:
        raise ValueError(
            f"{path}/config.json is not what a fine-tuning or an import leaves:"
            f" {', '.join(wrong)}; train or import again in a new --workdir"
        )


def check_shapes(
    path: pathlib.Path, values: Mapping[str, Any], given: Mapping[str, Any], vocab_size: int
) -> int:
    """Refuses parameters that are not those that config.json and the tokenizer lead to.

    Args:
      path: of the run, for the message.
      values: its config.json, checked.
      given: its parameters, as `flat` names them.
      vocab_size: pieces of its tokenizer.

    Returns:
      The number of its head's outputs.

    Raises:
      ValueError: with the shapes of each.
    """
    count = 1 if values["regression"] else len(values["labels"])
    made = shapes(values["system"], values["net"], values["head"]["kind"], count, vocab_size)
    expected = {name: x.shape for name, x in made.items()}
    there = {name: np.shape(x) for name, x in given.items()}
    wrong = [
        f"{name}: expected {expected.get(name)}, found {there.get(name)}"
        for name in sorted(expected.keys() | there.keys())
        if there.get(name) != expected.get(name)
    ]
    if wrong:
        raise ValueError(
            f"the checkpoint in {path} is not of the classifier that its config.json and tokenizer"
            f" describe: {'; '.join(wrong[:8])}"
        )
    return count
