"""Systems that only tests have: what the seams offer and no system of the lab uses."""

import importlib

import pytest
import scratch

NAMES = ("translator", "two_streams")


def add(patch: pytest.MonkeyPatch, *names: str) -> None:
    """Adds guests, by default all, with their objectives and formats, while `patch` lasts."""
    for name in names or NAMES:
        module = importlib.import_module(f"guests.{name}")
        scratch.add(patch, "systems", name, **vars(module))
        for room in ("objectives", "formats"):
            for other, exports in getattr(module, room.upper(), {}).items():
                scratch.add(patch, room, other, **exports)
