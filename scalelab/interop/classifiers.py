"""Our classifiers beside the classes of `transformers`: shapes, and a bias those have no place for.

Scores of a GPT are h W + b, theirs h W. An export moves b into the last shift of h, which gives the
same scores, and keeps what it changed in a file beside, with which an import undoes it.
"""

import hashlib
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from flax import linen as nn
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from scalelab import state, systems
from scalelab.checkpoint import Checkpoints
from scalelab.interop import convert
from scalelab.interop.rows import Map
from scalelab.nets.classifier import Classifier
from scalelab.nn.heads import OneLayerHead, TwoLayerHead

EXTRA, MODEL = "scalelab.safetensors", "model.safetensors"
BIAS = "head/out/bias"
SIZES = ("num_heads", "width", "num_layers", "ffn_width", "max_len", "dropout_rate")


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
    batch = state.example_batch(1, has_pairs=False)
    made = jax.eval_shape(
        lambda: nn.unbox(whole.init(jax.random.key(0), batch, train=False)["params"])
    )
    return {path.removeprefix("body/"): x for path, x in convert.flatten(made).items()}


def check_config(path: pathlib.Path, values: Mapping[str, Any]) -> None:
    """Refuses a config.json that is not what a fine-tuning leaves.

    Raises:
      ValueError: with what is missing, or is not as it should be.
    """
    net, head = values.get("net"), values.get("head")
    net, head = (x if isinstance(x, Mapping) else {} for x in (net, head))
    found = {name: values.get(name) for name in ("system", "labels", "regression")}
    found |= {f"net.{name}": net.get(name) for name in SIZES} | {"head.kind": head.get("kind")}
    labels = found["labels"]
    fits = {name: isinstance(net.get(name), int) and net[name] > 0 for name in SIZES}
    fits |= {
        "ffn_width": net.get("ffn_width") is None or fits["ffn_width"],
        "dropout_rate": isinstance(net.get("dropout_rate"), int | float),
    }
    fits = {f"net.{name}": good for name, good in fits.items()} | {
        "system": isinstance(found["system"], str),
        "labels": labels is None
        or isinstance(labels, list)
        and all(type(x) is str for x in labels),
        "regression": isinstance(found["regression"], bool),
        "head.kind": found["head.kind"] in ("single", "double"),
    }
    wrong = [f"{name} = {found[name]!r}" for name, good in fits.items() if not good]
    if wrong:
        raise ValueError(
            f"{path}/config.json is not what a fine-tuning leaves: {', '.join(wrong)}; train again"
            " in a new --workdir"
        )


def restore(path: pathlib.Path) -> tuple[convert.Flat, int]:
    """Parameters that a fine-tuning left, by path without "body/", and the steps taken.

    Raises:
      ValueError: there are none.
    """
    if not (path / "checkpoints").is_dir():
        raise ValueError(f"{path} keeps no parameters: {path}/checkpoints is missing")
    checkpoints = Checkpoints(path / "checkpoints", num_last=None)
    restored = checkpoints.restore_as_saved()
    checkpoints.close()
    if restored is None:
        raise ValueError(f"{path} keeps no parameters: the fine-tuning has not finished")
    saved = restored[0]
    flat = convert.flatten(saved["params"])
    return {k.removeprefix("body/"): np.asarray(x) for k, x in flat.items()}, int(saved["step"])


def check_shapes(
    path: pathlib.Path, values: Mapping[str, Any], flat: convert.Flat, vocab_size: int
) -> int:
    """Refuses parameters that are not those that config.json and the tokenizer lead to.

    Returns:
      The number of classes.
    """
    labels = values["labels"]
    bias = flat.get(BIAS, np.zeros(0))
    count = len(labels) if labels and not values["regression"] else bias.shape[-1]
    made = shapes(values["system"], values["net"], values["head"]["kind"], count, vocab_size)
    expected = {name: x.shape for name, x in made.items()}
    wrong = [
        f"{name}: expected {expected.get(name)}, found {flat[name].shape if name in flat else None}"
        for name in sorted(expected.keys() | flat.keys())
        if name not in flat or flat[name].shape != expected.get(name)
    ]
    if wrong:
        raise ValueError(
            f"the checkpoint in {path} is not of the classifier that its config.json and tokenizer"
            f" describe: {'; '.join(wrong[:8])}"
        )
    return count


def fold_bias(flat: convert.Flat, family: Map, name: str) -> convert.Flat:
    """Parameters that give the same scores without a bias: only the changed ones.

    (h + d) W = h W + b where d W = b; of all such d the shortest is taken.

    Args:
      flat: parameters by path.
      family: the map.
      name: the class, for the message.

    Raises:
      ValueError: there is no such d.
    """
    path, bias = family.last_shift, flat[BIAS]
    if path is None or not bias.any():
        return {}
    kernel = flat["head/out/kernel"].astype(np.float64)
    if np.linalg.matrix_rank(kernel) < kernel.shape[1]:
        raise ValueError(
            f"{name} has no bias on its scores, and this run's cannot go elsewhere: the columns of"
            " its kernel depend on each other"
        )
    moved = np.linalg.lstsq(kernel.T, bias.astype(np.float64), rcond=None)[0]
    shift = flat[path].copy()
    last = shift[-1] if shift.ndim == 2 else shift  # layers are stacked on axis 0
    last += moved.astype(shift.dtype)
    return {path: shift, BIAS: np.zeros_like(bias)}


def keep_unfolded(before: convert.Flat, folder: pathlib.Path) -> None:
    """Writes parameters as they were before `fold_bias` beside the tensors of an export."""
    save_file(before, folder / EXTRA, metadata={"sha256": _digest(folder)})


def unfolded(folder: pathlib.Path, params: convert.Flat) -> convert.Flat:
    """What `keep_unfolded` wrote, where the tensors are still those that it was written beside.

    Args:
      folder: an export of ours, or any other folder.
      params: parameters that were read from it.

    Raises:
      ValueError: the file is damaged.
    """
    file = folder / EXTRA
    if not file.is_file() or not (folder / MODEL).is_file():
        return {}
    try:
        with safe_open(file, "numpy") as opened:
            made_beside = (opened.metadata() or {}).get("sha256")
        kept = load_file(file)
    except Exception as error:  # the library has one of its own, and passes others on
        raise ValueError(
            f"{file} is damaged ({error}): without it the import goes on, with the bias of the"
            " scores in the last norm"
        ) from None
    if made_beside != _digest(folder):
        return {}
    fits = all(name in params and params[name].shape == x.shape for name, x in kept.items())
    return kept if fits else {}


def _digest(folder: pathlib.Path) -> str:
    with (folder / MODEL).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
