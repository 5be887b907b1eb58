"""How programs end: one message and an exit code for users' mistakes, interruptions, full devices.

Exit code 2 is a mistake in config, data or arguments; a traceback is a fault of ours.
"""

import contextlib
import os
import signal
import sys
import time
import traceback
import types
from collections.abc import Iterator
from typing import Any, NoReturn

FAILED = 2
PREEMPTED = 75  # EX_TEMPFAIL of sysexits.h: stopped by SIGTERM and saved, to be started again
LOST = ("gloo", "nccl", "coordination")  # in errors about a process that cannot be reached
LOST_SECS = 5.0  # for a launcher to end a process that waits for a failed one
AGAIN_SECS = 3.0  # for an interrupted program to clean up before it is interrupted again
NEED_LESS = (
    "use a smaller batch_size; in a training also more --config.machine.num_microbatches, or"
    " --config.machine.remat=full"
)
_RECEIVED: list[int] = []  # signals that interrupted the program, oldest first


class Stopped(Exception):
    """A run that ended before its budget for a reason that the user must read."""

    def __init__(self, message: str, exit_code: int = FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code  # PREEMPTED: a scheduler stopped it and should start it again


class Interrupted(Stopped):
    """A run that a signal ended: no error, so its message says what is saved.

    Args:
      received: the signal's name; None: another process had the signal.
      saved: what is saved, and where.
    """

    def __init__(self, received: str | None, saved: str) -> None:
        super().__init__(
            f"interrupted by {received or 'another process'}: {saved}; start the same command"
            " again to continue",
            PREEMPTED if received == "SIGTERM" else FAILED,
        )


class Interrupt:
    """Notes SIGINT and SIGTERM for a loop to see between steps; a second signal acts at once."""

    def __init__(self) -> None:
        self.received: str | None = None  # the name of the signal
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Interrupt":
        with contextlib.suppress(ValueError):  # only the main thread receives signals
            self._before = {
                s: signal.signal(s, self._note) for s in (signal.SIGINT, signal.SIGTERM)
            }
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, _: object) -> None:
        self.received = signal.Signals(number).name
        self.__exit__()
        with contextlib.suppress(OSError):  # not print, which the signal may have interrupted
            os.write(2, b"\nstopping; Ctrl-C again ends without waiting\n")


def fail(message: str, exit_code: int = FAILED) -> NoReturn:
    """Ends the program with one message."""
    print(f"error: {message}", file=sys.stderr)
    sys.exit(exit_code)


@contextlib.contextmanager
def one_message(when_interrupted: str, *, only_tells: bool = True) -> Iterator[None]:
    """Runs a program's body; a user's mistake or Ctrl-C ends it with one message and exit code 2.

    `when_interrupted` is the message after "interrupted; ". If printing is all that the program
    does, `only_tells`, it ends silently with exit code 0 when the reader of its output is gone
    (`| head`).
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    _RECEIVED.clear()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
        signal.signal(number, _interrupt)
    try:
        try:
            yield
            if sys.stdout is not None:
                sys.stdout.flush()  # a closed pipe shows here, not at exit
        finally:  # a signal during the exit would end it with a traceback
            signal.setitimer(signal.ITIMER_REAL, 0)
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
                signal.signal(number, signal.SIG_IGN)
    except Interrupted as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
    except Stopped as error:
        fail(str(error), error.exit_code)
    except (ValueError, OSError) as error:
        if only_tells and isinstance(error, BrokenPipeError):
            os._exit(0)
        *_, (last, _) = traceback.walk_tb(error.__traceback__)
        package = last.f_globals.get("__name__", "").partition(".")[0]
        if isinstance(error, ValueError) and package not in ("scalelab", "configs", "__main__"):
            raise  # the words of a library are not for the user
        fail(str(error))
    except RuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        fail(f"the device ran out of memory: {NEED_LESS} ({str(error).splitlines()[0][:200]})")
    except KeyboardInterrupt:
        print(f"interrupted; {when_interrupted}", file=sys.stderr)
        leave(PREEMPTED if signal.SIGTERM in _RECEIVED else FAILED)


@contextlib.contextmanager
def one_of_several() -> Iterator[None]:
    """Runs one of several processes; an error ends it at once with one message.

    An orderly exit would wait for the other processes. Exit code 1 if another process was lost,
    which is no mistake of the user; that process, or the launcher, tells why.
    """
    try:
        yield
    except Stopped:  # all processes stop after the same step
        raise
    except Exception as error:
        if any(word in str(error).lower() for word in LOST):
            time.sleep(LOST_SECS)
            first = str(error).splitlines()[0][:200]
            print(f"error: another process of this run ended or is unreachable ({first});"
                  " start the same command again to continue", file=sys.stderr)  # fmt: skip
            leave(1)
        try:
            with one_message(""):
                raise
        except SystemExit:
            leave(FAILED)
        except Exception:
            traceback.print_exc()
            leave(1)


def leave(exit_code: int) -> NoReturn:
    """Ends the process at once: interrupted libraries would complain during an orderly exit."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)


def _interrupt(number: int, frame: types.FrameType | None) -> None:
    """Raises KeyboardInterrupt, and again after AGAIN_SECS if something swallowed it.

    Inside an import, a finalizer or XLA's garbage collection callback it waits for their end: there
    the exception would be dropped, or leave a half-loaded extension behind.
    """
    if number != signal.SIGALRM:
        _RECEIVED.append(number)
    while frame is not None:
        if frame.f_code.co_name in ("_xla_gc_callback", "__del__", "_find_and_load"):
            signal.setitimer(signal.ITIMER_REAL, 0.05)  # sends SIGALRM, which calls this again
            return
        frame = frame.f_back
    signal.setitimer(signal.ITIMER_REAL, AGAIN_SECS)
    raise KeyboardInterrupt
