"""What a person at a terminal sees of long work: bars, the progress line, the time left."""

import contextlib
import math
import sys
import time
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def show_bar(label: str, total: int, *, show: bool) -> Iterator[Callable[[int], object]]:
    """Shows the share done and the time left: a bar at a terminal, else a line every ten seconds.

    Everything goes to standard error. `total` is 0 if the number of units, such as bytes, is not
    known.

    Yields:
      A function to call with the number of units done since the last call.
    """
    if not show:
        yield lambda count: None
    elif sys.stderr.isatty():
        from rich import progress as shown
        from rich.console import Console

        texts = shown.TextColumn("{task.description}"), shown.BarColumn()
        ends = shown.TaskProgressColumn(show_speed=True), shown.TimeRemainingColumn()
        with shown.Progress(*texts, *ends, console=Console(stderr=True)) as bars:
            task = bars.add_task(label, total=total or None)
            yield lambda count: bars.advance(task, count)
    else:
        line, left, done, begun = Progress(first=False), Eta(0.0), 0, time.monotonic()

        def add(count: int) -> None:
            nonlocal done
            done += count
            if line.due():
                share = done / total if total else 0.0
                known = f"{share:.0%} | ETA {left.text(share)}"
                line.show(f"{label}: {known if total else f'{done:,}'}")

        yield add
        line.show(f"{label}: done in {format_secs(time.monotonic() - begun)}")


@contextlib.contextmanager
def timed(timers: dict[str, float], name: str) -> Iterator[None]:
    """Adds the time spent inside to `timers[name]`, in seconds."""
    begun = time.perf_counter()
    try:
        yield
    finally:
        timers[name] = timers.get(name, 0.0) + time.perf_counter() - begun


def format_secs(secs: float) -> str:
    """Formats seconds for a person: 59s, 12m05s, 3h07m.

    >>> format_secs(725)
    '12m05s'
    """
    if not math.isfinite(secs):
        return "?"
    minutes, rest = divmod(int(secs), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes:02d}m"
    return f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"


class Eta:
    """Estimates the time left of a run, from its pace since the share `done` was done: now."""

    def __init__(self, done: float) -> None:
        self._done, self._begun = done, time.monotonic()

    def text(self, done: float) -> str:
        """Returns the time left when the share `done` is done."""
        gained = done - self._done
        if not gained > 0:
            return format_secs(math.inf)
        return format_secs((1 - done) / gained * (time.monotonic() - self._begun))


class Progress:
    """The progress line: rewritten in place on a terminal, a line every ten seconds elsewhere.

    It goes to standard error. The `first` line is due at once, unless the caller wants to wait.
    """

    def __init__(self, *, first: bool = True) -> None:
        self._stream = sys.stderr
        self._terminal = self._stream.isatty()
        self._every = 1.0 if self._terminal else 10.0
        self._last = -math.inf if first else time.monotonic()
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
