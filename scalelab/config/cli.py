"""The command line of all programs: argparse, and --config with its fields. Imports no JAX.

Each program is a module with `parser()` and `main(given)`; `run` runs them.
"""

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

import ml_collections

from scalelab.config import files
from scalelab.config.exits import fail, one_message
from scalelab.config.fields import (
    OWNERS,
    RENAMED_FLAGS,
    describe,
    field_names,
    flatten,
    parse_value,
    warn,
)
from scalelab.config.pretraining import Config, resolve
from scalelab.helpers.names import describe_version, find_config, nearest

CONFIG = (
    "config file with its arguments, such as pretrain:system=bert,steps=500; the file lists its"
    " arguments. A name without a folder is a file of configs/. Any field: --config.<field>=VALUE"
)
INIT = (
    "run folder, of a training or an import, to begin with: its parameters and its tokenizer. A"
    " training's clocks, schedule and optimizer begin at zero"
)
WORKDIR = "run folder: made if absent; a stopped run in it is continued"
CONTINUE = "finished parts are kept; start the same command again to continue"
AGAIN = "start the same command again"
FIELD = "--config."
BOOLS = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}
T = TypeVar("T")


class Parser(argparse.ArgumentParser):
    """A program's command line; a mistake in it ends in one message and exit code 2.

    Args:
      prog: the program as the user types it.
      description: its help text.
      config: the dataclass whose fields --config.<field> may name; None: there is no --config.
      setup: runs before the program, and not for --help, which would wait for JAX.
      when_interrupted: the message after "interrupted; ".
    """

    def __init__(
        self,
        prog: str,
        description: str | None = None,
        *,
        config: type | None = None,
        setup: Callable[[], object] | None = None,
        when_interrupted: str | None = None,
    ) -> None:
        formatter = argparse.RawDescriptionHelpFormatter
        super().__init__(prog, None, description, formatter_class=formatter, allow_abbrev=False)
        self.config_class, self.setup = config, setup
        self.when_interrupted = when_interrupted or (CONTINUE if config else AGAIN)
        self.commands: dict[str, Parser] = {}
        self.default_command: str | None = None
        self.add_argument("--version", action="version", version=describe_version())
        if config is not None:
            self.add_argument("--config", metavar="FILE:ARGUMENTS", help=CONFIG)

    def add_commands(self, default: str | None = None) -> "argparse._SubParsersAction[Parser]":
        """Adds commands, each with a parser of its own; `default` may be left out."""
        made = self.add_subparsers(dest="command", required=True, metavar="COMMAND")
        self.commands, self.default_command = made.choices, default  # type: ignore
        return made

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parses; takes the config's fields out first, and refuses unknown flags.

        argparse takes an unknown flag for a text where its value has a space.
        """
        words, fields = list(sys.argv[1:] if args is None else args), {}
        if self.default_command and words and words[0] not in self.commands:
            if words[0] not in ("-h", *self.flags()):
                words.insert(0, self.default_command)
        if self.config_class is not None:
            words, fields = self._take_fields(words)
        for word in () if self.commands else itertools.takewhile(lambda word: word != "--", words):
            flag = word.partition("=")[0]
            if flag.startswith("--") and flag not in self.flags():
                self.error(f"unknown flag {flag!r}: {nearest(flag, self.flags())}")
        given, left = super().parse_known_args(words, namespace)
        if self.config_class is not None:
            given.fields = fields
        return given, left

    def _take_fields(self, words: list[str]) -> tuple[list[str], dict[str, str | None]]:
        """Returns the words without --config.<field> VALUE, and the values by field."""
        known = field_names(self.config_class)  # type: ignore
        groups = {name.rpartition(".")[0] for name in known}
        kept, found, place = [], {}, 0
        while place < len(words):
            name, equals, value = words[place].partition("=")
            place += 1
            if not name.startswith(FIELD):
                kept.append(words[place - 1])
                continue
            if not equals and place < len(words) and not words[place].startswith("--"):
                equals, value, place = "=", words[place], place + 1
            given = name.removeprefix(FIELD)
            field = ".".join(RENAMED_FLAGS.get(part, part) for part in given.split("."))
            if given != field:
                warn(given, field)
            # The config itself checks a field below a known one, such as a study's stage.
            below = any(field == k or field.startswith(f"{k}.") for k in known)
            if field not in groups and not below:
                fail(f"unknown config field {field!r}: {nearest(field, known)}")
            found[field] = value if equals else None
        return kept, found

    def flags(self) -> list[str]:
        """Returns the long flags, without those of the commands."""
        return sorted(flag for flag in self._option_string_actions if flag.startswith("--"))

    def format_help(self) -> str:
        """Adds the config's fields."""
        text = super().format_help()
        if self.config_class is not None:
            text += "\nFields of --config, with the defaults that a config file may change:\n"
            text += describe(self.config_class) + "\n"
        return text

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            near = nearest(str(value), map(str, action.choices))
            raise argparse.ArgumentError(action, f"{value!r}: {near}")

    def error(self, message: str) -> NoReturn:
        """Ends the program."""
        if missing := re.match(r"the following arguments are required: (--\w+)", message):
            message = f"{missing[1]} is missing"
        elif self.commands and message.endswith("required: COMMAND"):
            message = f"expected a command: {', '.join(self.commands)}"
        elif extra := re.match(r"unrecognized arguments: (.*)", message):
            message = f"unexpected argument {extra[1]!r}: flags are written --name=value"
        fail(f"{message}; see {self.prog} --help")


def natural(text: str, least: int = 0) -> int:
    """Parses a whole number of the command line that is at least `least`."""
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least {least}: {text!r}")
    return int(text)


positive = functools.partial(natural, least=1)


def comma_list(text: str) -> list[str]:
    """Parses words joined by commas on the command line."""
    return [word.strip() for word in text.split(",") if word.strip()]


def run(
    main: Callable[[argparse.Namespace], object],
    parser: Parser,
    arguments: list[str] | None = None,
) -> None:
    """Runs a program; users' mistakes end in one message and exit code 2.

    `arguments` are the words of the command line; None: those that the user typed.
    """
    with one_message(parser.when_interrupted):
        given = parser.parse_args(arguments)
    used = parser.commands.get(getattr(given, "command", ""), parser)
    tells = used.config_class is None
    with one_message(used.when_interrupted, only_tells=tells):
        if used.setup is not None:
            used.setup()
        main(given)


def read_config(given: argparse.Namespace) -> Config:
    """Returns the resolved config of a pre-training from --config, --config.<field> and --init.

    Raises:
      ValueError: it is missing, or cannot be resolved.
    """
    values = config_values(given)
    if given.init == "none":
        raise ValueError("--init=none is for fine-tunings; leave --init out for random parameters")
    if given.init is not None:
        asked = values["machine"]["init"]
        values["machine"]["init"] = required(given.init, "init")
        if asked not in (None, given.init):
            raise ValueError(f"give --init={given.init} or --config.machine.init={asked}, not both")
    return resolve(values)


def config_values(given: argparse.Namespace) -> dict[str, Any]:
    """Returns the nested values that --config and --config.<field> ask for.

    Raises:
      ValueError: --config is missing, its file has a mistake, or a field is not known to it.
    """
    name, colon, arguments = required(given.config, "config").partition(":")
    path = find_config(name)
    try:
        config = files.load(path).get_config(*[arguments] * len(colon))
    except Exception as error:  # a config file may raise anything
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == str(path)]
        where = f"{path}:{lines[-1]}: " if lines and not isinstance(error, ValueError) else ""
        text = str(*error.args) if isinstance(error, KeyError) else str(error)
        raise ValueError(where + text) from None
    if config is None:
        raise ValueError(f"{path}: get_config returns nothing; end it with `return config`")
    config = ml_collections.ConfigDict(config)
    with config.unlocked(), config.ignore_type():
        for field, text in given.fields.items():
            _set_field(config, field, text)
    return config.to_dict()


def _set_field(config: ml_collections.ConfigDict, field: str, text: str | None) -> None:
    """Sets a field to the value that a text has as this field's type; None: the flag stood alone.

    Raises:
      ValueError: there is no such field, or the value has another type.
    """
    *groups, name = field.split(".")
    is_option = not OWNERS.keys().isdisjoint(groups)
    if is_option and groups[-1] not in OWNERS:
        raise ValueError(f"unknown config field {field!r}: an option has one name")
    try:
        group = functools.reduce(operator.getitem, groups, config)
        kind = object if is_option else group.get_type(name)
    except (KeyError, AttributeError, TypeError):
        near = nearest(field, flatten(config.to_dict()))
        raise ValueError(f"unknown config field {field!r}: {near}") from None
    if isinstance(group.get(name), ml_collections.ConfigDict) and kind is not object:
        raise ValueError(f"{FIELD}{field} is a group: set one of its fields, {FIELD}{field}.NAME")
    if text is None:
        if kind is not bool:
            raise ValueError(f"{FIELD}{field}: expected {FIELD}{field}=VALUE")
        text = "true"
    try:
        group[name] = _convert(text, kind)
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{FIELD}{field}={text}: expected {kind.__name__}") from None


def _convert(text: str, kind: type) -> Any:
    """Reads a value of a type; `object` and NoneType take any, and every type takes None."""
    if text.lower() == "none" and kind is not object:
        return None
    if kind is bool:
        return BOOLS[text.lower()]
    if kind in (int, float, str):
        return kind(text)
    value = parse_value(text)
    if kind is tuple:
        if isinstance(value, str) and "," in value:  # words without their quotes
            raise ValueError(text)
        return tuple(value) if isinstance(value, list | tuple) else (value,)
    return value if kind in (object, type(None)) else kind(value)


def required(value: T | None, flag: str) -> T:
    """Returns the value of a flag that must be given.

    Raises:
      ValueError: the flag is missing, or empty as an unset shell variable leaves it.
    """
    if value is None or value == "":
        raise ValueError(f"--{flag} is {'missing' if value is None else 'empty'}; see --help")
    return value


def workdir(given: argparse.Namespace) -> pathlib.Path:
    """Returns the folder that --workdir names; it need not exist.

    Raises:
      ValueError: the flag is missing.
    """
    return pathlib.Path(required(given.workdir, "workdir"))
