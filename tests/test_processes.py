"""Several processes make one run: the same numbers as one process, however the mesh lies."""

import json
import os
import pathlib
import socket
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np
import pytest
import tiny

from scalelab.config import exits

LOSSES = ("train/loss", "eval/loss")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def flags(wikitext: pathlib.Path, cache_dir: pathlib.Path) -> Callable[..., list[str]]:
    """flags(workdir, **fields) of a training of four steps."""
    often = dict(eval__every_steps=1, machine__log_every_steps=2, machine__checkpoint_every_steps=2)
    return lambda workdir, **fields: tiny.train_flags(
        workdir, wikitext, cache_dir, **(often | {"machine__loader": "numpy"} | fields)
    )


def losses(workdir: pathlib.Path) -> dict[tuple[int, str], float]:
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    return {(row["step"], name): row[name] for row in lines for name in LOSSES if name in row}


def run(command: list[str]) -> None:
    env = os.environ | {"PORT": str(free_port()), "PYTHON": sys.executable}
    done = subprocess.run(
        command, cwd=tiny.ROOT, env=env, capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_two_processes_are_one_run(flags, tmp_path) -> None:
    """Over the data axis the rows are divided; over the tensor axis both make the same rows."""
    single = tmp_path / "alone"
    run([sys.executable, "-m", "scalelab.train", *flags(single)])
    expected = losses(single)
    assert len(expected) == 7  # training at steps 2 and 4, validation at 0 to 4
    for axis, loader in (("data", "numpy"), ("tensor", "numpy"), ("data", "device")):
        workdir = tmp_path / f"{axis}-{loader}"
        fields = {f"machine__{axis}_parallel": 2, "machine__loader": loader}
        run(["bash", "launch/local.sh", "2", *flags(workdir, **fields)])
        found = losses(workdir)
        assert found.keys() == expected.keys()
        for place, loss in expected.items():
            np.testing.assert_allclose(found[place], loss, rtol=1e-5, err_msg=f"{workdir} {place}")
        result = json.loads((workdir / "result.json").read_text())
        assert result["tokens"] == json.loads((single / "result.json").read_text())["tokens"]


@pytest.mark.slow
def test_a_process_ends_soon_after_another_one_has_died(flags, tmp_path) -> None:
    """Without a launcher, which would end it at once."""
    given = flags(tmp_path / "run", optim__total_steps=100_000, machine__distributed=True)
    command = [sys.executable, "-m", "scalelab.train", *given]
    env = os.environ | {"JAX_PLATFORMS": "cpu", "JAX_NUM_PROCESSES": "2"}
    env["JAX_COORDINATOR_ADDRESS"] = f"127.0.0.1:{free_port()}"
    log = tmp_path / "log"
    with log.open("w") as errors:
        survivor, other = (
            subprocess.Popen(
                command, cwd=tiny.ROOT, env=env | {"JAX_PROCESS_ID": str(i)},
                stdout=subprocess.DEVNULL, stderr=errors if i == 0 else subprocess.DEVNULL,
            )
            for i in range(2)
        )  # fmt: skip
    try:
        metrics = tmp_path / "run/metrics.jsonl"
        while not (metrics.exists() and metrics.read_text()):
            assert survivor.poll() is None, log.read_text()
            time.sleep(0.2)
        other.kill()
        killed = time.monotonic()
        assert survivor.wait(timeout=60) == 1 and time.monotonic() - killed < 40
    finally:
        survivor.kill(), other.kill(), other.wait()
    assert log.read_text().count("error: ") == 1 and "Traceback" not in log.read_text()


@pytest.mark.parametrize(
    ("error", "code", "word"),
    [
        (OSError("bad value"), 2, "error: bad value"),
        (ValueError("UNKNOWN: Gloo AllGather failed"), 1, "error: another process"),
        (RuntimeError("RESOURCE_EXHAUSTED: 1 GB"), 2, "out of memory"),
        (TypeError("a fault of ours"), 1, "Traceback"),
    ],
)
def test_one_of_several_leaves_at_once(error, code, word, capsys, monkeypatch) -> None:
    left: list[int] = []
    monkeypatch.setattr(exits, "LOST_SECS", 0)
    monkeypatch.setattr(exits, "leave", lambda code: left.append(code) or sys.exit(code))
    with pytest.raises(SystemExit), exits.one_of_several():
        raise error
    assert left == [code] and word in capsys.readouterr().err
    with pytest.raises(exits.Stopped), exits.one_of_several():  # all processes stop together
        raise exits.Stopped("saved", exits.PREEMPTED)
    assert left == [code]
