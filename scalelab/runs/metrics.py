"""What a run measures: (sum, weight) pairs, timers, metrics.jsonl, TensorBoard."""

import collections
import contextlib
import json
import math
import pathlib
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import jax

from scalelab.helpers import files
from scalelab.runs import vmapped
from scalelab.runs.clocks import Clocks

Pairs = Mapping[str, tuple[Any, Any]]


def add(total: dict[str, tuple[float, float]], pairs: Pairs) -> None:
    """Adds (sum, weight) pairs to running totals, in place."""
    for name, (value, weight) in pairs.items():
        a, b = total.get(name, (0.0, 0.0))
        total[name] = (a + float(value), b + float(weight))


def divide(total: Pairs) -> dict[str, float]:
    """Turns (sum, weight) totals into means; what has no weight is left out."""
    return {name: float(s) / float(w) for name, (s, w) in total.items() if float(w) > 0}


def sum_pairs(many: Iterable[Pairs]) -> dict[str, tuple[float, float]]:
    """Adds up the pairs of many steps or batches."""
    total: dict[str, tuple[float, float]] = {}
    for pairs in many:
        add(total, pairs)
    return total


def bits_per_byte(nats_per_token: float, num_text_tokens: float, num_bytes: float) -> float:
    """Loss per byte of source text, so that tokenizers can be compared.

    Exact for CLM but for the first token of each example; for MLM a pseudo-likelihood: the mean
    loss of a masked token stands for every token.

    Args:
      nats_per_token: mean loss of a predicted token.
      num_text_tokens: tokens of the text, special ones left out.
      num_bytes: UTF-8 bytes of the text that they encode.
    """
    return nats_per_token * num_text_tokens / (num_bytes * math.log(2))


def summarise_eval(total: Pairs, token_losses: Iterable[str]) -> dict[str, float]:
    """Means of an evaluation, with perplexity and bits per byte of the token losses.

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


class Window:
    """Steps that were started and not yet waited for; their time goes to the clock when they are.

    Of runs that train together each has a window of its own, and each clock gets an even share of
    the time, so that seconds of runs add up to seconds of the machine.

    Args:
      clocks: whose `secs` it advances.
      total: holds what was settled and not yet taken; the caller may keep it over a restart.

    Attributes:
      loss: mean loss of the last settled steps.
      tokens_per_sec: real tokens, over the last settled steps.
      steps_per_sec: likewise.
    """

    AHEAD = 2  # steps that may wait on the device; more would only hold memory

    def __init__(self, clocks: Clocks, total: dict[str, tuple[float, float]]) -> None:
        self._clocks, self._total = clocks, total
        self._pending: list[tuple[int, Pairs]] = []
        self._recent: collections.deque[tuple[float, int, int]] = collections.deque(maxlen=20)
        self._index, self._size, self._share = 0, 1, 1.0
        self.loss = math.nan
        self.tokens_per_sec = self.steps_per_sec = 0.0
        self.restart()

    def join(self, index: int, size: int, count: int) -> None:
        """From here on the run trains together with others; nothing may be pending.

        Args:
          index: its place in the program.
          size: how many places that has.
          count: how many runs share the time.
        """
        assert not self._pending
        self._index, self._size, self._share = index, size, 1 / count
        self.restart()

    def restart(self) -> None:
        """Starts the clock again after something that is not training; nothing may be pending."""
        self._begun = time.perf_counter()
        self._before = self._clocks.tokens, self._clocks.steps

    def secs(self) -> float:
        """The clock's seconds, the steps under way included."""
        return self._clocks.secs + (time.perf_counter() - self._begun) * self._share

    def add(self, step: int, pairs: Pairs) -> None:
        """Notes that `step` was started, and waits for the one that is AHEAD steps older.

        Args:
          step: its number.
          pairs: its metrics, of all the runs that train together.
        """
        self._pending.append((step, pairs))
        if len(self._pending) > self.AHEAD:
            self._pending[-1 - self.AHEAD][1]["loss"][0].block_until_ready()

    def settle(self) -> None:
        """Waits for the steps under way and advances the clock.

        Raises:
          FloatingPointError: loss or gradient of a step was not finite.
        """
        if not self._pending:
            return
        many = vmapped.pick(
            jax.device_get([pairs for _, pairs in self._pending]), self._index, self._size
        )
        spent = (time.perf_counter() - self._begun) * self._share
        self._clocks.secs += spent
        for (step, _), pairs in zip(self._pending, many, strict=True):
            if not pairs["finite"][0]:
                loss, norm = float(pairs["loss"][0]), float(pairs["grad_norm"][0])
                raise FloatingPointError(f"step {step} had loss {loss} and gradient norm {norm}")
        self._pending.clear()
        tokens, steps = self._before
        self._recent.append((spent, self._clocks.tokens - tokens, self._clocks.steps - steps))
        secs, tokens, steps = (sum(column) for column in zip(*self._recent, strict=True))
        self.tokens_per_sec, self.steps_per_sec = tokens / secs, steps / secs
        new = sum_pairs(many)
        self.loss = divide(new)["loss"]
        add(self._total, new)
        self.restart()

    def take(self) -> dict[str, float]:
        """Settles, and returns the mean metrics of the steps since the last time, if any."""
        self.settle()
        means = divide(self._total)
        means.pop("finite", None)
        self._total.clear()
        return means


class Writer:
    """Writes metrics.jsonl, and the same numbers for TensorBoard.

    Args:
      workdir: the run folder.
      step: continue after this step: later lines of a killed run are dropped.
    """

    def __init__(self, workdir: pathlib.Path, step: int) -> None:
        self._path = workdir / "metrics.jsonl"
        lines = self._path.read_text().splitlines() if self._path.exists() else []
        kept = [line for line in lines if _step_of(line) <= step]
        files.write_text(self._path, "".join(line + "\n" for line in kept))
        self._file = self._path.open("a")
        self._board = _Board(workdir / "tensorboard")
        for line in kept:
            self._board.add(json.loads(line))

    def write(self, clocks: Clocks, values: Mapping[str, float]) -> None:
        """Appends one line: the clocks, then `values` ("train/loss", "eval/mlm_loss", ...).

        Json has no number for one that is not finite; it is left out.
        """
        line = {
            "step": clocks.steps,
            "tokens": clocks.tokens,
            "flops": clocks.flops,
            "seconds": round(clocks.secs, 4),
        } | {name: value for name, value in values.items() if math.isfinite(value)}
        self._file.write(json.dumps(line, allow_nan=False) + "\n")
        self._file.flush()
        self._board.add(line)

    def close(self) -> None:
        """Flushes both."""
        self._file.close()
        self._board.close()


class _Board:
    """TensorBoard events of a run, written anew at each start; none where tensorboardX is absent.

    Its low-level writer: the high-level one has a thread, which says nothing of a full disk.
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


def _step_of(line: str) -> float:
    """The step of a line of metrics.jsonl; infinity for a line that was cut off."""
    try:
        return json.loads(line)["step"]
    except (ValueError, KeyError, TypeError):
        return math.inf
