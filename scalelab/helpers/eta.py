"""What a person at a terminal sees of a run: the progress line and the time left."""

import math
import sys
import time
from typing import Any


def clock_text(secs: float) -> str:
    """Seconds for a person: 59s, 12m05s, 3h07m."""
    if not math.isfinite(secs):
        return "?"
    minutes, rest = divmod(int(secs), 60)
    hours, minutes = divmod(minutes, 60)
    return (
        f"{hours}h{minutes:02d}m" if hours else f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"
    )


class Eta:
    """How long a run will still take, at the pace since its first step of this start."""

    def __init__(self) -> None:
        self._done = self._begun = math.nan

    def start(self, done: float) -> None:
        """Begins to count, once: the share `done` of the budget was done before."""
        if math.isnan(self._begun):
            self._done, self._begun = done, time.monotonic()

    def text(self, done: float) -> str:
        """The time left, now that the share `done` is done."""
        gained = done - self._done
        if not gained > 0:
            return clock_text(math.inf)
        return clock_text((1 - done) / gained * (time.monotonic() - self._begun))


class Progress:
    """The progress line: rewritten in place on a terminal, a new line now and then elsewhere."""

    def __init__(self, stream: Any = None, every_secs: float = 10.0) -> None:
        self._stream = stream or sys.stderr
        self._terminal = self._stream.isatty()
        self._every = 1.0 if self._terminal else every_secs
        self._last = -math.inf
        self._width = 0

    def due(self) -> bool:
        """Whether it is time to show something again."""
        return time.monotonic() - self._last >= self._every

    def show(self, text: str, *, final: bool = False) -> None:
        """Shows `text`; the final one stays."""
        self._last = time.monotonic()
        end = "\n" if final or not self._terminal else ""
        start = "\r" if self._terminal else ""
        self._stream.write(start + text.ljust(self._width) + end)
        self._stream.flush()
        self._width = 0 if end else len(text)
