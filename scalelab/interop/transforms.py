"""The invertible array transforms that the rows of a map may use.

Shapes: D width, N heads, K head size, T positions, S segments, V vocabulary, C classes. A torch
`Linear` stores [out, in]; GPT's `Conv1D` and our kernels store [in, out]. A transform converts one
layer at a time.
"""

import dataclasses
from collections.abc import Callable

import numpy as np

Arrays = tuple[np.ndarray, ...]


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Sizes that the arrays' shapes do not tell.

    Attributes:
      num_heads: N.
      num_layers: number of layers.
      vocab_size: V, the number of ids that the tokenizer uses.
      vocab_rows: rows of their tables over the vocabulary, V and padding.
      num_segments: S, rows of their segment table.
    """

    num_heads: int
    num_layers: int
    vocab_size: int
    vocab_rows: int
    num_segments: int = 1


@dataclasses.dataclass(frozen=True)
class Transform:
    """Both directions of a transform of as many arrays as the row names.

    Attributes:
      to_ours: theirs -> ours.
      to_theirs: ours -> theirs.
      drops: True if to_ours may lose what to_theirs cannot restore.
    """

    to_ours: Callable[[Arrays, Sizes], Arrays]
    to_theirs: Callable[[Arrays, Sizes], Arrays]
    drops: bool = False


def _split(x: np.ndarray, sizes: Sizes) -> np.ndarray:
    """[..., N K] -> [..., N, K]."""
    return x.reshape(*x.shape[:-1], sizes.num_heads, -1)


def _joined(x: np.ndarray) -> np.ndarray:
    """[..., N, K] -> [..., N K]."""
    return x.reshape(*x.shape[:-2], -1)


def _heads_first(x: np.ndarray, sizes: Sizes) -> np.ndarray:
    """[N K, D] -> [N, K, D]."""
    return x.reshape(sizes.num_heads, -1, x.shape[-1])


def _rows_joined(x: np.ndarray) -> np.ndarray:
    """[N, K, D] -> [N K, D]."""
    return x.reshape(-1, x.shape[-1])


def _padded(x: np.ndarray, sizes: Sizes) -> np.ndarray:
    rows = [(0, sizes.vocab_rows - len(x))] + [(0, 0)] * (x.ndim - 1)
    return np.pad(x, rows) if rows[0][1] else x


def _three(x: np.ndarray, sizes: Sizes) -> Arrays:
    return tuple(_split(part, sizes) for part in np.split(x, 3, axis=-1))


PADDING_ROWS = 2  # RoBERTa counts positions from 2, after the padding id 1 (fairseq)


def _behind_padding(theirs: Arrays, sizes: Sizes) -> Arrays:
    """[T + 2, D] and [S, D] -> [T, D]: the first segment is added to every token."""
    del sizes
    positions, segments = theirs
    return (positions[PADDING_ROWS:] + segments[0],)


def _before_padding(ours: Arrays, sizes: Sizes) -> Arrays:
    (positions,) = ours
    width = positions.shape[-1]
    padding = np.zeros((PADDING_ROWS, width), positions.dtype)
    segments = np.zeros((sizes.num_segments, width), positions.dtype)
    return np.concatenate([padding, positions]), segments


def _without_bias(ours: Arrays, sizes: Sizes) -> Arrays:
    del sizes
    kernel, bias = ours
    assert not bias.any(), "a bias that their class has no place for"
    return (kernel.T,)


TRANSFORMS = {
    "same": Transform(lambda x, _: x, lambda x, _: x),
    "transpose": Transform(lambda x, _: (x[0].T,), lambda x, _: (x[0].T,)),
    # Linear [N K, D] <-> [D, N, K]
    "split_heads": Transform(
        lambda x, sizes: (_split(x[0].T, sizes),), lambda x, _: (_joined(x[0]).T,)
    ),
    # [N K] <-> [N, K]
    "split_heads_bias": Transform(
        lambda x, sizes: (_split(x[0], sizes),), lambda x, _: (_joined(x[0]),)
    ),
    # Linear [D, N K] <-> [N, K, D]
    "join_heads": Transform(
        lambda x, sizes: (_heads_first(x[0].T, sizes),), lambda x, _: (_rows_joined(x[0]).T,)
    ),
    # Conv1D [N K, D] <-> [N, K, D]
    "conv1d_join_heads": Transform(
        lambda x, sizes: (_heads_first(x[0], sizes),), lambda x, _: (_rows_joined(x[0]),)
    ),
    # Conv1D [..., 3 N K] <-> three of [..., N, K]: query, key, value
    "fused_qkv": Transform(
        lambda x, sizes: _three(x[0], sizes),
        lambda x, _: (np.concatenate([_joined(part) for part in x], axis=-1),),
    ),
    # [V + padding, ...] <-> [V, ...]
    "vocabulary": Transform(
        lambda x, sizes: (x[0][: sizes.vocab_size],),
        lambda x, sizes: (_padded(x[0], sizes),),
        drops=True,
    ),
    # [T + 2, D] and [S, D] <-> [T, D]
    "behind_padding": Transform(_behind_padding, _before_padding, drops=True),
    # Linear [C, D] <-> [D, C] and a bias [C] of zeros
    "without_bias": Transform(
        lambda x, _: (x[0].T, np.zeros(len(x[0]), x[0].dtype)), _without_bias
    ),
}
