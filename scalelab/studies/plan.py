"""The plan of a study: what every run will take on this machine, before anything starts."""

import dataclasses
import importlib.util
import math
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from scalelab import clocks
from scalelab.studies import cost
from scalelab.studies.cost import Built, CostModel
from scalelab.studies.expand import PlannedRun
from scalelab.studies.spec import StudySpec

CALIBRATION_SECS = 60.0  # of measuring steps, but for the first
START_SECS = 12.0  # of a process: imports, data, compilation
FILL = {128: 110.0 / 128, 512: 416.0 / 512}  # real tokens of padded ones (protocol, Table 7.1)
WORD_PIECES = 1.35  # tokens of a word, and
FRAME_TOKENS = 3  # special ones, where the length of a task's texts is guessed from their words


@dataclasses.dataclass(frozen=True)
class Expected:
    """What a run is expected to take.

    Attributes:
      name: the run's.
      n_model: 12 L H^2.
      num_params: of the net.
      steps: of training.
      tokens: real input tokens.
      flops: of training.
      secs: of training alone.
      finetune_secs: of all its fine-tunings.
      peak_bytes: of the process that trains.
    """

    name: str
    n_model: int
    num_params: int
    steps: int
    tokens: float
    flops: float
    secs: float
    finetune_secs: float
    peak_bytes: float


def expect(run: PlannedRun, built: Built, model: CostModel, data: Any | None) -> Expected:
    """Predicts one pre-training.

    Args:
      run: the run.
      built: its net in the abstract.
      model: of this machine.
      data: its prepared data (`scalelab.data.Data`), for budgets that depend on it; None: the
        share of padding is guessed.
    """
    config = run.config
    steps_per_epoch = [phase.steps_per_epoch for phase in data.phases] if data else [0, 0]
    per_step = []  # tokens, flops, secs of a step in each phase
    for i, (size, length, forward, counts) in enumerate(built.phases):
        if data:
            store = data.phases[i].train
            tokens = size * store.meta["num_tokens"] / len(store)
        else:
            tokens = size * length * FILL.get(length, 0.85)
        per_step.append((tokens, forward.train, model.step_secs(counts)))
    budget = clocks.budget(config, steps_per_epoch)
    column = {"steps": None, "tokens": 0, "flops": 1, "secs": 2}[budget.clock]
    on_clock = [1.0 if column is None else step[column] for step in per_step]
    ends = clocks.phase_ends(
        config, budget, steps_per_epoch[: len(per_step)],
        [1.0] * len(per_step) if budget.clock == "secs" else on_clock,
    )  # fmt: skip
    starts = [0.0, *ends[:-1]]
    steps = [math.ceil((e - s) / c) for s, e, c in zip(starts, ends, on_clock, strict=True)]
    totals = np.array(steps) @ np.array(per_step)
    peak = max(model.peak_bytes(counts, built.num_params) for *_, counts in built.phases)
    return Expected(
        run.name, run.shape.n_model, built.num_params, sum(steps), *map(float, totals), 0.0, peak
    )


def finetune_secs(
    spec: StudySpec, run: PlannedRun, model: CostModel, tasks: dict[str, tuple[int, int, float]],
    values: dict[str, Any],
) -> float:  # fmt: skip
    """Predicts all fine-tunings of a run.

    Args:
      spec: the study.
      run: the run.
      model: of this machine.
      tasks: by name: examples of training, of dev, and tokens of a text.
      values: of configs/finetune.py, by task: "epochs", "batch_size", "max_train_examples".
    """
    total = 0.0
    net, config = run.config.net, run.config
    for name, (num_train, num_dev, length) in tasks.items():
        own = values[name]
        size = own["batch_size"]
        length = min(length, own["max_len"])
        num_train = min(num_train, own["max_train_examples"] or num_train)
        ffn = net.ffn_width or 4 * net.width
        weights = net.num_layers * (4 * net.width**2 + 2 * net.width * ffn)
        counts = np.array([
            6.0 * size * length * (weights + 2 * net.num_layers * length * net.width),
            size * length * net.num_layers * (net.width + ffn),
            size * net.num_layers * net.num_heads * length**2,
            0.0,
            weights + config.tokenizer.vocab_size * net.width,
            1.0,
        ])  # fmt: skip
        steps = own["epochs"] * num_train / size
        forward = counts[0] * model.secs[0] / 3 * num_dev / size
        total += spec.finetune.seeds * (steps * model.step_secs(counts) + forward)
    return total + START_SECS * len(tasks)


def task_sizes(
    names: Sequence[str], load: Callable[[str], Any]
) -> dict[str, tuple[int, int, float]]:
    """Examples of training and of dev, and tokens of a text, for each task.

    Args:
      names: of the tasks.
      load: gives a task's `eval.task.Splits`.
    """
    found = {}
    for name in names:
        splits = load(name)
        sample = [" ".join(texts) for texts in zip(*(c[:500] for c in splits.train.texts),
                                                   strict=True)]  # fmt: skip
        words = float(np.mean([len(text.split()) for text in sample]))
        dev = sum(len(records) for records in splits.dev.values() if records is not None)
        found[name] = (len(splits.train), dev, words * WORD_PIECES + FRAME_TOKENS)
    return found


def loaded_bytes(loader: str) -> float:
    """What a training holds before there is a net: its libraries, in a process of their own.

    Args:
      loader: of the batches; "tf" brings TensorFlow, half a gigabyte.
    """
    parts = [
        "scalelab.environment",
        "scalelab.train_loop",
        "scalelab.train_setup",
        "orbax.checkpoint",
    ]
    parts += ["tensorflow"] * (
        loader == "tf" and importlib.util.find_spec("tensorflow") is not None
    )
    code = f"import {', '.join(parts)}; print(scalelab.environment.peak_memory_bytes())"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )  # fmt: skip
    return float(done.stdout.split()[-1])


def calibrate(builts: Sequence[Built], path: pathlib.Path, say: Callable[[str], None]) -> CostModel:
    """The cost model of this machine: the one that is kept, or a new one, measured in a minute.

    Args:
      builts: the study's runs.
      path: where it is kept.
      say: told what is measured.
    """
    chosen = cost.choose(builts)
    labels = [cost.label(*step) for step in chosen]
    where = cost.machine()
    model = cost.load(path, where, labels)
    if model is not None:
        return model
    base = loaded_bytes(builts[0].config.machine.loader)
    found = []
    begun = time.perf_counter()
    for step in chosen:
        spent = time.perf_counter() - begun
        if found and spent * (len(found) + 1) / len(found) > CALIBRATION_SECS:
            say(f"{len(chosen) - len(found)} steps more are left to the model: a minute is over")
            break
        found.append(cost.measure(cost.Stepper(*step)))
        say(f"measured {found[-1].label}: {found[-1].secs * 1e3:,.0f} ms a step")
    model = cost.fit(found, base)
    cost.save(path, model, where, labels)
    return model
