"""Shared by the readers: the form of a source, files, bytes into text."""

import contextlib
import dataclasses
import glob
import gzip
import hashlib
import lzma
import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

Tick = Callable[[int], None]


@dataclasses.dataclass(frozen=True)
class Settings:
    """How a corpus is read; the fields are arguments of `open_corpus`."""

    keep_headings: bool = False
    errors: str = "strict"
    split_seed: int = 0
    valid_rate: float = 0.005


@dataclasses.dataclass(frozen=True)
class Source:
    """An opened source of documents.

    Attributes:
      streams: split of the source ("train", perhaps "valid" and "test") -> a function that starts a
        fresh stream of its documents and reports the bytes passed to a `Tick`.
      num_bytes: bytes on disk of each split, where known.
      identity: returns JSON values that change with the content.
    """

    streams: dict[str, Callable[[Tick], Iterator[str]]]
    num_bytes: dict[str, int]
    identity: Callable[[], Any]


def ignore(num_bytes: int) -> None:
    """A `Tick` that does nothing."""
    del num_bytes


def from_files(
    files: dict[str, list[Path]],
    read: Callable[[list[Path], Tick], Iterator[str]],
) -> Source:
    """Makes a source of files.

    Args:
      files: the files of each split, in reading order.
      read: streams the documents of some files.
    """
    return Source(
        streams={
            split: lambda tick, paths=paths: read(paths, tick) for split, paths in files.items()
        },
        num_bytes={split: sum(p.stat().st_size for p in paths) for split, paths in files.items()},
        identity=lambda: {split: [digest(p) for p in paths] for split, paths in files.items()},
    )


def find(pattern: str, reader: str) -> list[Path]:
    """Returns the files that match a glob pattern (`**` crosses folders), sorted; each file once.

    Raises:
      ValueError: there are none, or one of them holds nothing.
    """
    if not pattern:
        raise ValueError(f"corpus {reader}: needs a file or pattern, such as {reader}:texts/*.txt")
    paths = sorted(Path(p) for p in glob.glob(os.path.expanduser(pattern), recursive=True))
    shortest = sorted((path for path in paths if path.is_file()), key=lambda path: len(path.parts))
    once: dict[Path, Path] = {}  # links may lead to a file, or in circles
    for path in shortest:
        once.setdefault(path.resolve(), path)
    paths = sorted(once.values())
    if not paths:
        raise ValueError(f"corpus {reader}:{pattern}: no file matches (from {Path.cwd()})")
    if not any(path.stat().st_size for path in paths):
        raise ValueError(f"corpus {reader}:{pattern}: every file that matches is empty")
    return paths


def folder(argument: str, reader: str) -> Path:
    """Returns the folder that a corpus is in.

    Raises:
      ValueError: it is not there.
    """
    path = Path(argument).expanduser()
    if not argument or not path.is_dir():
        raise ValueError(
            f"corpus {reader}:{argument}: expected a folder, found none (from {Path.cwd()})"
        )
    return path


def digest(path: Path) -> str:
    """Returns the SHA-256 of a file's bytes."""
    with readable(path), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def lines(path: Path, errors: str, tick: Tick = ignore) -> Iterator[str]:
    """Streams the lines of a UTF-8 file without their line breaks; unpacks `.gz` and `.xz`.

    Raises:
      ValueError: bytes that are not UTF-8 (unless `errors` is "replace"), or a file that cannot be
        read.
    """
    passed = offset = 0
    with readable(path), path.open("rb") as packed, _unpacked(path, packed) as file:
        for number, line in enumerate(file):
            try:
                text = line.decode("utf-8", errors)
            except UnicodeDecodeError as error:
                raise ValueError(invalid(path, offset + error.start, error.reason)) from error
            if number == 0:
                text = text.removeprefix("\ufeff")
            yield text.rstrip("\r\n")
            offset += len(line)
            if number % 1000 == 0:
                now = packed.tell()
                tick(now - passed)
                passed = now
        tick(packed.tell() - passed)


def invalid(where: object, byte: int, reason: str, of: str = "") -> str:
    """Returns the message about bytes that are not UTF-8; `of` names where the byte is counted."""
    return (
        f"{where}: invalid UTF-8 at byte {byte}{of} ({reason}); set --config.data.errors=replace "
        "to go on with a replacement character"
    )


def clean(text: str, errors: str, where: object) -> str:
    """Returns a text that UTF-8 can encode: JSON can spell lone surrogates.

    Raises:
      ValueError: it has one, and `errors` is not "replace".
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        if errors == "strict":
            message = invalid(where, error.start, error.reason, " of the text")
            raise ValueError(message) from error
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


@contextlib.contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turns errors of reading a file into messages that name it."""
    try:
        yield
    except (lzma.LZMAError, zlib.error, gzip.BadGzipFile, EOFError) as error:
        raise ValueError(
            f"{path}: truncated, or another format than its name says ({error})"
        ) from error
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror or error})") from error


def _unpacked(path: Path, packed: BinaryIO) -> contextlib.AbstractContextManager[BinaryIO]:
    if path.suffix == ".gz":
        return gzip.open(packed)
    if path.suffix == ".xz":
        return lzma.open(packed)
    return contextlib.nullcontext(packed)
