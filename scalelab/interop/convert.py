"""Converts arrays between the two layouts by the rows of a map."""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from scalelab.interop.mapping import Architecture, Map, Row
from scalelab.interop.transforms import TRANSFORMS, Sizes

Flat = dict[str, np.ndarray]
ALIGNMENT = 64  # bytes, as XLA aligns buffers
NORM_NAMES = {"gamma": "weight", "beta": "bias"}  # early releases used TensorFlow's names


def flatten(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Returns {"a/b": x} for {"a": {"b": x}}."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        inner = isinstance(value, Mapping)
        flat |= flatten(value, f"{prefix}{key}/") if inner else {prefix + key: value}
    return flat


def unflatten(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Inverts `flatten`."""
    tree: dict[str, Any] = {}
    for path, value in flat.items():
        *groups, name = path.split("/")
        place = tree
        for group in groups:
            place = place.setdefault(group, {})
        place[name] = value
    return tree


def _theirs(row: Row, layer: int) -> tuple[str, ...]:
    return tuple(name.format(layer) for name in row.theirs)


def _layers(row: Row, sizes: Sizes) -> range:
    return range(sizes.num_layers if row.by_layer else 1)


def tensor_names(rows: Iterable[Row], sizes: Sizes) -> list[str]:
    """Returns the tensor names of rows, for every layer."""
    return [name for r in rows for i in _layers(r, sizes) for name in _theirs(r, i)]


def canonical_name(name: str, family: Map, known: set[str]) -> str:
    """Returns the map's name of a tensor: current names of norms, and the body's prefix.

    Args:
      name: the name in a file.
      family: the map.
      known: all names in the map.
    """
    stem, dot, last = name.rpartition(".")
    name = stem + dot + NORM_NAMES.get(last, last)
    bare = {n.removeprefix(family.prefix) for n in known if n.startswith(family.prefix)}
    patterns = (*family.buffers, *(pattern for pattern, _ in family.unused))
    prefixed = family.prefix + name
    if name in known or not family.prefix:
        return name
    if name in bare or any(re.fullmatch(pattern, prefixed) for pattern in patterns):
        return prefixed
    return name


def stored_name(name: str, family: Map, architecture: Architecture) -> str:
    """Returns the name under which an architecture stores a tensor of the map."""
    return name.removeprefix(family.prefix) if architecture.bare else name


def tensor_shapes(
    rows: Iterable[Row], ours: Mapping[str, tuple[int, ...]], sizes: Sizes
) -> dict[str, tuple[int, ...]]:
    """Returns the shapes that tensors must have.

    Args:
      rows: rows of the architecture.
      ours: shapes of our parameters, with vocabulary axes of sizes.vocab_size.
      sizes: what shapes do not tell.
    """
    found = {}
    for r in rows:
        empty = [np.broadcast_to(np.int8(0), ours[path][r.by_layer :]) for path in r.ours]
        made = TRANSFORMS[r.transform].to_theirs(tuple(empty), sizes)
        for i in _layers(r, sizes):
            found |= {name: x.shape for name, x in zip(_theirs(r, i), made, strict=True)}
    return found


def _empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Allocates an aligned array, which JAX on CPU adopts without a copy."""
    size = math.prod(shape) * dtype.itemsize
    raw = np.empty(size + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + size].view(dtype).reshape(shape)


def to_ours(
    rows: Iterable[Row], read: Callable[[str], np.ndarray], sizes: Sizes
) -> tuple[Flat, Flat]:
    """Converts tensors to our parameters.

    Args:
      rows: rows of the architecture.
      read: returns the tensor of a name in the map; called once a name.
      sizes: what shapes do not tell.

    Returns:
      Our parameters by path, layers stacked on axis 0; and the tensors that cannot be restored bit
      for bit from our parameters, such as tables with padding rows.
    """
    flat: Flat = {}
    originals: Flat = {}
    for r in rows:
        transform = TRANSFORMS[r.transform]
        for i in _layers(r, sizes):
            theirs = tuple(read(name) for name in _theirs(r, i))
            made = transform.to_ours(theirs, sizes)
            for path, x in zip(r.ours, made, strict=True):
                if i == 0:
                    flat[path] = _empty((sizes.num_layers,) * r.by_layer + x.shape, x.dtype)
                flat[path][i if r.by_layer else ...] = x
            if transform.drops and not _same(transform.to_theirs(made, sizes), theirs):
                originals |= dict(zip(_theirs(r, i), theirs, strict=True))
    return flat, originals


def to_theirs(rows: Iterable[Row], flat: Mapping[str, Any], sizes: Sizes) -> Flat:
    """Converts our parameters to tensors, by their names in the map; inverts `to_ours`."""
    found: Flat = {}
    for r in rows:
        for i in _layers(r, sizes):
            ours = tuple(np.asarray(flat[path][i] if r.by_layer else flat[path]) for path in r.ours)
            made = TRANSFORMS[r.transform].to_theirs(ours, sizes)
            for name, x in zip(_theirs(r, i), made, strict=True):
                found[name] = np.ascontiguousarray(x)
    return found


def originals_match(
    rows: Iterable[Row], flat: Mapping[str, Any], originals: Mapping[str, np.ndarray], sizes: Sizes
) -> bool:
    """Returns True if the originals that `to_ours` returned still convert to our parameters."""
    for r in rows:  # rows of layers drop nothing
        if not r.by_layer and set(r.theirs) <= originals.keys():
            theirs = tuple(originals[name] for name in r.theirs)
            made = TRANSFORMS[r.transform].to_ours(theirs, sizes)
            if not _same(made, tuple(np.asarray(flat[path]) for path in r.ours)):
                return False
    return True


def _same(a: tuple[np.ndarray, ...], b: tuple[np.ndarray, ...]) -> bool:
    """Returns True if arrays are equal bit for bit."""
    return all(
        x.shape == y.shape
        and np.array_equal(np.ascontiguousarray(x).view(np.uint32), y.view(np.uint32))
        for x, y in zip(a, map(np.ascontiguousarray, b), strict=True)
    )
