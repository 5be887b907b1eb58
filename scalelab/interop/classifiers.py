"""Our classifiers beside the classes of `transformers`, which have no place for a bias.

Scores of a GPT are h W + b, theirs h W. An export moves b into the last shift of h, which gives the
same scores, and keeps what it changed in a file beside, with which an import undoes it.
"""

import hashlib
import pathlib

import numpy as np
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from scalelab.finetuning import imported
from scalelab.interop import convert
from scalelab.interop.rows import Map
from scalelab.runs.checkpoint import Checkpoints

EXTRA, MODEL = "scalelab.safetensors", "model.safetensors"
BIAS = "head/out/bias"


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
    given = imported.flat(saved["params"])
    return {name: np.asarray(x) for name, x in given.items()}, int(saved["step"])


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
