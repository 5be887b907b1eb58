"""A checkpoint of BERT-base's size comes in within its limits of memory and time."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import numpy as np
import pytest
import tiny
from flax import linen as nn
from flax import traverse_util
from safetensors.numpy import save_file

from scalelab import systems
from scalelab.config.pretraining import resolve
from scalelab.interop import convert, maps

pytestmark = pytest.mark.slow

VOCAB, NUM_PARAMETERS = 30_522, 110_106_428
MEMORY, SECS = 3.0, 15.0  # in sizes of the file; on the clock too, where no other uses the cores
PROGRAM = """
import time
from scalelab.config import cli
from scalelab.interop import hf
cli.run(hf.main, hf.parser())
peak = next(x for x in open("/proc/self/status") if x.startswith("VmHWM")).split()[1]
print(1024 * int(peak), time.process_time())
"""


def write_checkpoint(folder: pathlib.Path) -> int:
    """Writes a BertForPreTraining of 12x768x12 with random weights; returns its size in bytes."""
    values = tiny.values("system=bert,shape=12x768x12,steps=1", tokenizer__vocab_size=VOCAB)
    parts = tiny.parts_of(resolve(values), systems.load("bert"))
    family, rng = maps.load("bert"), np.random.default_rng(0)
    flat = traverse_util.flatten_dict(nn.unbox(parts.abstract_parameters()), sep="/")
    params = {path: rng.random(x.shape, np.float32) for path, x in flat.items()}
    rows = family.rows(family.architectures[0])
    tensors = convert.to_tensors(rows, params)
    assert sum(x.size for x in tensors.values()) == NUM_PARAMETERS
    save_file(tensors, folder / "model.safetensors")
    config = {"model_type": "bert", "vocab_size": VOCAB}  # the sizes are the defaults
    (folder / "config.json").write_text(json.dumps(config))
    special = [text for _, text in systems.load("bert").SPECIAL_TOKENS]
    pieces = special + [f"w{i}" for i in range(VOCAB - len(special))]
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n")
    return (folder / "model.safetensors").stat().st_size


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_and_time() -> None:
    """Of the whole process, the libraries that it loads included."""
    others = os.getloadavg()[0] - 1  # this process waits
    with tempfile.TemporaryDirectory() as folder:  # nobody wants to keep a gigabyte
        size = write_checkpoint(pathlib.Path(folder))
        start = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, "import", folder, f"--workdir={folder}/run"],
            cwd=tiny.ROOT,
            capture_output=True,
            text=True,
        )
        secs = time.monotonic() - start
    others = max(others, os.getloadavg()[0] - (os.cpu_count() or 1))
    assert done.returncode == 0, done.stderr
    assert f"{NUM_PARAMETERS:,} parameters" in done.stdout
    peak, cpu_secs = map(float, done.stdout.splitlines()[-1].split())
    assert size < peak < MEMORY * size, f"{peak / size:.2f} times the file"
    assert cpu_secs < SECS
    assert secs < SECS or others > 0.5, f"{secs:.1f} s"
