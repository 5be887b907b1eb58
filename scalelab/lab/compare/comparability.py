"""Comparability: runs stand in one table only if they differ in the declared fields alone.

Every two finished pre-trainings of a study may differ in the fields of the factors that they differ
in, where the study sets these free (system: its departures and the study's fields for it; shape:
heads, width, layers; variant: the variant's fields; seed). Their texts, numerics versions and, for
one net, numbers of parameters must agree, and within a variant and stage their readings of the
clock that the study matches.

Every fine-tuning must have the planned fields and agree with all others on its task in its fields,
its data and its numerics version; its seed, and what the recipe's grid chose on dev, are its own.
Those of one pre-training must begin with the same weights. Their fields are named
"finetune.epochs", the data "finetune.data".

What is named in `allow` may differ too; every table then says so.
"""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from scalelab.config.fields import flatten, science
from scalelab.helpers.names import nearest
from scalelab.lab.compare import matched
from scalelab.lab.load.study_runs import Point, PretrainRun, Study
from scalelab.runs import records

SHAPE_FIELDS = ("net.num_heads", "net.width", "net.num_layers", "net.ffn_width")
PREFIX = "finetune."
# Names that `allow` knows beside config fields, of pre-trainings and of fine-tunings.
WORDS = ("data", "numerics", "params", "matched")
FINETUNE_WORDS = ("data", "init", "numerics", "relation", "labels", "regression", "mnli_first")
# Fields of a fine-tuning that belong to its net, its task or its machine.
NOT_SHARED = ("task", "seed", "system", "net", "machine", "data", "init",
              "tokenizer_digest")  # fmt: skip
ALLOWED = "Allowed to differ"  # the beginning of a footnote on such a field
SHOWN = 8

Differences = dict[str, str]  # field -> which runs, and how


@dataclasses.dataclass(frozen=True)
class Adapted:
    """How one net was adapted to a task.

    Attributes:
      name: its folder, below that of all runs.
      task: its name.
      origin: its pre-training, and whether it began with its weights.
      fields: its config by dotted name, "data", "init" and "numerics".
    """

    name: str
    task: str
    origin: str
    fields: Mapping[str, Any]


def check(study: Study, allow: Iterable[str] = ()) -> list[str]:
    """Checks all finished runs of a study, and all their fine-tunings.

    Args:
      study: after `study_runs.check_plan`: its runs have the planned configs.
      allow: fields that may differ beyond those of the study's own `allow`.

    Returns:
      Footnotes: fields that were allowed to differ, and what is not known to be equal.

    Raises:
      ValueError: an undeclared field differs; the message names the fields and two runs for each.
        Or `allow` names no field, or the study matches no clock.
    """
    matched.check(study.facts["matched"], f"study {study.name}, matched")
    allowed = {*study.facts["allow"], *allow}
    known = names(study)
    for name in sorted(allowed - known):
        raise ValueError(f"--allow={name}: no such field: {nearest(name, known)}")
    adapted = list(_read_adapted(study))
    found = _pretrainings(study) | _finetunings(study, adapted)
    undeclared = {field: text for field, text in sorted(found.items()) if field not in allowed}
    if undeclared:
        lines = [f"{field}: {text}" for field, text in undeclared.items()][:SHOWN]
        more = len(undeclared) - len(lines)
        raise ValueError(
            f"study {study.name}: runs differ in undeclared fields:\n  "
            + "\n  ".join(lines)
            + f"\n  and {more} more" * bool(more)
            + f"\n--allow={','.join(undeclared)} compares them, and the report says so"
        )
    return [
        f"{ALLOWED}, though the comparison is not about it: {field}: {text}."
        for field, text in sorted(found.items())
    ] + [f"Not known to be equal: {text}." for text in _unknown(study, adapted)]


def names(study: Study) -> set[str]:
    """Returns the names of all fields that may be allowed to differ."""
    fields = {
        field for run in study.runs for field in flatten(run.config)
        if not field.startswith("machine.")
    }  # fmt: skip
    planned = study.facts.get("adaptation", {}).values()
    tuned = {field for one in planned for field in one} | set(study.facts.get("chosen", ()))
    return {*WORDS, *fields, *(PREFIX + name for name in (*FINETUNE_WORDS, *tuned))}


# --- Pre-trainings --------------------------------------------------------------------------------


def _pretrainings(study: Study) -> Differences:
    """Returns the fields in which two pre-trainings differ and may not."""
    runs = [run for run in study.runs if run.finished]
    clock = study.facts["matched"]
    fields = {run.name: _science(run) for run in runs}
    readings = {run.name: matched.reading(run, clock) for run in runs}
    found: Differences = {}
    pairs = [(point, run) for point in study.points for run in point.finished]
    for (p, a), (q, b) in itertools.combinations(pairs, 2):
        free = _free_fields(study, p, q, a, b)
        ours, theirs = fields[a.name], fields[b.name]
        for field in ours.keys() | theirs.keys():
            x, y = ours.get(field, "absent"), theirs.get(field, "absent")
            if x != y and field not in free:
                found.setdefault(field, f"{x!r} in {a.name}, {y!r} in {b.name}")
        one, two = a.result, b.result
        assert one and two
        if one.data_hash != two.data_hash:
            silent = next((r.name for r in (a, b) if r.result and not r.result.data_hash), None)
            text = f"{a.name} and {b.name} were trained on different texts"
            found.setdefault("data", f"{silent} does not record its texts" if silent else text)
        if one.params != two.params and p == q:
            text = f"{one.params} in {a.name}, {two.params} in {b.name}, of one net"
            found.setdefault("params", text)
        x, y = (run.environment.numerics_versions for run in (a, b))
        if x != y:
            found.setdefault("numerics", f"version {x} in {a.name}, {y} in {b.name}")
        x, y = readings[a.name], readings[b.name]
        if p.variant == q.variant and a.stage == b.stage and not matched.are_equal((x, y)):
            text = f"{x:,.0f} {matched.title(study)} in {a.name}, {y:,.0f} in {b.name}"
            found.setdefault("matched", text)
    return found


def _science(run: PretrainRun) -> dict[str, Any]:
    """Returns the science fields by dotted name; None is off, as a missing field is."""
    return {field: value for field, value in science(run.config).items() if value is not None}


def _free_fields(study: Study, p: Point, q: Point, a: PretrainRun, b: PretrainRun) -> set[str]:
    """Returns the fields in which two runs may differ."""
    facts, free = study.facts, set[str]()
    if p.system != q.system and "system" in facts["free"]:
        free.add("system")
        for name in (p.system, q.system):
            free |= {departure["field"] for departure in facts["departures"].get(name, ())}
            free |= _field_names(facts.get("system_fields", {}).get(name, ()))
    if p.shape != q.shape and "shape" in facts["free"]:
        free |= set(SHAPE_FIELDS)
    if p.variant != q.variant and "variant" in facts["free"]:
        for name in (p.variant, q.variant):
            free |= _field_names(facts["variants"].get(name, ()))
    if a.seed != b.seed and "seed" in facts["free"]:
        free.add("seed")
    return free


def _field_names(lines: Iterable[str]) -> set[str]:
    """Returns the names in "field=value" lines."""
    return {line.partition("=")[0] for line in lines}


# --- Fine-tunings ---------------------------------------------------------------------------------


def _read_adapted(study: Study) -> Iterator[Adapted]:
    """Yields how the ended fine-tunings of a study's tasks were made."""
    for run in study.runs:
        for part in ("tasks", "scratch") if run.finished else ():
            for task, tuned in getattr(run, part).items():
                for seed in tuned.runs if task in study.facts["tasks"] else ():
                    if seed.result is None:
                        continue
                    shared = {k: v for k, v in seed.config.items() if k not in NOT_SHARED}
                    fields = flatten(shared) | {
                        "data": seed.config.get("data") or {},
                        "init": seed.weights,
                        "numerics": seed.environment.numerics_versions,
                    }
                    name = f"{run.name}/{part}/{task}/seed{seed.seed}"
                    yield Adapted(name, task, f"{part} of {run.name}", fields)


def _finetunings(study: Study, adapted: Iterable[Adapted]) -> Differences:
    """Returns the fields in which fine-tunings differ from each other, or from the plan."""
    chosen, planned = set(study.facts.get("chosen", ())), study.facts.get("adaptation", {})
    found: Differences = {}
    by_task: dict[str, Adapted] = {}
    by_origin: dict[str, Adapted] = {}
    for one in adapted:
        first = by_task.setdefault(one.task, one)
        for field in sorted((one.fields.keys() | first.fields.keys()) - chosen - {"init"}):
            _note_difference(found, field, first, one)
        _note_difference(found, "init", by_origin.setdefault(one.origin, one), one)
        for field, value in planned.get(one.task, {}).items():
            actual = one.fields.get(field)  # a missing field is off, as None is
            if actual != value:
                text = f"{actual!r} in {one.name}, planned {value!r}"
                found.setdefault(PREFIX + field, text)
    return found


def _note_difference(found: Differences, field: str, a: Adapted, b: Adapted) -> None:
    x, y = a.fields.get(field), b.fields.get(field)
    if x == y:
        return
    text = f"{x!r} in {a.name}, {y!r} in {b.name}"
    if field == "data":
        x, y = a.fields["data"], b.fields["data"]
        parts = [k for k in sorted(x.keys() | y.keys()) if x.get(k) != y.get(k)]
        text = f"{a.name} and {b.name} have other contents of {', '.join(parts)}"
    elif field == "init":
        text = f"{a.name} and {b.name} began with other weights of the same pre-training"
    found.setdefault(PREFIX + field, text)


def _unknown(study: Study, adapted: Iterable[Adapted]) -> list[str]:
    """Returns what the runs do not record, so that it is not known to be equal."""
    runs, adapted, found = [run for run in study.runs if run.finished], list(adapted), []
    if len(runs) > 1 and not any(run.result and run.result.data_hash for run in runs):
        found.append("no run records its texts (data_hash in result.json)")
    if len(runs) > 1 and any(records.UNKNOWN in run.environment.numerics_versions for run in runs):
        found.append("not every start of a run records its numerics version")
    if any(records.UNKNOWN in one.fields["numerics"] for one in adapted):
        found.append("not every fine-tuning records its numerics version")
    silent = sorted({one.task for one in adapted if not one.fields["data"]})
    if silent:
        found.append(f"fine-tunings on {', '.join(silent)} do not record their data")
    return found
