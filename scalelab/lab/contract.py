"""The comparability contract: runs stand in one table only if they differ in what was declared.

For every pair of finished runs of a study: fields of their configs may differ where the study sets
the factor free that the two differ in (system: its departures and the study's fields for it; shape:
heads, width, layers; variant: the variant's fields; seed); their data and the version of the
numerics may not; and they must have come equally far on the clock that the study matches. Fields in
`allow` may differ too, and the table then says so.
"""

import itertools
import json
from collections.abc import Iterable, Mapping
from typing import Any

from scalelab.lab import run_files
from scalelab.lab.study_runs import Point, PretrainRun, Study

SHAPE_FIELDS = ("net.num_heads", "net.width", "net.num_layers", "net.ffn_width")
CLOCKS = {"steps": "steps", "tokens": "tokens", "flops": "flops", "secs": "seconds"}
TOLERANCE = 0.05  # by which runs may differ on the matched clock: whole steps, whole epochs
SHOWN = 8


def check(study: Study, allow: Iterable[str] = ()) -> list[str]:
    """Checks every pair of finished runs.

    Args:
      study: the study.
      allow: fields that may differ beyond those of the study's own `allow`; also "data",
        "numerics" and "matched".

    Returns:
      Footnotes: what differs that was allowed.

    Raises:
      ValueError: something undeclared differs; the message names the fields and two runs for each.
    """
    allowed = {*study.facts["allow"], *allow}
    flat = {run.name: _flat(_actual(run)) for run in study.runs if run.finished}
    numerics = {run.name: _numerics(run) for run in study.runs if run.finished}
    found: dict[str, str] = {}
    pairs = [(point, run) for point in study.points for run in point.finished]
    for (p, a), (q, b) in itertools.combinations(pairs, 2):
        free = _free(study, p, q, a, b)
        ours, theirs = flat[a.name], flat[b.name]
        for field in ours.keys() | theirs.keys():
            x, y = ours.get(field, "absent"), theirs.get(field, "absent")
            if x != y and field not in free:
                found.setdefault(field, f"{x!r} in {a.name}, {y!r} in {b.name}")
        one, two = a.result or {}, b.result or {}
        if one.get("data_hash") != two.get("data_hash"):
            found.setdefault("data", f"{a.name} and {b.name} were trained on different texts")
        if numerics[a.name] != numerics[b.name]:
            found.setdefault(
                "numerics",
                f"version {numerics[a.name]} in {a.name}, {numerics[b.name]} in {b.name}",
            )
        clock = CLOCKS.get(study.facts["matched"])
        if clock and p.variant == q.variant and a.stage == b.stage:
            low, high = sorted((one[clock], two[clock]))
            if high > low * (1 + TOLERANCE):
                found.setdefault(
                    "matched",
                    f"{one[clock]:,.0f} {clock} in {a.name}, {two[clock]:,.0f} in {b.name}",
                )
    undeclared = {field: text for field, text in sorted(found.items()) if field not in allowed}
    if undeclared:
        lines = [f"{field}: {text}" for field, text in undeclared.items()][:SHOWN]
        more = len(undeclared) - len(lines)
        raise ValueError(
            f"study {study.name}: runs differ in what it does not declare free:\n  "
            + "\n  ".join(lines)
            + f"\n  and {more} more" * bool(more)
            + f"\n--allow={','.join(undeclared)} compares all the same, and the report says so"
        )
    return [
        f"Allowed to differ, though the comparison is not about it: {field}: {text}."
        for field, text in sorted(found.items())
    ]


def _free(study: Study, p: Point, q: Point, a: PretrainRun, b: PretrainRun) -> set[str]:
    """The fields in which two runs may differ."""
    facts, free = study.facts, set[str]()
    if p.system != q.system and "system" in facts["free"]:
        free.add("system")
        for name in (p.system, q.system):
            free |= {departure["field"] for departure in facts["departures"][name]}
            free |= _fields(facts["system_fields"].get(name, ()))
    if p.shape != q.shape and "shape" in facts["free"]:
        free |= set(SHAPE_FIELDS)
    if p.variant != q.variant and "variant" in facts["free"]:
        free |= _fields(facts["variants"][p.variant]) | _fields(facts["variants"][q.variant])
    if a.seed != b.seed and "seed" in facts["free"]:
        free.add("seed")
    return free


def _fields(lines: Iterable[str]) -> set[str]:
    """The names in "field=value" lines."""
    return {line.partition("=")[0] for line in lines}


def _actual(run: PretrainRun) -> Mapping[str, Any]:
    """The config that the run was really trained with.

    Raises:
      ValueError: its file is missing or damaged, or is not what the study planned.
    """
    path = run.folder / "config.json"
    try:
        values = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read ({error}); run the study again") from None
    planned, actual = _flat(run.config), _flat(values)
    differing = [k for k in sorted(planned.keys() | actual.keys())
                 if planned.get(k, "absent") != actual.get(k, "absent")]  # fmt: skip
    if differing:
        field = differing[0]
        raise ValueError(
            f"{path} is not what the study planned: {field} is {actual.get(field, 'absent')!r},"
            f" planned {planned.get(field, 'absent')!r}"
            + f", and {len(differing) - 1} more fields" * (len(differing) > 1)
            + "; a folder must not be edited: move it away and run the study again"
        )
    return values


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The science fields by dotted name; one that is None is off, as if it were not there."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        if prefix == "" and key == "machine":
            continue
        name = prefix + key
        if isinstance(value, Mapping):
            found |= _flat(value, f"{name}.")
        elif value is not None:
            found[name] = value
    return found


def _numerics(run: PretrainRun) -> str:
    """Versions of the numerics of all its starts, in words."""
    try:
        found = run_files.numerics(json.loads((run.folder / "environment.json").read_text()))
    except (OSError, ValueError, AttributeError, TypeError):
        found = ()
    return " and ".join(map(str, found)) or "not recorded"
