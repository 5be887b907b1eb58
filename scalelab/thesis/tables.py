"""Table layouts of the thesis."""

from collections.abc import Callable, Mapping
from typing import Any

TABLES: Mapping[str, Callable[[Any], Any]] = {}
