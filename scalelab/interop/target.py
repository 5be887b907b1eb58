"""The folder that an import or an export makes: whole at the end, or as it was before."""

import contextlib
import json
import os
import pathlib
import shutil
import uuid
from collections.abc import Collection, Iterator

MARK = "scalelab.json"  # tells an export of ours from the folders of others, and lists its files
# What exports held whose mark had no list: these, and nothing else.
UNLISTED = ("README.md", "config.json", "model.safetensors", "special_tokens_map.json",
    "tokenizer.json", "tokenizer_config.json",
)  # fmt: skip


def check(path: pathlib.Path, flag: str, *, again: bool) -> pathlib.Path:
    """Refuses, before any work, a place that cannot be written or that is not ours.

    Args:
      path: as the user gave it.
      flag: what gave it.
      again: whether an earlier export of ours may be there.

    Returns:
      It, behind all links.

    Raises:
      ValueError: it is in use, a link to nowhere, below a file, or not to be written.
    """
    if path.is_symlink() and not path.exists():
        raise ValueError(f"{flag}={path} is a link to {os.readlink(path)}, which is not there")
    path = path.resolve()
    above = next(p for p in (path, *path.parents) if p.exists())
    if above != path and not above.is_dir():
        raise ValueError(f"{flag}={path} cannot be made: {above} is a file")
    inside = sorted(p.name for p in path.iterdir()) if path.is_dir() else []
    if inside or above == path and not path.is_dir():
        ours = again and files_of_ours(path) is not None
        what = ", ".join(inside[:6]) or "it is a file"
        if not ours:
            raise ValueError(
                f"{flag}={path} is in use{' and no export of ours' * again} ({what}); choose"
                " another"
            )
    if not os.access(above, os.W_OK | os.X_OK):
        raise ValueError(f"{flag}={path} cannot be made: no permission to write in {above}")
    return path


def files_of_ours(path: pathlib.Path) -> list[str] | None:
    """Names of what an earlier export wrote into a folder, its mark left out; None: no export."""
    try:
        mark = json.loads((path / MARK).read_text(encoding="utf-8"))
        unlisted = mark.keys() == {"system", "step", "git_commit"}
        names = UNLISTED if unlisted else mark["files"]
        plain = all(type(n) is str and pathlib.PurePath(n).name == n for n in names)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return [name for name in names if name != MARK] if plain else None


@contextlib.contextmanager
def filling(path: pathlib.Path, old: Collection[str] = ()) -> Iterator[pathlib.Path]:
    """A new folder, whose content is in `path` after the block; after an error nothing is.

    Args:
      path: from `check`.
      old: names of files there that go, with MARK; anything else there stays.

    Raises:
      ValueError: something there that is not in `old` is in the way.
    """
    missing = [p for p in path.parents if not p.exists()]
    # Inside a folder that is there: it may be another disk than its neighbours, or a link's end.
    partial = (path if path.is_dir() else path.parent) / f".{path.name}.{uuid.uuid4().hex[:8]}"
    try:
        partial.mkdir(parents=True)
        yield partial
        _move(partial, path, old)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        for folder in missing:
            with contextlib.suppress(OSError):  # somebody else has put something there
                folder.rmdir()
        raise


def _move(partial: pathlib.Path, path: pathlib.Path, old: Collection[str]) -> None:
    if not path.exists():
        partial.replace(path)
        return
    new = sorted((p.name for p in partial.iterdir()), key=lambda name: (name == MARK, name))
    in_the_way = [
        name for name in new
        if os.path.lexists(path / name)
        and (name not in {MARK, *old} or not (path / name).is_file())
    ]  # fmt: skip
    if in_the_way:
        raise ValueError(
            f"{path} has files of others where an export writes its own ({', '.join(in_the_way)});"
            " move them, or choose another folder"
        )
    for name in new:  # MARK last: until then a later export still knows what is ours
        (partial / name).replace(path / name)
    for name in set(old) - set(new):
        if (path / name).is_file():
            (path / name).unlink()
    partial.rmdir()
