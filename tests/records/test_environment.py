"""What environment.json says, the version of the numbers, the maps of compiled programs."""

import hashlib
import json
import os
import pathlib
import platform
import subprocess
import sys
from typing import Any

import pytest
import tiny

from scalelab.records import run_folder
from scalelab.resources import host

# tests/numerics/<system>.json: version -> digest of the golden numbers, the last as they are now.
TO_DO = """
If a number moved: raise NUMERICS_VERSION in scalelab/records/run_folder.py, write into
CHANGELOG's section "Numerics" which systems moved,
by how much and why, and add this version's digest to the file of each system that moved.
A new system's file is {"VERSION": "DIGEST"} with the version that holds. The digest now:
"""


def digest(golden: dict[str, Any]) -> str:
    """The digest of all but the config; losses have 5 digits, because compilers round."""
    numbers = {name: value for name, value in golden.items() if name != "config"}
    numbers["tiny_losses"] = [f"{loss:.5g}" for loss in numbers["tiny_losses"]]
    return hashlib.sha256(json.dumps(numbers, sort_keys=True).encode()).hexdigest()[:16]


@pytest.mark.parametrize("system", tiny.SYSTEMS)
def test_the_version_is_that_of_the_golden_file(system: str) -> None:
    golden = json.loads((tiny.ROOT / f"tests/golden/{system}.json").read_text())
    path = tiny.ROOT / f"tests/numerics/{system}.json"
    record = json.loads(path.read_text()) if path.exists() else {}
    assert record, TO_DO + digest(golden)
    versions = [int(version) for version in record]
    assert versions == sorted(versions) and versions[-1] <= run_folder.NUMERICS_VERSION
    assert record[str(versions[-1])] == digest(golden), TO_DO + digest(golden)


def test_each_system_has_its_files_and_the_changelog_and_environment_the_version() -> None:
    for room in ("numerics", "golden"):
        files = {path.stem for path in (tiny.ROOT / f"tests/{room}").iterdir()}
        assert files - {"suites"} == {*tiny.SYSTEMS}  # suites.json has the scores of suites
    _, _, section = (tiny.ROOT / "CHANGELOG.md").read_text().partition("### Numerics")
    version = run_folder.describe_environment()["numerics"]
    assert version == run_folder.NUMERICS_VERSION
    assert f"numerics version {version}." in section.partition("\n## ")[0]


@pytest.mark.parametrize(("given", "kept"), [
    (["--hf_token=abc", "--seed=1"], ["--hf_token=***", "--seed=1"]),
    (["--api-key", "abc", "--config=x"], ["--api-key", "***", "--config=x"]),
    (["--config.Secret=abc"], ["--config.Secret=***"]),
    (["-password=abc"], ["-password=***"]),
    (["--password", "-abc"], ["--password", "***"]),
    (["--hf_token", "--abc", "--seed=1"], ["--hf_token", "***", "--seed=1"]),
    (["--passwd=v", "--hf_tokens=v"], ["--passwd=***", "--hf_tokens=***"]),
    (["--tokens=9", "--max_new_tokens", "9"], ["--tokens=9", "--max_new_tokens", "9"]),
    (["--config.optim.total_tokens=9"], ["--config.optim.total_tokens=9"]),
    (["--config.tokenizer.kind=bpe"], ["--config.tokenizer.kind=bpe"]),
])  # fmt: skip
def test_secrets_are_not_kept_with_the_command_line(given, kept, monkeypatch) -> None:
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "scalelab.train", *given])
    command = run_folder.join_command(["-m", "scalelab.train", *kept])
    assert run_folder.describe_environment()["command"].partition(" ")[2] == command


def test_cores_are_those_of_the_process(monkeypatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 5, 7}, raising=False)
    assert run_folder.describe_environment()["cpus"] == 3


def test_a_shell_reads_the_command_line_as_it_was() -> None:
    words = ["x=('2x8x1',)", "a b", "it's", "$HOME's", "\"a'", "`a`'", "a'!\\"]
    line = run_folder.join_command(["printf", "%s\\n", *words])
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True)
    assert done.stdout.splitlines() == words
    assert run_folder.join_command(["x=('2x8x1',)"]) == "\"x=('2x8x1',)\""


PROGRAMS = """
from scalelab.resources import host
from scalelab.records import run_folder
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
assert not host.drop_programs_if_many()
assert maps() == before
assert host.drop_programs_if_many(before / 2 / MOST)
assert maps() < before - 100
assert (program(jnp.ones((3, 3))) == first).all()
"""


@pytest.mark.skipif(platform.system() != "Linux", reason="counts the maps of Linux")
def test_programs_are_dropped_where_they_take_too_many_maps() -> None:
    most = pathlib.Path("/proc/sys/vm/max_map_count").read_text().strip()
    subprocess.run([sys.executable, "-c", PROGRAMS.replace("MOST", most)], check=True)


@pytest.mark.parametrize(("visible", "platforms", "expected"), [
    (None, "", 2), ("1", "", 1), ("0,1", "cuda", 2), ("", "", 0), (None, "cpu", 0),
])  # fmt: skip
def test_gpus_are_counted(monkeypatch, visible: str | None, platforms: str, expected: int) -> None:
    """A machine with two GPUs counts those that CUDA and JAX may use."""
    monkeypatch.setattr(host.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(pathlib.Path, "glob", lambda self, pattern: [self / "a", self / "b"])
    monkeypatch.setenv("JAX_PLATFORMS", platforms)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert host.num_gpus() == expected
    assert host.has_accelerator() == (expected > 0)
