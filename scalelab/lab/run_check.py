"""What is wrong with the files of a finished pre-training, in themselves and beside each other.

A run says its clocks and its losses twice: in result.json and in the last validations of
metrics.jsonl. Where the two differ, one has been edited or cut off, and neither is believed.
"""

import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from scalelab.lab import run_files
from scalelab.lab.run_files import is_finite

CLOCKS = {"steps": "step", "tokens": "tokens", "flops": "flops", "seconds": "seconds"}
CLOSE = 1e-6  # what writing a number and reading it back may change
SECONDS_CLOSE = 1e-3  # metrics.jsonl rounds them
# What other readers of environment.json take for granted, where it is there at all.
ENVIRONMENT = {
    "numerics": int, "command": str, "git_commit": str, "devices": list, "earlier_starts": list,
    "cpus": int,
}  # fmt: skip


def of_result(result: Mapping[str, Any]) -> list[str]:
    """What is wrong with the content of result.json; [] if nothing is."""
    if result.get("status") != "completed":
        return [f"result.json has status {result.get('status')!r}"]
    found = [
        f"result.json: {name} is {result[name]!r}, no number" if name in result
        else f"result.json has no {name}"
        for name in CLOCKS if not is_finite(result.get(name))
    ]  # fmt: skip
    peak = result.get("peak_memory_bytes")
    if peak is not None and not is_finite(peak):
        found.append(f"result.json: peak_memory_bytes is {peak!r}, no number")
    evals = result.get("eval")
    if not isinstance(evals, Mapping) or not evals:
        return [*found, "result.json has no validation"]
    for length, values in evals.items():
        if not length.isdecimal():
            found.append(f"result.json: a validation at length {length!r}, no number")
        elif not isinstance(values, Mapping) or not is_finite(values.get("loss")):
            found.append(f"result.json: the loss at length {length} is no number")
    return found


def of_environment(environment: Mapping[str, Any]) -> list[str]:
    """What is wrong with the content of environment.json; [] if nothing is."""
    found = [
        f"environment.json: {name} is {environment[name]!r}, expected {kind.__name__}"
        for name, kind in ENVIRONMENT.items()
        if environment.get(name) is not None and not isinstance(environment[name], kind)
    ]
    parts = (("devices", str), ("earlier_starts", Mapping))
    for name, kind in parts:
        values = environment.get(name)
        if isinstance(values, list) and not all(isinstance(x, kind) for x in values):
            found.append(f"environment.json: {name} is not what it should be")
    return found


def of_folder(folder: pathlib.Path, result: Mapping[str, Any]) -> list[str]:
    """What is wrong with the files of a run whose result is sound in itself; [] if nothing is."""
    problems: list[str] = []
    _, there = run_files.read_json(folder / "config.json", problems)
    if not there:
        problems.append("config.json is missing")
    environment, _ = run_files.read_json(folder / "environment.json", problems)
    problems += of_environment(environment)
    if not (folder / "metrics.jsonl").exists():
        return [*problems, "metrics.jsonl is missing, so that nothing vouches for result.json"]
    lines = run_files.read_metrics(folder / "metrics.jsonl", problems)
    if sum("eval/loss" in line for line in lines) > len(run_files.validations(lines)):
        problems.append("metrics.jsonl: a validation lacks a number")
    return problems or _against(result, lines)


def _against(result: Mapping[str, Any], lines: Sequence[dict[str, Any]]) -> list[str]:
    """Where result.json and metrics.jsonl say different things."""
    rows, found = run_files.validations(lines), []
    last = {str(row["eval/max_len"]): row for row in rows}
    for length in sorted(last.keys() | result["eval"].keys(), key=int):
        if length not in last or length not in result["eval"]:
            one, other = ("result.json", "metrics.jsonl")[:: 1 if length in last else -1]
            found.append(f"{one} has no validation at length {length}, but {other} has")
            continue
        said, logged = result["eval"][length]["loss"], last[length]["eval/loss"]
        if not math.isclose(said, logged, rel_tol=CLOSE):
            found.append(
                f"the last loss at length {length} is {said:.6g} in result.json, {logged:.6g} in"
                " metrics.jsonl"
            )
    for name, key in CLOCKS.items() if rows else ():
        tolerance = SECONDS_CLOSE if name == "seconds" else CLOSE
        if not math.isclose(result[name], rows[-1][key], rel_tol=tolerance, abs_tol=tolerance):
            found.append(
                f"{name} are {result[name]:,.6g} in result.json, {rows[-1][key]:,.6g} at the last"
                " validation in metrics.jsonl"
            )
    return found
