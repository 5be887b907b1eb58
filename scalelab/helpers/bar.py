"""Progress of long work: a bar with an estimate of what remains, on standard error."""

import contextlib
import sys
from collections.abc import Callable, Iterator

from tqdm import tqdm


@contextlib.contextmanager
def bar(what: str, total: int, *, show: bool, unit: str = "B") -> Iterator[Callable[[int], object]]:
    """Shows a bar while the block runs.

    Args:
      what: the step, as its label.
      total: bytes to do; 0 if not known, which shows the rate alone.
      show: False is quiet.
      unit: what is counted, where it is not bytes.

    Yields:
      A function to call with the number of bytes done since the last call.
    """
    with tqdm(
        desc=what,
        total=total or None,
        unit=unit,
        unit_scale=True,
        mininterval=0.5,
        dynamic_ncols=True,
        file=sys.stderr,
        disable=not show,
    ) as shown:
        yield shown.update
