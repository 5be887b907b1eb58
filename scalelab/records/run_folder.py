"""The run folder: whether a run may use it, its lock, its config.json and environment.json."""

import contextlib
import fcntl
import importlib.metadata
import os
import pathlib
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from scalelab.config import pretraining as config_lib
from scalelab.helpers.files import write_json
from scalelab.records import json_files, run_files

# The version of the numbers: two runs compare where config, data and this agree. Raise it when the
# same config gives another result than before beyond rounding. CHANGELOG, "Numerics", says then
# what moved, by how much and why; tests/records/test_environment.py asks for it.
NUMERICS_VERSION = 2

PACKAGES = (
    "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "tokenizers", "transformers",
    "tensorflow", "tensorflow-cpu", "ml-collections",
)  # fmt: skip

# Flags with a secret value; not of a tokenizer, nor of a number of tokens, such as total_tokens.
_COUNTS = r"(.*\.)?(total_|warmup_|(max_)?new_)?tokens$"
SECRET = re.compile(rf"(?!-*{_COUNTS})-.*(token(?!iz)|key|secret|passw)", re.IGNORECASE)

LOOK_SECS = 0.2  # longer than the run table holds a lock
VALIDATION = ("eval.every_steps", "eval.num_examples")


def claim(
    workdir: pathlib.Path, config: config_lib.Config | Mapping[str, Any]
) -> dict[str, Any] | None:
    """Makes `workdir` if absent and checks that a run may use it; a finished run may be read-only.

    A run may be extended: the same config with a larger budget continues, see `_is_extension`.

    Returns:
      The finished run's result if this very run has been completed there, else None.

    Raises:
      ValueError: the folder holds another run, or its files cannot be read.
      OSError: it cannot be made or written.
    """
    refusal = None
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=workdir).close()
    except OSError as error:
        refusal = OSError(
            f"workdir {workdir} cannot be written: {error.strerror}; choose another --workdir"
        )
    there = (workdir / "config.json").exists()
    before = run_files.read_config(workdir) if there else None
    result = run_files.read_result(workdir)
    if before is not None and _is_extension(workdir, config, before):
        result = None
    elif before is not None and (differing := config_lib.science_diff(config, before)):
        raise ValueError(
            f"workdir {workdir} holds a run with another config;"
            " choose another --workdir, or undo:\n  " + "\n  ".join(differing)
        )
    if result is None and refusal is not None:
        raise refusal
    return None if result is None else json_files.dump(result)


def _is_extension(
    workdir: pathlib.Path, config: config_lib.Config | Mapping[str, Any], before: Mapping[str, Any]
) -> bool:
    """Whether a config is that of the folder's run with a larger budget, which it can reach.

    The run must be the same as one that had the larger budget from the start. So its learning rate
    must not depend on the budget (schedule "constant"), and it must have one phase. How often and
    on how many examples it validates may change, because `configs/pretrain.py` derives both from
    the budget.

    Raises:
      ValueError: a larger budget that this run cannot reach; the message says why.
    """
    new, old = config_lib.science(config), config_lib.science(before)
    names = {name for name in new.keys() | old.keys() if new.get(name) != old.get(name)}
    budget = next((name for name in names if name.startswith("optim.total_")), "")
    warmup = budget.replace("total", "warmup")
    kept = [name for name in (warmup, "optim.learning_rate") if name in names]
    if not budget or names - {budget, *kept, *VALIDATION}:
        return False
    total, reached = new[budget], old.get(budget)
    if total is None or reached is None or total < reached:
        return False
    wanted = f"workdir {workdir} holds this run with {budget} = {reached:g}, not {total:g}"
    if (schedule := new["optim.schedule"]) != "constant":
        raise ValueError(
            f"{wanted}: its schedule {schedule!r} depends on the budget, so it cannot be extended;"
            " a run with --config.optim.schedule=constant can. Choose another --workdir, or start"
            f" there from its parameters by --init={workdir}"
        )
    if 0 not in (new["long.example_rate"], new["long.epoch_rate"]):
        raise ValueError(
            f"{wanted}: its first phase would have been longer, so it cannot be extended; a run of"
            " one phase can (--config.long.example_rate=0). Choose another --workdir"
        )
    if kept:
        values = " ".join(f"--config.{name}={old.get(name)}" for name in kept)
        raise ValueError(f"{wanted}: to extend it, keep {values}")
    return True


@contextlib.contextmanager
def locked(workdir: pathlib.Path) -> Iterator[None]:
    """Keeps a second process from training in the folder at the same time.

    Raises:
      ValueError: one is training there.
    """
    with (workdir / ".lock").open("a") as file:
        for attempt in range(2):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if attempt:
                    raise ValueError(
                        f"another process is training in {workdir} right now; wait for it, stop it,"
                        " or choose another --workdir"
                    ) from None
            time.sleep(LOOK_SECS)  # the run table takes the lock for a moment
        try:
            yield
        finally:
            if [path.name for path in workdir.iterdir()] == [".lock"]:  # the run was refused
                shutil.rmtree(workdir)


def is_locked(path: pathlib.Path) -> bool:
    """Returns True if a process has the lock on a file; a file system without locks gives False.

    Takes a shared lock and releases it at once; `locked` waits longer than that.
    """
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return isinstance(error, BlockingIOError)
    return False


def write_description(
    workdir: pathlib.Path,
    config: config_lib.Config | Mapping[str, Any],
    tokenizer_digest: str | None = None,
) -> None:
    """Writes config.json and environment.json; the environment of every start is kept.

    The result of a run that is extended is kept as result-step<N>.json.
    """
    if (result := run_files.read_result(workdir)) is not None:
        (workdir / "result.json").rename(workdir / f"result-step{result.steps}.json")
    write_json(workdir / "config.json", json_files.dump(config))
    path = workdir / "environment.json"
    earlier = json_files.read_object(path) or {}
    json_files.fill(run_files.Environment, earlier, path)
    starts = [*earlier.pop("earlier_starts", []), earlier] if earlier else []
    facts = describe_environment() | {"tokenizer_digest": tokenizer_digest}
    write_json(path, facts | {"earlier_starts": starts})


def name(config: config_lib.Config) -> str:
    """Returns the name of a run in messages: "bert 2x128x2 seed 0"."""
    return f"{config.system} {config.model.shape} seed {config.seed}"


# --- environment.json ----------------


def _git(*arguments: str) -> str | None:
    """Returns the output of a git command in the code's folder; None without a repository."""
    command, folder = ["git", *arguments], pathlib.Path(__file__).parent
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        return subprocess.check_output(
            command, cwd=folder, text=True, timeout=10, stderr=subprocess.DEVNULL
        ).strip()
    return None


def describe_environment() -> dict[str, Any]:
    """Returns the content of environment.json for this process."""
    import jax

    program, *given = [pathlib.Path(sys.executable).name, *sys.orig_argv[1:]]
    if given and pathlib.Path(given[0]).name == "scalelab":  # the console script
        program, *given = "scalelab", *given[1:]
    # None if a foreign repository is around.
    tracked = _git("ls-files", "--error-unmatch", __file__)
    changed = tracked and _git("status", "--porcelain", "--untracked-files=no")
    packages = {}
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            packages[name] = importlib.metadata.version(name)
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    return {
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": join_command([program, *mask_secrets(given)]),
        "git_commit": tracked and _git("rev-parse", "HEAD"),
        "git_dirty": None if changed is None else bool(changed),
        "numerics": NUMERICS_VERSION,
        "python": platform.python_version(),
        "packages": packages,
        "platform": platform.platform(),
        "host": platform.node(),
        "cpus": len(cores) if cores else os.cpu_count(),  # cores of this process
        "num_processes": jax.process_count(),
        "devices": [f"{d.platform}:{d.device_kind}" for d in jax.devices()],
    }


def mask_secrets(arguments: Sequence[str]) -> list[str]:
    """Replaces by "***" the values of flags named like a token, key, secret or password."""
    masked, is_secret = [], False
    for argument in arguments:
        name, equals, _ = argument.partition("=")
        names_secret = SECRET.match(name) is not None
        shown = f"{name}=***" if names_secret and equals else argument
        masked.append("***" if is_secret else shown)
        is_secret = names_secret and not equals
    return masked


def join_command(words: Sequence[str]) -> str:
    """Joins words for a shell, with double quotes around those that hold single quotes."""
    plain = lambda word: "'" in word and not re.search(r'["$`\\!]', word)  # noqa: E731
    return " ".join(f'"{word}"' if plain(word) else shlex.quote(word) for word in words)
