"""Keeps tracebacks of orbax's background threads from a terminal: what matters is also raised."""

import contextlib
import logging
import pathlib
import sys
import traceback
from collections.abc import Iterator
from typing import Any


def silence() -> None:
    """Drops, for the rest of the process, what orbax logs and the ends of writes it abandoned.

    At the first write that fails orbax closes its event loop. The writes still under way then end
    with an error that nobody can catch, and those that failed too are told of when they are
    collected, a traceback each.
    """
    logging.getLogger("absl").addFilter(_not_from_orbax)
    logging.getLogger("asyncio").addFilter(_not_raised_in_orbax)
    if not isinstance(sys.unraisablehook, _WithoutAbandonedWrites):
        sys.unraisablehook = _WithoutAbandonedWrites(sys.unraisablehook)


@contextlib.contextmanager
def abandoned_reads() -> Iterator[None]:
    """Lets go, without a traceback each, of the reads that orbax abandons at an error."""
    before, sys.unraisablehook = sys.unraisablehook, lambda _: None
    try:
        yield
    finally:
        sys.unraisablehook = before


def _not_from_orbax(record: logging.LogRecord) -> bool:
    return _elsewhere(record.pathname)


def _not_raised_in_orbax(record: logging.LogRecord) -> bool:
    """Whether what asyncio logs is no exception, or one whose traceback keeps clear of orbax."""
    frames = traceback.walk_tb(record.exc_info[2] if record.exc_info else None)
    return all(_elsewhere(frame.f_code.co_filename) for frame, _ in frames)


def _elsewhere(filename: str) -> bool:
    return "orbax" not in pathlib.Path(filename).parts


class _WithoutAbandonedWrites:
    """Hands every exception on but the one of a closed event loop that belongs to no object."""

    def __init__(self, before: Any) -> None:
        self._before = before

    def __call__(self, unraisable: Any) -> None:
        error = unraisable.exc_value
        closed = isinstance(error, RuntimeError) and str(error) == "Event loop is closed"
        if not (closed and unraisable.object is None):
            self._before(unraisable)
