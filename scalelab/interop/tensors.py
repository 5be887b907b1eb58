"""Reads the safetensors files of a Hugging Face folder: one file, or shards with an index."""

import contextlib
import pathlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from safetensors import safe_open

from scalelab.helpers.names import brief
from scalelab.runs.json_files import read_object

SINGLE_FILE, INDEX = "model.safetensors", "model.safetensors.index.json"
FLOATS = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}  # float32 holds these exactly
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
MAX_DIMENSIONS = 8


class Tensors:
    """The tensors of a folder.

    Attributes:
      shapes: tensor name -> shape.

    Raises:
      ValueError: a file is missing or damaged; the message names it.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        self.shapes: dict[str, tuple[int, ...]] = {}
        self._places: dict[str, tuple[pathlib.Path, str]] = {}
        for file, promised in _list_files(folder).items():
            with _open(file) as opened:
                for name in opened.keys():
                    if name in self.shapes:
                        raise ValueError(f"{name} is in {file.name} and in another file")
                    part = opened.get_slice(name)
                    shape = tuple(part.get_shape())
                    if len(shape) > MAX_DIMENSIONS:
                        raise ValueError(
                            f"{file}: {name} has {len(shape):,} dimensions; expected at most"
                            f" {MAX_DIMENSIONS}"
                        )
                    self.shapes[name] = shape
                    self._places[name] = file, part.get_dtype()
            missing = sorted(promised - self.shapes.keys())
            if missing:
                raise ValueError(f"{folder / INDEX}: {file.name} does not hold {brief(missing)}")

    def dtype(self, name: str) -> str:
        """Returns the dtype of a tensor: float32, float16 or bfloat16.

        Raises:
          ValueError: it has another dtype.
        """
        file, dtype = self._places[name]
        if dtype not in FLOATS:
            raise ValueError(
                f"{name} in {file} has dtype {dtype}; expected one that float32 holds exactly:"
                f" {', '.join(FLOATS)}. Convert the checkpoint, for example with"
                " model.float().save_pretrained(NEW)"
            )
        return FLOATS[dtype]

    def read(self, name: str) -> np.ndarray:
        """Returns a tensor as float32."""
        with _open(self._places[name][0]) as opened:  # each time anew, to release the mapped file
            return opened.get_tensor(name).astype(np.float32, copy=False)


@contextlib.contextmanager
def _open(file: pathlib.Path) -> Iterator[Any]:
    try:
        opened = safe_open(file, "numpy")
    except Exception as error:  # the library has an error class of its own, and passes on others
        raise ValueError(f"{file} is damaged ({brief(error)}): fetch it again") from None
    with opened:
        yield opened


def refuse_pickles(place: str, names: Iterable[str]) -> None:
    """Refuses weights that are stored as pickles, and says how to convert them.

    Args:
      place: the folder, or the name on the hub.
      names: file names in it.

    Raises:
      ValueError: some of the files are pickles.
    """
    pickles = [name for name in names if pathlib.PurePath(name).suffix in PICKLES]
    if pickles:
        raise ValueError(
            f"{place} holds its weights as {', '.join(pickles[:8])}: a pickle, and loading a pickle"
            " can run any code. If you trust it, convert it with PyTorch's restricted loader:"
            f" CLASS.from_pretrained({place!r}).save_pretrained(NEW), with the class that"
            " config.json names; then import NEW"
        )


def _list_files(folder: pathlib.Path) -> dict[pathlib.Path, set[str]]:
    """Returns the files of tensors, each with the tensor names that the index puts into it."""
    if (folder / SINGLE_FILE).is_file():
        return {folder / SINGLE_FILE: set()}
    if not (folder / INDEX).is_file():
        inside = sorted(p.name for p in folder.iterdir())
        refuse_pickles(str(folder), inside)
        raise ValueError(f"{folder} has no {SINGLE_FILE} and no {INDEX}; it holds {brief(inside)}")
    places = (read_object(folder / INDEX) or {}).get("weight_map")
    files: dict[pathlib.Path, set[str]] = {}
    for name, file in places.items() if isinstance(places, dict) else ():
        if type(file) is not str or pathlib.PurePath(file).name != file:
            raise ValueError(f"{folder / INDEX}: {brief(file)} is no file name")
        files.setdefault(folder / file, set()).add(name)
    absent = [path.name for path in files if not path.is_file()]
    if absent or not files:
        raise ValueError(
            f"{folder / INDEX} names no file of tensors that is there: {brief(absent or places)}"
        )
    return files
