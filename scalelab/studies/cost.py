"""What a run will take: a model of seconds and bytes, fitted to a few steps measured here.

A training step takes  sum_i c_i f_i  seconds, where the f_i count

  matmul     FLOPs of the matrix products (flops.py)
  width      numbers that norms, activations, dropout and residuals touch: positions x L x (H + F)
  scores     attention weights: B L A n^2
  logits     numbers that the cross-entropy touches: predicted positions x V
  update     parameters, which the optimizer reads and writes
  step       1

and its temporary memory a sum of the same kind without `matmul`. The coefficients come from a ridge
towards a guess, in relative error, so that few measurements suffice, and none falls below a share
of its guess: a disturbed measurement could else make one of them free, and width or depth with it.
"""

import dataclasses
import json
import pathlib
import platform
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.optimize

NAMES = ("matmul", "width", "scores", "logits", "update", "step")
# The guess: seconds for each count on a core that multiplies matrices at 80 GFLOP/s; what touches
# numbers once is slower beside it than counting its operations would tell.
GUESS = np.array([1 / 80e9, 14e-9, 18e-9, 2.4e-9, 2e-9, 1e-4])
MEMORY_GUESS = np.array([0.0, 40.0, 8.0, 8.0, 4.0, 1e6])  # bytes for each count
RIDGE = 0.03  # weight of the guess beside a measurement
LEAST = 0.25  # of a coefficient's guess
ALIKE, MOST_LIKE_NO_OTHER = 0.05, 3  # see choose
MEASURED_STEPS = 4  # that a measurement takes
STATE_BYTES = 24  # a parameter with its two moments, and a copy on its way to disk; float32


@dataclasses.dataclass(frozen=True)
class Measurement:
    """A training step, measured.

    Attributes:
      label: what was measured.
      features: [6] the counts in NAMES.
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
      secs: [6] seconds for each count.
      memory: [6] temporary bytes for each count.
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
        bounds=(LEAST, np.inf),
    )
    solution = np.zeros(len(guess))
    solution[asked] = found.x * prior
    return solution


def features(config: Any, params: Any, forward: Any, batch_size: int, length: int,
             predicted: int) -> np.ndarray:  # fmt: skip
    """The counts of one training step.

    Args:
      config: the run's.
      params: the net's, abstract.
      forward: its flops.Flops.
      batch_size: B.
      length: n.
      predicted: positions of an example that pass through the token head.
    """
    from scalelab import flops

    net, positions = config.net, batch_size * length
    ffn = net.ffn_width or 4 * net.width
    return np.array([
        forward.train,
        positions * net.num_layers * (net.width + ffn),
        batch_size * net.num_layers * net.num_heads * length**2,
        batch_size * predicted * config.tokenizer.vocab_size,
        flops.count_parameters(params),
        1.0,
    ], np.float64)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Built:
    """A run's net in the abstract, and what a step of each phase counts.

    Attributes:
      config: the run's.
      num_params: of the net.
      phases: (batch size, length, Flops, features) of the short phase, and of the long one.
      plan: its blueprint.Blueprint.
    """

    config: Any
    num_params: int
    phases: tuple[tuple[int, int, Any, np.ndarray], ...]
    plan: Any


def build_run(config: Any) -> Built:
    """Builds a run's net in the abstract; nothing is computed and no data is read."""
    from scalelab import blueprint

    plan = blueprint.draw(config)
    params = plan.state.params
    phases = tuple(
        (p.batch_size, p.length, p.forward,
         features(config, params, p.forward, p.batch_size, p.length, p.predicted))
        for p in plan.phases
    )  # fmt: skip
    return Built(config, blueprint.num_params(plan), phases, plan)


class Stepper:
    """The compiled training step of a phase, on random tokens.

    Args:
      built: the run.
      phase: 0 or 1.
    """

    def __init__(self, built: Built, phase: int) -> None:
        from scalelab import sharding

        machine = built.config.machine
        batch_size, length, _, self.features = built.phases[phase]
        mesh = sharding.make_mesh(
            machine.data_parallel, machine.fsdp_parallel, machine.tensor_parallel
        )
        self.run = built.plan.compile(length, batch_size, mesh)
        self.state = built.plan.start(mesh)
        batch = built.plan.random_batch(length, batch_size)
        self.batch = sharding.put_batch(batch, mesh, batch_size)
        self.num_params = built.num_params
        self.label = label(built, phase)

    def __call__(self) -> float:
        """Takes a step; its seconds."""
        import jax

        begin = time.perf_counter()
        self.state, pairs = self.run(self.state, self.batch, np.float32(1e-4))
        jax.block_until_ready((self.state, pairs))
        return time.perf_counter() - begin

    def measurement(self, secs: Sequence[float]) -> Measurement:
        """What came of steps that took so long."""
        temp = float(self.run.memory_analysis().temp_size_in_bytes)
        return Measurement(self.label, self.features, float(np.median(secs)), temp, self.num_params)


def label(built: Built, phase: int) -> str:
    """What to call a step: "bert 2x128x2 at 64 x 128"."""
    net, (size, length, *_) = built.config.net, built.phases[phase]
    shape = f"{net.num_heads}x{net.width}x{net.num_layers}"
    return f"{built.config.system} {shape} at {size} x {length}"


def measure(stepper: Stepper) -> Measurement:
    """Times a training step: the median of all MEASURED_STEPS but the first."""
    stepper()
    return stepper.measurement([stepper() for _ in range(MEASURED_STEPS - 1)])


def choose(runs: Sequence[Built]) -> list[tuple[Built, int]]:
    """The steps to measure, what matters most first: (run, phase) pairs.

    The cheapest of each system; the dearest of all; then again and again the step that is least
    like those chosen, by how the guess shares its time out and by its size, until all are alike or
    there are enough.
    """
    steps = {label(b, phase): (b, phase) for b in runs for phase in range(len(b.phases))}
    places = {name: _place(b.phases[phase][3]) for name, (b, phase) in steps.items()}
    by_size = sorted(steps, key=lambda name: steps[name][0].phases[steps[name][1]][2].train)
    cheapest: dict[str, str] = {}
    for name in by_size:
        cheapest.setdefault(steps[name][0].config.system, name)
    chosen = list(cheapest.values())

    def distance(name: str) -> float:
        return min(float(np.abs(places[name] - places[other]).max()) for other in chosen)

    dearest = by_size[-1:] if distance(by_size[-1]) >= ALIKE else []
    chosen += dearest
    for _ in range(MOST_LIKE_NO_OTHER - len(dearest)):
        farthest = max(by_size, key=distance)
        if distance(farthest) < ALIKE:
            break
        chosen.append(farthest)
    return [steps[name] for name in chosen]


def _place(counts: np.ndarray) -> np.ndarray:
    """Shares of the guessed time, and its logarithm on a scale to compare with them."""
    parts = counts * GUESS
    return np.append(parts / parts.sum(), 0.1 * np.log(parts.sum()))


def machine() -> dict[str, Any]:
    """What a calibration holds for."""
    import jax

    from scalelab import environment

    return {
        "host": platform.node(),
        "device": jax.devices()[0].device_kind,
        "cores": len(environment.cores()),
        "jax": jax.__version__,
    }


def save(
    path: pathlib.Path, model: CostModel, where: dict[str, Any], labels: Sequence[str]
) -> None:
    """Keeps a calibration that was asked for these steps for the next plan on this machine."""
    from scalelab.metrics import write_json

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
