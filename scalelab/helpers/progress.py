"""What a person at a terminal sees of long work: bars, the progress line, the time left."""

import contextlib
import math
import sys
import time
from collections.abc import Callable, Iterator
from typing import TextIO


@contextlib.contextmanager
def show_bar(
    label: str, total: int, *, show: bool, unit: str = "B"
) -> Iterator[Callable[[int], object]]:
    """Shows a bar with the time left on standard error while the block runs.

    Args:
      label: the step.
      total: bytes to do; 0 if not known, which shows the rate only.
      show: False is quiet.
      unit: what is counted, if not bytes.

    Yields:
      A function to call with the number of bytes done since the last call.
    """
    from tqdm import tqdm

    with tqdm(
        desc=label,
        total=total or None,
        unit=unit,
        unit_scale=True,
        mininterval=0.5,
        dynamic_ncols=True,
        file=sys.stderr,
        disable=not show,
    ) as bar:
        yield bar.update


def format_secs(secs: float) -> str:
    """Formats seconds for a person: 59s, 12m05s, 3h07m."""
    if not math.isfinite(secs):
        return "?"
    minutes, rest = divmod(int(secs), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes:02d}m"
    return f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"


class Eta:
    """Estimates the time left of a run, from its pace since this start."""

    def __init__(self) -> None:
        self._done = self._begun = math.nan

    def start(self, done: float) -> None:
        """Begins to count, once, with the share `done` of the budget already done."""
        if math.isnan(self._begun):
            self._done, self._begun = done, time.monotonic()

    def text(self, done: float) -> str:
        """Returns the time left when the share `done` is done."""
        gained = done - self._done
        if not gained > 0:
            return format_secs(math.inf)
        return format_secs((1 - done) / gained * (time.monotonic() - self._begun))


class Progress:
    """The progress line: rewritten in place on a terminal, a new line now and then elsewhere."""

    def __init__(self, stream: TextIO | None = None, every_secs: float = 10.0) -> None:
        self._stream = stream or sys.stderr
        self._terminal = self._stream.isatty()
        self._every = 1.0 if self._terminal else every_secs
        self._last = -math.inf
        self._width = 0

    def due(self) -> bool:
        """Returns True when it is time to show something again."""
        return time.monotonic() - self._last >= self._every

    def show(self, text: str, *, final: bool = False) -> None:
        """Shows `text`; the final one stays."""
        self._last = time.monotonic()
        end = "\n" if final or not self._terminal else ""
        start = "\r" if self._terminal else ""
        self._stream.write(start + text.ljust(self._width) + end)
        self._stream.flush()
        self._width = 0 if end else len(text)
