"""Tensors of a folder in Hugging Face layout: safetensors files, one or several with an index.

Read here and not by the library `safetensors`: its errors name neither file nor tensor, and it maps
files into memory, which then counts twice against an import's limit. The format is a length, a json
header and the data (github.com/huggingface/safetensors, README).
"""

import json
import math
import pathlib
import struct
from collections.abc import Iterable
from typing import Any

import ml_dtypes
import numpy as np

from scalelab.helpers.names import brief

ONE, INDEX = "model.safetensors", "model.safetensors.index.json"
# What becomes float32 without losing a bit.
FLOATS = {
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}
BYTES = {"BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "I16": 2, "U16": 2, "I32": 4,
    "U32": 4, "I64": 8, "U64": 8, "F64": 8,
}  # fmt: skip
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
MAX_VALUES = 2**60
MAX_HEADER_BYTES = 100_000_000  # as in the library


class Tensors:
    """The tensors of a folder.

    Attributes:
      shapes: of every tensor.

    Raises:
      ValueError: there are none, or a file is damaged; the message names it.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        self._places: dict[str, tuple[pathlib.Path, str, int]] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        for path, wanted in _files(folder).items():
            found = _header(path)
            missing = sorted(set(wanted or ()) - found.keys())
            if missing:
                raise ValueError(
                    f"{folder / INDEX} puts {_some(missing)} into {path.name}, where it is not"
                )
            for name, (dtype, shape, place) in found.items():
                if name in self.shapes:
                    raise ValueError(f"{name} is in {path.name} and in another file too")
                self.shapes[name] = shape
                self._places[name] = path, dtype, place

    def dtype(self, name: str) -> str:
        """Name, as numpy has it, of the dtype of a tensor that can be read."""
        return FLOATS[self._places[name][1]].name

    def check_dtype(self, name: str) -> None:
        """Refuses a tensor that cannot be read.

        Raises:
          ValueError: it has a dtype that would have to be rounded, or is no number with a fraction.
        """
        path, dtype, _ = self._places[name]
        if dtype not in FLOATS:
            raise ValueError(
                f"{name} in {path} has dtype {dtype[:20]}; expected one that float32 holds exactly:"
                f" {', '.join(FLOATS)}; convert the checkpoint, such as by"
                " model.float().save_pretrained(NEW)"
            )

    def read(self, name: str) -> np.ndarray:
        """A tensor as float32.

        Raises:
          ValueError: it has a dtype that would have to be rounded, or is no number with a fraction.
        """
        self.check_dtype(name)
        path, dtype, place = self._places[name]
        shape = self.shapes[name]
        with path.open("rb") as file:
            flat = np.fromfile(file, FLOATS[dtype], math.prod(shape), offset=place)
        return flat.reshape(shape).astype(np.float32, copy=False)


def refuse_pickles(place: str, names: Iterable[str]) -> None:
    """Says why weights in pickles are not read, and what to do instead.

    Args:
      place: the folder, or the name on the hub.
      names: of its files.

    Raises:
      ValueError: some of them are pickles.
    """
    pickles = [name for name in names if pathlib.PurePath(name).suffix in PICKLES]
    if pickles:
        raise ValueError(
            f"{place} holds its weights as {_some(pickles)}: a pickle, and loading one can run"
            " whatever code its author put there. Where you trust it, convert it with PyTorch's"
            " restricted loader, which transformers uses:"
            f" CLASS.from_pretrained({place!r}).save_pretrained(NEW) with the class that"
            " config.json names, then import NEW"
        )


def _files(folder: pathlib.Path) -> dict[pathlib.Path, list[str] | None]:
    """The files of tensors, each with the names that the index promises; None without an index."""
    if (folder / ONE).is_file():
        return {folder / ONE: None}
    if not (folder / INDEX).is_file():
        inside = sorted(p.name for p in folder.iterdir())
        refuse_pickles(str(folder), inside)
        raise ValueError(
            f"{folder} has no {ONE} and no {INDEX}; it holds {_some(inside) or 'nothing'}"
        )
    try:
        places = json.loads((folder / INDEX).read_text(encoding="utf-8"))["weight_map"]
        files: dict[pathlib.Path, list[str] | None] = {}
        for name, file in places.items():
            if pathlib.PurePath(file).name != file:
                raise ValueError(f"{file!r} is no name of a file")
            files.setdefault(folder / file, []).append(name)  # pyright: ignore[reportOptionalMemberAccess]
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise ValueError(
            f"{folder / INDEX} is damaged ({error}): expected weight_map, tensor name -> file"
        ) from None
    absent = [path.name for path in files if not path.is_file()]
    if absent:
        raise ValueError(f"{folder / INDEX} names {_some(absent)}: no such file beside it")
    return files


def _header(path: pathlib.Path) -> dict[str, tuple[str, tuple[int, ...], int]]:
    """Of each tensor in a file its dtype, shape and place in bytes from the file's beginning."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        if not 2 <= length <= min(size - 8, MAX_HEADER_BYTES):
            raise ValueError(
                f"{path} is truncated or no safetensors file: its first 8 bytes promise a header of"
                f" {length:,} bytes, the file has {size:,}; fetch it again"
            )
        raw = file.read(length)
    try:
        entries = json.loads(raw)
        if not isinstance(entries, dict):
            raise ValueError(f"expected an object, got {brief(entries)}")
        entries.pop("__metadata__", None)
        parsed = {name: _entry(value) for name, value in entries.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(
            f"{path} is corrupt: its header cannot be read ({type(error).__name__}: {error});"
            " fetch it again"
        ) from None
    room = size - 8 - length
    for name, (dtype, shape, begin, end) in parsed.items():
        if end > room:
            raise ValueError(
                f"{path} is truncated: its header puts {name} at bytes {begin:,} to {end:,}, but"
                f" only {room:,} bytes of data are there; fetch it again"
            )
        width = FLOATS[dtype].itemsize if dtype in FLOATS else BYTES.get(dtype)
        if end < begin or width is not None and end - begin != width * math.prod(shape):
            raise ValueError(
                f"{path} is corrupt: its header gives {name}, {dtype} {list(shape)},"
                f" {end - begin:,} bytes; fetch it again"
            )
    used = _in_a_row(path, parsed)
    if used != room:
        raise ValueError(
            f"{path} is corrupt: {room:,} bytes of data, of which its header explains {used:,};"
            " fetch it again"
        )
    return {name: (d, shape, 8 + length + begin) for name, (d, shape, begin, _) in parsed.items()}


def _in_a_row(path: pathlib.Path, parsed: dict[str, tuple[str, tuple[int, ...], int, int]]) -> int:
    """The end of the last tensor, each of which must begin where the one before it ends."""
    used, before = 0, "the header"
    for name, (_, _, begin, end) in sorted(parsed.items(), key=lambda item: item[1][2:]):
        if begin != used:
            how = "overlap" if begin < used else f"leave {begin - used:,} bytes between them"
            raise ValueError(
                f"{path} is corrupt: its header puts {name} at bytes {begin:,} to {end:,}, but"
                f" {before} ends at {used:,}: they {how}; fetch it again"
            )
        used, before = end, name
    return used


def _entry(value: Any) -> tuple[str, tuple[int, ...], int, int]:
    begin, end = value["data_offsets"]
    shape = tuple(value["shape"])
    if not all(type(n) is int and 0 <= n < MAX_VALUES for n in (*shape, begin, end)):
        found = brief([*shape, begin, end])
        raise ValueError(f"sizes and places must be whole numbers below 2^60, found {found}")
    if math.prod(n or 1 for n in shape) >= MAX_VALUES:  # beyond what numpy has an index for
        raise ValueError(f"no tensor has the shape {brief(list(shape))}")
    return str(value["dtype"]), shape, begin, end


def _some(names: list[str]) -> str:
    """The first names of a list, in words."""
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
