"""Arrays through a map, both ways, and whose names stand alone."""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from scalelab.interop.rows import Architecture, Map, Row
from scalelab.interop.transforms import TRANSFORMS, Sizes

Flat = dict[str, np.ndarray]
ALIGNMENT = 64  # bytes, of XLA's buffers
NORM_NAMES = {"gamma": "weight", "beta": "bias"}  # of the first releases, after TensorFlow's


def flatten(tree: Any, prefix: str = "") -> dict[str, Any]:
    """{"a": {"b": x}} -> {"a/b": x}."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        inner = isinstance(value, Mapping)
        flat |= flatten(value, f"{prefix}{key}/") if inner else {prefix + key: value}
    return flat


def unflatten(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Undoes flatten."""
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


def names(rows: Iterable[Row], sizes: Sizes) -> list[str]:
    """Names of the tensors of some rows, for every layer."""
    return [name for r in rows for i in _layers(r, sizes) for name in _theirs(r, i)]


def canonical(name: str, family: Map, known: set[str]) -> str:
    """A tensor's name as the map has it: old names of norms, and the body with its prefix.

    Args:
      name: as stored.
      family: the map.
      known: every name that the map has.
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


def stored(name: str, family: Map, architecture: Architecture) -> str:
    """A tensor's name as an architecture stores it: without the body's prefix where it is bare."""
    return name.removeprefix(family.prefix) if architecture.bare else name


def shapes(
    rows: Iterable[Row], ours: Mapping[str, tuple[int, ...]], sizes: Sizes
) -> dict[str, tuple[int, ...]]:
    """Shapes that tensors must have.

    Args:
      rows: of the architecture.
      ours: shape of each of our parameters; vocabulary axes as sizes.vocab_size has them.
      sizes: the rest.
    """
    found = {}
    for r in rows:
        empty = [np.broadcast_to(np.int8(0), ours[path][r.by_layer :]) for path in r.ours]
        made = TRANSFORMS[r.transform].to_theirs(tuple(empty), sizes)
        for i in _layers(r, sizes):
            found |= {name: x.shape for name, x in zip(_theirs(r, i), made, strict=True)}
    return found


def _empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An array that JAX on CPU takes over without a copy, which its place in memory decides."""
    size = math.prod(shape) * dtype.itemsize
    raw = np.empty(size + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + size].view(dtype).reshape(shape)


def to_ours(
    rows: Iterable[Row], read: Callable[[str], np.ndarray], sizes: Sizes
) -> tuple[Flat, Flat]:
    """Tensors as our parameters.

    Args:
      rows: of the architecture.
      read: the tensor of a name in the map, each asked for once.
      sizes: what shapes do not tell.

    Returns:
      Our parameters by path, layers stacked on axis 0; and the tensors that our parameters alone
      could not give back bit by bit, such as rows that are padding.
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
    """Our parameters as tensors, by their names in the map; undoes to_ours."""
    found: Flat = {}
    for r in rows:
        for i in _layers(r, sizes):
            ours = tuple(np.asarray(flat[path][i] if r.by_layer else flat[path]) for path in r.ours)
            made = TRANSFORMS[r.transform].to_theirs(ours, sizes)
            for name, x in zip(_theirs(r, i), made, strict=True):
                found[name] = np.ascontiguousarray(x)
    return found


def still_hold(
    rows: Iterable[Row], flat: Mapping[str, Any], originals: Mapping[str, np.ndarray], sizes: Sizes
) -> bool:
    """Whether the tensors that `to_ours` kept aside would still give our parameters."""
    for r in rows:  # what drops anything is no row of layers
        if not r.by_layer and set(r.theirs) <= originals.keys():
            theirs = tuple(originals[name] for name in r.theirs)
            made = TRANSFORMS[r.transform].to_ours(theirs, sizes)
            if not _same(made, tuple(np.asarray(flat[path]) for path in r.ours)):
                return False
    return True


def _same(a: tuple[np.ndarray, ...], b: tuple[np.ndarray, ...]) -> bool:
    """Whether arrays are equal bit by bit."""
    return all(
        x.shape == y.shape
        and np.array_equal(np.ascontiguousarray(x).view(np.uint32), y.view(np.uint32))
        for x, y in zip(a, map(np.ascontiguousarray, b), strict=True)
    )
