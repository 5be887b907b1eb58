"""Comparability: runs stand in one table only if they differ in no undeclared field.

Two finished pre-trainings that differ in a free factor of the study may differ in its fields:
system (its departures and the study's fields for it), shape (heads, width, layers), variant (the
variant's fields), seed. All other science fields, the texts, the numerics versions and, for one
net, the numbers of parameters must agree.

A study holds one clock equal: steps, tokens, examples (sequences read), FLOPs or seconds. A variant
may change that clock, such as half the steps, and a stage may be another experiment, so readings of
the clock must agree only within each variant and stage.

Every fine-tuning must have the planned fields, and agree with all others on its task in fields,
data and numerics version. Only its seed and the values that the recipe's grid chose on dev are its
own. Fine-tunings of one pre-training must begin with the same weights. Fields are named
"finetune.epochs", the data "finetune.data".

Fields in `allow` may differ too; every table then names them.

Losses are comparable only if objective, mask rate, texts, tokenizer, format, length, and the
options of objective and format are equal. Bits per byte are comparable between tokenizers and
between formats too, but not between objectives, mask rates or texts, nor between options of one
format.
"""

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from scalelab.config.durations import CLOCKS
from scalelab.config.fields import differing, own_options, science
from scalelab.helpers.names import nearest
from scalelab.lab.load.study_runs import Point, PretrainRun, Study
from scalelab.lab.load.task_runs import SeedRun
from scalelab.records import run_files
from scalelab.records.run_files import RunRecord

SHAPE_FIELDS = ("net.num_heads", "net.width", "net.num_layers", "net.ffn_width")
PREFIX = "finetune."
# Names that `allow` knows beside config fields, of pre-trainings and of fine-tunings.
WORDS = ("data", "numerics", "params", "matched")
FINETUNE_WORDS = ("data", "init", "numerics", "relation", "labels", "regression", "mnli_first")
# Science fields of a fine-tuning that belong to its net or its task.
NOT_SHARED = (
    "task", "seed", "system", "system_options", "net", "data", "init", "tokenizer_digest", "peers",
)  # fmt: skip
ALLOWED = "Allowed to differ"  # the beginning of a footnote on such a field
# Clocks that a study can match; examples are counted from validations.
MATCHED = {name: clock.label for name, clock in CLOCKS.items()} | {"examples": "examples"}
PHASES = ("short", "long")
# The fields, and groups of fields, that decide what a loss is a loss of.
LOSS_GROUPS = (
    "objective", "mask_rate", "objective_options", "data", "tokenizer", "format_options", "length",
)  # fmt: skip
TOLERANCE = 0.05  # relative difference of equal readings, because steps and epochs are whole


def check(study: Study, allow: Iterable[str] = ()) -> list[str]:
    """Checks all finished runs of a study, and all their fine-tunings.

    `allow` names fields that may differ, besides the study's own. The runs must have the
    planned configs. Returns footnotes on what was allowed to differ.

    Raises:
      ValueError: an undeclared field differs; the message names the fields and two runs for each.
        Or `allow` names no field, or the study matches no clock.
    """
    facts = study.facts
    check_clock(facts.matched, f"study {study.name}, matched")
    allowed = {*facts.allow, *allow}
    config = {name for run in study.runs for name in science(run.config)}
    tuned = {name for fields in facts.adaptation.values() for name in fields}
    tuned |= {*FINETUNE_WORDS, *facts.chosen}
    known = {*WORDS, *config, *(PREFIX + name for name in tuned)}
    check_allowed(allowed, known)
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


def check_allowed(names: Iterable[str], known: Collection[str]) -> None:
    """Raises ValueError, with the nearest names, if `--allow` names an unknown field."""
    for name in sorted({*names}.difference(known)):
        raise ValueError(f"--allow={name}: no such field: {nearest(name, known)}")


def _compare_pretrainings(study: Study) -> dict[str, str]:
    """Returns the forbidden differences of two pre-trainings: the fields, with both runs."""
    clock, found = study.facts.matched, dict[str, str]()
    runs = []
    for point, run in ((p, run) for p in study.points for run in p.finished):
        assert run.result
        own = {"data": run.result.data_hash, "numerics": run.environment.numerics_versions,
               "params": run.result.params}  # fmt: skip
        runs.append((point, run, science(run.config) | own, reading(run, clock)))
    for (p, a, mine, x), (q, b, other, y) in itertools.combinations(runs, 2):
        free = _free_fields(study, p, q, a, b) | own_options(mine, other)
        _note_differences(found, (a.name, mine), (b.name, other), free)
        if p.variant == q.variant and a.stage == b.stage and not are_equal((x, y)):
            text = f"{x:,.0f} {MATCHED[clock]} in {a.name}, {y:,.0f} in {b.name}"
            found.setdefault("matched", text)
    return found


def _free_fields(study: Study, p: Point, q: Point, a: PretrainRun, b: PretrainRun) -> set[str]:
    """Returns the fields in which two runs may differ."""
    facts, free = study.facts, set[str]()
    lines: list[str] = []  # "field=value"
    if p.system != q.system and "system" in facts.free:
        free.add("system")
        for name in (p.system, q.system):
            free |= {departure.field for departure in facts.departures.get(name, ())}
            lines += facts.system_fields.get(name, ())
    if p.shape != q.shape and "shape" in facts.free:
        free |= set(SHAPE_FIELDS)
    if p.variant != q.variant and "variant" in facts.free:
        lines += [line for name in (p.variant, q.variant) for line in facts.variants.get(name, ())]
    if a.seed != b.seed and "seed" in facts.free:
        free.add("seed")
    return free | {line.partition("=")[0] for line in lines} | ({"params"} if p != q else set())


def describe_tuning(tuned: SeedRun | RunRecord) -> dict[str, Any]:
    """Returns the settings of a fine-tuning, except those of its net, task, seed and machine."""
    fields = science(tuned.config).items()
    shared = {k: v for k, v in fields if k.partition(".")[0] not in NOT_SHARED}
    data, numerics = tuned.config.get("data") or {}, tuned.environment.numerics_versions
    return shared | {"data": data, "numerics": numerics}


def _compare_tunings(study: Study) -> dict[str, str]:
    """Returns the fields in which fine-tunings differ from each other, or from the plan."""
    facts = study.facts
    departures = [departure.field for own in facts.departures.values() for departure in own]
    declared = {x.removeprefix(PREFIX) for x in departures if x.startswith(PREFIX)}
    found: dict[str, str] = {}
    firsts: dict[str, tuple[str, dict[str, Any]]] = {}  # key -> name and fields of the first run
    for run, part in itertools.product(study.runs, ("tasks", "scratch")):
        tasks = getattr(run, part).items() if run.finished else ()
        for task, seed in ((t, seed) for t, own in tasks for seed in own.runs):
            if task not in facts.measured or seed.result is None:
                continue
            name, fields = f"{run.name}/{part}/{task}/seed{seed.seed}", describe_tuning(seed)
            first = firsts.setdefault(task, (name, fields))
            _note_differences(found, first, (name, fields), declared.union(facts.chosen), PREFIX)
            weights = name, {"init": seed.weights}
            first = firsts.setdefault(f"{run.name}/{part}", weights)
            _note_differences(found, first, weights, (), PREFIX)
            for field, value in facts.adaptation.get(task, {}).items():
                actual = fields.get(field)  # a missing field is off, as None is
                if actual != value and field not in declared:
                    found.setdefault(PREFIX + field, f"{actual!r} in {name}, planned {value!r}")
    return found


def _note_differences(
    found: dict[str, str], a: tuple[str, dict[str, Any]], b: tuple[str, dict[str, Any]],
    free: Collection[str], prefix: str = "",
) -> None:  # fmt: skip
    """Adds the fields in which two runs (name, fields) differ."""
    for field, (x, y) in differing((a[1], b[1]), free).items():
        if isinstance(x, dict) and isinstance(y, dict):  # digests of a task's files
            parts = differing((x, y))
            x, y = ({k: v for k, v in side.items() if k in parts} for side in (x, y))
        found.setdefault(prefix + field, f"{x!r} in {a[0]}, {y!r} in {b[0]}")


# --- Losses ---------------------------------------------------------------------------------------


def loss_fields(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of a config that two runs must share to compare their losses."""
    fields = science(config).items()
    return {
        k: v for k, v in fields if k.partition(".")[0] in LOSS_GROUPS and k != "data.order_seed"
    }


def loss_apart(a: Mapping[str, Any], b: Mapping[str, Any], score: str = "loss") -> list[str]:
    """Returns the fields that make the losses of two configs incomparable; empty if comparable.

    `score` is "loss" or "bits_per_byte". Bits per byte may differ in tokenizer and format.
    """
    a, b = loss_fields(a), loss_fields(b)
    found, own = differing((a, b)), own_options(a, b) | {"data.format"}
    if score == "loss":
        return list(found)
    return [k for k in found if k not in own and not k.startswith("tokenizer.")]


def loss_kind(point: Point) -> dict[str, Any]:
    """Returns a row's `loss_fields` and its longest validation length, None without one."""
    lengths = (int(x) for run in point.finished if run.result for x in run.result.eval)
    return loss_fields(point.runs[0].config) | {"length": max(lengths, default=None)}


def loss_groups(points: Iterable[Point]) -> dict[Point, str]:
    """Returns a letter for each finished row: losses of rows with one letter compare."""
    kinds = {point: str(loss_kind(point)) for point in points if point.finished}
    places = {kind: place for place, kind in enumerate(dict.fromkeys(kinds.values()))}
    return {point: chr(ord("a") + places[kind] % 26) for point, kind in kinds.items()}


def differing_losses(points: Iterable[Point], score: str = "loss") -> dict[str, list[Any]]:
    """Returns the fields that make losses of rows incomparable, with the value in every row."""
    kinds = [loss_kind(point) for point in points if point.finished]
    pairs = itertools.combinations(kinds, 2)
    names = dict.fromkeys(name for a, b in pairs for name in loss_apart(a, b, score))
    return {name: [kind.get(name) for kind in kinds] for name in names}


# --- The matched clock ----------------------------------------------------------------------------


class Phase(NamedTuple):
    """A phase of a training; its tokens are real ones, without padding."""

    name: str  # "short" or "long"
    max_len: int  # tokens of its longest sequence
    steps: int
    sequences: int  # read in all epochs together
    tokens: int  # of all sequences read
    epoch_sequences: int | None = None  # of one epoch; None: not known
    epoch_tokens: int | None = None  # of one epoch

    @property
    def epochs(self) -> float | None:
        """How often it read its sequences."""
        return self.sequences / self.epoch_sequences if self.epoch_sequences else None


def read_phases(run: PretrainRun) -> list[Phase]:
    """Returns the phases of a run; [] if its metrics are missing.

    A phase ends with a validation at its length. Two phases of one length cannot be separated: they
    count as the first if their batches are equal, else none is returned.
    """
    rows, recorded = run_files.validations(run.lines), run.result.phases if run.result else ()
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
    if clock not in MATCHED:
        raise ValueError(f"{where}: unknown clock {clock!r}: {nearest(str(clock), MATCHED)}")


def reading(run: PretrainRun, clock: str) -> float:
    """Returns the reading of a clock at the end of a finished run.

    Raises:
      ValueError: its examples cannot be counted.
    """
    if clock in CLOCKS:
        return getattr(run.result, CLOCKS[clock].result)
    found = read_phases(run)
    if not found:
        raise ValueError(
            f"{run.name}: its examples cannot be counted, because its metrics are missing or its"
            " two phases have one length and different batches; match steps or tokens"
        )
    return sum(phase.sequences for phase in found)


def are_equal(values: Iterable[float]) -> bool:
    """Returns True if readings of a clock agree within TOLERANCE."""
    low, *_, high = sorted([*values] * 2)
    return high <= low * (1 + TOLERANCE)


def describe_clock(study: Study, points: Sequence[Point]) -> str:
    """Returns a sentence on how far the finished runs of some rows agree on the matched clock.

    Raises:
      ValueError: as `reading`.
    """
    clock = study.facts.matched
    name = MATCHED[clock]
    runs = [(point.variant, run) for point in points for run in point.finished]
    if not runs:
        return f"To be held equal: {name}."
    several = len({run.stage for _, run in runs}) > 1
    groups: dict[str, list[float]] = {}
    for variant, run in runs:
        label = f"{variant} ({run.stage})" if several else variant
        groups.setdefault(label, []).append(reading(run, clock))
    apart = {label: values for label, values in groups.items() if not are_equal(values)}
    if apart:
        ranges = (f"{min(v):,.0f} to {max(v):,.0f} in {label}" for label, v in apart.items())
        return f"Not held equal: {name}, {'; '.join(ranges)}."
    if are_equal(x for values in groups.values() for x in values):
        return f"Held equal: {name}, to {TOLERANCE:.0%}."
    means = (f"{label} {sum(v) / len(v):,.0f}" for label, v in groups.items())
    return f"Held equal: {name}, to {TOLERANCE:.0%}, within each variant alone: {'; '.join(means)}."
