"""How long programs took to compile, kept beside the compiled programs for the next start."""

import contextlib
import os
import pathlib
import time
from collections.abc import Iterator

from scalelab.helpers.files import write_json
from scalelab.records import json_files


def _path(cache_dir: str) -> pathlib.Path:
    return pathlib.Path(os.path.expanduser(cache_dir)) / "compile_times.json"


def note(cache_dir: str | None, program: str) -> str:
    """Returns " (8.1 s last time)" for a program that was compiled before, else ""."""
    try:
        secs = (json_files.read_object(_path(cache_dir)) or {}).get(program) if cache_dir else None
    except ValueError:  # half written by another process
        secs = None
    return f" ({secs:.1f} s last time)" if isinstance(secs, float) else ""


@contextlib.contextmanager
def kept(cache_dir: str | None, program: str) -> Iterator[None]:
    """Keeps the seconds that a program takes to compile inside."""
    begun = time.perf_counter()
    yield
    if cache_dir is None:
        return
    with contextlib.suppress(OSError, ValueError):  # a note only
        known = json_files.read_object(_path(cache_dir)) or {}
        _path(cache_dir).parent.mkdir(parents=True, exist_ok=True)
        write_json(_path(cache_dir), known | {program: round(time.perf_counter() - begun, 1)})
