"""Test systems that use features of the interfaces which no system of scalelab uses."""

import importlib

import pytest
import scratch

NAMES = ("translator", "two_streams", "halves")


def add(patch: pytest.MonkeyPatch, *names: str) -> None:
    """Adds test systems with their objectives and formats until `patch` ends; by default NAMES."""
    for name in names or NAMES:
        module = importlib.import_module(f"guests.{name}")
        scratch.add(patch, "systems", name, **vars(module))
        for room in ("objectives", "formats"):
            for other, exports in getattr(module, room.upper(), {}).items():
                scratch.add(patch, room, other, **exports)
