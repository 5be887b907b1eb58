"""The cost model of `study plan` beside measured steps: python -m benchmarks.cost [--json=FILE].

  --config=configs/studies/thesis_7_5_5.py:scale=full   a study, of which one stage is taken
  --stage=grid       its runs
  --repeats=7        rounds; a round takes one step of every run, so that whoever else uses the
                     machine slows all alike
  --threads=2        cores
  --json=FILE        write the numbers there too
  --quick            a tiny net, two rounds

First the calibration, as a plan makes it: a few runs are compiled and timed; its seconds are told.
Then every run, those of the calibration too: median seconds of a step over the rounds, by the
clock and of all cores' work. Three predictions stand beside them:

  before   by the calibration that came first, as a plan has it; what changed on the machine
           between the two counts as its error
  model    fitted to the same runs as the calibration, to their medians of these very rounds: the
           error of the model alone
  work     the same with seconds of work in place of the clock's, which say more where others use
           the cores

Target: each of the nine within 15%, after at most a minute of calibration.
"""

import argparse
import os
import pathlib
import statistics
import tempfile
import time
from typing import Any

from benchmarks import arguments as command_line
from benchmarks import side_by_side
from benchmarks.side_by_side import BUSY
from scalelab.config import cli, files
from scalelab.helpers.names import nearest
from scalelab.runs import environment

ROOT = pathlib.Path(__file__).resolve().parents[1]
STUDY = f"{ROOT}/configs/studies/thesis_7_5_5.py:scale=full"
TARGET, TARGET_SECS = 0.15, 60.0
QUICK = {
    "tokenizer.vocab_size": 211, "net.max_len": 16, "short.max_len": 16, "short.batch_size": 4,
    "long.max_len": 16,
}  # fmt: skip


def study_of(config: str) -> Any:
    """The study that FILE.py:ARGUMENTS names.

    Raises:
      ValueError: there is no such file.
      cli.Stopped: it is no study, or refuses the arguments.
    """
    path, _, arguments = config.partition(":")
    module = files.load(pathlib.Path(path))
    try:
        made = module.get_config(arguments)
    except Exception as error:  # a config file may raise anything
        raise cli.Stopped(f"--config: {error}") from error
    if "stages" not in made:
        raise cli.Stopped(f"--config: {path} is no study; configs/studies/ has some")
    return made


def builts(config: str, stage: str, quick: bool) -> list[Any]:
    """The runs of a study's stage, built in the abstract.

    Args:
      config: FILE.py:ARGUMENTS.
      stage: its name.
      quick: makes them tiny.
    """
    from scalelab.studies import cost_steps, expand
    from scalelab.studies import spec as spec_lib

    made = study_of(config)
    if stage not in made.stages:
        raise cli.Stopped(f"--stage: unknown stage {stage!r}: {nearest(stage, made.stages)}")
    if quick:
        for field, value in QUICK.items():
            made.pretrain.update_from_flattened_dict({field: value})
        made.stages[stage].shapes = ("2x16x2", "2x8x3")
    with tempfile.TemporaryDirectory() as workdir:
        runs = expand.runs(spec_lib.resolve(made.to_dict()), pathlib.Path(workdir))
    return [cost_steps.build_run(run.config) for run in runs if run.stage == stage]


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Calibrates, measures alternately, and predicts."""
    from scalelab.studies import cost, cost_steps, plan

    load = os.getloadavg()[0]
    runs = builts(arguments.config, arguments.stage, arguments.quick)
    begun = time.perf_counter()
    early = cost_steps.measure(cost_steps.choose(runs), plan.CALIBRATION_SECS, print)
    calibration_secs = time.perf_counter() - begun

    kept = {stepper.label: stepper for stepper, _ in early}
    first = [measured for _, measured in early]
    steppers = [
        kept.get(cost_steps.label(built, 0)) or cost_steps.Stepper(built, 0) for built in runs
    ]
    for _ in range(1 + cost_steps.UNTIMED):
        for stepper in steppers:
            stepper()
    times: dict[str, list[tuple[float, float]]] = {stepper.label: [] for stepper in steppers}
    for _ in range(arguments.repeats):
        for stepper in steppers:
            begun_cpu = time.process_time()
            secs = stepper()
            times[stepper.label].append((secs, time.process_time() - begun_cpu))
    calibrated = {m.label for m in first}
    clock, work = (
        {s.label: s.measurement([each[kind] for each in times[s.label]]) for s in steppers}
        for kind in (0, 1)
    )
    models = {
        "before": (clock, cost.fit(first)),
        "model": (clock, cost.fit([clock.get(m.label, m) for m in first])),
        "work": (work, cost.fit([work[name] for name in calibrated & work.keys()])),
    }
    rows = []
    for stepper in steppers:
        label = stepper.label
        row: dict[str, Any] = {
            "step": label,
            "calibrated": label in calibrated,
            "secs": clock[label].secs,
            "work_secs": work[label].secs,
            "each": times[label],
            "features": stepper.features.tolist(),
        }
        for name, (measured, model) in models.items():
            row[name] = model.step_secs(stepper.features)
            row[f"{name}_error"] = row[name] / measured[label].secs - 1
        rows.append(row)
    return {
        "rows": rows,
        "calibration_secs": calibration_secs,
        "calibration": {m.label: m.secs for m in first},
        "largest_error": {name: max(abs(r[f"{name}_error"]) for r in rows) for name in models},
        "target": {"error": TARGET, "calibration_secs": TARGET_SECS},
        "threads": arguments.threads,
        "repeats": arguments.repeats,
        "load": load,
        **cost.machine(),
    }


def report(found: dict[str, Any]) -> None:
    """Prints the numbers as a table."""
    load = found["load"]
    print(
        f"{found['device']}, {found['threads']} thread(s), load {load:.1f} at the start"
        f"{BUSY if load > 0.5 else ''}\ncalibrated in {found['calibration_secs']:.0f} s on the runs"
        f" with a star; medians of {found['repeats']} rounds\n"
    )
    print(
        f"{'step':28}{'measured':>13}{'spread':>8}{'before':>13}{'':>6}{'model':>13}{'':>6}"
        f"{'work':>13}{'predicted':>13}"
    )
    for row in found["rows"]:
        low, _, high = statistics.quantiles([secs for secs, _ in row["each"]], n=4)
        name = row["step"] + "*" * row["calibrated"]
        cells = [f"{row['secs'] * 1e3:10,.1f} ms{(high - low) / row['secs']:8.0%}"]
        for kind in ("before", "model"):
            cells.append(f"{row[kind] * 1e3:10,.1f} ms{row[kind + '_error']:+6.0%}")
        cells.append(f"{row['work_secs'] * 1e3:10,.1f} ms")
        cells.append(f"{row['work'] * 1e3:10,.1f} ms{row['work_error']:+6.0%}")
        print(f"{name:28}" + "".join(cells))
    largest = found["largest_error"]
    print(
        f"\nlargest error: {largest['before']:.0%} as a plan has it, {largest['model']:.0%} of the"
        f" model alone, {largest['work']:.0%} of the model of work; target {TARGET:.0%} after"
        f" {TARGET_SECS:.0f} s. Spread: between the quarters of the rounds"
    )


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    made = command_line.parser("cost", __doc__)
    made.add_argument("--config", default=STUDY, help="a study's file with its arguments")
    made.add_argument("--stage", default="grid")
    command_line.add_common(made, repeats=7, quick="a tiny net, two rounds", least=2)
    return command_line.read(made, argv, {"repeats": 2})


def main(arguments: argparse.Namespace) -> None:
    """Measures and prints."""
    environment.configure_jax(None, "float32")
    found = measure(arguments)
    side_by_side.keep(found, arguments.json)
    report(found)


if __name__ == "__main__":
    side_by_side.start(parse, main)
