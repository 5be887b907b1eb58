"""Comparability: runs stand in one table only if they differ in no undeclared field.

Two finished pre-trainings that differ in a free factor of the study may differ in its fields:
system (its declared differences and the study's fields for it), shape (heads, width, layers),
variant (the variant's fields), seed. All other science fields, the texts, the numerics versions
and, for one model, the numbers of parameters must agree.

A study holds one clock equal: steps, tokens, FLOPs or seconds. A variant may change that clock,
such as half the steps, and a stage may be another experiment, so readings of the clock must agree
only within each variant and stage.

Every fine-tuning must have the planned fields, and agree with all others on its task in fields,
data and numerics version. Only its seed, its variant's fields and the values that the recipe's grid
chose on dev are its own. Fine-tunings of one pre-training must begin with the same weights. Fields
are named "finetune.epochs", the data "finetune.data".

Fields in `allow` may differ too; every table then names them.

Losses are comparable only if objective, mask rate, texts, tokenizer, format, length, and the
options of objective and format are equal. Bits per byte are comparable between tokenizers and
between formats too, but not between objectives, mask rates or texts, nor between options of one
format.
"""

import itertools
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, TypeVar

from scalelab.config.durations import CLOCKS
from scalelab.config.fields import OWNERS, differing, own_options, parse_fields, science
from scalelab.helpers.names import check_names
from scalelab.lab.load.study_runs import PretrainRun, Row, Study
from scalelab.lab.load.task_runs import SeedRun

SHAPE_FIELDS = ("model.num_heads", "model.width", "model.num_layers", "model.ffn_width")
PREFIX = "finetune."
# Names that `allow` knows beside config fields, of pre-trainings and of fine-tunings.
WORDS = ("data", "numerics", "params", "matched")
FINETUNE_WORDS = ("data", "init", "numerics", "relation", "labels", "regression", "mnli_first")
# Science fields of a fine-tuning that belong to its model or its task.
NOT_SHARED = (
    "task", "seed", "system", "system_options", "model", "data", "init", "tokenizer_digest",
    "peers", "kind",  # `head.kind` says it, too
)  # fmt: skip
ALLOWED = "Allowed to differ"  # the beginning of a footnote on such a field
# The fields, and groups of fields, that decide what a loss is a loss of.
LOSS_GROUPS = (
    "objective", "mask_rate", "objective_options", "data", "tokenizer", "format_options", "length",
)  # fmt: skip
LOSSES = (
    "Losses of different kinds do not compare ({}). Compare evaluations, or bits per byte if"
    " objective and mask rate are the same."
)
TOLERANCE = 0.05  # relative difference of equal readings, because steps and epochs are whole


T = TypeVar("T")
Fields = Mapping[str, Any]
Run = tuple[str, Any, Fields]  # its name, whatever says which runs it must agree with, its fields


def comparable(runs: Iterable[Run], by: Callable[[Any, str], Hashable]) -> dict[str, str]:
    """Returns the fields in which runs differ though `by` groups them, with the first two runs.

    A missing field is off, as None is.
    """
    runs, found = list(runs), dict[str, str]()
    firsts: dict[Hashable, tuple[str, Any]] = {}
    names = dict.fromkeys(name for *_, fields in runs for name in fields)
    for (name, run, fields), field in itertools.product(runs, names):
        value = fields.get(field)
        other, x = firsts.setdefault((field, by(run, field)), (name, value))
        if x != value and field not in found:
            if isinstance(x, dict) and isinstance(value, dict):  # digests of a task's files
                parts = differing((x, value))
                x, value = ({k: v for k, v in y.items() if k in parts} for y in (x, value))
            found[field] = f"{x!r} in {other}, {value!r} in {name}"
    return found


def group_alike(items: Iterable[T], alike: Callable[[T, T], bool]) -> list[list[T]]:
    """Adds each item to the group whose first item is `alike`, or else begins a group with it."""
    groups: list[list[T]] = []
    for item in items:
        own = next((own for own in groups if alike(own[0], item)), None)
        groups.append([item]) if own is None else own.append(item)
    return groups


def check(study: Study) -> list[str]:
    """Checks all finished runs of a study, and all their fine-tunings.

    The runs must have the planned configs. Returns footnotes on what the study allows to differ.

    Raises:
      ValueError: an undeclared field differs; the message names the fields and two runs for each.
        Or the study matches no clock.
    """
    allowed = study.facts.allow
    check_names([study.facts.matched], CLOCKS, f"study {study.name}, matched: unknown budget")
    found = dict(sorted((_compare_pretrainings(study) | _compare_tunings(study)).items()))
    if undeclared := [field for field in found if field not in allowed]:
        lines = "".join(f"\n  {field}: {found[field]}" for field in undeclared)
        raise ValueError(
            f"study {study.name}: runs differ in undeclared fields:{lines}"
            f"\nconfig.allow={tuple(undeclared)!r} compares them, and the report says so"
        )
    return [
        f"{ALLOWED}, though the comparison is not about it: {field}: {text}."
        for field, text in found.items()
    ]


def _compare_pretrainings(study: Study) -> dict[str, str]:
    """Returns the forbidden differences of pre-trainings: the fields, with two runs each.

    Two runs may differ in a field if one of them declares it, and in what a free factor says.
    """
    facts = study.facts
    free, clock = set(facts.free), CLOCKS[facts.matched]
    declared = {
        system: {departure.field for departure in facts.departures.get(system, ())}
        | {*parse_fields(facts.system_fields.get(system, ())), "system"}
        for system in {point.system for point in study.points}
    }  # fmt: skip
    changed = {variant: {*parse_fields(lines)} for variant, lines in facts.variants.items()}
    for own in changed.values():
        if "data.corpus" in own:  # another corpus has another digest
            own.add("data")

    def by(run: PretrainRun, field: str) -> Hashable:
        """The factors that explain a value: runs in which they are equal must agree."""
        owner = OWNERS.get(field.partition(".")[0])
        return (
            run.system if "system" in free and field in declared[run.system] else None,
            str(run.shape) if "shape" in free and field in SHAPE_FIELDS else None,
            run.variant if "variant" in free and field in changed.get(run.variant, ()) else None,
            run.seed if "seed" in free and field == "seed" else None,
            science(run.config).get(owner) if owner else None,
            (run.system, str(run.shape), run.variant) if field == "params" else None,
        )

    runs = [run for point in study.points for run in point.finished]
    rows = [
        (run.name, run, science(run.config) | {
            "data": run.result.data_hash, "numerics": run.environment.numerics_versions,
            "params": run.result.params,
        }) for run in runs if run.result
    ]  # fmt: skip
    found = comparable(rows, by)
    readings = [((r.variant, r.stage), r.name, getattr(r.result, clock.result)) for r in runs]
    for (p, a, x), (q, b, y) in itertools.combinations(readings, 2):
        if p == q and not are_equal((x, y)):
            found.setdefault("matched", f"{x:,.0f} {clock.label} in {a}, {y:,.0f} in {b}")
    return found


def describe_tuning(tuned: SeedRun) -> dict[str, Any]:
    """Returns the settings of a fine-tuning, except those of its model, task, seed and machine."""
    fields = science(tuned.config).items()
    shared = {k: v for k, v in fields if k.partition(".")[0] not in NOT_SHARED}
    data, numerics = tuned.config.get("data") or {}, tuned.environment.numerics_versions
    return shared | {"data": data, "numerics": numerics}


def _compare_tunings(study: Study) -> dict[str, str]:
    """Returns the fields in which fine-tunings differ from each other, or from the plan."""
    facts = study.facts
    departures = [departure.field for own in facts.departures.values() for departure in own]
    declared = {x.removeprefix(PREFIX) for x in departures if x.startswith(PREFIX)}
    changed = {
        variant: {
            field.removeprefix(PREFIX): value
            for field, value in parse_fields(lines).items() if field.startswith(PREFIX)
        }
        for variant, lines in facts.variants.items()
    }  # fmt: skip
    rows = [
        (f"{run.name}/{part}/{task}/seed{seed.seed}", (task, f"{run.name}/{part}", run.variant),
         describe_tuning(seed) | {"init": seed.weights})
        for run in study.runs if run.finished for part in ("tasks", "scratch")
        for task, own in run.tuned[part].items() if task in facts.measured
        for seed in own.runs if seed.result
    ]  # fmt: skip

    def by(run: tuple[str, str, str], field: str) -> Hashable:
        task, net, variant = run
        own = "variant" in facts.free and field in changed.get(variant, {})
        return net if field == "init" else (task, variant if own else None)

    kept = [(n, k, {f: x for f, x in own.items() if f not in {*declared, *facts.chosen}})
            for n, k, own in rows]  # fmt: skip
    found = comparable(kept, by)
    for name, (task, _, variant), fields in rows:
        for field, value in (facts.adaptation.get(task, {}) | changed.get(variant, {})).items():
            actual = fields.get(field)  # a missing field is off, as None is
            if actual != value and field not in declared:
                found.setdefault(field, f"{actual!r} in {name}, planned {value!r}")
    return {PREFIX + field: text for field, text in found.items()}


# --- Losses ---------------------------------------------------------------------------------------


def loss_fields(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of a config that two runs must share to compare their losses."""
    fields = science(config).items()
    return {
        k: v for k, v in fields if k.partition(".")[0] in LOSS_GROUPS and k != "data.order_seed"
    }


def loss_apart(a: Mapping[str, Any], b: Mapping[str, Any], score: str = "loss") -> list[str]:
    """Returns the fields that make the losses of two configs incomparable; empty if comparable.

    Where `score` is "bits_per_byte", tokenizer and format may differ.
    """
    a, b = loss_fields(a), loss_fields(b)
    found, own = differing((a, b)), own_options(a, b) | {"data.format"}
    if score == "loss":
        return list(found)
    return [k for k in found if k not in own and not k.startswith("tokenizer.")]


def loss_kind(point: Row) -> dict[str, Any]:
    """Returns a row's `loss_fields` and its longest validation length, None without one."""
    lengths = (int(x) for run in point.finished if run.result for x in run.result.eval)
    return loss_fields(point.runs[0].config) | {"length": max(lengths, default=None)}


def loss_groups(points: Iterable[Row]) -> dict[Row, str]:
    """Returns a letter for each finished row: losses of rows with one letter compare."""
    kinds = {point: str(loss_kind(point)) for point in points if point.finished}
    places = {kind: place for place, kind in enumerate(dict.fromkeys(kinds.values()))}
    return {point: chr(ord("a") + places[kind] % 26) for point, kind in kinds.items()}


def differing_losses(points: Iterable[Row], score: str = "loss") -> dict[str, list[Any]]:
    """Returns the fields that make losses of rows incomparable, with the value in every row."""
    kinds = [loss_kind(point) for point in points if point.finished]
    pairs = itertools.combinations(kinds, 2)
    names = dict.fromkeys(name for a, b in pairs for name in loss_apart(a, b, score))
    return {name: [kind.get(name) for kind in kinds] for name in names}


# --- The matched clock ----------------------------------------------------------------------------


def are_equal(values: Iterable[float]) -> bool:
    """Returns True if readings of a clock agree within TOLERANCE."""
    low, *_, high = sorted([*values] * 2)
    return high <= low * (1 + TOLERANCE)


def describe_clock(study: Study) -> str:
    """Returns a sentence on how far the finished runs of a study agree on the matched clock."""
    _, result, name = CLOCKS[study.facts.matched]
    runs = [(point.arm, run) for point in study.points for run in point.finished]
    several = len({run.stage for _, run in runs}) > 1
    groups: dict[str, list[float]] = {}
    for arm, run in runs:
        label = f"{arm} ({run.stage})" if several else arm
        groups.setdefault(label, []).append(getattr(run.result, result))
    if apart := {label: values for label, values in groups.items() if not are_equal(values)}:
        ranges = (f"{min(v):,.0f} to {max(v):,.0f} in {label}" for label, v in apart.items())
        return f"Not held equal: {name}, {'; '.join(ranges)}."
    if are_equal(x for values in groups.values() for x in values):
        return f"Held equal: {name}, to {TOLERANCE:.0%}."
    means = (f"{label} {sum(v) / len(v):,.0f}" for label, v in groups.items())
    return f"Held equal: {name}, to {TOLERANCE:.0%}, within each variant alone: {'; '.join(means)}."
