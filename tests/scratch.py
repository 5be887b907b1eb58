"""Systems and objectives that only a test has, found by name as those of the package are."""

import sys
import types
from typing import Any

import pytest

from scalelab.helpers import names


def add(patch: pytest.MonkeyPatch, room: str, name: str, **exports: Any) -> None:
    """Adds the module `scalelab.<room>.<name>` with these exports."""
    before = names.module_names
    patch.setitem(sys.modules, f"scalelab.{room}.{name}", types.SimpleNamespace(**exports))
    patch.setattr(names, "module_names", lambda of: before(of) + [name] * (of == room))
