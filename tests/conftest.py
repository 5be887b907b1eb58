"""What all tests share.

Compiling is most of what tests wait for, and no test asks for speed: XLA optimises little here, and
the processes of a test run share a folder of compiled programs. Python looks for cycles in its
memory less often: while JAX traces, almost everything that it makes stays.
"""

import functools
import gc
import importlib.metadata
import os
import pathlib
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
os.environ.setdefault(
    "JAX_COMPILATION_CACHE_DIR", str(pathlib.Path(__file__).resolve().parent.parent / ".jax_cache")
)
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
# Both shorten compiling. Other versions may not know a flag, which would end the process.
if importlib.metadata.version("jaxlib").startswith("0.10."):
    QUICK = "--xla_cpu_use_fusion_emitters=false --xla_cpu_opt_preset=FAST_COMPILE"
    os.environ.setdefault("XLA_FLAGS", QUICK)
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("MPLBACKEND", "agg")

import pytest  # noqa: E402
import several_devices  # noqa: E402
import tiny  # noqa: E402

from scalelab.config import exits  # noqa: E402

ROOT = tiny.ROOT
gc.set_threshold(100_000, 20, 20)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write the golden files anew instead of comparing",
    )
    parser.addoption(
        "--mutations", type=int, default=4000, metavar="N", help="damaged data files to read"
    )


@pytest.fixture(autouse=True)
def programs_leave_this_process_as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A program handles signals its own way, and ends its process at once when interrupted."""
    monkeypatch.setattr(exits, "leave", sys.exit)
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)
    before = {number: signal.getsignal(number) for number in signals}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    return request.config.getoption("--update-golden")


@pytest.fixture(scope="session")
def wikitext(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A corpus of 240 invented sections in WikiText's layout; do not write into it."""
    return tiny.write_wikitext(tmp_path_factory.mktemp("wikitext"))


@pytest.fixture(scope="module")
def lab(wikitext: pathlib.Path, cache_dir: pathlib.Path) -> Iterator[Any]:
    """A train_lab.Lab: trainings in the process of a test; what they compile serves the module."""
    from train_lab import Lab  # here: most tests need no JAX

    with pytest.MonkeyPatch.context() as patch:
        yield Lab(wikitext, cache_dir, patch)


@pytest.fixture(scope="session")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A cache that tests share, so that each tokenizer is trained once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def pretrained_runs(
    wikitext: pathlib.Path, cache_dir: pathlib.Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], pathlib.Path]:
    """Folders as finished runs leave them, at shape 2x8x1; do not write into them."""
    folder = tmp_path_factory.mktemp("pretrained")
    return functools.cache(
        lambda system: tiny.write_run(folder / system, system, wikitext, cache_dir)
    )


@pytest.fixture
def stop_at(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Any]]:
    """stop_at(owner, name, count) -> calls of a function, whose count-th call is interrupted."""

    def patch(owner: Any, name: str, count: int) -> list[Any]:
        real, calls = getattr(owner, name), []

        def stop(*given: Any) -> Any:
            calls.append(given)
            if len(calls) == count:
                raise KeyboardInterrupt
            return real(*given)

        monkeypatch.setattr(owner, name, stop)
        return calls

    return patch


CUBE = pytest.StashKey()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Starts, where a test will ask for it, what can run beside the other tests.

    Not in one of several processes that share the tests: each would start it.
    """
    if (
        "PYTEST_XDIST_WORKER" not in os.environ
        and not session.config.option.collectonly
        and any("cube" in getattr(i, "fixturenames", ()) for i in session.items)
    ):
        _start_cube(session.config)


def _start_cube(config: pytest.Config) -> None:
    out = tempfile.TemporaryDirectory()
    process = several_devices.start(
        pathlib.Path(out.name), 8, 2, "full", "2x2x2", "--", *tiny.SYSTEMS
    )
    config.stash[CUBE] = out, process


def pytest_sessionfinish(session: pytest.Session) -> None:
    if CUBE in session.config.stash:
        out, process = session.config.stash[CUBE]
        process.kill()
        process.communicate()
        out.cleanup()


@pytest.fixture(scope="session")
def cube(request: pytest.FixtureRequest) -> pathlib.Path:
    """One step of every system on 2 x 2 x 2 devices everything recomputed, in 2 microbatches."""
    if CUBE not in request.config.stash:
        _start_cube(request.config)
    out, process = request.config.stash[CUBE]
    several_devices.finish(process)
    return pathlib.Path(out.name)
