"""Prepared data on disk: built once, named by a digest of its inputs, checked when opened."""

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import shutil
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

logger = logging.getLogger(__name__)
MANIFEST = "manifest.json"
HEAD_BYTES = 1 << 12  # the head of a file, which every opening compares
_BLOCK = 1 << 20


def entry(
    cache_dir: str | os.PathLike[str],
    kind: str,
    key: Mapping[str, object],
    build: Callable[[Path], None],
) -> Path:
    """Returns the folder with the output of `build`; calls `build` only if the folder is missing.

    The folder's name is a hash of `key`. `build` fills a hidden folder beside it, which takes its
    final name only when complete. A lock file makes a second run wait for the first instead of
    building again. An entry whose manifest, file sizes or first bytes do not match is built again;
    `verify` compares whole files.

    Args:
      cache_dir: the folder of all entries; made if absent.
      kind: a word that begins the entry's name ("sentences", "tokens", ...).
      key: everything that the content depends on; plain JSON values.
      build: writes the content into the empty folder that it is given.

    Raises:
      OSError: the folder cannot be written, or the disk is full. Nothing is left behind.
    """
    cache_dir = Path(cache_dir).expanduser()
    text = json.dumps(key, sort_keys=True, ensure_ascii=False)
    final = cache_dir / f"{kind}-{hashlib.sha256(text.encode()).hexdigest()[:24]}"
    if damage(final) is None:
        return final  # without the lock: works on a read-only folder, and readers do not queue
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        with _locked(final) as part:
            if final.exists():
                problem = damage(final)
                if problem is None:
                    return final
                logger.warning("%s is damaged (%s); preparing it again", final, problem)
                shutil.rmtree(final.rename(part))
            try:
                part.mkdir()
                build(part)
                _write_manifest(part, {"kind": kind, "key": json.loads(text)})
                part.rename(final)
            finally:  # Ctrl-C and a full disk alike leave nothing
                shutil.rmtree(part, ignore_errors=True)
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(
            error.errno,
            f"preparing the {kind} in {cache_dir} failed ({os.strerror(error.errno)}): free some"
            " space there, or name another folder with --config.machine.cache_dir=DIR",
        ) from error
    return final


def verify(cache_dir: str | os.PathLike[str]) -> dict[Path, str | None]:
    """Compares every file with its checksum and removes entries that differ: entry -> problem."""
    cache_dir = Path(cache_dir).expanduser()
    found = {path.parent: damage(path.parent, True) for path in cache_dir.glob(f"*-*/{MANIFEST}")}
    for folder, problem in found.items():
        if problem is not None:
            with _locked(folder) as part:
                shutil.rmtree(folder.rename(part))  # no one can find half of it
    return found


def damage(folder: Path, whole: bool = False) -> str | None:
    """Returns the fault of an entry of the cache, or None.

    It compares sizes and first bytes of the files, and, if `whole`, checksums of whole files.
    """
    try:
        files = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"]
        if unnamed := {*_list_files(folder)} - {MANIFEST, *files}:
            return f"{MANIFEST} does not name {min(unnamed)}"
        for name, (size, head, crc) in files.items():
            path = folder / name
            if not path.is_file():
                return f"{name} is missing"
            if path.stat().st_size != size:
                return f"{name} has {path.stat().st_size} bytes, not {size}"
            if checksum(path, HEAD_BYTES) != head or (whole and checksum(path) != crc):
                return f"the checksum of {name} differs"
    except (FileNotFoundError, NotADirectoryError):
        return f"{MANIFEST} is missing"
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return f"{MANIFEST} cannot be read"
    return None


def _list_files(folder: Path) -> dict[str, Path]:
    return {str(p.relative_to(folder)): p for p in sorted(folder.rglob("*")) if p.is_file()}


def checksum(path: Path, num_bytes: int | None = None) -> int:
    """Returns the CRC-32 of a file, or of its first `num_bytes`."""
    crc = 0
    with path.open("rb") as file:
        if num_bytes is not None:
            return zlib.crc32(file.read(num_bytes))
        while block := file.read(_BLOCK):
            crc = zlib.crc32(block, crc)
    return crc


def _write_manifest(folder: Path, facts: dict[str, object]) -> None:
    files = {
        name: [path.stat().st_size, checksum(path, HEAD_BYTES), checksum(path)]
        for name, path in _list_files(folder).items()
    }
    text = json.dumps(facts | {"files": files}, indent=1, sort_keys=True, ensure_ascii=False)
    (folder / MANIFEST).write_text(text + "\n", encoding="utf-8")


@contextlib.contextmanager
def _locked(final: Path) -> Iterator[Path]:
    """Holds the lock of one entry, which the system releases when the holder dies.

    Yields the name of the hidden folder that the holder may fill; nothing is there.
    """
    with final.with_name(f".{final.name}.lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            logger.info("Waiting for another run that is preparing %s", final.name)
            fcntl.flock(file, fcntl.LOCK_EX)
        part = final.with_name(f".{final.name}.part")
        shutil.rmtree(part, ignore_errors=True)  # left by a run that was killed
        yield part
