"""Command lines of the benchmarks: kinds of values, each refused in one message, and --quick."""

import argparse
import math
import pathlib
from collections.abc import Callable, Collection
from typing import Any

from scalelab.config import cli
from scalelab.helpers.names import module_names, nearest
from scalelab.lab import shape_rules

Reader = Callable[[str], Any]


def parser(name: str, text: str | None) -> cli.Parser:
    """The command line of `python -m benchmarks.<name>`, whose docstring is its help."""
    return cli.Parser(
        prog=f"python -m benchmarks.{name}",
        description=text,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def read(made: cli.Parser, argv: list[str] | None, quick: dict[str, Any]) -> argparse.Namespace:
    """Reads a command line; with --quick, what it does not name is as `quick` has it."""
    given = made.parse_args(argv)
    if given.quick:
        made.set_defaults(**quick)
        given = made.parse_args(argv)
    return given


def add_common(made: cli.Parser, *, repeats: int, quick: str, least: int = 1) -> None:
    """Adds what nearly all benchmarks have.

    Args:
      made: the command line.
      repeats: the usual --repeats.
      quick: what --quick does.
      least: of --repeats.
    """
    made.add_argument("--repeats", type=count(least), default=repeats)
    made.add_argument("--threads", type=count(), default=2, help="of all sides, on CPU")
    add_json(made, quick)


def add_json(made: cli.Parser, quick: str) -> None:
    """Adds --json and --quick."""
    made.add_argument("--json", type=file, metavar="FILE", help="write the numbers there too")
    add_quick(made, quick)


def add_quick(made: cli.Parser, quick: str) -> None:
    """Adds --quick; what it does is in `quick`."""
    made.add_argument("--quick", action="store_true", help=f"{quick}, where no flag says otherwise")


def add_case(made: cli.Parser, shapes: list[str]) -> None:
    """Adds the systems, shapes and sizes of a step; see step_case.Case."""
    known = one_of("system", module_names("systems"))
    made.add_argument("--systems", type=listed(known), default=["bert"])
    made.add_argument("--shapes", type=listed(shape), default=shapes, help="heads x width x layers")
    add_batch(made)
    made.add_argument("--dropout_rate", type=rate, default=0.1)


def add_batch(made: cli.Parser) -> None:
    """Adds the sizes of a batch."""
    made.add_argument("--batch_size", type=count(), default=64)
    made.add_argument("--length", type=count(8), default=128, help="tokens of an example")
    made.add_argument("--vocab_size", type=count(16), default=30_000)


def count(least: int = 1) -> Reader:
    """Reads whole numbers of at least so many."""

    def read_count(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if number < least:
            raise _wrong(f"a whole number of at least {least}", text)
        return number

    return read_count


def rate(text: str) -> float:
    """Reads a probability below 1."""
    number = _float(text)
    if not 0 <= number < 1:
        raise _wrong("a number of at least 0 and below 1", text)
    return number


def positive(text: str) -> float:
    """Reads a finite number above 0."""
    number = _float(text)
    if not 0 < number < math.inf:
        raise _wrong("a number above 0", text)
    return number


def shape(text: str) -> str:
    """Reads a shape of which a net can be made, such as 2x128x2."""
    try:
        shape_rules.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text.strip()


def one_of(what: str, names: Collection[str]) -> Reader:
    """Reads one of some names; `what` they are is for the message."""

    def read_name(text: str) -> str:
        if text not in names:
            raise argparse.ArgumentTypeError(f"unknown {what} {text!r}: {nearest(text, names)}")
        return text

    return read_name


def listed(one: Reader, *, least: int = 1) -> Reader:
    """Reads values that commas join, at least so many."""

    def read_list(text: str) -> list[Any]:
        found = [one(part) for part in text.split(",") if part]
        if len(found) < least:
            raise _wrong(f"at least {least}, joined by commas", text)
        return found

    return read_list


def file(text: str) -> str:
    """Reads the name of a file that can be written."""
    path = pathlib.Path(text)
    if text and path.is_dir():
        raise _wrong("a file, not a folder", text)
    if not text or not path.parent.is_dir():
        raise _wrong("a file in a folder that exists", text)
    return text


def folder(text: str) -> str:
    """Reads the name of a folder that is there or can be made."""
    if not text or any(p.exists() and not p.is_dir() for p in pathlib.Path(text, ".x").parents):
        raise _wrong("a folder", text)
    return text


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _wrong(expected: str, text: str) -> argparse.ArgumentTypeError:
    return argparse.ArgumentTypeError(f"expected {expected}, got {text!r}")
