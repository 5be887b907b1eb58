"""WORKDIR/environment.json: the machine, packages and command line of a run."""

import contextlib
import importlib.metadata
import importlib.util
import os
import pathlib
import platform
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

# The version of the numbers: two runs compare where config, data and this agree. Raise it when the
# same config gives another result than before beyond rounding, and say in CHANGELOG, "Numerics",
# which systems moved, by how much and why; tests/records/test_environment.py asks for it.
NUMERICS_VERSION = 2

PACKAGES = (
    "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "tokenizers", "transformers",
    "tensorflow", "tensorflow-cpu", "ml-collections",
)  # fmt: skip

# Flags with a secret value; not of a tokenizer, nor of a number of tokens, such as total_tokens.
_COUNTS = r"(.*\.)?(total_|warmup_|(max_)?new_)?tokens$"
SECRET = re.compile(rf"(?!-*{_COUNTS})-.*(token(?!iz)|key|secret|passw)", re.IGNORECASE)


def _git(*arguments: str) -> str | None:
    """Returns the output of a git command in the code's folder; None without a repository."""
    command, folder = ["git", *arguments], pathlib.Path(__file__).parent
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        return subprocess.check_output(
            command, cwd=folder, text=True, timeout=10, stderr=subprocess.DEVNULL
        ).strip()
    return None


def describe() -> dict[str, Any]:
    """Returns the content of environment.json for this process."""
    import jax

    program, *given = [pathlib.Path(sys.executable).name, *sys.orig_argv[1:]]
    if given and pathlib.Path(given[0]).name == "scalelab":  # the console script
        program, *given = "scalelab", *given[1:]
    tracked = _git(
        "ls-files", "--error-unmatch", __file__
    )  # none if a foreign repository is around
    changed = tracked and _git("status", "--porcelain", "--untracked-files=no")
    packages = {}
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            packages[name] = importlib.metadata.version(name)
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
        "cpus": os.cpu_count(),
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
