"""The plan of a study: what every run will take on this machine, before anything starts.

Times three steps of each distinct net, batch size and length, and one fine-tuning step of each
distinct net, and adds up. Compiled programs are kept where the runs will find them.
"""

import dataclasses
import math
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from scalelab.config import durations
from scalelab.helpers.files import write_json
from scalelab.helpers.progress import format_secs
from scalelab.lab import tables
from scalelab.studies import expand, finetunings, pool
from scalelab.studies.expand import PlannedRun
from scalelab.studies.spec import StudySpec
from scalelab.studies.timing import StepClock, TaskSize, measure_task

FORESEEN, CHOSEN = " ~", " *"  # marks in the table
HEADER = ("run", "N", "parameters", "steps", "tokens", "FLOPs", "pre-train", "fine-tune", "memory")


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
      start_secs: of compiling; 0 where an earlier seed's programs are kept.
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
        """Seconds of all that the run is for, on average over the runs of its stage."""
        return self.start_secs + self.secs + self.finetune_share * self.finetune_secs


def make(spec: StudySpec, workdir: pathlib.Path, command: str, num_workers: int) -> str:
    """Plans a study, keeps the plan in WORKDIR/plans, and formats it.

    Args:
      spec: the study.
      workdir: its folder.
      command: the command line, for the study's file.
      num_workers: processes at a time; this process takes the cores that one of them will have.
    """
    from scalelab.runs import environment

    for cores in pool.split_cores(0, num_workers):
        os.sched_setaffinity(0, cores)
    planned = expand.expand_runs(spec, workdir, foreseen=True)
    known = expand.expand_runs(spec, workdir)
    finetunings.prepare(spec.finetune.data, planned[0].config, workdir)
    tasks = [
        measure_task(finetunings.load(name, spec.finetune.data, workdir), spec, name)
        for name in spec.finetune.tasks
    ]
    expand.write(spec, known, workdir, command)
    machine = planned[0].config.machine
    environment.configure_jax(machine.compile_cache_dir, planned[0].config.net.dtype)
    names, shares = {run.name for run in known}, finetune_shares(spec, planned)
    clock = StepClock(planned, tasks if any(shares.values()) else [])
    expected = [
        expect(spec, run, clock, tasks, shares[run.stage], foreseen=run.name not in names)
        for run in planned
    ]
    rows = [dataclasses.asdict(run) for run in expected]
    (workdir / "plans").mkdir(exist_ok=True)
    write_json(workdir / "plans" / f"{spec.name}.json", {"workers": num_workers, "runs": rows})
    return describe(expected, num_workers)


def expect(
    spec: StudySpec, run: PlannedRun, clock: StepClock, tasks: Sequence[TaskSize], share: float,
    *, foreseen: bool,
) -> Expected:  # fmt: skip
    """Adds up one pre-training and its fine-tunings.

    Args:
      spec: the study.
      run: the run.
      clock: of this machine.
      tasks: what nets are fine-tuned on.
      share: of the stage's runs that are chosen for fine-tuning.
      foreseen: whether the run's shape is not known yet.
    """
    from scalelab.resources import flops

    plan, steps = clock.draw(run), clock.pretraining(run)
    counts, tokens = count_steps(run, plan, [step.secs for step in steps])
    secs = sum(n * step.secs for n, step in zip(counts, steps, strict=True))
    finetune = 0.0
    if share:
        per_token = clock.finetuning(run)
        for task in tasks:  # scoring an example takes a third of training on it
            positions = task.length * (task.batch_size * task.steps + task.evaluated / 3)
            finetune += spec.finetune.seeds * positions * per_token
        finetune *= 2 if spec.finetune.scratch and run.seed == 0 else 1
    kept = run.config.machine.compile_cache_dir is not None and run.seed > 0
    return Expected(
        name=run.name,
        stage=run.stage,
        foreseen=foreseen,
        n_model=run.shape.n_model,
        num_params=flops.count_parameters(plan.state.params),
        steps=sum(counts),
        tokens=tokens,
        flops=sum(n * p.forward.train for n, p in zip(counts, plan.phases, strict=True)),
        secs=secs,
        start_secs=0.0 if kept else sum(step.compile_secs for step in steps),
        finetune_secs=finetune,
        finetune_share=share,
        peak_bytes=clock.peak_bytes(run),
    )


def count_steps(run: PlannedRun, plan: Any, secs: Sequence[float]) -> tuple[list[int], float]:
    """Returns the steps of each phase within a run's budget, and their real tokens.

    Args:
      run: the run.
      plan: its net and batches in the abstract.
      secs: of a step of each phase.
    """
    config, data = run.config, _load_data(run)
    steps_per_epoch = [phase.steps_per_epoch for phase in data.phases]
    tokens = [
        phase.batch_size * own.train.meta["num_tokens"] / len(own.train)
        for phase, own in zip(plan.phases, data.phases, strict=False)
    ]
    costs = {"tokens": tokens, "flops": [phase.forward.train for phase in plan.phases]}
    found = durations.make_plan(config, steps_per_epoch, costs)
    per_step = secs if found.clock == "secs" else found.costs
    counts = [
        math.ceil((end - begin) / cost)
        for begin, end, cost in zip([0.0, *found.ends], found.ends, per_step, strict=False)
    ]
    return counts, sum(n * own for n, own in zip(counts, tokens, strict=True))


_DATA: dict[Any, Any] = {}


def _load_data(run: PlannedRun) -> Any:
    """Returns a run's prepared data, which all runs with its texts and lengths share."""
    from scalelab import systems
    from scalelab.data import load_data

    config = run.config
    key = (config.data, config.tokenizer, config.short, config.long, config.system)
    if key not in _DATA:
        _DATA[key] = load_data(config, systems.load(run.system))
    return _DATA[key]


def finetune_shares(spec: StudySpec, planned: Sequence[PlannedRun]) -> dict[str, float]:
    """Returns the share of each stage's runs that is fine-tuned: of "best:k", k of its points."""
    shares = {}
    for name, stage in spec.stages.items():
        points = {(r.system, r.shape, r.variant) for r in planned if r.stage == name}
        best = stage.finetune.removeprefix("best:")
        all_or_none = float(stage.finetune == "all")
        chosen = int(best) / max(1, len(points)) if best != stage.finetune else all_or_none
        shares[name] = min(1.0, chosen) if spec.finetune.tasks else 0.0
    return shares


def describe(expected: Sequence[Expected], num_workers: int) -> str:
    """Formats the plan as a table with its total and notes."""
    rows = [
        [
            e.name + FORESEEN * e.foreseen, f"{e.n_model:,}", f"{e.num_params:,}", f"{e.steps:,}",
            f"{e.tokens / 1e6:.1f}M", f"{e.flops:.2g}", format_secs(e.secs + e.start_secs),
            format_secs(e.finetune_secs) + CHOSEN * (0 < e.finetune_share < 1),
            f"{e.peak_bytes / 2**30:.2f} GiB",
        ]
        for e in expected
    ]  # fmt: skip
    total = sum(e.total_secs for e in expected)
    text = tables.plain(HEADER, rows) + (
        f"{len(expected)} runs, {sum(e.flops for e in expected):.2g} FLOPs of pre-training;"
        f" {format_secs(total)} of one process, {format_secs(total / num_workers)} with"
        f" {num_workers}. Seconds are those of steps timed here, with compiling and without the"
        " start of processes; fine-tuning is a rougher guess."
    )
    if any(e.foreseen for e in expected):
        text += (
            f"\n{FORESEEN.strip()} the shape comes out of the stage before; this line has another"
            " shape of the expected size."
        )
    shares: Mapping[str, float] = {e.stage: e.finetune_share for e in expected}
    for stage, share in shares.items():
        count = sum(e.stage == stage for e in expected)
        if 0 < share < 1:
            text += (
                f"\n{CHOSEN.strip()} stage {stage}: {share * count:.0f} of {count} runs will be"
                " fine-tuned, and the sum counts as many."
            )
    return text
