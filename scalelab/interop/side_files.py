"""Side files: they keep the facts and tensors that a conversion would lose.

A run folder has imported/source.json and imported/originals.safetensors with the parts of a
checkpoint that our parameters lose. An export has scalelab.safetensors with the parameters that
`fold_bias` changed.
"""

import dataclasses
import hashlib
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from scalelab.helpers.files import write_json
from scalelab.interop import convert
from scalelab.interop.mapping import Map
from scalelab.runs.json_files import fill, read_object

WEIGHTS = "model.safetensors"  # of a folder in Hugging Face layout
FACTS, ORIGINALS = "imported/source.json", "imported/originals.safetensors"
CONFIG_FIELDS = ("pad_token_id", "bos_token_id", "eos_token_id", "problem_type")
UNFOLDED = "scalelab.safetensors"
KERNEL, BIAS = "head/out/kernel", "head/out/bias"


@dataclasses.dataclass(frozen=True)
class SourceFacts:
    """The facts of an imported checkpoint that its parameters do not hold.

    Attributes:
      sizes: vocab_rows and num_segments, as in convert.Sizes.
      dtypes: tensor name in the map -> dtype; float32 tensors are left out.
      fields: the values of CONFIG_FIELDS that its config.json has.
    """

    sizes: dict[str, int] = dataclasses.field(default_factory=dict)
    dtypes: dict[str, str] = dataclasses.field(default_factory=dict)
    fields: dict[str, Any] = dataclasses.field(default_factory=dict)


def save_source(workdir: pathlib.Path, facts: SourceFacts, originals: convert.Flat) -> None:
    """Writes the facts, and the tensors that our parameters cannot restore, into a run folder."""
    (workdir / FACTS).parent.mkdir()
    write_json(workdir / FACTS, dataclasses.asdict(facts))
    if originals:
        save_file(originals, workdir / ORIGINALS)


def load_source(workdir: pathlib.Path) -> tuple[SourceFacts, convert.Flat]:
    """Reads the files of `save_source`; empty facts if the run is not an import.

    Raises:
      ValueError: a file is damaged.
    """
    facts = fill(SourceFacts, read_object(workdir / FACTS) or {}, workdir / FACTS)
    return facts, _load(workdir / ORIGINALS)[0]


def _load(file: pathlib.Path) -> tuple[convert.Flat, dict[str, str]]:
    """Returns tensors and metadata of a safetensors file; empty if it is missing."""
    if not file.is_file():
        return {}, {}
    try:
        with safe_open(file, "numpy") as opened:
            return load_file(file), opened.metadata() or {}
    except Exception as error:  # safetensors raises its own error class, and others
        raise ValueError(f"{file} is damaged ({error}): import or export again") from None


def fold_bias(flat: Mapping[str, np.ndarray], family: Map, name: str) -> convert.Flat:
    """Moves the bias of a classifier's scores into the last shift of the hidden states.

    The classes of GPT compute h W where we compute h W + b. (h + d) W = h W + b if d W = b; the
    shortest such d is added to the shift.

    Returns:
      The parameters that change, by path.

    Raises:
      ValueError: there is no such d.
    """
    path, bias = family.last_shift, flat[BIAS]
    if path is None or not bias.any():
        return {}
    kernel = flat[KERNEL].astype(np.float64)
    if np.linalg.matrix_rank(kernel) < kernel.shape[1]:
        raise ValueError(
            f"{name} has no bias on its scores, and this run's bias cannot move into the last norm:"
            " the columns of the head's kernel are linearly dependent"
        )
    moved = np.linalg.lstsq(kernel.T, bias.astype(np.float64), rcond=None)[0]
    shift = flat[path].copy()
    last = shift[-1] if shift.ndim == 2 else shift  # layers are stacked on axis 0
    last += moved.astype(shift.dtype)
    return {path: shift, BIAS: np.zeros_like(bias)}


def save_unfolded(before: convert.Flat, folder: pathlib.Path) -> None:
    """Writes the original values of the parameters that `fold_bias` changed into an export."""
    save_file(before, folder / UNFOLDED, metadata={"sha256": _digest_tensors(folder)})


def load_unfolded(folder: pathlib.Path) -> convert.Flat:
    """Reads the file of `save_unfolded`; empty if the tensors beside it have changed since.

    Raises:
      ValueError: the file is damaged.
    """
    kept, metadata = _load(folder / UNFOLDED)
    return kept if kept and metadata.get("sha256") == _digest_tensors(folder) else {}


def _digest_tensors(folder: pathlib.Path) -> str:
    with (folder / WEIGHTS).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
