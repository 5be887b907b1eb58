"""The examples of docstrings run."""

import doctest
import importlib

import pytest
import tiny

PACKAGE = tiny.ROOT / "scalelab"
MODULES = [
    ".".join(path.relative_to(tiny.ROOT).with_suffix("").parts)
    for path in sorted(PACKAGE.rglob("*.py"))
    if "\n    >>> " in path.read_text()
]


def test_there_are_examples() -> None:
    assert len(MODULES) >= 8


@pytest.mark.parametrize("name", MODULES)
def test_examples_of_a_module(name: str) -> None:
    found = doctest.testmod(importlib.import_module(name))
    assert found.attempted and not found.failed
