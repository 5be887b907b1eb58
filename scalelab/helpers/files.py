"""Files: damage as one error, atomic writes (a reader sees the old file or all of the new one)."""

import contextlib
import gzip
import json
import lzma
import math
import os
import pathlib
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from scalelab.helpers.names import brief

PACKED = {".gz": gzip, ".xz": lzma}


class Unreadable(ValueError):
    """A file, `path`, that cannot be used, and the `reason` in words."""

    def __init__(self, path: pathlib.Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path, self.reason = path, reason


@contextlib.contextmanager
def reading(path: pathlib.Path, more: str = "") -> Iterator[None]:
    """Context: what any library raises on a missing or damaged file becomes `Unreadable`.

    A ValueError that begins with the path passes. The message ends with `more`.
    """
    try:
        yield
    except Exception as error:  # zipfile, lzma, tokenizers, orbax and others raise many types
        words = " ".join(str(error).split())[:500]
        if isinstance(error, ValueError) and words.startswith(str(path)):
            raise
        if isinstance(error, FileNotFoundError | NotADirectoryError):
            words = f"is missing; {listing(path.parent)}"
        elif isinstance(error, UnicodeDecodeError):
            words = "is not UTF-8 text"
        elif isinstance(error, OSError):
            words = f"cannot be read: {error.strerror or words}"
        elif not isinstance(error, ValueError):
            words = f"{type(error).__name__} {words}".rstrip()
        raise Unreadable(path, words + more) from error


def listing(folder: pathlib.Path) -> str:
    """Lists the content of a folder for a message."""
    if not folder.is_dir():
        return f"there is no folder {folder}"
    names = sorted(p.name + "/" * p.is_dir() for p in folder.iterdir())
    more = f" and {len(names) - 20} more" if len(names) > 20 else ""
    return f"{folder} holds: {', '.join(names[:20]) or 'nothing'}{more}"


@contextlib.contextmanager
def whole(path: pathlib.Path) -> Iterator[pathlib.Path]:
    """Yields a temporary path beside `path`, which replaces it when the block ends without error.

    The temporary name keeps the suffix of `path`, which some writers look at.
    """
    temporary = path.with_name(f".{path.stem}.{os.getpid()}.tmp{path.suffix}")
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def read_byte_lines(
    path: pathlib.Path, tick: Callable[[int], object] = lambda num_bytes: None
) -> Iterator[tuple[int, bytes]]:
    """Yields the lines of a file, plain, `.gz` or `.xz`, each after the place of its first byte.

    Lines come without their ends. In a file without line feeds they end at carriage returns. Places
    count in the unpacked file. `tick` is called now and then with the number of bytes on disk that
    were read since.
    """
    passed = offset = 0
    unpack = PACKED[path.suffix].open if path.suffix in PACKED else contextlib.nullcontext
    with reading(path), path.open("rb") as packed, unpack(packed) as file:
        for number, line in enumerate(file):
            end, begin = b"\n" if number or line.endswith(b"\n") else b"\r", offset
            for part in line.rstrip(b"\r\n").split(end):
                yield begin, part
                begin += len(part) + 1
            offset += len(line)
            if number % 1000 == 0:
                tick(packed.tell() - passed)
                passed = packed.tell()
        tick(packed.tell() - passed)


def write_text(path: pathlib.Path, text: str) -> None:
    """Writes a UTF-8 file atomically; a file with this content stays, as on a read-only disk."""
    if not path.is_file() or path.read_bytes() != text.encode():
        with whole(path) as temporary:
            temporary.write_bytes(text.encode())


def write_json(path: pathlib.Path, value: object) -> None:
    """Writes JSON atomically; a number that is not finite becomes null."""
    write_text(path, json.dumps(_plain(value), indent=1, allow_nan=False) + "\n")


def _plain(value: object) -> object:
    """Replaces numpy scalars by Python numbers and non-finite numbers by None, in depth."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    value = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(value, float) and not math.isfinite(value) else value


# --- JSON ----------------

# Escapes of NUL and of surrogates (halves of a character).
_ESCAPE = re.compile(r"\\u(?:0000|[dD][89a-fA-F])")


def parse_json(text: str, *, any_text: bool = False) -> Any:
    """Parses JSON strictly: no NaN, no number beyond float64, no key twice.

    With `any_text` strings may contain NUL and lone surrogates (halves of a character).

    Raises:
      ValueError: the text is not such JSON; the message gives the reason.
    """
    try:
        value = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        line = f"line {error.lineno}, " * (error.lineno > 1)
        raise ValueError(f"not JSON: {error.msg} ({line}column {error.colno})") from None
    except RecursionError:
        raise ValueError("not JSON: too many levels") from None
    except ValueError as error:  # too many digits, or as `_finite` and `_unique`
        raise ValueError(f"not JSON: {str(error).partition(';')[0]}") from None
    if not any_text and _ESCAPE.search(text):
        texts = "".join(x for x in leaves(value) if isinstance(x, str))
        texts.encode()  # refuses half of a character, such as \ud800
        if "\0" in texts:
            raise ValueError("holds NUL")
    return value


def leaves(value: Any) -> Iterator[Any]:
    """Yields keys, texts, numbers, booleans and nulls of a JSON value, in depth."""
    if isinstance(value, dict | list):
        for item in (*value, *value.values()) if isinstance(value, dict) else value:
            yield from leaves(item)
    else:
        yield value


def _finite(number: str) -> float:
    """Parses a number; raises ValueError for NaN, infinity and numbers beyond float64."""
    if not math.isfinite(value := float(number)):
        raise ValueError(f"a number is out of range: {brief(number)}")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns an object; raises ValueError if it repeats a key."""
    if len(found := dict(pairs)) == len(pairs):
        return found
    names = [name for name, _ in pairs]
    name = next(name for name in names if names.count(name) > 1)
    raise ValueError(f"the key {brief(name)} is repeated in one object")


_DECODER = json.JSONDecoder(parse_float=_finite, parse_constant=_finite, object_pairs_hook=_unique)
