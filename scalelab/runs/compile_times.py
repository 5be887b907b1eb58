"""How long programs took to compile, kept beside the compiled programs for the next start."""

import os
import pathlib

from scalelab.helpers.files import write_json
from scalelab.runs import json_files


def _path(cache_dir: str) -> pathlib.Path:
    return pathlib.Path(os.path.expanduser(cache_dir)) / "compile_times.json"


def note(cache_dir: str | None, program: str) -> str:
    """Returns " (8.1 s last time)" for a program that was compiled before, else ""."""
    try:
        secs = (json_files.read_object(_path(cache_dir)) or {}).get(program) if cache_dir else None
    except ValueError:  # half written by another process
        secs = None
    return f" ({secs:.1f} s last time)" if isinstance(secs, float) else ""


def keep(cache_dir: str | None, program: str, secs: float) -> None:
    """Keeps the seconds that a program took to compile."""
    if cache_dir is None:
        return
    try:
        known = json_files.read_object(_path(cache_dir)) or {}
        _path(cache_dir).parent.mkdir(parents=True, exist_ok=True)
        write_json(_path(cache_dir), known | {program: round(secs, 1)})
    except (OSError, ValueError):  # a note only
        pass
