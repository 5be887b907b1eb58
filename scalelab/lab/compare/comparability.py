"""The comparability contract: runs stand in one table only if they differ in what was declared.

For every pair of finished runs of a study: fields of their configs may differ where the study sets
the factor free that the two differ in (system: its departures and the study's fields for it; shape:
heads, width, layers; variant: the variant's fields; seed); their data, the version of the
numerics and, where the seed alone differs, the number of parameters may not; what none of them
tells is said below every table; and they must have come equally far on the clock that the study
matches, within a variant and stage. Their fine-tunings are held to it in finetunings.py. What is
named in `allow` may differ too, and every table then says so.
"""

import itertools
from collections.abc import Iterable
from typing import Any

from scalelab.config.fields import flatten, science
from scalelab.helpers.names import nearest
from scalelab.lab.compare import finetunings, matched
from scalelab.lab.load.study_runs import Point, PretrainRun, Study
from scalelab.runs import records

SHAPE_FIELDS = ("net.num_heads", "net.width", "net.num_layers", "net.ffn_width")
# What may be allowed to differ beside config fields.
WORDS = ("data", "numerics", "params", "matched")
ALLOWED = "Allowed to differ"  # how a footnote on such begins
SHOWN = 8


def check(study: Study, allow: Iterable[str] = ()) -> list[str]:
    """Checks every pair of finished runs, and all their fine-tunings.

    Args:
      study: what `study_runs.checked` gave: the runs that are left in it are what was planned.
      allow: fields that may differ beyond those of the study's own `allow`; also WORDS, and
        fields of fine-tunings, "finetune.epochs".

    Returns:
      Footnotes: what differs that was allowed, and what nobody knows to be equal.

    Raises:
      ValueError: something undeclared differs; the message names the fields and two runs for each.
        Or `allow` names nothing that there is, or the study matches no clock.
    """
    matched.check(study.facts["matched"], f"study {study.name}, matched")
    allowed = {*study.facts["allow"], *allow}
    known = names(study)
    for name in sorted(allowed - known):
        raise ValueError(f"--allow={name}: no such field: {nearest(name, known)}")
    found = _pretrainings(study) | finetunings.differences(study)
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
        f"{ALLOWED}, though the comparison is not about it: {field}: {text}."
        for field, text in sorted(found.items())
    ] + [f"Not known to be equal: {text}." for text in _unknown(study)]


def names(study: Study) -> set[str]:
    """All that may be allowed to differ."""
    fields = {
        field for run in study.runs for field in flatten(run.config)
        if not field.startswith("machine.")
    }  # fmt: skip
    return {*WORDS, *fields, *finetunings.names(study)}


def _pretrainings(study: Study) -> dict[str, str]:
    """Where pre-trainings differ in what is not free: field -> which, and how."""
    runs = [run for run in study.runs if run.finished]
    flat = {run.name: _science(run) for run in runs}
    numerics = {run.name: run.environment.numerics_versions for run in runs}
    clock = study.facts["matched"]
    readings = {run.name: matched.reading(run, clock) for run in runs}
    found: dict[str, str] = {}
    pairs = [(point, run) for point in study.points for run in point.finished]
    for (p, a), (q, b) in itertools.combinations(pairs, 2):
        free = _free(study, p, q, a, b)
        ours, theirs = flat[a.name], flat[b.name]
        for field in ours.keys() | theirs.keys():
            x, y = ours.get(field, "absent"), theirs.get(field, "absent")
            if x != y and field not in free:
                found.setdefault(field, f"{x!r} in {a.name}, {y!r} in {b.name}")
        one, two = a.result, b.result
        assert one and two
        for x, y, no, yes in ((one, two, a, b), (two, one, b, a)):
            if not x.data_hash and y.data_hash:
                said = f"{no.name} does not tell its texts (data_hash), {yes.name} does"
                found.setdefault("data", said)
        if one.data_hash != two.data_hash:
            found.setdefault("data", f"{a.name} and {b.name} were trained on different texts")
        x, y = one.params, two.params
        if x != y and p == q:
            found.setdefault("params", f"{x} in {a.name}, {y} in {b.name}, of one net")
        x, y = numerics[a.name], numerics[b.name]
        if x != y:
            found.setdefault("numerics", f"version {x} in {a.name}, {y} in {b.name}")
        x, y = readings[a.name], readings[b.name]
        if p.variant == q.variant and a.stage == b.stage and not matched.are_equal((x, y)):
            said = f"{x:,.0f} {matched.title(study)} in {a.name}, {y:,.0f} in {b.name}"
            found.setdefault("matched", said)
    return found


def _free(study: Study, p: Point, q: Point, a: PretrainRun, b: PretrainRun) -> set[str]:
    """The fields in which two runs may differ."""
    facts, free = study.facts, set[str]()
    if p.system != q.system and "system" in facts["free"]:
        free.add("system")
        for name in (p.system, q.system):
            free |= {departure["field"] for departure in facts["departures"].get(name, ())}
            free |= _fields(facts.get("system_fields", {}).get(name, ()))
    if p.shape != q.shape and "shape" in facts["free"]:
        free |= set(SHAPE_FIELDS)
    if p.variant != q.variant and "variant" in facts["free"]:
        for name in (p.variant, q.variant):
            free |= _fields(facts["variants"].get(name, ()))
    if a.seed != b.seed and "seed" in facts["free"]:
        free.add("seed")
    return free


def _fields(lines: Iterable[str]) -> set[str]:
    """The names in "field=value" lines."""
    return {line.partition("=")[0] for line in lines}


def _unknown(study: Study) -> list[str]:
    """What no finished run tells, so that nobody knows whether it is equal."""
    runs, found = [run for run in study.runs if run.finished], []
    if len(runs) > 1 and not any(run.result and run.result.data_hash for run in runs):
        found.append("no run tells what texts it was trained on (data_hash in result.json)")
    if len(runs) > 1 and any(records.UNKNOWN in run.environment.numerics_versions for run in runs):
        found.append("not every start of a run tells its version of the numerics")
    return found + finetunings.unknown(study)


def _science(run: PretrainRun) -> dict[str, Any]:
    """Returns the science fields by dotted name; None is off, as if the field were not there."""
    return {field: value for field, value in science(run.config).items() if value is not None}
