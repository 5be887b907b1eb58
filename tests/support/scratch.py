"""Systems and objectives that only a test has, and the one message of a program that refuses."""

import sys
import types
from collections.abc import Callable
from typing import Any

import pytest

from scalelab.config import cli, exits
from scalelab.helpers import names


def add(patch: pytest.MonkeyPatch, room: str, name: str, **exports: Any) -> None:
    """Adds the module `scalelab.<room>.<name>` with these exports."""
    before = names.module_names
    patch.setitem(sys.modules, f"scalelab.{room}.{name}", types.SimpleNamespace(**exports))
    patch.setattr(names, "module_names", lambda of: before(of) + [name] * (of == room))


def refused(capsys: pytest.CaptureFixture, call: Callable[[], Any]) -> str:
    """Returns the one message with which a program ends, its exit code being 2."""
    with pytest.raises(SystemExit) as ended, cli.one_message("nothing was done"):
        call()
    assert ended.value.code == exits.FAILED
    message = capsys.readouterr().err
    assert "Traceback" not in message
    return message
