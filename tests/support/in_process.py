"""Runs programs of scalelab in the process of a test."""

import contextlib
import signal
from collections.abc import Iterator, Sequence
from typing import Any

from scalelab.config import cli

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)


@contextlib.contextmanager
def signals_kept() -> Iterator[None]:
    """Gives signals their handlers back, which a program's end sets to ignore."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run(program: Any, arguments: Sequence[object]) -> None:
    """Runs a program, a module with `main` and `parser`; SystemExit if it fails."""
    with signals_kept():
        cli.run(program.main, program.parser(), [*map(str, arguments)])


def code(program: Any, arguments: Sequence[object]) -> int:
    """Runs a program and returns its exit code."""
    try:
        run(program, arguments)
    except SystemExit as end:
        return int(end.code or 0)
    return 0
