"""Parses command lines as their programs do, and stops there or runs them.

One process imports once what most programs do. A command that runs gets a fork of it. Otherwise
its program reads the flags and the config with its own code, in this process, and ends there.
"""

import contextlib
import io
import json
import os
import runpy
import subprocess
import sys
import tempfile
import traceback
from typing import Any, NoReturn

import flax.linen  # noqa: F401
import jax  # noqa: F401
import pandas as pd  # noqa: F401
import scipy.stats  # noqa: F401

from scalelab import objectives  # noqa: F401
from scalelab.config import cli, files, pretraining  # noqa: F401
from scalelab.lab import tables  # noqa: F401
from scalelab.studies import spec

Answer = tuple[int, str, str]  # exit code, output, errors


def answers(commands: list[list[str]], *, run: bool = False, **process: Any) -> list[Answer]:
    """What commands, each a module with its arguments, answer; `process`: the process's options."""
    done = subprocess.run(
        [sys.executable, __file__, *["run"] * run], input=json.dumps(commands),
        capture_output=True, text=True, **process,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return [(code, out, errors) for code, out, errors in json.loads(done.stdout)]


def stop_after_parsing() -> None:
    """Makes the command lines of programs end once they are read."""
    resolvers = {pretraining.Config: pretraining.resolve, spec.StudySpec: spec.resolve}

    def run(main: Any, parser: cli.Parser, arguments: list[str] | None = None) -> NoReturn:
        given = parser.parse_args(arguments)
        config_class = parser.commands.get(getattr(given, "command", ""), parser).config_class
        if config_class in resolvers and given.config is not None:
            with cli.one_message(""):
                resolvers[config_class](cli.config_values(given))
        sys.exit(0)

    cli.run = run


def start(module: str, arguments: list[str]) -> int:
    """Runs a program to its end; returns its exit code."""
    sys.argv = [module, *arguments]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        return int(end.code or 0)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def parse(module: str, arguments: list[str]) -> Answer:
    """Answers a command in this process, in which programs end once they have read their flags."""
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        code = start(module, arguments)
    return code, out.getvalue(), errors.getvalue()


def fork(module: str, arguments: list[str]) -> Answer:
    """Answers a command in a process of its own."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        if not (pid := os.fork()):
            os.dup2(out.fileno(), 1)
            os.dup2(errors.fileno(), 2)
            code = start(module, arguments)
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        for file in (out, errors):
            file.seek(0)
        return code, out.read().decode(), errors.read().decode()


def main() -> None:
    """Answers each command of standard input, as JSON."""
    answer = fork
    if "run" not in sys.argv[1:]:
        stop_after_parsing()
        answer = parse
    commands = json.load(sys.stdin)
    json.dump([answer(module, arguments) for module, *arguments in commands], sys.stdout)


if __name__ == "__main__":
    main()
