"""Fine-tuning, evaluation and decoding use all devices, and equal one device."""

import os
import subprocess
import sys

import pytest
import tiny

PROGRAM = tiny.ROOT / "tests/support/mesh_program.py"


@pytest.mark.ci
def test_several_devices_equal_one(pretrained_runs, cache_dir, tmp_path) -> None:
    """On 4 simulated devices, by data, fsdp and tensor parallelism, to 1e-5."""
    tests = tiny.ROOT / "tests"
    arguments = [pretrained_runs("gpt2"), pretrained_runs("bert"), cache_dir, tmp_path]
    done = subprocess.run(
        [sys.executable, str(PROGRAM), *map(str, arguments)],
        env=os.environ | {"PYTHONPATH": f"{tiny.ROOT}:{tests}"},
        capture_output=True,
        text=True,
        timeout=550,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("equal") == 3
