"""Random numbers by address: draw number i of a stream, at the same cost for every i.

SplitMix64 (Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators"): a counter
passed through a mixing function.
"""

from collections.abc import Iterable

import numpy as np

_PLACE = np.uint64(0xFFFF)  # low bits, which hold places of rows
_GAMMA = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def mix(values: np.ndarray) -> np.ndarray:
    """Applies SplitMix64's finalizer to uint64: a bijection; every input bit moves every output."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def key(*parts: int) -> int:
    """Mixes integers of any size and sign, in order, into one 64-bit key."""
    state = 0
    for part in parts:
        for word in (part & _MASK, (part >> 64) & _MASK):
            state = int(mix(np.array([(state ^ word) + _GAMMA & _MASK], np.uint64))[0])
    return state


def bits(stream: int | np.ndarray, index: np.ndarray) -> np.ndarray:
    """Returns 64 random bits for each address of a stream, uint64 of index's shape.

    Args:
      stream: a key; or several keys, uint64, which broadcast with `index`.
      index: addresses >= 0.
    """
    with np.errstate(over="ignore"):  # numpy warns if `index` is a single number
        counter = (np.asarray(index).astype(np.uint64) + np.uint64(1)) * np.uint64(_GAMMA)
        return mix(counter + np.uint64(stream))


def uniform(stream: int | np.ndarray, index: np.ndarray) -> np.ndarray:
    """Draws uniformly in [0, 1), one number per index: float64.

    Args:
      stream: uint64 key, or keys that broadcast with `index`.
      index: [...] int, addresses of the numbers, 0 or more.
    """
    return (bits(stream, index) >> np.uint64(11)) * 2.0**-53


def below(stream: int | np.ndarray, index: np.ndarray, limit: np.ndarray | int) -> np.ndarray:
    """Draws uniform integers in [0, limit): int64.

    Args:
      stream: as in `uniform`.
      index: as in `uniform`.
      limit: 1 or more; broadcasts with `index`.
    """
    return (uniform(stream, index) * limit).astype(np.int64)


def streams(count: int, *, seed: int, epochs: np.ndarray, examples: np.ndarray) -> np.ndarray:
    """Returns the keys of several streams for each example in its epoch: uint64 [count, B].

    Args:
      count: number of streams.
      seed: seed of all draws.
      epochs: [B] int.
      examples: [B] int, indices in the store.
    """
    return np.stack([
        bits(key(seed, i), examples) ^ bits(key(seed, count + i), epochs) for i in range(count)
    ])  # fmt: skip


def shuffle(stream: np.ndarray, groups: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Shuffles the places of rows. A group of neighbours stays together, in its order.

    Args:
      stream: keys of the rows, uint64 [B].
      groups: group of each place [B, T] or [T], T up to 65,536.
      lengths: number of places of each row [B]; the places behind them stay last.

    Returns:
      The places in their new order, int64 [B, T].
    """
    places = np.arange(groups.shape[-1])
    assert len(places) <= int(_PLACE) + 1
    keys = bits(stream[:, None], groups) & ~_PLACE | places.astype(np.uint64)
    keys[places >= lengths[:, None]] |= ~_PLACE
    return (np.sort(keys, axis=1) & _PLACE).astype(np.int64)


def subset(stream: np.ndarray, lengths: np.ndarray, counts: np.ndarray, width: int) -> np.ndarray:
    """Chooses `counts` [B] of the first `lengths` [B] places; all ways are equally likely.

    Args:
      stream: keys of the rows, uint64 [B].
      lengths: number of places to choose from.
      counts: number of chosen places, at most `lengths`.
      width: T.

    Returns:
      bool [B, T].
    """
    places, chosen = np.arange(width), np.zeros((len(lengths), width), bool)
    order = shuffle(stream, places, lengths)
    np.put_along_axis(chosen, order, places < counts[:, None], axis=1)
    return chosen


def ordinary(
    stream: int | np.ndarray, index: np.ndarray, vocab_size: int, special: Iterable[int]
) -> np.ndarray:
    """Draws ids of ordinary tokens, uniformly: int64.

    Args:
      stream: as in `uniform`.
      index: as in `uniform`.
      vocab_size: V; ids are below it.
      special: ids that are never drawn.
    """
    excluded = np.unique([*special])
    assert vocab_size > len(excluded), vocab_size
    ranks = below(stream, index, vocab_size - len(excluded))
    return ranks + np.searchsorted(excluded - np.arange(len(excluded)), ranks, side="right")
