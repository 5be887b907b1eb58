"""The command line of all programs: flags, --config with its fields, argparse. Imports no JAX."""

import argparse
import functools
import itertools
import operator
import pathlib
import re
import sys
import traceback
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from absl import app, flags, logging
from ml_collections import config_flags

from scalelab.config.exits import FAILED as FAILED
from scalelab.config.exits import PREEMPTED as PREEMPTED
from scalelab.config.exits import Interrupt as Interrupt
from scalelab.config.exits import Interrupted as Interrupted
from scalelab.config.exits import Stopped as Stopped
from scalelab.config.exits import fail, one_message
from scalelab.config.exits import one_of_several as one_of_several
from scalelab.config.fields import OWNERS, describe, field_names, parse_value
from scalelab.config.pretraining import Config, resolve
from scalelab.helpers.names import describe_version, find_config, nearest

CONFIG = config_flags.DEFINE_config_file(
    "config",
    None,
    "Config file with its arguments, such as pretrain:system=bert,steps=500; the file lists its"
    " arguments. A name without a folder is a file of configs/. Any field: --config.<field>=VALUE.",
)
WORKDIR = flags.DEFINE_string(
    "workdir", None, "Run folder: made if absent; a stopped run in it is continued."
)
INIT = flags.DEFINE_string(
    "init",
    None,
    "Run folder, of a training or an import, to begin with: its parameters and its tokenizer. A"
    " training's clocks, schedule and optimizer begin at zero. A fine-tuning also takes none: from"
    " random weights.",
)
flags.declare_key_flag("config")
T = TypeVar("T")
REMOVED = {  # flags of the release before -> what took their place
    "seeds_together": "seeds train one after another; `study run` trains runs side by side",
}
# Fields of the command line that the flag parser cannot set: those that become None, and options.
_OVERRIDES: dict[str, Any] = {}


class Parser(argparse.ArgumentParser):
    """For programs with positional arguments; an error is one message."""

    def __init__(self, prog: str, description: str | None = None) -> None:
        formatter = argparse.RawDescriptionHelpFormatter
        super().__init__(prog, None, description, formatter_class=formatter, allow_abbrev=False)
        self.add_argument("--version", action="version", version=describe_version())

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Refuses unknown flags; argparse takes one for a text where its value has a space."""
        texts = sys.argv[1:] if args is None else list(args)
        for text in itertools.takewhile(lambda text: text != "--", texts):
            if (flag := re.match(r"(--[\w-]+)=", text)) and flag[1] not in self._flags():
                self.error(f"unrecognized arguments: {flag[1]}")
        return super().parse_known_args(texts, namespace)

    def _flags(self) -> set[str]:
        parts = [getattr(a, "_name_parser_map", {}).values() for a in self._actions]
        return {flag for p in [self, *itertools.chain(*parts)] for flag in p._option_string_actions}

    def error(self, message: str) -> NoReturn:
        """Ends the program; the message names the valid flags nearest to an unknown one."""
        if unknown := re.search(r"unrecognized arguments: .*?(--[\w-]+)", message):
            valid = self._flags() - {unknown[1]}  # a flag of another command of the program
            message += f"; unknown flag {unknown[1]}: {nearest(unknown[1], valid)}"
        self.exit(FAILED, f"error: {message}; see {self.prog} --help\n")


def positive(text: str) -> int:
    """Parses a whole number from 1 on the command line."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")
    return int(text)


def run(
    main: Callable[[list[str]], None],
    config_class: type = Config,
    when_interrupted: str = "finished parts are kept; start the same command again to continue",
) -> None:
    """Parses flags and runs `main(argv)`; users' mistakes end in one message and exit code 2.

    Args:
      main: the program.
      config_class: the dataclass whose fields --config.<field> may name and --help lists.
      when_interrupted: the message after "interrupted; ".
    """

    def checked_main(argv: list[str]) -> None:
        if len(argv) > 1:
            fail(f"unexpected argument {argv[1]!r}: flags are written --name=value")
        main(argv)

    logging.set_verbosity(logging.WARNING)
    if "--version" in sys.argv:
        print(describe_version())
        sys.exit(0)
    sys.argv[1:] = ["--help" if argument == "-h" else argument for argument in sys.argv[1:]]
    with one_message(when_interrupted, only_tells=asks_for_help(sys.argv)):
        app.run(checked_main, flags_parser=lambda argv: _parse(argv, config_class))


def read_config() -> Config:
    """Returns the resolved config of a pre-training from --config, --config.<field> and --init.

    Raises:
      ValueError: it is missing, or cannot be resolved.
    """
    values = config_values()
    if INIT.value == "none":
        raise ValueError("--init=none is for fine-tunings; leave --init out for random parameters")
    if INIT.value is not None:
        given = values["machine"]["init"]
        values["machine"]["init"] = required(INIT.value, "init")
        if given not in (None, INIT.value):
            raise ValueError(f"give --init={INIT.value} or --config.machine.init={given}, not both")
    return resolve(values)


def config_values() -> dict[str, Any]:
    """Returns the nested values that --config and --config.<field> ask for.

    Raises:
      ValueError: --config is missing.
    """
    values = required(CONFIG.value, "config").to_dict()
    for field, value in _OVERRIDES.items():
        *groups, name = field.split(".")
        functools.reduce(operator.getitem, groups, values)[name] = value
    return values


def typed_fields() -> list[str]:
    """Returns the dotted names of the fields that were given as --config.<field>=VALUE."""
    return [*config_flags.get_override_values(flags.FLAGS["config"]), *_OVERRIDES]


def required(value: T | None, flag: str) -> T:
    """Returns the value of a flag that must be given.

    Raises:
      ValueError: the flag is missing, or empty as an unset shell variable leaves it.
    """
    if value is None or value == "":
        raise ValueError(f"--{flag} is missing; see --help")
    return value


def workdir() -> pathlib.Path:
    """Returns the folder that --workdir names; it need not exist.

    Raises:
      ValueError: the flag is missing.
    """
    return pathlib.Path(required(WORKDIR.value, "workdir"))


def _parse(argv: list[str], config_class: type) -> list[str]:
    """Parses flags; a mistake in them, or in the config file, becomes one message."""
    fields = field_names(config_class)
    program, *arguments = argv
    if "--config" in arguments[:-1]:
        place = arguments.index("--config")
        arguments[place : place + 2] = [f"--config={arguments[place + 1]}"]
    _check_fields(arguments, fields)
    _OVERRIDES.clear()
    # The flag parser wants --config before its fields, and reads neither None nor new fields.
    arguments.sort(key=lambda argument: not argument.lstrip("-").startswith("config="))
    kept = []
    for argument in arguments:
        name, equals, value = argument.lstrip("-").partition("=")
        is_option = not OWNERS.keys().isdisjoint(name.split(".")[:-1])
        if name.startswith("config.") and (is_option or value.lower() == "none"):
            if is_option and name.split(".")[-2] not in OWNERS:
                fail(f"unknown config field {name!r}: an option has one name, as --help shows")
            if not equals:
                fail(f"{argument}: expected {argument}=VALUE")
            _OVERRIDES[name.removeprefix("config.")] = parse_value(value) if is_option else None
        else:
            kept.append(argument)
    sys.argv[:] = [program, *kept]  # where the config flag looks for its fields
    kept = [_with_path(argument) for argument in kept]
    shown = [flag.name for flag in flags.FLAGS.get_key_flags_for_module(program)]
    try:
        left = flags.FLAGS([program, *kept])
        if INIT.value is not None and shown and "init" not in shown:
            raise flags.UnrecognizedFlagError("init")
        return left
    except SystemExit:
        if not asks_for_help(arguments):
            raise
        if "config" in shown:
            print("Fields of --config, with the defaults that a config file may change:")
            print(describe(config_class))
        sys.exit(0)  # absl exits with 1
    except BrokenPipeError:
        raise
    except flags.UnrecognizedFlagError as error:
        if error.flagname in REMOVED:
            fail(f"--{error.flagname} is gone: {REMOVED[error.flagname]}")
        valid = [f"--{name}" for name in shown or flags.FLAGS]
        fail(f"unknown flag '--{error.flagname}': {nearest(f'--{error.flagname}', valid)}")
    except Exception as error:  # a config file may raise anything
        text = str(*error.args) if isinstance(error, KeyError) else str(error)
        if "Traceback (most recent call last)" in text:  # the flag parser quotes one
            text = text.strip().splitlines()[-1].removeprefix("ValueError: ")
        frames = traceback.extract_tb(error.__traceback__)
        lines = [
            f"{frame.filename}:{frame.lineno}: " for frame in frames if frame.name == "get_config"
        ]
        fail(lines[-1] + text if lines and not isinstance(error, ValueError) else text)


def asks_for_help(arguments: list[str]) -> bool:
    """Returns whether the command line asks for the help or the version."""
    return any(a in ("-h", "--version") or a.startswith(("-help", "--help")) for a in arguments)


def _with_path(argument: str) -> str:
    """Replaces the name of a shipped config file by its path; refuses one that does not exist."""
    flag, equals, value = argument.partition("=")
    if flag.lstrip("-") != "config" or not equals:
        return argument
    name, colon, rest = value.partition(":")
    try:
        return f"--config={find_config(name)}{colon}{rest}"
    except ValueError as error:
        fail(str(error))


def _check_fields(arguments: list[str], fields: list[str]) -> None:
    """Refuses fields that do not exist."""
    groups = {field.rpartition(".")[0] for field in fields}
    for argument in arguments:
        name = argument.lstrip("-").partition("=")[0]
        field = name.removeprefix("config.")
        # A field below a known one, such as a study's stage, is the flag parser's to check.
        below = any(field == known or field.startswith(f"{known}.") for known in fields)
        if argument.startswith("-") and field != name and field not in groups and not below:
            fail(f"unknown config field {field!r}: {nearest(field, fields)}")
