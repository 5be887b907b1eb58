"""Makes the folder of an import or export: complete at the end, or unchanged after an error."""

import contextlib
import os
import pathlib
import shutil
import uuid
from collections.abc import Collection, Iterator

from scalelab.runs.json_files import read_object

MARKER = "scalelab.json"  # marks an export, and lists the files that it wrote


def check(path: pathlib.Path, flag: str, *, replace: bool) -> pathlib.Path:
    """Refuses a place that cannot be written, or that holds other files.

    Args:
      path: the path that the user gave.
      flag: the flag that gave it.
      replace: True if an earlier export may be replaced.

    Returns:
      The path without links.

    Raises:
      ValueError: the place is in use, a dangling link, below a file, or read-only.
    """
    if path.is_symlink() and not path.exists():
        raise ValueError(f"{flag}={path} is a link to {os.readlink(path)}, which does not exist")
    path = path.resolve()
    above = next(p for p in (path, *path.parents) if p.exists())
    if above != path and not above.is_dir():
        raise ValueError(f"{flag}={path} cannot be made: {above} is a file")
    inside = sorted(p.name for p in path.iterdir()) if path.is_dir() else []
    if (inside or path.is_file()) and not (replace and list_exported(path) is not None):
        raise ValueError(
            f"{flag}={path} is in use{' and no export of ours' * replace}"
            f" ({', '.join(inside[:6]) or 'it is a file'}); choose another"
        )
    if not os.access(above, os.W_OK | os.X_OK):
        raise ValueError(f"{flag}={path} cannot be made: no permission to write in {above}")
    return path


def list_exported(path: pathlib.Path) -> list[str] | None:
    """Returns the files that an earlier export wrote, without the marker; None if no export."""
    try:
        names = (read_object(path / MARKER) or {}).get("files")
    except ValueError:
        return None
    if not isinstance(names, list):
        return None
    plain = all(type(n) is str and pathlib.PurePath(n).name == n for n in names)
    return [name for name in names if name != MARKER] if plain else None


@contextlib.contextmanager
def filling(path: pathlib.Path, old: Collection[str] = ()) -> Iterator[pathlib.Path]:
    """Yields a new folder whose content moves to `path` if the block ends without error.

    Args:
      path: the result of `check`.
      old: files of an earlier export there, which are replaced; other files stay.

    Raises:
      ValueError: another file is in the way.
    """
    missing = [p for p in path.parents if not p.exists()]
    # Inside an existing folder, which may be on another disk than its parent.
    partial = (path if path.is_dir() else path.parent) / f".{path.name}.{uuid.uuid4().hex[:8]}"
    try:
        partial.mkdir(parents=True)
        yield partial
        _move(partial, path, old)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        for folder in missing:
            with contextlib.suppress(OSError):  # another process put a file there
                folder.rmdir()
        raise


def _move(partial: pathlib.Path, path: pathlib.Path, old: Collection[str]) -> None:
    if not path.exists():
        partial.replace(path)
        return
    new = sorted((p.name for p in partial.iterdir()), key=lambda name: (name == MARKER, name))
    in_the_way = [
        name
        for name in new
        if os.path.lexists(path / name)
        and (name not in {MARKER, *old} or not (path / name).is_file())
    ]
    if in_the_way:
        raise ValueError(
            f"{path} holds files of others under the names that an export writes"
            f" ({', '.join(in_the_way)}); move them, or choose another folder"
        )
    for name in new:  # the marker last: until then it lists the earlier files
        (partial / name).replace(path / name)
    for name in set(old) - set(new):
        if (path / name).is_file():
            (path / name).unlink()
    partial.rmdir()
