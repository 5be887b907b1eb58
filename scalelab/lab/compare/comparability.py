"""Comparability: runs stand in one table only if they differ in no undeclared field.

Every two finished pre-trainings of a study may differ in the fields of the factors that they differ
in, where the study sets these free (system: its departures and the study's fields for it; shape:
heads, width, layers; variant: the variant's fields; seed). Their texts, numerics versions and, for
one net, numbers of parameters must agree.

A study compares at equal steps, tokens, examples (sequences read), FLOPs or seconds. Its variants
may be about that very clock, such as half the steps, and a stage may be another experiment, so
readings of the clock must agree within each variant and stage.

Every fine-tuning must have the planned fields and agree with all others on its task in its fields,
its data and its numerics version; its seed, and what the recipe's grid chose on dev, are its own.
Those of one pre-training must begin with the same weights. Their fields are named
"finetune.epochs", the data "finetune.data".

What is named in `allow` may differ too; every table then says so.
"""

import itertools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from scalelab.config.fields import flatten, science
from scalelab.helpers.names import nearest
from scalelab.lab.load.study_runs import Point, PretrainRun, Study
from scalelab.lab.load.task_runs import SeedRun
from scalelab.runs import records
from scalelab.runs.records import RunRecord

SHAPE_FIELDS = ("net.num_heads", "net.width", "net.num_layers", "net.ffn_width")
PREFIX = "finetune."
# Names that `allow` knows beside config fields, of pre-trainings and of fine-tunings.
WORDS = ("data", "numerics", "params", "matched")
FINETUNE_WORDS = ("data", "init", "numerics", "relation", "labels", "regression", "mnli_first")
# Fields of a fine-tuning that belong to its net, its task or its machine.
NOT_SHARED = ("task", "seed", "system", "net", "machine", "data", "init",
              "tokenizer_digest")  # fmt: skip
ALLOWED = "Allowed to differ"  # the beginning of a footnote on such a field
# What a study calls a clock, and result.json; examples are counted from the validations.
CLOCKS = {"steps": "steps", "tokens": "tokens", "examples": None, "flops": "flops",
          "secs": "seconds"}  # fmt: skip
TITLES = {"flops": "FLOPs", "secs": "seconds"}
PHASES = ("short", "long")
TOLERANCE = 0.05  # by which runs may differ on the clock: whole steps, whole epochs


class _Tuning(NamedTuple):
    """How a net was fine-tuned: folder below that of all runs, task, pre-training, fields."""

    name: str
    task: str
    origin: str
    fields: dict[str, Any]


def check(study: Study, allow: Iterable[str] = ()) -> list[str]:
    """Checks all finished runs of a study, and all their fine-tunings.

    `allow` names fields that may differ beyond those of the study's own. The runs must have the
    planned configs. Returns footnotes on what was allowed to differ.

    Raises:
      ValueError: an undeclared field differs; the message names the fields and two runs for each.
        Or `allow` names no field, or the study matches no clock.
    """
    facts = study.facts
    check_clock(facts["matched"], f"study {study.name}, matched")
    allowed = {*facts["allow"], *allow}
    config = {name for run in study.runs for name in science(run.config)}
    tuned = {name for fields in facts.get("adaptation", {}).values() for name in fields}
    tuned |= {*FINETUNE_WORDS, *facts.get("chosen", ())}
    known = {*WORDS, *config, *(PREFIX + name for name in tuned)}
    for name in sorted(allowed - known):
        raise ValueError(f"--allow={name}: no such field: {nearest(name, known)}")
    found = _compare_pretrainings(study) | _compare_tunings(study)
    undeclared = {field: text for field, text in sorted(found.items()) if field not in allowed}
    if undeclared:
        lines = "".join(f"\n  {field}: {text}" for field, text in undeclared.items())
        raise ValueError(
            f"study {study.name}: runs differ in undeclared fields:{lines}"
            f"\n--allow={','.join(undeclared)} compares them, and the report says so"
        )
    return [
        f"{ALLOWED}, though the comparison is not about it: {field}: {text}."
        for field, text in sorted(found.items())
    ]


def _compare_pretrainings(study: Study) -> dict[str, str]:
    """Returns the forbidden differences of two pre-trainings: the fields, with both runs."""
    clock = study.facts["matched"]
    name = TITLES.get(clock, clock)
    runs = [(point, run) for point in study.points for run in point.finished]
    fields, readings = {}, {}
    for _, run in runs:
        assert run.result
        own = {"data": run.result.data_hash, "numerics": run.environment.numerics_versions,
               "params": run.result.params}  # fmt: skip
        fields[run.name], readings[run.name] = science(run.config) | own, reading(run, clock)
    found: dict[str, str] = {}
    for (p, a), (q, b) in itertools.combinations(runs, 2):
        free = _free_fields(study, p, q, a, b)
        _note_differences(found, (a.name, fields[a.name]), (b.name, fields[b.name]), free)
        x, y = readings[a.name], readings[b.name]
        if p.variant == q.variant and a.stage == b.stage and not are_equal((x, y)):
            found.setdefault("matched", f"{x:,.0f} {name} in {a.name}, {y:,.0f} in {b.name}")
    return found


def _free_fields(study: Study, p: Point, q: Point, a: PretrainRun, b: PretrainRun) -> set[str]:
    """Returns the fields in which two runs may differ."""
    facts, free = study.facts, set[str]()
    lines: list[str] = []  # "field=value"
    if p.system != q.system and "system" in facts["free"]:
        free.add("system")
        for name in (p.system, q.system):
            free |= {departure["field"] for departure in facts["departures"].get(name, ())}
            lines += facts.get("system_fields", {}).get(name, ())
    if p.shape != q.shape and "shape" in facts["free"]:
        free |= set(SHAPE_FIELDS)
    if p.variant != q.variant and "variant" in facts["free"]:
        lines += [
            line for name in (p.variant, q.variant) for line in facts["variants"].get(name, ())
        ]
    if a.seed != b.seed and "seed" in facts["free"]:
        free.add("seed")
    return free | {line.partition("=")[0] for line in lines} | ({"params"} if p != q else set())


def _read_tunings(study: Study) -> list[_Tuning]:
    """Returns how the ended fine-tunings of a study's tasks were made."""
    found = []
    for run, part in itertools.product(study.runs, ("tasks", "scratch")):
        for task, tuned in getattr(run, part).items() if run.finished else ():
            for seed in tuned.runs if task in study.facts["tasks"] else ():
                if seed.result is None:
                    continue
                name = f"{run.name}/{part}/{task}/seed{seed.seed}"
                fields = describe_tuning(seed) | {"init": seed.weights}
                found.append(_Tuning(name, task, f"{run.name}/{part}", fields))
    return found


def describe_tuning(tuned: SeedRun | RunRecord) -> dict[str, Any]:
    """Returns how a fine-tuning was made, but for its net, its task, its seed and its machine."""
    shared = {k: v for k, v in tuned.config.items() if k not in NOT_SHARED}
    data, numerics = tuned.config.get("data") or {}, tuned.environment.numerics_versions
    return flatten(shared) | {"data": data, "numerics": numerics}


def _compare_tunings(study: Study) -> dict[str, str]:
    """Returns the fields in which fine-tunings differ from each other, or from the plan."""
    chosen, planned = set(study.facts.get("chosen", ())), study.facts.get("adaptation", {})
    found: dict[str, str] = {}
    firsts: dict[str, _Tuning] = {}
    for one in _read_tunings(study):
        same_task = firsts.setdefault(one.task, one)
        same_net = firsts.setdefault(one.origin, one)
        sides = [(x.name, x.fields) for x in (same_task, same_net, one)]
        _note_differences(found, sides[0], sides[2], chosen | {"init"}, PREFIX)
        _note_differences(found, sides[1], sides[2], one.fields.keys() - {"init"}, PREFIX)
        for field, value in planned.get(one.task, {}).items():
            actual = one.fields.get(field)  # a missing field is off, as None is
            if actual != value:
                text = f"{actual!r} in {one.name}, planned {value!r}"
                found.setdefault(PREFIX + field, text)
    return found


def _note_differences(
    found: dict[str, str],
    a: tuple[str, dict[str, Any]],
    b: tuple[str, dict[str, Any]],
    free: Iterable[str],
    prefix: str = "",
) -> None:
    """Adds the fields in which two runs (name, fields) differ; None is off, as a missing one is."""
    for field in sorted((a[1].keys() | b[1].keys()).difference(free)):
        x, y = a[1].get(field), b[1].get(field)
        if x != y and prefix + field not in found:
            if isinstance(x, dict) and isinstance(y, dict):  # digests of a task's files
                parts = {k for k in x.keys() | y.keys() if x.get(k) != y.get(k)}
                x, y = ({k: v for k, v in side.items() if k in parts} for side in (x, y))
            found[prefix + field] = f"{x!r} in {a[0]}, {y!r} in {b[0]}"


# --- The matched clock ----------------------------------------------------------------------------


class Phase(NamedTuple):
    """A phase of a training; its tokens are real ones, without padding."""

    name: str  # "short" or "long"
    max_len: int  # tokens of its longest sequence
    steps: int
    sequences: int  # that it read, all epochs together
    tokens: int  # of these
    epoch_sequences: int | None = None  # different ones that there are; None: not known
    epoch_tokens: int | None = None  # of these

    @property
    def epochs(self) -> float | None:
        """How often it read its sequences."""
        return self.sequences / self.epoch_sequences if self.epoch_sequences else None


def read_phases(run: PretrainRun) -> list[Phase]:
    """Returns the phases that a run took; [] if its metrics are gone.

    A phase ends with a validation at its length. Two phases of one length cannot be told apart:
    they count as the first if their batches are alike, else none is returned.
    """
    rows, recorded = records.validations(run.lines), run.result.phases if run.result else ()
    short, long = (run.config[name] for name in PHASES)
    both = all(long.get(rate) != 0 for rate in ("example_rate", "epoch_rate"))
    alike = both and short["max_len"] == long["max_len"]
    if alike and short["batch_size"] != long["batch_size"]:
        return []
    found, steps, tokens = [], 0, 0
    for place, (name, part) in enumerate(zip(PHASES, (short, long), strict=True)):
        ends = [row for row in rows if row["eval/max_len"] == part["max_len"]]
        if not ends or ends[-1]["step"] <= steps:
            continue
        num_steps, num_tokens = int(ends[-1]["step"] - steps), int(ends[-1]["tokens"] - tokens)
        sequences, epochs = num_steps * part["batch_size"], run.config["optim"].get("total_epochs")
        epoch: tuple[int | None, int | None] = (None, None)
        if place < len(recorded) and not alike:
            epoch = recorded[place].examples, recorded[place].tokens
        elif epochs and not alike:  # in whole batches
            rate = long.get("epoch_rate") if name == "long" else None
            times = epochs * (1.0 if rate is None else rate)
            epoch = round(sequences / times), round(num_tokens / times)
        found.append(Phase(name, part["max_len"], num_steps, sequences, num_tokens, *epoch))
        steps, tokens = ends[-1]["step"], ends[-1]["tokens"]
    return found


def check_clock(clock: object, where: str) -> None:
    """Raises a ValueError, which begins with `where`, if there is no such clock."""
    if clock not in CLOCKS:
        raise ValueError(f"{where}: unknown clock {clock!r}: {nearest(str(clock), CLOCKS)}")


def reading(run: PretrainRun, clock: str) -> float:
    """Returns how far a finished run came on a clock.

    Raises:
      ValueError: its examples cannot be told.
    """
    if key := CLOCKS[clock]:
        return getattr(run.result, key)
    found = read_phases(run)
    if not found:
        raise ValueError(
            f"{run.name}: its examples cannot be told, as its metrics are gone, or its two phases"
            " have one length and different batches; match steps or tokens"
        )
    return sum(phase.sequences for phase in found)


def are_equal(values: Iterable[float]) -> bool:
    """Whether readings differ by no more than whole steps and epochs make them."""
    low, *_, high = sorted([*values] * 2)
    return high <= low * (1 + TOLERANCE)


def describe_clock(study: Study, points: Sequence[Point]) -> str:
    """Returns a sentence on what is true of the matched clock over the finished runs of some rows.

    Raises:
      ValueError: as `reading`.
    """
    clock = study.facts["matched"]
    name = TITLES.get(clock, clock)
    runs = [(point, run) for point in points for run in point.finished]
    if not runs:
        return f"To be held equal: {name}."
    stages = {run.stage for _, run in runs}
    groups: dict[str, list[float]] = {}
    for point, run in runs:
        label = f"{point.variant} ({run.stage})" if len(stages) > 1 else point.variant
        groups.setdefault(label, []).append(reading(run, clock))
    apart = {label: values for label, values in groups.items() if not are_equal(values)}
    if apart:
        ranges = (f"{min(v):,.0f} to {max(v):,.0f} in {label}" for label, v in apart.items())
        return f"Not held equal: {name}, {'; '.join(ranges)}."
    if are_equal(x for values in groups.values() for x in values):
        return f"Held equal: {name}, to {TOLERANCE:.0%}."
    means = (f"{label} {sum(v) / len(v):,.0f}" for label, v in groups.items())
    return f"Held equal: {name}, to {TOLERANCE:.0%}, within each variant alone: {'; '.join(means)}."
