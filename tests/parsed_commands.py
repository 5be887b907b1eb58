"""Parses command lines as their programs do, and stops there. Reads and writes JSON.

Each command gets a fork of this process, which has imported once what most programs do. Its program
reads the flags and the config with its own code; then the command ends instead of doing its work.
"""

import json
import os
import runpy
import sys
import tempfile
import traceback
from typing import Any, NoReturn

import flax.linen  # noqa: F401
import jax  # noqa: F401
import pandas as pd  # noqa: F401
import scipy.stats  # noqa: F401
from absl import app

from scalelab import objectives  # noqa: F401
from scalelab.config import cli, files, pretraining  # noqa: F401
from scalelab.lab import tables  # noqa: F401
from scalelab.studies import spec


def stop_after_parsing() -> None:
    """Makes the command lines of programs end once they are read."""
    resolvers = {pretraining.Config: pretraining.resolve, spec.StudySpec: spec.resolve}
    parse_args = cli.Parser.parse_args

    app.define_help_flags()

    def run(main: Any, config_class: type = pretraining.Config, *_: Any, **__: Any) -> NoReturn:
        if left := cli._parse(sys.argv, config_class)[1:]:
            cli.fail(f"unexpected argument {left[0]!r}")
        if cli.CONFIG.value is not None and config_class in resolvers:
            resolvers[config_class](cli.config_values())
        sys.exit(0)

    def parse(self: cli.Parser, *arguments: Any) -> NoReturn:
        parse_args(self, *arguments)
        sys.exit(0)

    cli.run = run
    cli.Parser.parse_args = parse  # type: ignore


def parse(module: str, arguments: list[str]) -> None:
    """Ends this process as the program ends."""
    code = 0
    try:
        stop_after_parsing()
        sys.argv = [module, *arguments]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def main() -> None:
    """Answers, for each command of standard input, with its exit code and its errors."""
    answers = []
    for module, *arguments in json.load(sys.stdin):
        with tempfile.TemporaryFile() as errors:
            if not (pid := os.fork()):
                os.dup2(errors.fileno(), 2)
                os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
                parse(module, arguments)
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            errors.seek(0)
            answers.append([code, errors.read().decode()[-500:]])
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
