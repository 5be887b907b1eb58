"""Keeps tracebacks of orbax's background threads from a terminal: what matters is also raised."""

import logging
import pathlib
import sys
import traceback
from typing import Any


def silence() -> None:
    """Drops, for the rest of the process, what orbax logs and the ends of what it abandoned.

    At the first read or write that fails orbax closes its event loop. Those still under way then
    end with an error that nobody can catch, and those that failed too are told of when they are
    collected, perhaps as the program ends, a traceback each.
    """
    logging.getLogger("absl").addFilter(_not_from_orbax)
    logging.getLogger("asyncio").addFilter(_not_raised_in_orbax)
    if not isinstance(sys.unraisablehook, _WithoutAbandoned):
        sys.unraisablehook = _WithoutAbandoned(sys.unraisablehook)


def _not_from_orbax(record: logging.LogRecord) -> bool:
    return _elsewhere(record.pathname)


def _not_raised_in_orbax(record: logging.LogRecord) -> bool:
    """Whether what asyncio logs is no exception, or one whose traceback keeps clear of orbax."""
    frames = traceback.walk_tb(record.exc_info[2] if record.exc_info else None)
    return all(_elsewhere(frame.f_code.co_filename) for frame, _ in frames)


def _elsewhere(filename: str) -> bool:
    return "orbax" not in pathlib.Path(filename).parts


class _WithoutAbandoned:
    """Hands every exception on but those of orbax's coroutines and of a closed loop's own."""

    def __init__(self, before: Any) -> None:
        self._before = before

    def __call__(self, unraisable: Any) -> None:
        error, code = unraisable.exc_value, getattr(unraisable.object, "cr_code", None)
        closed = isinstance(error, RuntimeError) and str(error) == "Event loop is closed"
        of_orbax = code is not None and not _elsewhere(code.co_filename)
        if not of_orbax and not (closed and unraisable.object is None):
            self._before(unraisable)
