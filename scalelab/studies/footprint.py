"""What a training takes beside its net: measured by a short one, made as a study makes its own.

Libraries, the corpus, tf.data, the compiler, two programs, checkpoints, TensorBoard, a picture: no
count tells what they take together, and it is most of what a small net's training takes. So a job
of a few steps runs to its end in a process of its own. It begins with no compiled program kept from
before, as the first run of every net does.
"""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

from scalelab.config.pretraining import Config
from scalelab.studies import expand
from scalelab.studies.expand import PlannedRun
from scalelab.studies.spec import StudySpec

TRAINED_STEPS = 4  # enough for both phases


@dataclasses.dataclass(frozen=True)
class Footprint:
    """What the process of a short training took.

    Attributes:
      peak_bytes: of memory.
      start_secs: from start to end, without its steps and compiling.
      compile_secs: of compiling.
    """

    peak_bytes: int
    start_secs: float
    compile_secs: float


def measure(spec: StudySpec, run: PlannedRun) -> Footprint:
    """Trains a run for a few steps in a process of its own, on CPU.

    Args:
      spec: the study.
      run: of it; the same net, batches and data.

    Raises:
      ValueError: the training failed; the message is its own.
    """
    bare = dataclasses.replace(spec, finetune=dataclasses.replace(spec.finetune, tasks=()))
    short = dataclasses.replace(run, config=shortened(run.config))
    with tempfile.TemporaryDirectory() as folder:
        workdir = pathlib.Path(folder)
        expand.write(bare, [short], workdir, "")
        begun = time.perf_counter()
        done = subprocess.run(
            [
                sys.executable, "-m", "scalelab.studies.job", f"--workdir={workdir}",
                f"--study={spec.name}", f"--run={run.name}", "--kind=pretrain",
            ],
            capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
            env=os.environ | {"JAX_PLATFORMS": "cpu"},
        )  # fmt: skip
        secs = time.perf_counter() - begun
        if done.returncode:
            said = (done.stderr or done.stdout).strip().splitlines() or ["it said nothing"]
            raise ValueError(
                f"{run.name}, trained for {TRAINED_STEPS} steps to plan the study, failed:"
                f" {said[-1].removeprefix('error: ')}"
            )
        result = json.loads((workdir / "runs" / run.name / "result.json").read_text())
    compiling = result["compile_secs"]
    return Footprint(
        result["peak_memory_bytes"], secs - result["seconds"] - compiling, compiling
    )  # fmt: skip


def shortened(config: Config) -> Config:
    """The same run with a budget of a few steps, one validation batch and nothing compiled kept."""
    optim = dataclasses.replace(
        config.optim,
        **{f"total_{clock}": None for clock in ("epochs", "tokens", "flops", "secs")},
        **{f"warmup_{clock}": None for clock in ("steps", "tokens", "flops", "secs")},
        total_steps=TRAINED_STEPS,
    )
    return dataclasses.replace(
        config,
        optim=optim,
        eval=dataclasses.replace(config.eval, every_steps=TRAINED_STEPS, num_examples=1),
        machine=dataclasses.replace(config.machine, compile_cache_dir=None),
    )
