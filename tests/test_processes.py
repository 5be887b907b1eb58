"""Several processes make one run: the same numbers as one process, however the mesh lies."""

import json
import os
import pathlib
import socket
import subprocess
import sys

import numpy as np
import pytest
import tiny

LOSSES = ("train/loss", "eval/loss")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def arguments(wikitext: pathlib.Path, cache_dir: pathlib.Path, workdir: pathlib.Path) -> list[str]:
    fields = {
        "tokenizer.vocab_size": 300, "net.max_len": 32, "short.max_len": 32, "short.batch_size": 8,
        "long.example_rate": 0.0, "eval.num_examples": 16, "machine.log_every_steps": 2,
        "machine.checkpoint_every_steps": 2, "machine.loader": "numpy", "machine.num_workers": 1,
        "machine.cache_dir": cache_dir, "machine.compile_cache_dir": "None",
    }  # fmt: skip
    config = f"{tiny.ROOT}/configs/pretrain.py:system=bert,shape=2x8x1,corpus=wikitext:{wikitext}"
    return [
        f"--workdir={workdir}",
        f"--config={config},steps=4",
        *(f"--config.{name}={value}" for name, value in fields.items()),
    ]


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
def test_two_processes_are_one_run(
    wikitext: pathlib.Path, cache_dir: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """Over the data axis the rows are divided; over the tensor axis both make the same rows."""
    single = tmp_path / "alone"
    run([sys.executable, "-m", "scalelab.train", *arguments(wikitext, cache_dir, single)])
    expected = losses(single)
    assert len(expected) == 3
    for axis in ("data", "tensor"):
        workdir = tmp_path / axis
        launch = ["bash", "launch/local.sh", "2", *arguments(wikitext, cache_dir, workdir)]
        run([*launch, f"--config.machine.{axis}_parallel=2"])
        found = losses(workdir)
        assert found.keys() == expected.keys()
        for place, loss in expected.items():
            np.testing.assert_allclose(found[place], loss, rtol=1e-5, err_msg=f"{axis} {place}")
        result = json.loads((workdir / "result.json").read_text())
        assert result["tokens"] == json.loads((single / "result.json").read_text())["tokens"]
