"""The training steps that a cost model is fitted to: what they count, and how long they take.

A net is built in the abstract, which tells the counts of its steps (cost.NAMES). Some steps of a
study, as unlike each other as possible, are then compiled and timed.
"""

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from scalelab.studies import cost
from scalelab.studies.cost import GUESS, Measurement

ALIKE, MOST_LIKE_NO_OTHER = 0.05, 3  # see choose
# Rounds of steps that a measurement takes after its first: in the untimed ones freed memory is kept
# for the first time and its pages are new (`freed_memory.py`), which a long training does not see.
UNTIMED, ROUNDS = 2, 3
LANES = 16  # numbers that are worked on at once: rows are touched in whole vectors


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
    from scalelab.resources import blueprint, flops

    net = config.net
    width, ffn = widths_in_lanes(net)
    touched = batch_size * length * net.num_layers * (width + ffn)
    true = layer_weights(net.width, net.ffn_width or 4 * net.width)
    return np.array([
        forward.train + 3 * forward.body * (layer_weights(width, ffn) / true - 1),
        touched,
        batch_size * net.num_layers * net.num_heads * length**2,
        batch_size * predicted * config.tokenizer.vocab_size,
        flops.count_parameters(params),
        touched * blueprint.in_a_loop(config),
        1.0,
    ], np.float64)  # fmt: skip


def widths_in_lanes(net: Any) -> tuple[int, int]:
    """H and F of a config's net as the hardware works on them: the next multiples of LANES."""
    ffn = net.ffn_width or 4 * net.width
    return -(-net.width // LANES) * LANES, -(-ffn // LANES) * LANES


def layer_weights(width: int, ffn: int) -> int:
    """Weights of a layer's products: four projections and the two of the FFN."""
    return 4 * width**2 + 2 * width * ffn


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
    from scalelab.resources import blueprint

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


def measure(
    chosen: Sequence[tuple[Built, int]], within_secs: float, say: Callable[[str], None]
) -> list[tuple[Stepper, Measurement]]:
    """Compiles and times steps: each its first, then all in turn, so that others slow all alike.

    Args:
      chosen: (run, phase) pairs, what matters most first.
      within_secs: what would outlast these is left out; something cheaper after it may still fit.
      say: told what is compiled.

    Returns:
      Of each that was measured its stepper, and the median of its ROUNDS.
    """
    steppers: list[Stepper] = []
    firsts: list[float] = []
    begun = time.perf_counter()
    for built, phase in chosen:
        if steppers:
            spent = time.perf_counter() - begun
            known = cost.fit([s.measurement([t]) for s, t in zip(steppers, firsts, strict=True)])
            own = known.step_secs(built.phases[phase][3])
            compiling = (spent - sum(firsts)) / len(firsts)
            if spent + compiling + own + (UNTIMED + ROUNDS) * (sum(firsts) + own) > within_secs:
                continue
        say(f"compiling {label(built, phase)}")
        steppers.append(Stepper(built, phase))
        firsts.append(steppers[-1]())
    return [
        (stepper, stepper.measurement(secs))
        for stepper, secs in zip(steppers, in_turns(steppers, ROUNDS), strict=True)
    ]


def in_turns(steppers: Sequence[Callable[[], float]], num_rounds: int) -> list[tuple[float, ...]]:
    """Seconds of so many steps of each, after UNTIMED ones."""
    rounds = [[stepper() for stepper in steppers] for _ in range(UNTIMED + num_rounds)]
    return list(zip(*rounds[UNTIMED:], strict=True))


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
