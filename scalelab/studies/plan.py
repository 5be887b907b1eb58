"""The plan of a study: what every run will take on this machine, before anything starts."""

import dataclasses
import math
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from scalelab.config import durations
from scalelab.studies import cost, cost_steps, footprint
from scalelab.studies.cost import CostModel
from scalelab.studies.cost_steps import Built
from scalelab.studies.expand import PlannedRun
from scalelab.studies.spec import StudySpec

CALIBRATION_SECS = 60.0  # of compiling and measuring steps
WORD_PIECES = 1.35  # tokens of a word, and
FRAME_TOKENS = 3  # special ones, where the length of a task's texts is guessed from their words


@dataclasses.dataclass(frozen=True)
class Expected:
    """What a run is expected to take.

    Attributes:
      name: the run's.
      stage: of the study.
      foreseen: whether its shape is not known yet, and only its size is.
      n_model: 12 L H^2.
      num_params: of the net.
      steps: of training.
      tokens: real input tokens.
      flops: of training.
      secs: of training alone.
      start_secs: of the rest of its process, compiling above all.
      finetune_secs: of all its fine-tunings, if it is chosen for them.
      finetune_share: of the stage's runs that are chosen for fine-tuning.
      peak_bytes: of the process that trains.
    """

    name: str
    stage: str
    foreseen: bool
    n_model: int
    num_params: int
    steps: int
    tokens: float
    flops: float
    secs: float
    start_secs: float
    finetune_secs: float
    finetune_share: float
    peak_bytes: float

    @property
    def total_secs(self) -> float:
        """Of all that the run is for, on average over the runs of its stage."""
        return self.start_secs + self.secs + self.finetune_share * self.finetune_secs


def expect(
    run: PlannedRun, built: Built, model: CostModel, data: Any, *, foreseen: bool = False
) -> Expected:
    """Predicts one pre-training.

    Args:
      run: the run.
      built: its net in the abstract.
      model: of this machine.
      data: its prepared data (`scalelab.data.Data`).
      foreseen: whether its shape is not known yet.
    """
    config = run.config
    steps_per_epoch = [phase.steps_per_epoch for phase in data.phases]
    per_step = []  # tokens, flops, secs of a step in each phase
    for i, (size, _, forward, counts) in enumerate(built.phases):
        store = data.phases[i].train
        tokens = size * store.meta["num_tokens"] / len(store)
        per_step.append((tokens, forward.train, model.step_secs(counts)))
    budget = durations.budget(config, steps_per_epoch)
    column = {"steps": None, "tokens": 0, "flops": 1, "secs": 2}[budget.clock]
    on_clock = [1.0 if column is None else step[column] for step in per_step]
    ends = durations.phase_ends(
        config, budget, steps_per_epoch[: len(per_step)],
        [1.0] * len(per_step) if budget.clock == "secs" else on_clock,
    )  # fmt: skip
    starts = [0.0, *ends[:-1]]
    steps = [math.ceil((e - s) / c) for s, e, c in zip(starts, ends, on_clock, strict=True)]
    totals = np.array(steps) @ np.array(per_step)
    peak = model.beside_bytes + net_bytes(model, built)
    return Expected(
        run.name, run.stage, foreseen, run.shape.n_model, built.num_params, sum(steps),
        *map(float, totals), start_secs(model, run), 0.0, 0.0, peak,
    )  # fmt: skip


def start_secs(model: CostModel, run: PlannedRun, share: float = 1.0) -> float:
    """Seconds of a process beside its steps; the first seed of a net compiles for the others.

    Args:
      model: of this machine.
      run: whose process it is.
      share: what it compiles, of what a pre-training does.
    """
    kept = run.config.machine.compile_cache_dir is not None and run.seed > 0
    return model.start_secs + (0.0 if kept else share * model.compile_secs)


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
      values: of configs/finetune.py, by task: "epochs", "batch_size", "eval_every_epochs", ....
    """
    from scalelab.resources import blueprint

    total = 0.0
    net, config = run.config.net, run.config
    for name, (num_train, num_dev, length) in tasks.items():
        own = values[name]
        size = own["batch_size"]
        length = min(length, own["max_len"])
        num_train = min(num_train, own["max_train_examples"] or num_train)
        width, ffn = cost_steps.widths_in_lanes(net)
        weights = net.num_layers * cost_steps.layer_weights(width, ffn)
        touched = size * length * net.num_layers * (width + ffn)
        counts = np.array([
            6.0 * size * length * (weights + 2 * net.num_layers * length * net.width),
            touched,
            size * net.num_layers * net.num_heads * length**2,
            0.0,
            weights + config.tokenizer.vocab_size * net.width,
            touched * blueprint.in_a_loop(config),
            1.0,
        ])  # fmt: skip
        steps = own["epochs"] * num_train / size
        forward = counts[0] * model.secs[0] / 3 * num_dev / size
        evals = math.ceil(own["epochs"] / own["eval_every_epochs"])
        total += spec.finetune.seeds * (steps * model.step_secs(counts) + evals * forward)
    lengths = 2 if config.long.example_rate else 1  # pre-training compiles for each, a task once
    total += start_secs(model, run, len(tasks) / lengths)
    return total * (2 if spec.finetune.scratch and run.seed == 0 else 1)


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


def calibrate(
    spec: StudySpec,
    runs: Sequence[PlannedRun],
    builts: Sequence[Built],
    path: pathlib.Path,
    say: Callable[[str], None],
) -> CostModel:
    """The cost model of this machine, kept or new: some steps and a short training are measured.

    Args:
      spec: the study.
      runs: of it.
      builts: the same in the abstract.
      path: where it is kept.
      say: told what is measured.
    """
    chosen = cost_steps.choose(builts)
    labels = [cost_steps.label(*step) for step in chosen]
    where = cost.machine()
    model = cost.load(path, where, labels)
    if model is not None:
        return model
    found = [one for _, one in cost_steps.measure(chosen, CALIBRATION_SECS, say)]
    for one in found:
        say(f"measured {one.label}: {one.secs * 1e3:,.0f} ms a step")
    if len(found) < len(chosen):
        say(f"{len(chosen) - len(found)} steps more are left to the model: they take over a minute")
    model = cost.fit(found)
    smallest = min(range(len(runs)), key=lambda i: net_bytes(model, builts[i]))
    short = footprint.measure(spec, runs[smallest])
    say(
        f"measured {runs[smallest].name}, {footprint.TRAINED_STEPS} steps of it:"
        f" {short.peak_bytes / 2**30:.2f} GiB, {short.start_secs:.0f} s to start and"
        f" {short.compile_secs:.0f} s to compile"
    )
    model = dataclasses.replace(
        model,
        beside_bytes=max(0.0, short.peak_bytes - net_bytes(model, builts[smallest])),
        start_secs=short.start_secs,
        compile_secs=short.compile_secs,
    )
    cost.save(path, model, where, labels)
    return model


def net_bytes(model: CostModel, built: Built) -> float:
    """What the net of a run takes, in the phase that takes most."""
    return max(model.net_bytes(counts, built.num_params) for *_, counts in built.phases)
