"""What a run will take: a model of seconds and bytes, fitted to a few steps measured here.

A training step takes  sum_i c_i f_i  seconds, where the f_i count

  matmul     FLOPs of the matrix products (flops.py)
  width      numbers that norms, activations, dropout and residuals touch: positions x L x (H + F)
  scores     attention weights: B L A n^2
  logits     numbers that the cross-entropy touches: predicted positions x V
  update     parameters, which the optimizer reads and writes
  loop       those of `width` where the layers run in a loop (nn/stack.py), which copies what it
             keeps for the backward pass into one array of all layers, and out again; else 0
  step       1

with H and F of the layers rounded up to what whole vectors hold, and its temporary memory a sum of
the same kind without `matmul` and `loop`. The coefficients come from a ridge towards a guess, in
relative error, so that few measurements suffice, and none but `loop` falls below a share of its
guess: a disturbed measurement could else make one of them free, and width or depth with it.
"""

import dataclasses
import json
import pathlib
import platform
from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.optimize

FORM = 3  # of the counts; a calibration of another one is of no use
NAMES = ("matmul", "width", "scores", "logits", "update", "loop", "step")
# The guess: seconds for each count on a core that multiplies matrices at 80 GFLOP/s; what touches
# numbers once is slower beside it than counting its operations would tell.
GUESS = np.array([1 / 80e9, 14e-9, 18e-9, 2.4e-9, 2e-9, 11e-9, 1e-4])
MEMORY_GUESS = np.array([0.0, 40.0, 8.0, 8.0, 4.0, 0.0, 1e6])  # bytes for each count
RIDGE = 0.03  # weight of the guess beside a measurement
LEAST = np.array([0.25, 0.25, 0.25, 0.25, 0.25, 0.0, 0.25])  # of a coefficient's guess
STATE_BYTES = 24  # a parameter with its two moments, and a copy on its way to disk; float32


@dataclasses.dataclass(frozen=True)
class Measurement:
    """A training step, measured.

    Attributes:
      label: what was measured.
      features: [7] the counts in NAMES.
      secs: median seconds of a step.
      temp_bytes: XLA's temporary buffers.
      num_params: of the net.
    """

    label: str
    features: np.ndarray
    secs: float
    temp_bytes: float
    num_params: int


@dataclasses.dataclass(frozen=True)
class CostModel:
    """Predicts from counts.

    Attributes:
      secs: [7] seconds for each count.
      memory: [7] temporary bytes for each count.
      beside_bytes: of a process that trains, beside what its net takes.
      start_secs: of such a process beside its steps and compiling.
      compile_secs: of compiling its programs, where they are not kept from before.
      error: root of the mean squared relative error on what it was fitted to.
      left_out: likewise on each measurement by a fit to the others; None of a single one.
      measured: what it was fitted to: label -> seconds of a step.
    """

    secs: np.ndarray
    memory: np.ndarray
    beside_bytes: float
    start_secs: float
    compile_secs: float
    error: float
    left_out: float | None
    measured: dict[str, float]

    def step_secs(self, features: np.ndarray) -> float:
        """Seconds of a training step."""
        return float(features @ self.secs)

    def net_bytes(self, features: np.ndarray, num_params: int) -> float:
        """What a net takes of the process that trains it: its state and the buffers of a step."""
        return STATE_BYTES * num_params + float(features @ self.memory)


def fit(measurements: Sequence[Measurement]) -> CostModel:
    """Fits the model to one measurement or more; what is beside the steps is left at 0."""
    counts = np.stack([m.features for m in measurements])
    secs = np.array([m.secs for m in measurements])
    temp = np.array([m.temp_bytes for m in measurements])
    made, memory = _solve(counts, secs, GUESS), _solve(counts, np.maximum(temp, 1.0), MEMORY_GUESS)
    left_out = None
    if len(secs) > 1:
        others = ~np.eye(len(secs), dtype=bool)
        left_out = _rms([counts[i] @ _solve(counts[o], secs[o], GUESS) / secs[i] - 1
                         for i, o in enumerate(others)])  # fmt: skip
    measured = {m.label: m.secs for m in measurements}
    error = _rms(counts @ made / secs - 1)
    return CostModel(made, memory, 0.0, 0.0, 0.0, error, left_out, measured)


def _rms(errors: Any) -> float:
    return float(np.sqrt(np.mean(np.square(errors))))


def _solve(counts: np.ndarray, values: np.ndarray, guess: np.ndarray) -> np.ndarray:
    """Coefficients c with counts @ c near values, relatively, and near k * guess."""
    scale = float(np.median(values / np.maximum(counts @ guess, 1e-30)))  # how fast this machine is
    asked = guess > 0
    prior = scale * guess[asked]
    rows = counts[:, asked] * prior / values[:, None]  # in units of the guess, relative to measured
    found = scipy.optimize.lsq_linear(
        np.vstack([rows, RIDGE * np.eye(len(prior))]),
        np.concatenate([np.ones(len(values)), np.full(len(prior), RIDGE)]),
        bounds=(LEAST[asked], np.inf),
    )
    solution = np.zeros(len(guess))
    solution[asked] = found.x * prior
    return solution


def machine() -> dict[str, Any]:
    """What a calibration holds for."""
    import jax

    from scalelab.runs import environment

    return {
        "form": FORM,
        "host": platform.node(),
        "device": jax.devices()[0].device_kind,
        "cores": len(environment.cores()),
        "jax": jax.__version__,
    }


def save(
    path: pathlib.Path, model: CostModel, where: dict[str, Any], labels: Sequence[str]
) -> None:
    """Keeps a calibration that was asked for these steps for the next plan on this machine."""
    from scalelab.helpers.files import write_json

    values = dataclasses.asdict(model)
    values |= {name: list(map(float, values[name])) for name in ("secs", "memory")}
    write_json(path, {"machine": where, "names": NAMES, "asked": list(labels), "model": values})


def load(path: pathlib.Path, where: dict[str, Any], labels: Sequence[str]) -> CostModel | None:
    """A kept calibration of this machine that was asked for these steps; None: there is none."""
    try:
        kept = json.loads(path.read_text())
        values = kept["model"]
        if kept["machine"] != where or not set(labels) <= set(kept["asked"]):
            return None
        values |= {name: np.array(values[name]) for name in ("secs", "memory")}
        return CostModel(**values)
    except (OSError, ValueError, KeyError, TypeError):
        return None
