"""Makes and shows the plan of a study."""

import dataclasses
import os
import pathlib
import sys
from typing import Any

from scalelab.eval import task as task_lib
from scalelab.lab import tables
from scalelab.metrics import write_json
from scalelab.progress import clock_text
from scalelab.studies import adapting, cost, expand, plan, pool, tasks
from scalelab.studies.plan import Expected
from scalelab.studies.spec import StudySpec

HEADER = ("run", "N", "parameters", "steps", "tokens", "FLOPs", "pre-train", "fine-tune", "memory")


def bind(num_workers: int) -> None:
    """Takes the cores that one of so many processes will have; call before JAX starts."""
    for cores in pool.cores(0, num_workers):
        os.sched_setaffinity(0, cores)


def make(spec: StudySpec, workdir: pathlib.Path, command: str, num_workers: int) -> str:
    """Plans a study, keeps the plan in WORKDIR/plans, and says it.

    Args:
      spec: the study.
      workdir: its folder.
      command: the command line, for the study's file.
      num_workers: processes at a time.
    """
    from scalelab import systems
    from scalelab.data import load_data

    planned = expand.runs(spec, workdir)
    expand.write(spec, planned, workdir, command)
    tasks.prepare(spec.finetune.data, planned[0].config, workdir)
    data_dir = tasks.folder(spec.finetune.data, workdir)
    sizes = plan.task_sizes(
        spec.finetune.tasks,
        lambda name: task_lib.load(task_lib.load_task(name), data_dir, tests=False),
    )
    builts = [cost.build_run(run.config) for run in planned]
    prepared: dict[Any, Any] = {}
    for run in planned:
        key = _data_key(run.config)
        if key not in prepared:
            counted = run.config.optim.total_steps is None
            prepared[key] = load_data(run.config, systems.load(run.system)) if counted else None
    model = plan.calibrate(builts, workdir / "calibration.json", _say)
    values = {name: _values(spec, name) for name in spec.finetune.tasks}
    expected = []
    for run, built in zip(planned, builts, strict=True):
        one = plan.expect(run, built, model, prepared[_data_key(run.config)])
        if spec.stages[run.stage].finetune != "none":
            secs = plan.finetune_secs(spec, run, model, sizes, values)
            one = dataclasses.replace(one, finetune_secs=secs)
        expected.append(one)
    (workdir / "plans").mkdir(exist_ok=True)
    write_json(
        workdir / "plans" / f"{spec.name}.json",
        {
            "machine": cost.machine(),
            "workers": num_workers,
            "calibration_error": model.error,
            "runs": [dataclasses.asdict(one) for one in expected],
        },
    )
    return show(expected, model.error, num_workers)


def show(expected: list[Expected], error: float, num_workers: int) -> str:
    """The plan as a table with its total."""
    rows = [
        [
            e.name, f"{e.n_model:,}", f"{e.num_params:,}", f"{e.steps:,}", f"{e.tokens / 1e6:.1f}M",
            f"{e.flops:.2g}", clock_text(e.secs + plan.START_SECS), clock_text(e.finetune_secs),
            f"{e.peak_bytes / 2**30:.1f} GiB",
        ]
        for e in expected
    ]  # fmt: skip
    total = sum(e.secs + plan.START_SECS + e.finetune_secs for e in expected)
    flops = sum(e.flops for e in expected)
    return tables.plain(HEADER, rows) + (
        f"{len(expected)} runs, {flops:.2g} FLOPs of pre-training; {clock_text(total)} of one"
        f" process, {clock_text(total / num_workers)} with {num_workers}. Seconds are those of"
        f" steps measured here, which the model fits to {error:.0%}; fine-tuning is a rougher"
        " guess."
    )


def _data_key(config: Any) -> tuple[Any, ...]:
    """What decides how many tokens a step of a run has."""
    return (
        config.data, config.tokenizer, config.short, config.long,
        config.optim.total_steps is None, config.system,
    )  # fmt: skip


def _values(spec: StudySpec, task: str) -> dict[str, Any]:
    """The fine-tuning fields of a task."""
    return adapting.values(spec.finetune, task)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
