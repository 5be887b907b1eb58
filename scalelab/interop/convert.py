"""Converts arrays between the two layouts by the rows of a map.

Our parameters are named by path, such as "embed/tokens/table"; "body/" is left out.

Shapes: D width, N heads, K head size, T positions, S segments, V vocabulary, C classes. A torch
`Linear` stores [out, in]; GPT's `Conv1D` and our kernels store [in, out]. A transform converts one
layer at a time.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np

from scalelab.interop.mapping import Row

Arrays = tuple[np.ndarray, ...]
Function = Callable[..., np.ndarray | Arrays]
Flat = dict[str, np.ndarray]
PADDING_ROWS = 2  # RoBERTa counts positions from 2, after the padding id 1 (fairseq)


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Sizes that the arrays' shapes do not determine.

    Attributes:
      num_heads: N.
      num_layers: number of layers.
      vocab_size: V, the number of ids that the tokenizer uses.
      vocab_rows: rows of their vocabulary tables, V and padding.
      num_segments: S, rows of their segment table.
      num_groups: number of groups of layers that share parameters.
    """

    num_heads: int
    num_layers: int
    vocab_size: int
    vocab_rows: int
    num_segments: int = 1
    num_groups: int = 1


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


def _pad(sizes: Sizes, x: np.ndarray) -> np.ndarray:
    rows = np.zeros((sizes.vocab_rows - len(x), *x.shape[1:]), x.dtype)
    return np.concatenate([x, rows]) if len(rows) else x


def _behind_padding(sizes: Sizes, positions: np.ndarray, segments: np.ndarray) -> np.ndarray:
    """[T + 2, D] and [S, D] -> [T, D]: the first segment is added to every token."""
    if len(segments) != sizes.num_segments:
        raise ValueError(f"expected {sizes.num_segments} segments")
    return positions[PADDING_ROWS:] + segments[0]


def _before_padding(sizes: Sizes, x: np.ndarray) -> Arrays:
    segments = np.zeros((sizes.num_segments, x.shape[1]), x.dtype)
    return np.pad(x, [(PADDING_ROWS, 0), (0, 0)]), segments


# Name -> (import, export): functions of the sizes and the arrays that a row names.
# The first function raises ValueError for shapes that contradict the sizes.
TRANSFORMS: dict[str, tuple[Function, Function]] = {
    "same": (lambda _, x: x, lambda _, x: x),
    "transpose": (lambda _, x: x.T, lambda _, x: x.T),
    # Linear [N K, D] <-> [D, N, K]
    "split_heads": (lambda sizes, x: _split(sizes, x.T), lambda _, x: _join(x).T),
    # [N K] <-> [N, K]
    "split_heads_bias": (_split, lambda _, x: _join(x)),
    # Linear [D, N K] <-> [N, K, D]
    "join_heads": (
        lambda sizes, x: x.T.reshape(sizes.num_heads, -1, x.shape[0]),
        lambda _, x: x.reshape(-1, x.shape[-1]).T,
    ),
    # Conv1D [N K, D] <-> [N, K, D]
    "conv1d_join_heads": (
        lambda sizes, x: x.reshape(sizes.num_heads, -1, x.shape[-1]),
        lambda _, x: x.reshape(-1, x.shape[-1]),
    ),
    # Conv1D [..., 3 N K] <-> three of [..., N, K]: query, key, value
    "fused_qkv": (
        lambda sizes, x: tuple(_split(sizes, part) for part in np.split(x, 3, axis=-1)),
        lambda _, *parts: np.concatenate([_join(part) for part in parts], axis=-1),
    ),
    # [V + padding, ...] <-> [V, ...]
    "vocabulary": (_cut, _pad),
    # [T + 2, D] and [S, D] <-> [T, D]
    "behind_padding": (_behind_padding, _before_padding),
    # Linear [C, D] <-> [D, C] and a bias [C] of zeros, see side_files.fold_bias
    "without_bias": (
        lambda _, x: (x.T, np.zeros(len(x), x.dtype)),
        lambda _, kernel, bias: kernel.T,
    ),
}
LOSSY = {"vocabulary", "behind_padding"}  # the second function may not restore the tensors


def _layers(rows: Iterable[Row], sizes: Sizes) -> Iterator[tuple[Row, int, tuple[str, ...]]]:
    """Yields each row once for each of its layers or groups, with the tensor names."""
    for row in rows:
        for i in range(getattr(sizes, row.stacked) if row.stacked else 1):
            yield row, i, tuple(name.format(i, group=i) for name in row.tensors)


def _apply(transform: Function, sizes: Sizes, arrays: Arrays) -> Arrays:
    made = transform(sizes, *arrays)
    return made if isinstance(made, tuple) else (made,)


def tensor_names(rows: Iterable[Row], sizes: Sizes) -> list[str]:
    """Returns the tensor names of rows, for every layer."""
    return [name for _, _, names in _layers(rows, sizes) for name in names]


def to_parameters(
    rows: Iterable[Row], read: Callable[[str], np.ndarray], sizes: Sizes
) -> tuple[Flat, Flat]:
    """Converts tensors to our parameters.

    Args:
      rows: rows of the architecture.
      read: returns the tensor of a name in the map; called once for each name.
      sizes: the sizes of the net.

    Returns:
      Our parameters by path, layers stacked on axis 0; and the tensors that cannot be restored bit
      for bit from our parameters, such as tables with padding rows.

    Raises:
      ValueError: a tensor's shape contradicts the sizes.
    """
    flat: Flat = {}
    originals: Flat = {}
    for row, i, names in _layers(rows, sizes):
        tensors = tuple(read(name) for name in names)
        forward, backward = TRANSFORMS[row.transform]
        try:
            made = _apply(forward, sizes, tensors)
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
        if row.transform in LOSSY and not _same(_apply(backward, sizes, made), tensors):
            originals |= dict(zip(names, tensors, strict=True))
    return flat, originals


def to_tensors(rows: Iterable[Row], flat: Mapping[str, np.ndarray], sizes: Sizes) -> Flat:
    """Converts our parameters to tensors, by their names in the map; inverts `to_parameters`."""
    found: Flat = {}
    for row, i, names in _layers(rows, sizes):
        arrays = tuple(np.asarray(flat[p][i] if row.stacked else flat[p]) for p in row.paths)
        made = _apply(TRANSFORMS[row.transform][1], sizes, arrays)
        found |= {n: np.ascontiguousarray(x) for n, x in zip(names, made, strict=True)}
    return found


def _same(a: Arrays, b: Arrays) -> bool:
    """Returns True if float32 arrays are equal bit for bit."""
    return all(
        x.shape == y.shape and np.array_equal(x.view(np.uint32), y.view(np.uint32))
        for x, y in zip(map(np.ascontiguousarray, a), map(np.ascontiguousarray, b), strict=True)
    )
