"""Clocks and metrics of a run: (sum, weight) pairs, steps in flight, metrics.jsonl, TensorBoard."""

import contextlib
import dataclasses
import json
import math
import pathlib
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import jax

from scalelab.helpers import files
from scalelab.runs import json_files

Pairs = Mapping[str, tuple[Any, Any]]


@dataclasses.dataclass
class Clocks:
    """How far a run has come on each clock.

    Attributes:
      steps: optimizer steps.
      tokens: real (non-padding) input tokens.
      flops: of training, analytic (flops.py).
      secs: of training alone; compilation, evaluation and checkpoints are not in it.
    """

    steps: int = 0
    tokens: int = 0
    flops: float = 0.0
    secs: float = 0.0

    def at(self, clock: str) -> float:
        """Returns the reading of a clock, by its name in config.durations.CLOCKS."""
        return float(getattr(self, clock))


@dataclasses.dataclass
class Run:
    """What changes while a run trains; a checkpoint holds all of it.

    Attributes:
      state: the TrainState, on the devices.
      clocks: how far it has come.
      phase: index of the phase in progress.
      phase_start: the step at which that phase began.
      best: lowest validation loss of the phase in progress.
      evals: the last validation of each phase, by its length in tokens.
      data: fingerprint of the training examples.
      unlogged: (sum, weight) of each metric since the last logged line.
      initialised: names of the parameters that the run it began with had not.
      num_lines: lines of metrics.jsonl so far; None in checkpoints of older versions.
    """

    state: Any
    clocks: Clocks = dataclasses.field(default_factory=Clocks)
    phase: int = 0
    phase_start: int = 0
    best: float = math.inf
    evals: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)
    data: str = ""
    unlogged: dict[str, tuple[float, float]] = dataclasses.field(default_factory=dict)
    initialised: list[str] = dataclasses.field(default_factory=list)
    num_lines: int | None = 0

    def meta(self) -> dict[str, Any]:
        """Returns everything but the state, as plain JSON."""
        fields = {
            f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "state"
        }
        return fields | {"clocks": dataclasses.asdict(self.clocks), "best": repr(self.best)}

    @classmethod
    def from_meta(cls, state: Any, meta: dict[str, Any]) -> "Run":
        """Builds the run from its state and what `meta` returned."""
        absent = {"initialised": [], "num_lines": None}  # in checkpoints of older versions
        names = {f.name for f in dataclasses.fields(cls)} - {"state"}
        values = {name: meta[name] for name in names if name in meta or name not in absent}
        clocks, best = Clocks(**meta["clocks"]), float(meta["best"])
        return cls(state, **(absent | values | {"clocks": clocks, "best": best}))


def add(total: dict[str, tuple[float, float]], pairs: Pairs) -> None:
    """Adds (sum, weight) pairs to running totals, in place."""
    for name, (value, weight) in pairs.items():
        a, b = total.get(name, (0.0, 0.0))
        total[name] = (a + float(value), b + float(weight))


def divide(total: Pairs) -> dict[str, float]:
    """Turns (sum, weight) totals into means; leaves out those of weight 0."""
    return {name: float(s) / float(w) for name, (s, w) in total.items() if float(w) > 0}


def sum_pairs(many: Iterable[Pairs]) -> dict[str, tuple[float, float]]:
    """Sums the pairs of many steps or batches."""
    total: dict[str, tuple[float, float]] = {}
    for pairs in many:
        add(total, pairs)
    return total


def bits_per_byte(nats_per_token: float, num_text_tokens: float, num_bytes: float) -> float:
    """Returns the loss per byte of source text, which compares across tokenizers.

    Exact for CLM but for the first token of each example; for MLM a pseudo-likelihood: the mean
    loss of a masked token stands for every token.

    Args:
      nats_per_token: mean loss of a predicted token.
      num_text_tokens: tokens of the text, special ones left out.
      num_bytes: UTF-8 bytes of the text that they encode.
    """
    return nats_per_token * num_text_tokens / (num_bytes * math.log(2))


def summarise_eval(total: Pairs, token_losses: Iterable[str]) -> dict[str, float]:
    """Returns the means of an evaluation, with perplexity and bits per byte of the token losses.

    Args:
      total: sums over the evaluation, from step.make_eval_step.
      token_losses: names of the losses of tokens, such as "mlm_loss".

    Returns:
      "loss" (the sum of the losses), "<objective>_loss", "<objective>_accuracy", "perplexity",
      "bits_per_byte".
    """
    text_tokens, num_bytes = total["num_text_tokens"][0], total["num_bytes"][0]
    means = divide({k: v for k, v in total.items() if k not in ("num_text_tokens", "num_bytes")})
    means["loss"] = sum(v for k, v in means.items() if k.endswith("_loss"))
    for name in token_losses:
        if name in means:
            means["perplexity"] = math.exp(min(means[name], 700.0))
            means["bits_per_byte"] = bits_per_byte(
                means[name], float(text_tokens), float(num_bytes)
            )
    return means


@contextlib.contextmanager
def timed(timers: dict[str, float], name: str) -> Iterator[None]:
    """Adds the time spent inside to `timers[name]`, in seconds."""
    begun = time.perf_counter()
    try:
        yield
    finally:
        timers[name] = timers.get(name, 0.0) + time.perf_counter() - begun


class InFlight:
    """Steps that were started and not yet waited for, and the time that they take."""

    AHEAD = 2  # steps that may wait on the device; more would only hold memory

    def __init__(self) -> None:
        self._pending: list[Pairs] = []
        self.restart()

    def restart(self) -> None:
        """Restarts the timer after validation or a checkpoint; no step may be in flight."""
        assert not self._pending
        self._begun = time.perf_counter()

    def secs(self) -> float:
        """Returns the seconds since the last `restart` or `wait`."""
        return time.perf_counter() - self._begun

    def add(self, pairs: Pairs) -> None:
        """Adds the metrics of a step that was started; waits for the one AHEAD steps before it."""
        self._pending.append(pairs)
        if len(self._pending) > self.AHEAD:
            self._pending[-1 - self.AHEAD]["loss"][0].block_until_ready()

    def wait(self) -> tuple[list[Pairs], float]:
        """Waits for all steps in flight; returns their metrics, on the host, and `secs`."""
        steps, self._pending = jax.device_get(self._pending), []
        secs = self.secs()
        self.restart()
        return steps, secs


class Writer:
    """Writes metrics.jsonl, and the same numbers for TensorBoard.

    Args:
      workdir: the run folder.
      step: continue after this step: later lines of a killed run are dropped.
      expected: lines that were written up to that step; None if not known.

    Attributes:
      num_lines: lines that the file holds.
    """

    def __init__(self, workdir: pathlib.Path, step: int, expected: int | None = None) -> None:
        path = workdir / "metrics.jsonl"
        kept = [line for line in _readable_lines(path) if line["step"] <= step]
        self.num_lines = len(kept)
        if expected is not None and self.num_lines < expected:
            print(
                f"warning: {path} holds {self.num_lines} of the {expected} lines written up to step"
                f" {step}; the rest was deleted or damaged, so curves and tables of this run have"
                " a gap there"
            )
        files.write_text(path, "".join(json.dumps(line) + "\n" for line in kept))
        self._file = path.open("a")
        self._board = _Board(workdir / "tensorboard")
        for line in kept:
            self._board.add(line)

    def write(self, clocks: Clocks, values: Mapping[str, float]) -> None:
        """Appends one line: the clocks, then `values` ("train/loss", "eval/mlm_loss", ...).

        A number that is not finite is left out, because JSON has none.
        """
        line = {
            "step": clocks.steps,
            "tokens": clocks.tokens,
            "flops": clocks.flops,
            "seconds": round(clocks.secs, 4),
        } | {name: value for name, value in values.items() if math.isfinite(value)}
        self._file.write(json.dumps(line, allow_nan=False) + "\n")
        self._file.flush()
        self.num_lines += 1
        self._board.add(line)

    def close(self) -> None:
        """Flushes both."""
        self._file.close()
        self._board.close()


class _Board:
    """TensorBoard events of a run, rewritten at each start; none where tensorboardX is absent.

    Uses the low-level writer: the high-level one writes in a thread, which hides a full disk.
    """

    def __init__(self, directory: pathlib.Path) -> None:
        try:
            from tensorboardX.event_file_writer import EventsWriter
            from tensorboardX.proto.event_pb2 import Event
            from tensorboardX.summary import scalar
        except ImportError:
            self._writer = None
            return
        self._event, self._scalar = Event, scalar
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        self._writer = EventsWriter(str(directory / "events"))

    def add(self, line: Mapping[str, float]) -> None:
        """Adds a line of metrics.jsonl."""
        if self._writer is None:
            return
        for name, value in line.items():
            if name != "step":
                summary = self._scalar(name, value)
                event = self._event(wall_time=time.time(), step=line["step"], summary=summary)
                self._writer.write_event(event)
        self._writer.flush()

    def close(self) -> None:
        """Closes the file."""
        if self._writer is not None:
            self._writer.close()


def _readable_lines(path: pathlib.Path) -> Iterator[dict[str, Any]]:
    """Yields the lines of metrics.jsonl that hold numbers and a step."""
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    for line in text.splitlines():
        with contextlib.suppress(ValueError):
            values = json_files.parse_object(line)
            if "step" in values and all(type(x) in (int, float) for x in values.values()):
                yield values
