"""The cost model of `study plan` beside measured steps: python -m benchmarks.cost [--json=FILE].

  --config=configs/studies/thesis_7_5_5.py:scale=full   a study, of which one stage is taken
  --stage=grid       its runs
  --repeats=7        rounds; a round takes one step of every run, so that whoever else uses the
                     machine slows all alike
  --threads=2        cores
  --json=FILE        write the numbers there too
  --quick            a tiny net, two rounds

First the calibration, as a plan makes it: a few runs are compiled and timed; its seconds are told.
Then every run, those of the calibration too: median seconds of a step over the rounds. Two
predictions stand beside them:

  before   by the calibration that came first, as a plan has it; what changed on the machine
           between the two counts as its error
  model    fitted to the same runs as the calibration, to their medians of these very rounds: the
           error of the model alone

Target: each of the nine within 15%, after at most a minute of calibration.
"""

import argparse
import importlib.util
import json
import os
import pathlib
import statistics
import tempfile
import time
from typing import Any

from benchmarks.side_by_side import BUSY, pin
from scalelab import environment

ROOT = pathlib.Path(__file__).resolve().parents[1]
STUDY = f"{ROOT}/configs/studies/thesis_7_5_5.py:scale=full"
TARGET, TARGET_SECS = 0.15, 60.0
QUICK = {
    "tokenizer.vocab_size": 211, "net.max_len": 16, "short.max_len": 16, "short.batch_size": 4,
    "long.max_len": 16,
}  # fmt: skip


def builts(config: str, stage: str, quick: bool) -> list[Any]:
    """The runs of a study's stage, built in the abstract.

    Args:
      config: FILE.py:ARGUMENTS.
      stage: its name.
      quick: makes them tiny.
    """
    from scalelab.studies import cost, expand
    from scalelab.studies import spec as spec_lib

    path, _, arguments = config.partition(":")
    module_spec = importlib.util.spec_from_file_location("study_config", path)
    assert module_spec is not None and module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    module_spec.loader.exec_module(module)
    made = module.get_config(arguments)
    if quick:
        for field, value in QUICK.items():
            made.pretrain.update_from_flattened_dict({field: value})
        made.stages[stage].shapes = ("2x16x2", "2x8x3")
    with tempfile.TemporaryDirectory() as workdir:
        runs = expand.runs(spec_lib.resolve(made.to_dict()), pathlib.Path(workdir))
    return [cost.build_run(run.config) for run in runs if run.stage == stage]


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Calibrates, measures alternately, and predicts."""
    from scalelab.studies import cost, plan

    load = os.getloadavg()[0]
    runs = builts(arguments.config, arguments.stage, arguments.quick)
    begun = time.perf_counter()
    early, first = [], []
    for step in cost.choose(runs):
        spent = time.perf_counter() - begun
        if early and spent * (len(early) + 1) / len(early) > plan.CALIBRATION_SECS:
            break  # as a plan does
        early.append(cost.Stepper(*step))
        first.append(cost.measure(early[-1]))
    calibration_secs = time.perf_counter() - begun

    kept = {stepper.label: stepper for stepper in early}
    steppers = [kept.get(cost.label(built, 0)) or cost.Stepper(built, 0) for built in runs]
    for stepper in steppers:
        stepper()
    times: dict[str, list[float]] = {stepper.label: [] for stepper in steppers}
    for _ in range(arguments.repeats):
        for stepper in steppers:
            times[stepper.label].append(stepper())
    again = {s.label: s.measurement(times[s.label]) for s in steppers}
    models = {
        "before": cost.fit(first, 0.0),
        "model": cost.fit([again.get(m.label, m) for m in first], 0.0),
    }
    rows = []
    for stepper in steppers:
        measured = again[stepper.label].secs
        row = {
            "step": stepper.label,
            "calibrated": stepper.label in {m.label for m in first},
            "secs": measured,
            "each": times[stepper.label],
            "features": stepper.features.tolist(),
        }
        for name, model in models.items():
            row[name] = model.step_secs(stepper.features)
            row[f"{name}_error"] = row[name] / measured - 1
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
    print(f"{'step':28}{'measured':>12}{'spread':>9}{'before':>12}{'':>8}{'model':>12}{'':>8}")
    for row in found["rows"]:
        low, *_, high = statistics.quantiles(row["each"], n=4)
        star = "*" if row["calibrated"] else " "
        print(
            f"{row['step'] + star:28}{row['secs'] * 1e3:9,.1f} ms{(high - low) / row['secs']:9.0%}"
            f"{row['before'] * 1e3:9,.1f} ms{row['before_error']:+8.0%}"
            f"{row['model'] * 1e3:9,.1f} ms{row['model_error']:+8.0%}"
        )
    largest = found["largest_error"]
    print(
        f"\nlargest error: {largest['before']:.0%} as a plan has it, {largest['model']:.0%} of the"
        f" model alone; target {TARGET:.0%} after {TARGET_SECS:.0f} s. Spread: between the quarters"
        " of the rounds"
    )


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--config", default=STUDY, help="a study's file with its arguments")
    parser.add_argument("--stage", default="grid")
    parser.add_argument("--repeats", type=int, default=7, help="rounds")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", metavar="FILE", help="write the numbers there too")
    parser.add_argument("--quick", action="store_true", help="a tiny net, two rounds")
    arguments = parser.parse_args(argv)
    if arguments.quick:
        arguments.repeats = 2
    return arguments


def main(arguments: argparse.Namespace) -> None:
    """Measures and prints."""
    environment.configure_jax(None, "float32")
    found = measure(arguments)
    report(found)
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps(found, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    asked = parse()
    environment.keep_freed_memory()
    pin(asked.threads)
    main(asked)
