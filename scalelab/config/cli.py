"""What every binary shares: flags, the config flag, and errors that are one message.

A mistake in config, data or arguments ends with a single message on stderr and exit code 2; only a
fault of ours shows a traceback. Kept light: `--help` must not import JAX.
"""

import contextlib
import functools
import itertools
import operator
import os
import pathlib
import re
import select
import signal
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from absl import app, flags, logging
from ml_collections import config_flags

from scalelab.config.argument_parser import Parser as Parser
from scalelab.config.fields import field_names
from scalelab.config.pretraining import Config, resolve
from scalelab.helpers.names import nearest

FAILED = 2
AGAIN_SECS = 3.0  # for what an interrupted run has to tidy up
NEED_LESS = (
    "use a smaller batch_size, more --config.machine.num_microbatches, or"
    " --config.machine.remat=full"
)
PREEMPTED = 75  # EX_TEMPFAIL of sysexits.h: stopped by SIGTERM, saved, to be started again

CONFIG = config_flags.DEFINE_config_file(
    "config",
    None,
    "Config file with its arguments, such as configs/pretrain.py:system=bert,steps=500; that file"
    " says which there are. Any field of it: --config.<field>=VALUE.",
)
WORKDIR = flags.DEFINE_string(
    "workdir", None, "Run folder: made if absent, continued if its run was stopped."
)
for _name in ("config", "workdir"):
    flags.declare_key_flag(_name)
_SET_TO_NONE: list[str] = []  # fields given as --config.<field>=None
_RECEIVED: list[int] = []  # signals that interrupted the program, oldest first


class Stopped(Exception):
    """A run that ended before its budget for a reason that the user must read.

    Attributes:
      exit_code: PREEMPTED if a scheduler stopped it, which should start it again.
    """

    def __init__(self, message: str, exit_code: int = FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Interrupt:
    """Notes SIGINT and SIGTERM for a loop to look at between steps; a second signal acts at once.

    Attributes:
      received: the signal's name, or None.
    """

    def __init__(self) -> None:
        self.received: str | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Interrupt":
        try:
            self._before = {
                s: signal.signal(s, self._note) for s in (signal.SIGINT, signal.SIGTERM)
            }
        except ValueError:  # not in the main thread, which signals never reach
            pass
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, _: Any) -> None:
        self.received = signal.Signals(number).name
        self.__exit__()


def read_config() -> Config:
    """The resolved config that --config and --config.<field> ask for.

    Raises:
      ValueError: it is missing, or cannot be resolved.
    """
    return resolve(config_values())


def config_values() -> dict[str, Any]:
    """The nested values that --config and --config.<field> ask for.

    Raises:
      ValueError: --config is missing.
    """
    values = required(CONFIG.value, "config").to_dict()
    for field in _SET_TO_NONE:
        *groups, name = field.split(".")
        functools.reduce(operator.getitem, groups, values)[name] = None
    return values


def typed_fields() -> list[str]:
    """The fields that were given as --config.<field>=VALUE, by dotted name."""
    return [*config_flags.get_override_values(flags.FLAGS["config"]), *_SET_TO_NONE]


def required(value: Any, flag: str) -> Any:
    """Returns the value of a flag that must be given.

    Raises:
      ValueError: it was not, or is empty, as an unset variable of a shell leaves it.
    """
    if value is None or value == "":
        raise ValueError(f"--{flag} is missing; --help says what it is")
    return value


def workdir() -> pathlib.Path:
    """The folder that --workdir names, there or not.

    Raises:
      ValueError: the flag is missing, or a file is in the way.
    """
    path = pathlib.Path(required(WORKDIR.value, "workdir"))
    above = next((part for part in (path, *path.parents) if part.exists()), path)
    if above.exists() and not above.is_dir():
        raise ValueError(
            f"workdir {path} cannot be written: {above} is a file; choose another --workdir"
        )
    return path


def fail(message: str, exit_code: int = FAILED) -> NoReturn:
    """Ends the program with one message."""
    print(f"error: {message}", file=sys.stderr)
    sys.exit(exit_code)


def _check_fields(argv: list[str], fields: list[str]) -> None:
    """Refuses config files and fields that do not exist, in our words."""
    groups = {field.rpartition(".")[0] for field in fields}
    for argument, following in itertools.pairwise([*argv[1:], ""]):
        name, equals, value = argument.lstrip("-").partition("=")
        file = (value if equals else following).partition(":")[0]
        if argument.startswith("-") and name == "config" and not pathlib.Path(file).is_file():
            fail(f"no such config file: {file!r}")
        field = name.removeprefix("config.")
        if (
            argument.startswith("-")
            and field != name
            and field not in groups
            and not any(field == known or field.startswith(f"{known}.") for known in fields)
        ):
            fail(f"unknown config field {field!r}: {nearest(field, fields)}")


def _parse(argv: list[str], fields: list[str]) -> list[str]:
    """Parses flags; anything wrong in them, or in the config file, becomes one message."""
    _check_fields(argv, fields)
    program, *arguments = argv
    # The flag parser wants --config before its fields, and knows no None.
    arguments.sort(key=lambda argument: not argument.lstrip("-").startswith("config="))
    kept = []
    for argument in arguments:
        name, _, value = argument.lstrip("-").partition("=")
        if name.startswith("config.") and value.lower() == "none":
            _SET_TO_NONE.append(name.removeprefix("config."))
        else:
            kept.append(argument)
    sys.argv[:] = [program, *kept]  # where the config flag looks for its fields
    try:
        return flags.FLAGS(sys.argv)
    except SystemExit:
        if not any(a.lstrip("-").startswith("help") for a in arguments):
            raise
        sys.exit(0)  # it has been answered; absl calls that 1
    except flags.UnrecognizedFlagError as error:
        known = [flag.name for flag in flags.FLAGS.get_key_flags_for_module(program)]
        near = nearest(error.flagname, known or list(flags.FLAGS))
        fail(f"unknown flag '--{error.flagname}': {near}")
    except Exception as error:  # a config file may raise anything
        fail(_unknown_below(kept, fields, error) or _last_line(str(error) or type(error).__name__))
        raise


def _unknown_below(arguments: list[str], fields: list[str], error: Exception) -> str | None:
    """What to say of a field below a group without fixed ones, such as a study's stages.

    The flag parser looks for those, and says what comes near, but not where; None: it is another
    error.
    """
    names = [a.lstrip("-").partition("=")[0].removeprefix("config.") for a in arguments]
    free = [name for name in names if any(name.startswith(f"{known}.") for known in fields)]
    if not free or not isinstance(error, AttributeError | KeyError):
        return None
    near = re.search(r'Did you mean "(\w+)"', str(error))
    hint = f": did you mean {near[1]!r}?" if near else ""
    return f"unknown config field {' or '.join(map(repr, free))}{hint}"


def _last_line(text: str) -> str:
    """Of a message that quotes a traceback, what was raised in the end; any other as it is."""
    if "Traceback (most recent call last)" not in text:
        return text
    return text.strip().splitlines()[-1].removeprefix("ValueError: ")


def run(
    main: Callable[[list[str]], None],
    config_class: type = Config,
    when_interrupted: str = "start the same command again to continue",
) -> None:
    """Parses flags and runs `main(argv)`; users' mistakes end in one message and exit code 2.

    Args:
      main: the program.
      config_class: the dataclass whose fields --config.<field> may name.
      when_interrupted: what to say behind "interrupted; ".
    """

    def guarded(argv: list[str]) -> None:
        if len(argv) > 1:
            fail(f"unexpected argument {argv[1]!r}: flags are written --name=value")
        main(argv)

    logging.set_verbosity(logging.WARNING)
    # Around the parser too: reading the flags may import the net, and be interrupted in it.
    with one_message(when_interrupted, only_tells=False):
        app.run(guarded, flags_parser=lambda argv: _parse(argv, field_names(config_class)))


@contextlib.contextmanager
def one_message(
    when_interrupted: str, *, only_tells: bool = True, when_full: str = NEED_LESS
) -> Iterator[None]:
    """Runs a program's body: a user's mistake, or Ctrl-C, ends it with a message and exit code 2.

    Args:
      when_interrupted: what to say behind "interrupted; ".
      only_tells: what it prints is all that it does; so it ends in silence, and well, where
        nobody reads that any more.
      when_full: what to say behind "the device ran out of memory: ".
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    _RECEIVED.clear()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
        signal.signal(number, _interrupted)
    try:
        yield
        if sys.stdout is not None:
            sys.stdout.flush()  # here, where a reader that has gone can be told from a mistake
    except Stopped as error:
        fail(str(error), error.exit_code)
    except (ValueError, OSError) as error:
        if only_tells and isinstance(error, BrokenPipeError) and _nobody_reads():
            os._exit(0)
        if isinstance(error, ValueError) and _is_foreign(error):
            raise
        fail(str(error))
    except RuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        fail(f"the device ran out of memory: {when_full} ({str(error).splitlines()[0][:200]})")
    except KeyboardInterrupt:
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(f"error: interrupted; {when_interrupted}", file=sys.stderr)
        _leave(PREEMPTED if signal.SIGTERM in _RECEIVED else FAILED)


def _nobody_reads() -> bool:
    """Whether what reads the standard output has gone: `head`, say, has seen enough."""
    poll = select.poll()
    try:
        poll.register(sys.stdout.fileno(), 0)
    except (AttributeError, OSError):  # there is no standard output, or it is no file
        return False
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def _leave(exit_code: int) -> None:
    """Ends at once: libraries that were broken off would complain on an orderly way out."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)


def _interrupted(number: int, frame: types.FrameType | None) -> None:
    """Raises KeyboardInterrupt, and again later if somebody swallowed it.

    A callback that catches everything may drop it, and an import that it breaks off may end in any
    other error, or leave a half-loaded extension behind: in those it waits for the end.
    """
    if number != signal.SIGALRM:
        _RECEIVED.append(number)
    while frame is not None:
        if frame.f_code.co_name in ("_xla_gc_callback", "__del__", "_find_and_load"):
            signal.setitimer(signal.ITIMER_REAL, 0.05)  # sends SIGALRM, which comes here
            return
        frame = frame.f_back
    signal.setitimer(signal.ITIMER_REAL, AGAIN_SECS)
    raise KeyboardInterrupt


def _is_foreign(error: ValueError) -> bool:
    """Whether a ValueError came from a library deep below us, not from our words to the user."""
    frame = error.__traceback__
    last = None
    while frame is not None:
        last, frame = frame, frame.tb_next
    return last is not None and last.tb_frame.f_globals.get("__name__", "").split(".")[0] not in (
        "scalelab", "configs", "__main__",
    )  # fmt: skip
