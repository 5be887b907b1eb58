"""Learning-rate schedules: pure functions of (elapsed, warmup, total), all three on the same clock.

The clock may be steps, tokens, FLOPs or seconds; a schedule cannot tell. Each returns a factor in
[0, 1].
"""

import math
from collections.abc import Callable

from scalelab.helpers.names import nearest

Schedule = Callable[[float, float, float], float]


def _after_warmup(elapsed: float, warmup: float, total: float) -> float:
    """Progress in [0, 1] from the end of the warm-up to the end of the budget."""
    return min(1.0, (elapsed - warmup) / max(total - warmup, 1e-30))


def linear(elapsed: float, warmup: float, total: float) -> float:
    """Linear warm-up, then linear decay to 0 (Devlin et al. 2019, A.2)."""
    if elapsed < warmup:
        return elapsed / warmup
    return 1.0 - _after_warmup(elapsed, warmup, total)


def cosine(elapsed: float, warmup: float, total: float) -> float:
    """Linear warm-up, then half a cosine down to 0 (Radford et al. 2018, 4.1)."""
    if elapsed < warmup:
        return elapsed / warmup
    return 0.5 * (1.0 + math.cos(math.pi * _after_warmup(elapsed, warmup, total)))


def constant(elapsed: float, warmup: float, total: float) -> float:
    """Linear warm-up, then no decay."""
    del total
    return min(1.0, elapsed / warmup) if warmup else 1.0


SCHEDULES: dict[str, Schedule] = {"linear": linear, "cosine": cosine, "constant": constant}


def get(name: str) -> Schedule:
    """Finds a schedule by name.

    Raises:
      ValueError: no such schedule.
    """
    if name not in SCHEDULES:
        raise ValueError(f"unknown schedule {name!r}: {nearest(name, SCHEDULES)}")
    return SCHEDULES[name]
