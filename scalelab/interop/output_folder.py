"""Makes the folder of an import or export: complete at the end, or unchanged after an error."""

import contextlib
import os
import pathlib
import tempfile
from collections.abc import Iterator

from scalelab.records.json_files import read_object

MARKER = "scalelab.json"  # marks an export, and lists the files that it wrote


def check(path: pathlib.Path, flag: str, *, replace: bool) -> pathlib.Path:
    """Returns the path that a flag of the user gave, with symbolic links resolved.

    Raises:
      ValueError: the place is a file, below a file, read-only, or in use; an earlier export there
        may be replaced with `replace`.
    """
    resolved = path.resolve()
    above = next(p for p in (resolved, *resolved.parents) if p.exists())
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        raise ValueError(f"{flag}={path} cannot be made: {above} is a file, or read-only")
    inside = sorted(p.name for p in resolved.iterdir()) if above == resolved else []
    if inside and not (replace and list_exported(resolved) is not None):
        raise ValueError(
            f"{flag}={path} is in use{' and not an export' * replace}"
            f" ({', '.join(inside[:6])}); choose another"
        )
    return resolved


def list_exported(path: pathlib.Path) -> list[str] | None:
    """Returns the files that an earlier export wrote, without the marker; None if no export."""
    try:
        names = (read_object(path / MARKER) or {}).get("files")
    except ValueError:
        return None
    plain = isinstance(names, list) and all(type(n) is str and "/" not in n for n in names)
    return names if plain else None


@contextlib.contextmanager
def filling(path: pathlib.Path) -> Iterator[pathlib.Path]:
    """Yields a new folder whose content moves to `path` if the block ends without error.

    The path is a result of `check`. An earlier export there is replaced; other files stay.

    Raises:
      ValueError: another file is in the way.
    """
    # Made inside an existing folder, because its parent may be on another disk.
    above = path if path.is_dir() else path.parent
    above.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=above, prefix=f".{path.name}.") as made:
        partial = pathlib.Path(made) / path.name
        partial.mkdir()
        yield partial
        if not path.exists():
            partial.replace(path)
            return
        old = {MARKER, *(list_exported(path) or ())}
        new = sorted((p.name for p in partial.iterdir()), key=lambda name: (name == MARKER, name))
        in_the_way = [
            name
            for name in new
            if (path / name).exists() and (name not in old or not (path / name).is_file())
        ]
        if in_the_way:
            raise ValueError(
                f"{path} holds other files under the names that an export writes"
                f" ({', '.join(in_the_way)}); move them, or choose another folder"
            )
        for name in new:  # the marker last: until then it lists the earlier files
            (partial / name).replace(path / name)
        for name in old.difference(new):
            (path / name).unlink(missing_ok=True)
