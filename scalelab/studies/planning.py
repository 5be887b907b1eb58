"""Makes and shows the plan of a study."""

import dataclasses
import os
import pathlib
import sys
from typing import Any

from scalelab.helpers.files import write_json
from scalelab.helpers.progress import format_secs
from scalelab.lab import tables
from scalelab.studies import adapting, cost, cost_steps, expand, plan, pool, tasks
from scalelab.studies.expand import PlannedRun
from scalelab.studies.plan import Expected
from scalelab.studies.spec import StudySpec

FORESEEN, CHOSEN = " ~", " *"  # marks in the table
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

    planned = expand.runs(spec, workdir, foreseen=True)
    known = expand.runs(spec, workdir)
    tasks.prepare(spec.finetune.data, planned[0].config, workdir)
    sizes = plan.task_sizes(
        spec.finetune.tasks, lambda name: tasks.load(name, spec.finetune.data, workdir)
    )
    expand.write(spec, known, workdir, command)
    builts = [cost_steps.build_run(run.config) for run in planned]
    prepared: dict[Any, Any] = {}
    for run in planned:
        key = _data_key(run.config)
        if key not in prepared:
            prepared[key] = load_data(run.config, systems.load(run.system))
    model = plan.calibrate(spec, planned, builts, workdir / "calibration.json", _say)
    values = {name: adapting.values(spec.finetune, name) for name in spec.finetune.tasks}
    shares = finetune_shares(spec, planned)
    names = {run.name for run in known}
    expected = []
    for run, built in zip(planned, builts, strict=True):
        data = prepared[_data_key(run.config)]
        one = plan.expect(run, built, model, data, foreseen=run.name not in names)
        if shares[run.stage]:
            secs = plan.finetune_secs(spec, run, model, sizes, values)
            one = dataclasses.replace(
                one, finetune_secs=secs, finetune_share=shares[run.stage]
            )  # fmt: skip
        expected.append(one)
    (workdir / "plans").mkdir(exist_ok=True)
    write_json(
        workdir / "plans" / f"{spec.name}.json",
        {
            "machine": cost.machine(),
            "workers": num_workers,
            "calibration_error": model.error,
            "left_out_error": model.left_out,
            "runs": [dataclasses.asdict(one) for one in expected],
        },
    )
    return show(expected, model, num_workers)


def finetune_shares(spec: StudySpec, planned: list[PlannedRun]) -> dict[str, float]:
    """The share of each stage's runs that is fine-tuned: of "best:k", k of its points."""
    shares = {}
    for name, stage in spec.stage_list:
        points = {(r.system, r.shape, r.variant) for r in planned if r.stage == name}
        best = stage.finetune.removeprefix("best:")
        all_or_none = float(stage.finetune == "all")
        chosen = int(best) / max(1, len(points)) if best != stage.finetune else all_or_none
        shares[name] = min(1.0, chosen) if spec.finetune.tasks else 0.0
    return shares


def show(expected: list[Expected], model: cost.CostModel, num_workers: int) -> str:
    """The plan as a table with its total, and what its numbers are."""
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
    flops = sum(e.flops for e in expected)
    fits = f"which the model fits to {model.error:.0%}"
    if model.left_out is not None:
        fits += f" and, each left out in turn, foretells to {model.left_out:.0%}"
    text = tables.plain(HEADER, rows) + (
        f"{len(expected)} runs, {flops:.2g} FLOPs of pre-training; {format_secs(total)} of one"
        f" process, {format_secs(total / num_workers)} with {num_workers}. Seconds are those of"
        f" steps measured here, {fits}; fine-tuning is a rougher"
        " guess. Memory is that of a short training measured here, and what the net adds."
    )
    if any(e.foreseen for e in expected):
        text += (
            f"\n{FORESEEN.strip()} the shape comes out of the stage before: planned with another"
            " of the size that it will have."
        )
    for stage in dict.fromkeys(e.stage for e in expected):
        ours = [e for e in expected if e.stage == stage]
        if 0 < ours[0].finetune_share < 1:
            text += (
                f"\n{CHOSEN.strip()} stage {stage}: {ours[0].finetune_share * len(ours):.0f} of its"
                f" {len(ours)} runs will be fine-tuned, and so many are in the sum."
            )
    return text


def _data_key(config: Any) -> tuple[Any, ...]:
    """What decides how many tokens a step of a run has."""
    return config.data, config.tokenizer, config.short, config.long, config.system


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
