"""What is wrong with the files of a finished pre-training, in themselves and beside each other.

What result.json says of clocks and validations stands in metrics.jsonl too; what it says of the
net, the seed, the departures and the weights that it began with, in config.json; what it says of
the text, in the tokenizer's manifest, where that is still there. Where two files differ, one has
been edited or cut off, and neither is believed. Nothing else tells the number of parameters, the
memory, the nats of single tokens, the seconds beside training, and how many documents, examples and
tokens the corpus gave, but that examples must have room for the tokens.
"""

import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from scalelab.config.fields import flatten
from scalelab.lab.reading import run_files
from scalelab.lab.reading.run_files import is_finite

CLOCKS = {"steps": "step", "tokens": "tokens", "flops": "flops", "seconds": "seconds"}
CLOSE = 1e-6  # what writing a number and reading it back may change
SECONDS_CLOSE = 1e-3  # metrics.jsonl rounds them
OF_NET = ("system", "seed", "shape", "n_model")  # what result.json repeats of config.json
DEPARTURE = {"field", "value", "source"}
PHASES = ("short", "long")
SHOWN = 8
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
        elif isinstance(values, list) and not all(_version(x) for x in values):
            found.append("environment.json: numerics of an earlier start is no number")
    return found


def _version(start: Any) -> bool:
    """Whether an earlier start tells a version of the numbers, or none."""
    return isinstance(run_files.mapping(start).get("numerics"), int | None)


def of_folder(folder: pathlib.Path, result: Mapping[str, Any]) -> list[str]:
    """What is wrong with the files of a run whose result is sound in itself; [] if nothing is."""
    problems: list[str] = []
    config, there = run_files.read_json(folder / "config.json", problems)
    if not there:
        problems.append("config.json is missing")
    environment, _ = run_files.read_json(folder / "environment.json", problems)
    lines = run_files.read_metrics(folder / "metrics.jsonl", problems)
    problems += of_environment(environment)
    return problems or of_contents(folder, config, result, lines)


def of_contents(
    folder: pathlib.Path,
    config: Mapping[str, Any],
    result: Mapping[str, Any],
    lines: Sequence[dict[str, Any]],
) -> list[str]:
    """Where result.json, sound in itself, and the files beside it say different things.

    Args:
      folder: the run folder.
      config: the content of config.json.
      result: that of result.json.
      lines: those of metrics.jsonl.
    """
    found = of_config(config, result, OF_NET) + _of_phases(config, result)
    text, kept = result.get("data_hash"), run_files.manifest_hash(folder)
    if text and kept and text != kept and not config.get("init"):  # else of another run's text
        found.append(f"data_hash is {text!r} in result.json, {kept!r} in tokenizer/manifest.json")
    if not (folder / "metrics.jsonl").exists():
        return [*found, "metrics.jsonl is missing, so that nothing vouches for result.json"]
    if sum("eval/loss" in line for line in lines) > len(run_files.validations(lines)):
        return [*found, "metrics.jsonl: a validation lacks a number"]
    return found + _of_metrics(result, lines)


def of_config(
    config: Mapping[str, Any], result: Mapping[str, Any], needed: Sequence[str] = ()
) -> list[str]:
    """Where result.json says other things of the net than config.json, of any run.

    Args:
      config: the content of config.json.
      result: that of result.json.
      needed: fields that result.json has to have.
    """
    net = config.get("net")
    net = net if isinstance(net, Mapping) else {}
    heads, width, layers = (net.get(name) for name in ("num_heads", "width", "num_layers"))
    n_model = None
    if isinstance(width, int) and isinstance(layers, int):
        n_model = 12 * layers * width**2
    expected = {
        "system": config.get("system"),
        "seed": config.get("seed"),
        "shape": {"A": heads, "H": width, "L": layers},
        "n_model": n_model,
        "init_digest": config.get("init"),
    }
    found = [f"result.json has no {name}" for name in needed if name not in result]
    found += [
        f"{name} is {result[name]!r} in result.json, {value!r} by config.json"
        for name, value in expected.items() if name in result and result[name] != value
    ]  # fmt: skip
    declared, flat = result.get("departures") or [], flatten(dict(config))
    listed = declared if isinstance(declared, list) else [None]
    if not all(DEPARTURE <= {*run_files.mapping(each)} for each in listed):
        return [*found, "result.json: departures are no list of fields, values and sources"]
    return found + [
        f"departure {d.get('field')} is {d.get('value')!r} in result.json,"
        f" {flat.get(str(d.get('field')), 'absent')!r} in config.json"
        for d in declared if flat.get(str(d.get("field")), "absent") != d.get("value")
    ]  # fmt: skip


def _of_phases(config: Mapping[str, Any], result: Mapping[str, Any]) -> list[str]:
    """Where what result.json says of the examples of each phase cannot be."""
    said = result.get("phases")
    if said is None:
        return []
    if not isinstance(said, list) or len(said) > len(PHASES):
        return ["result.json: phases are no list of one or two"]
    found = []
    for name, phase in zip(PHASES, map(run_files.mapping, said), strict=False):
        length, examples, tokens = (phase.get(key) for key in ("max_len", "examples", "tokens"))
        expected = run_files.mapping(config.get(name)).get("max_len")
        if length != expected:
            found.append(
                f"{name}.max_len is {length!r} in result.json, {expected!r} by config.json"
            )
        elif not (type(length) is int and type(examples) is int and type(tokens) is int):
            found.append(f"result.json: the examples or tokens of phase {name} are no numbers")
        elif not 0 < tokens <= examples * length:
            found.append(f"result.json: {tokens} tokens in {examples} examples of phase {name}")
    return found


def of_plan(config: Mapping[str, Any], planned: Mapping[str, Any]) -> list[str]:
    """Where config.json is not what a study planned for the run: one line that names the fields."""
    ours, theirs = science(config), science(planned)
    differing = [
        f"{field} is {ours.get(field, 'absent')!r}, planned {theirs.get(field, 'absent')!r}"
        for field in sorted(ours.keys() | theirs.keys())
        if ours.get(field, "absent") != theirs.get(field, "absent")
    ]
    more = len(differing) - SHOWN
    said = "; ".join(differing[:SHOWN]) + f"; and {more} more fields" * (more > 0)
    return [f"config.json is not what the study planned: {said}"] if differing else []


def science(config: Mapping[str, Any]) -> dict[str, Any]:
    """The science fields by dotted name; one that is None is off, as if it were not there."""
    flat = flatten({k: v for k, v in config.items() if k != "machine"})
    return {field: value for field, value in flat.items() if value is not None}


def of_clocks(result: Mapping[str, Any], line: Mapping[str, Any]) -> list[str]:
    """Where result.json and a line of metrics.jsonl, its last, tell other clocks."""
    found = []
    for name, key in CLOCKS.items():
        said, logged = result.get(name), line.get(key)
        if not _same(said, logged, SECONDS_CLOSE if name == "seconds" else CLOSE):
            found.append(
                f"{name} are {_shown(said)} in result.json, {_shown(logged)} at the last"
                " line of metrics.jsonl"
            )
    return found


def _of_metrics(result: Mapping[str, Any], lines: Sequence[dict[str, Any]]) -> list[str]:
    """Where result.json and metrics.jsonl say different things."""
    rows, found = run_files.validations(lines), []
    last = {str(row["eval/max_len"]): row for row in rows}
    for length in sorted(last.keys() | result["eval"].keys(), key=int):
        if length not in last or length not in result["eval"]:
            one, other = ("result.json", "metrics.jsonl")[:: 1 if length in last else -1]
            found.append(f"{one} has no validation at length {length}, but {other} has")
            continue
        logged = {"step": last[length]["step"]} | {
            name.removeprefix("eval/"): value for name, value in last[length].items()
            if name.startswith("eval/") and name != "eval/max_len"
        }  # fmt: skip
        said = dict(result["eval"][length])
        best = said.pop("best_loss", None)
        found += [
            f"the last {name} at length {length} is {_shown(said.get(name))} in result.json,"
            f" {_shown(logged.get(name))} in metrics.jsonl"
            for name in sorted(said.keys() | logged.keys())
            if not _same(said.get(name), logged.get(name), CLOSE)
        ]
        losses = [row["eval/loss"] for row in rows if str(row["eval/max_len"]) == length]
        if best is not None and not any(_same(best, loss, CLOSE) for loss in losses):
            found.append(f"best_loss at length {length} is {_shown(best)}, in no validation")
    return found + (of_clocks(result, rows[-1]) if rows else [])


def _same(said: Any, logged: Any, tolerance: float) -> bool:
    if run_files.is_number(said) and run_files.is_number(logged):
        return math.isclose(said, logged, rel_tol=tolerance, abs_tol=tolerance)
    return said == logged


def _shown(value: Any) -> str:
    if not run_files.is_number(value):
        return "absent" if value is None else repr(value)
    return f"{value:,.6g}"
