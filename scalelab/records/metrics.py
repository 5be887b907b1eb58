"""Metrics of a run: clocks, means of (sum, weight) pairs, metrics.jsonl and other trackers."""

import contextlib
import dataclasses
import importlib.util
import json
import math
import pathlib
import shutil
import sys
import time
from collections.abc import Iterable, Mapping
from typing import Any

from scalelab.config.durations import CLOCKS
from scalelab.helpers import files
from scalelab.records import json_files

# Name -> (sum, weight), numbers or arrays.
Pairs = Mapping[str, tuple[Any, Any]]


@dataclasses.dataclass
class Clocks:
    """How far a run has come on each clock."""

    steps: int = 0  # optimizer steps
    tokens: int = 0  # real (non-padding) input tokens
    flops: float = 0.0  # FLOPs of training, counted by flops.py
    secs: float = 0.0  # training alone, without compilation, evaluation and checkpoints

    def at(self, clock: str) -> float:
        """Returns the reading of a clock, by its name in config.durations.CLOCKS."""
        return float(getattr(self, clock))


@dataclasses.dataclass
class Progress:
    """The numbers of a run that change in training; a checkpoint holds them as JSON."""

    clocks: Clocks = dataclasses.field(default_factory=Clocks)
    phase: int = 0  # index of the phase in progress
    phase_start: int = 0  # the step at which that phase began
    best: float = math.inf  # lowest validation loss of the phase in progress
    # The last validation of each phase, by its length in tokens.
    evals: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)
    data: str = ""  # fingerprint of the training examples
    # (sum, weight) of each metric since the last logged line.
    unlogged: dict[str, tuple[float, float]] = dataclasses.field(default_factory=dict)
    # Names of the parameters that the run of --init did not have.
    initialised: list[str] = dataclasses.field(default_factory=list)
    num_lines: int | None = 0  # lines of metrics.jsonl; None in checkpoints of older versions

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Progress":
        """Reverses dataclasses.asdict; reads checkpoints of older versions too."""
        known = {field.name for field in dataclasses.fields(cls)} & values.keys()
        own: dict[str, Any] = {"num_lines": None} | {name: values[name] for name in known}
        own |= {"clocks": Clocks(**values["clocks"]), "best": float(values["best"])}
        return cls(**own)


class _TensorBoard:
    """Writes numbers for TensorBoard."""

    def __init__(self, folder: pathlib.Path) -> None:
        # The package imports PyTorch where it is installed, which takes seconds.
        blocked = {} if "torch" in sys.modules else {"torch": None}
        sys.modules.update(blocked)  # pyright: ignore[reportArgumentType, reportCallIssue]
        try:
            from tensorboardX.event_file_writer import EventsWriter
            from tensorboardX.proto.event_pb2 import Event
            from tensorboardX.summary import scalar
        finally:
            for name in blocked:
                del sys.modules[name]

        folder.mkdir(parents=True)
        # The low-level writer: the high-level one writes in a thread, which hides a full disk.
        self._writer, self._event = EventsWriter(str(folder / "events")), Event
        self._scalar, self.finish = scalar, self._writer.close

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Writes the numbers of a step."""
        for name, value in values.items():
            event = self._event(wall_time=time.time(), step=step, summary=self._scalar(name, value))
            self._writer.write_event(event)
        self._writer.flush()


def check_tracker(tracker: str | None) -> None:
    """Raises ValueError if the package of `config.machine.tracker` is missing."""
    if tracker in ("wandb", "trackio") and importlib.util.find_spec(tracker) is None:
        raise ValueError(
            f"config.machine.tracker = {tracker} needs the package {tracker}, which is not"
            f" installed: pip install {tracker}"
        )


def _open_tracker(tracker: str, workdir: pathlib.Path) -> Any:
    """Opens a tracker; wandb and trackio get a new run with config.json, named by its folder.

    Raises:
      ValueError: the tracker's package is missing, or refuses to start.
    """
    if tracker == "tensorboard":
        return _TensorBoard(workdir / tracker)
    check_tracker(tracker)
    path, config = workdir.resolve(), workdir / "config.json"
    own = {"dir": str(path), "reinit": "create_new"} if tracker == "wandb" else {}
    try:
        return importlib.import_module(tracker).init(
            project="scalelab", name=f"{path.parent.name}/{path.name}",
            config=json.loads(config.read_text()) if config.exists() else {}, **own,
        )  # fmt: skip
    except Exception as error:
        hint = "; WANDB_MODE=offline needs no account" * (tracker == "wandb")
        raise ValueError(f"config.machine.tracker = {tracker}: {error}{hint}") from error


class Writer:
    """Writes metrics.jsonl, and the same numbers for a tracker.

    A tracker gets the lines that the file holds again: a continued run has its whole curve.

    Args:
      workdir: the run folder.
      step: continue after this step: later lines of a killed run are dropped.
      expected: number of lines that were written up to that step; None if not known.
      tracker: config.machine.tracker.
    """

    def __init__(
        self, workdir: pathlib.Path, step: int, expected: int | None = None,
        tracker: str | None = "tensorboard",
    ) -> None:  # fmt: skip
        path = workdir / "metrics.jsonl"
        text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
        kept = []
        for line in text.splitlines():
            with contextlib.suppress(ValueError):
                kept.append(json_files.parse_numbers(line))
        # The validation of the untrained model is written anew.
        kept = [line for line in kept if line["step"] <= step] if step else []
        self.num_lines = len(kept)  # lines in the file
        if step and expected is not None and self.num_lines < expected:
            print(
                f"warning: {path} holds {self.num_lines} of the {expected} lines written up to step"
                f" {step}; the rest was deleted or damaged, so curves and tables of this run have"
                " a gap there"
            )
        files.write_text(path, "".join(json.dumps(line) + "\n" for line in kept))
        shutil.rmtree(workdir / "tensorboard", ignore_errors=True)
        self._tracker = _open_tracker(tracker, workdir) if tracker else None
        self._file = path.open("a")
        for line in kept:
            self._track(line)

    def write(self, clocks: Clocks, values: Mapping[str, float]) -> None:
        """Appends one line: the clocks, then the values, such as "train/loss".

        A value that is not finite is left out, because JSON has none.
        """
        line = {clock.logged: getattr(clocks, name) for name, clock in CLOCKS.items()}
        line["seconds"] = round(clocks.secs, 4)
        line |= {name: value for name, value in values.items() if math.isfinite(value)}
        self._file.write(json.dumps(line, allow_nan=False) + "\n")
        self._file.flush()
        self.num_lines += 1
        self._track(line)

    def write_means(self, clocks: Clocks, totals: Pairs, **more: float) -> None:
        """Writes the means of (sum, weight) pairs of training, if there are any, and more."""
        means = {f"train/{name}": v for name, v in divide(totals).items() if name != "finite"}
        if means:
            self.write(clocks, means | {f"train/{name}": value for name, value in more.items()})

    def _track(self, line: Mapping[str, float]) -> None:
        if self._tracker is not None:
            values = {name: value for name, value in line.items() if name != "step"}
            self._tracker.log(values, step=int(line["step"]))

    def close(self) -> None:
        """Flushes both."""
        self._file.close()
        if self._tracker is not None:
            self._tracker.finish()


# --- Means of (sum, weight) pairs ----------------


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
    """Returns the loss per UTF-8 byte of the source text, which compares across tokenizers.

    Gao et al. 2020 ("The Pile"), 3.1. `num_text_tokens` is without special tokens. For CLM the
    result is exact except for the first token of each example. For MLM the mean loss of a masked
    token, at the mask rate of the run, stands for every token. That is not a likelihood, nor a
    pseudo-likelihood, for which one token at a time is masked.
    """
    return nats_per_token * num_text_tokens / (num_bytes * math.log(2))


def describe_unknown(num_unknown: int, num_tokens: int) -> str:
    """Says what unknown tokens of a text mean for its bits per byte."""
    return (
        f"{num_unknown:,} of {num_tokens:,} tokens ({num_unknown / num_tokens:.2%}) are unknown:"
        " their text is not predicted, so bits per byte are a lower bound"
    )


def summarize_eval(
    total: Pairs, loss_weights: Mapping[str, float], token_losses: Mapping[str, bool]
) -> dict[str, float]:
    """Returns the means of an evaluation, with perplexity and bits per byte of the token losses.

    Bits per byte exist only for a loss that covers the text. The perplexity of another token loss
    is named "target_perplexity".

    Args:
      total: sums over the evaluation, from step.make_eval_step.
      loss_weights: the weight of each loss in their sum, by names such as "mlm_loss".
      token_losses: name of each token loss, such as "mlm_loss" -> whether it covers the text.

    Raises:
      ValueError: no example has a loss of the sum.
    """
    text_tokens, num_bytes = float(total["num_text_tokens"][0]), float(total["num_bytes"][0])
    means = divide({k: v for k, v in total.items() if k not in ("num_text_tokens", "num_bytes")})
    if missing := [name for name in loss_weights if name not in means]:
        raise ValueError(
            f"the validation has no example for {missing[0]}: use more text, or leave the objective"
            f" out; scalelab/objectives/{missing[0].removesuffix('_loss')}.py says what it needs"
        )
    means["loss"] = sum(weight * means[name] for name, weight in loss_weights.items())
    for name, covers_text in token_losses.items():
        if name in means:
            perplexity = "perplexity" if covers_text else "target_perplexity"
            means[perplexity] = math.exp(min(means[name], 700.0))
            if covers_text:
                means["bits_per_byte"] = bits_per_byte(means[name], text_tokens, num_bytes)
    return means
