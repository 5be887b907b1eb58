"""argparse for the programs whose arguments are not all flags: errors are one message."""

import argparse
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from scalelab.helpers.names import nearest


class Parser(argparse.ArgumentParser):
    """For programs whose arguments are not all flags; its errors are one message."""

    _given: Sequence[str] = ()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Keeps what was given, for `error`."""
        self._given = sys.argv[1:] if args is None else args
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """Ends the program; of a flag that is not known, it names the nearest.

        One that is required may be missing because it was misspelt.
        """
        unknown = message.removeprefix("unrecognized arguments: ")
        if "arguments are required" in message:
            names = (text.partition("=")[0] for text in self._given)
            strange = [n for n in names if n.startswith("--") and n not in self._flags()]
            if strange:
                unknown, message = strange[0], f"{message}; unrecognized: {strange[0]}"
        if unknown != message and unknown.startswith("--"):
            message += f": {nearest(unknown.split()[0].partition('=')[0], self._flags())}"
        self.exit(2, f"error: {message}; {self.prog} --help says what there is\n")

    def _flags(self) -> set[str]:
        """Its flags and those of its subcommands."""
        found = set(self._option_string_actions)
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                found.update(*(made._option_string_actions for made in action.choices.values()))
        return found
