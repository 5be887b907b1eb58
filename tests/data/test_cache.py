"""The cache: built once, never half, never trusted when damaged."""

import errno
import functools
import multiprocessing
import os
import time
from pathlib import Path

import pytest

from scalelab.data import cache

KEY = {"corpus": "abc", "size": 30000}
CONTENT = {"a.bin": bytes(range(256)) * 40, "deep/b.txt": b"zwei\n"}


def write_content(folder: Path) -> None:
    for name, content in CONTENT.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)


class Builder:
    """Counts how often it is asked to build."""

    calls = 0

    def __call__(self, folder):
        self.calls += 1
        write_content(folder)


def assert_whole(folder):
    assert {name: (folder / name).read_bytes() for name in CONTENT} == CONTENT


def visible(folder):
    return [p.name for p in folder.iterdir() if not p.name.endswith(".lock")]


def test_builds_once(tmp_path):
    builder = Builder()
    first = cache.entry(tmp_path / "c", "tokens", KEY, builder)
    second = cache.entry(tmp_path / "c", "tokens", dict(reversed(KEY.items())), builder)
    assert first == second and builder.calls == 1
    assert cache.entry(tmp_path / "other", "tokens", KEY | {"size": 1}, builder).name != first.name
    assert first.name.startswith("tokens-")
    assert_whole(first)
    assert visible(tmp_path / "c") == [first.name]


def flip(path, place):
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


DAMAGES = {
    "flipped byte": lambda f: flip(f / "a.bin", 9),
    "truncated": lambda f: os.truncate(f / "a.bin", 17),
    "missing file": lambda f: (f / "deep/b.txt").unlink(),
    "empty manifest": lambda f: (f / cache.MANIFEST).write_text('{"files": {}}'),
    "missing manifest": lambda f: (f / cache.MANIFEST).unlink(),
    "truncated manifest": lambda f: os.truncate(f / cache.MANIFEST, 40),
} | {
    f"manifest {text[:20]}": lambda f, text=text: (f / cache.MANIFEST).write_text(text)
    for text in ("[]", "7", "{}", '{"files": []}', '{"files": {"a.bin": 3}}', "[" * 100_000,
                 '{"files": {"a.bin": ["x", null, 1]}}')
}  # fmt: skip


@pytest.mark.parametrize("harm", DAMAGES.values(), ids=DAMAGES.keys())
def test_damage_is_reported_and_repaired(tmp_path, harm, monkeypatch):
    warnings = []
    monkeypatch.setattr(cache.logger, "warning", lambda text, *args: warnings.append(text % args))
    builder = Builder()
    folder = cache.entry(tmp_path, "tokens", KEY, builder)
    harm(folder)
    assert cache.entry(tmp_path, "tokens", KEY, builder) == folder
    assert builder.calls == 2
    assert_whole(folder)
    assert len(warnings) == 1 and str(folder) in warnings[0]
    assert visible(tmp_path) == [folder.name]


def test_verify_compares_whole_files_and_removes_what_is_damaged(tmp_path):
    builder = Builder()
    folder, sound = (cache.entry(tmp_path, "tokens", KEY | {"n": n}, builder) for n in range(2))
    flip(folder / "a.bin", cache.HEAD_BYTES + 9)
    assert cache.damage(folder) is None  # a start compares size and first bytes
    found = cache.verify(tmp_path)
    assert set(found) == {folder, sound} and found[sound] is None and "a.bin" in found[folder]
    assert not folder.exists() and sound.exists()
    cache.entry(tmp_path, "tokens", KEY | {"n": 0}, builder)
    assert builder.calls == 3
    assert_whole(folder)


def build_slowly(secs, folder):
    write_content(folder)
    with (folder.parent / "calls").open("a") as calls:
        calls.write("x")
    time.sleep(secs)


def enter(directory, secs):
    assert_whole(cache.entry(directory, "tokens", KEY, functools.partial(build_slowly, secs)))


def started(*given):
    """A process that enters a cache whose content takes so many seconds to build."""
    run = multiprocessing.get_context("spawn").Process(target=enter, args=given)
    run.start()
    return run


def test_two_runs_at_once_build_once(tmp_path):
    runs = [started(tmp_path, 0.7) for _ in range(2)]
    for run in runs:
        run.join()
    assert [run.exitcode for run in runs] == [0, 0]
    assert (tmp_path / "calls").read_text() == "x"


def test_a_killed_run_leaves_nothing_that_is_trusted(tmp_path):
    run = started(tmp_path, 60)
    while not (tmp_path / "calls").exists():
        assert run.is_alive()
        time.sleep(0.05)
    run.kill()
    run.join()
    (tmp_path / "calls").unlink()
    assert any(name.endswith(".part") for name in visible(tmp_path))  # the leftover is there
    builder = Builder()
    folder = cache.entry(tmp_path, "tokens", KEY, builder)
    assert builder.calls == 1
    assert_whole(folder)
    assert visible(tmp_path) == [folder.name]  # and is gone


@pytest.mark.parametrize(("error", "message"), [
    (RuntimeError("no"), "^no$"),
    (KeyboardInterrupt(), "^$"),
    (OSError("ended"), "^ended$"),
    (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "No space left.*cache_dir=DIR"),
])  # fmt: skip
def test_a_failed_build_leaves_nothing(tmp_path, error, message):
    def fail(folder):
        write_content(folder)
        raise error

    with pytest.raises(type(error), match=message):
        cache.entry(tmp_path, "tokens", KEY, fail)
    assert visible(tmp_path) == []
