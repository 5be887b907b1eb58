"""Converts arrays between the two layouts by the rows of a map.

Our parameters are named by path, such as "embed/tokens/table"; "body/" is left out.

Shapes: D width, N heads, K head size, T positions, S segments, V vocabulary, C classes. A torch
`Linear` stores [out, in]; GPT's `Conv1D` and our kernels store [in, out]. A transform converts one
layer at a time.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from scalelab.interop.mapping import Function, Row

Arrays = tuple[np.ndarray, ...]
Flat = dict[str, np.ndarray]
KERNEL, BIAS = "head/out/kernel", "head/out/bias"
PADDING_ROWS = 2  # RoBERTa counts positions from 2, after the padding id 1 (fairseq)


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Sizes that an import takes from config.json and the tokenizer."""

    num_heads: int  # N
    num_layers: int  # number of layers
    vocab_size: int  # V, the number of ids that the tokenizer uses
    vocab_rows: int  # rows of their vocabulary tables, V and padding
    num_groups: int = 1  # number of groups of layers that share parameters


def _split(sizes: Sizes, x: np.ndarray) -> np.ndarray:
    """[..., N K] -> [..., N, K]."""
    return x.reshape(*x.shape[:-1], sizes.num_heads, -1)


def _join(x: np.ndarray) -> np.ndarray:
    """[..., N, K] -> [..., N K]."""
    return x.reshape(*x.shape[:-2], -1)


def _cut(sizes: Sizes, x: np.ndarray) -> np.ndarray:
    if len(x) != sizes.vocab_rows:
        raise ValueError(f"expected {sizes.vocab_rows:,} rows, the vocabulary")
    return x[: sizes.vocab_size]


# Name -> (import, export): an import is a function of the sizes and the tensors of a row, an export
# one of our parameters. An import raises ValueError for shapes that contradict the sizes.
TRANSFORMS: dict[str, tuple[Function, Function]] = {
    "same": (lambda _, x: x, lambda x: x),
    "transpose": (lambda _, x: x.T, lambda x: x.T),
    # Linear [N K, D] <-> [D, N, K]
    "split_heads": (lambda sizes, x: _split(sizes, x.T), lambda x: _join(x).T),
    # [N K] <-> [N, K]
    "split_heads_bias": (_split, _join),
    # Linear [D, N K] <-> [N, K, D]
    "join_heads": (
        lambda sizes, x: x.T.reshape(sizes.num_heads, -1, x.shape[0]),
        lambda x: x.reshape(-1, x.shape[-1]).T,
    ),
    # Conv1D [N K, D] <-> [N, K, D]
    "conv1d_join_heads": (
        lambda sizes, x: x.reshape(sizes.num_heads, -1, x.shape[-1]),
        lambda x: x.reshape(-1, x.shape[-1]),
    ),
    # Conv1D [..., 3 N K] <-> three of [..., N, K]: query, key, value
    "fused_qkv": (
        lambda sizes, x: tuple(_split(sizes, part) for part in np.split(x, 3, axis=-1)),
        lambda *parts: np.concatenate([_join(part) for part in parts], axis=-1),
    ),
    # [V + padding, ...] -> [V, ...]
    "vocabulary": (_cut, lambda x: x),
    # [T + 2, D] and [S, D] <-> [T, D]: the first segment is added to every token
    "behind_padding": (
        lambda _, positions, segments: positions[PADDING_ROWS:] + segments[0],
        lambda x: (np.pad(x, [(PADDING_ROWS, 0), (0, 0)]), np.zeros((1, x.shape[1]), x.dtype)),
    ),
    # Linear [C, D] <-> [D, C] and a bias [C] of zeros, see `fold_bias`
    "without_bias": (
        lambda _, x: (x.T, np.zeros(len(x), x.dtype)),
        lambda kernel, bias: kernel.T,
    ),
}


def _functions(row: Row) -> tuple[Function, Function]:
    """Returns the functions of a row: import (tensors -> parameters) and export."""
    return TRANSFORMS[row.transform] if isinstance(row.transform, str) else row.transform


def _names(row: Row, i: int) -> tuple[str, ...]:
    """Returns the tensor names of a row in a layer, or in a group of layers."""
    return tuple(name.format(i, group=i) for name in row.tensors)


def _layers(rows: Iterable[Row], sizes: Sizes) -> Iterator[tuple[Row, int, tuple[str, ...]]]:
    """Yields each row once for each of its layers or groups, with the tensor names."""
    for row in rows:
        for i in range(getattr(sizes, row.stacked) if row.stacked else 1):
            yield row, i, _names(row, i)


def _apply(transform: Function, *given: Any) -> Arrays:
    made = transform(*given)
    return made if isinstance(made, tuple) else (made,)


def tensor_names(rows: Iterable[Row], sizes: Sizes) -> list[str]:
    """Returns the tensor names of rows, for every layer."""
    return [name for _, _, names in _layers(rows, sizes) for name in names]


def to_parameters(rows: Iterable[Row], read: Callable[[str], np.ndarray], sizes: Sizes) -> Flat:
    """Converts tensors to our parameters.

    Args:
      rows: rows of the architecture.
      read: returns the tensor of a name in the map; called once for each name.
      sizes: the sizes of the model.

    Returns:
      Our parameters by path, layers stacked on axis 0.

    Raises:
      ValueError: a tensor's shape contradicts the sizes.
    """
    flat: Flat = {}
    for row, i, names in _layers(rows, sizes):
        tensors = tuple(read(name) for name in names)
        try:
            made = _apply(_functions(row)[0], sizes, *tensors)
            for path, x in zip(row.paths, made, strict=True):
                if i == 0:
                    lead = (getattr(sizes, row.stacked),) if row.stacked else ()
                    flat[path] = np.empty(lead + x.shape, x.dtype)
                place = flat[path][i if row.stacked else ...]
                if place.shape != x.shape:
                    raise ValueError("the layer before it has another shape")
                place[...] = x
        except (ValueError, IndexError, TypeError) as error:
            shapes = ", ".join(f"{n} {x.shape}" for n, x in zip(names, tensors, strict=True))
            raise ValueError(f"config.json contradicts the tensors: {shapes}: {error}") from None
    return flat


def to_tensors(rows: Iterable[Row], flat: Mapping[str, np.ndarray]) -> Flat:
    """Converts our parameters to tensors, by their names in the map; inverts `to_parameters`.

    Args:
      rows: the map.
      flat: path of a parameter -> array.
    """
    found: Flat = {}
    for row in rows:
        arrays = [np.asarray(flat[path]) for path in row.paths]
        layers = zip(*arrays, strict=True) if row.stacked else [arrays]
        for i, layer in enumerate(layers):
            made = _apply(_functions(row)[1], *layer)
            found |= {n: np.ascontiguousarray(x) for n, x in zip(_names(row, i), made, strict=True)}
    return found


def fold_bias(flat: Mapping[str, np.ndarray], path: str) -> Flat:
    """Moves the bias of a classifier's scores into the last shift of the hidden states.

    The classes of GPT compute h W where we compute h W + b. (h + d) W = h W + b if d W = b; the
    shortest such d is added to the shift.

    Args:
      flat: path of a parameter -> array.
      path: path of the shift, [D] or [L, D].

    Returns:
      The parameters that change, by path.

    Raises:
      ValueError: there is no such d.
    """
    bias = flat[BIAS]
    if not bias.any():
        return {}
    kernel = flat[KERNEL].astype(np.float64)
    if np.linalg.matrix_rank(kernel) < kernel.shape[1]:
        raise ValueError(
            "this run's bias on its scores cannot move into the last norm: the columns of the"
            " head's kernel are linearly dependent"
        )
    moved = np.linalg.lstsq(kernel.T, bias.astype(np.float64), rcond=None)[0]
    shift = flat[path].copy()
    last = shift[-1] if shift.ndim == 2 else shift  # layers are stacked on axis 0
    last += moved.astype(shift.dtype)
    return {path: shift, BIAS: np.zeros_like(bias)}
