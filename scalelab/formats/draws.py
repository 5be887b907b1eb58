"""Random numbers by address: draw number i of a stream, at the same cost for every i.

SplitMix64 (Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators"): a counter
passed through a mixing function.
"""

import numpy as np

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
    """Draws uniformly in [0, 1), one number per index: float64, same shape as `index`."""
    return (bits(stream, index) >> np.uint64(11)) * 2.0**-53


def below(stream: int | np.ndarray, index: np.ndarray, limit: np.ndarray | int) -> np.ndarray:
    """Draws uniform integers in [0, limit), limit >= 1: int64, same shape as `index`."""
    return (uniform(stream, index) * limit).astype(np.int64)
