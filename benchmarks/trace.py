"""Where the time of a step goes by operation, as XLA's own trace tells it.

  taskset -c 0 python -m benchmarks.trace [--systems=bert] [--shapes=2x128x2,...] [--repeats=5]
      [--top=40] [--json=FILE] [--quick] [sizes as benchmarks.step]

On one core operations run one after another; on several they overlap and their times cannot be
added. Of each operation the fastest eighth of its repetitions counts, so that what other programs
take is left out as far as may be: shares say more than milliseconds. Operations of a loop count at
each turn, the loop itself does not.
"""

import argparse
import collections
import re
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import arguments as command_line
from benchmarks import side_by_side, step
from benchmarks.floor import Peak
from benchmarks.step_case import Case, Ours

OPERATION = re.compile(r'%([\w.\-]+) = (\S+) ([\w\-]+)\(.*?op_name="([^"]*)"')
CONTAINERS = ("while", "call", "conditional")


def kind_of(name: str, instruction: str) -> str:
    """Products; what passes over the scores of the head; or the part of the step, by its name."""
    last = name.split("/")[-1]
    if "dot" in instruction or "dot_general" in last or (last == "transpose" and "/ffn/" in name):
        return "products"
    if "/while/" in name and "stack" not in name:
        return "head"
    if "broadcast_in_dim" in last and "stack" in name:
        return "stack's loop: room for what the backward pass needs"
    return next((part for part in ("stack", "embed", "head") if part in name), "optimizer and rest")


def of_step(ours: Ours, repeats: int) -> list[dict[str, Any]]:
    """Operations, the longest first: name, part, shape, milliseconds of a step, turns."""
    import jax

    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            for _ in range(repeats):
                ours(1)
        (path,) = Path(folder).rglob("*.xplane.pb")
        found = jax.profiler.ProfileData.from_file(str(path))
        secs = collections.defaultdict(list)
        for plane in found.planes:
            for line in plane.lines:
                for event in line.events:
                    stats = dict(event.stats)
                    if "hlo_op" in stats:
                        secs[str(stats["hlo_op"])].append(event.duration_ns / 1e6)
    known = {m[0]: m[1:] for m in OPERATION.findall(ours.run.as_text())}
    made = []
    for instruction, each in secs.items():
        if instruction.split(".")[0] in CONTAINERS:
            continue
        shape, _, name = known.get(instruction, ("", "", ""))
        turns = len(each) / repeats
        made.append({
            "instruction": instruction, "shape": shape.split("{")[0], "name": name,
            "kind": kind_of(name, instruction), "turns": turns,
            "ms": sorted(each)[len(each) // 8] * turns,
        })  # fmt: skip
    return sorted(made, key=lambda operation: -operation["ms"])


def measure_case(case: Case, arguments: argparse.Namespace, peak: Peak) -> dict[str, Any]:
    """Traces a system's step at a shape."""
    del peak
    ours = Ours(case)
    ours(2)
    return {
        "system": case.system,
        "shape": case.shape,
        "operations": of_step(ours, arguments.repeats),
    }


def report(found: dict[str, Any], top: int) -> None:
    """Prints the parts and the longest operations of each system and shape."""
    for case in found["cases"]:
        total = sum(operation["ms"] for operation in case["operations"])
        kinds = collections.Counter()
        for operation in case["operations"]:
            kinds[operation["kind"]] += operation["ms"]
        print(f"\n{case['system']} {case['shape']}: {total:,.1f} ms, load {found['load']:.1f}\n")
        for kind, milliseconds in kinds.most_common():
            print(f"| {kind} | {milliseconds:,.1f} ms | {milliseconds / total:.1%} |")
        print()
        for operation in case["operations"][:top]:
            print(
                f"| {operation['ms'] / total:.1%} | {operation['shape']} |"
                f" {operation['name'][-90:]} | {operation['turns']:.0f}x |"
            )


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    made = command_line.parser("trace", __doc__)
    command_line.add_case(made, list(step.SHAPES))
    made.add_argument("--top", type=command_line.count(0), default=40, help="operations to print")
    command_line.add_common(made, repeats=5, quick="a tiny net and short examples")
    made.set_defaults(steps=1)
    return command_line.read(made, argv, step.QUICK)


def main(arguments: argparse.Namespace) -> None:
    """Measures and prints."""
    found = step.measure(arguments, measure_case)
    side_by_side.keep(found, arguments.json)
    report(found, arguments.top)


if __name__ == "__main__":
    side_by_side.start(parse, main)
