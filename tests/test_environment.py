"""The maps of programs that a process holds."""

import pathlib
import platform
import subprocess
import sys

import pytest

PROGRAMS = """
from scalelab import environment
import jax, jax.numpy as jnp

@jax.jit
def program(x):
    for k in range(30):
        x = jnp.sin(x @ x) + k
    return x

def maps():
    return open("/proc/self/maps").read().count("\\n")

program(jnp.ones((2, 2)))
first, before = program(jnp.ones((3, 3))), maps()
assert not environment.drop_programs_if_many()
assert maps() == before
assert environment.drop_programs_if_many(before / 2 / MOST)
assert maps() < before - 100
assert (program(jnp.ones((3, 3))) == first).all()
"""


@pytest.mark.skipif(platform.system() != "Linux", reason="counts the maps of Linux")
def test_programs_are_dropped_where_they_take_too_many_maps() -> None:
    most = pathlib.Path("/proc/sys/vm/max_map_count").read_text().strip()
    subprocess.run([sys.executable, "-c", PROGRAMS.replace("MOST", most)], check=True)
