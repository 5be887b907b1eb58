"""Configs: strict fields, values that cannot go together, budgets, pretrain's arguments."""

import ast
import dataclasses
import importlib
import itertools
import json
import math
import pkgutil
import random
import re
import typing
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import in_process
import ml_collections
import numpy as np
import pytest
import scratch
import tiny

from scalelab import objectives, state, systems, train
from scalelab.config import durations, finetuning
from scalelab.config import pretraining as config_lib
from scalelab.config.fields import Probability, describe, field_names, flatten
from scalelab.nn.stack import REMAT_POLICIES
from scalelab.optim import adamw
from scalelab.records import plots

OPTIONS = {"system_options", "objective_options", "format_options"}  # empty without options


def resolved(arguments: str = "", **fields: object) -> config_lib.Config:
    return config_lib.resolve(tiny.values(arguments, **fields))


# --- Strictness -----------------------------------------------------------------------------------


def test_the_control_has_every_field_and_no_other() -> None:
    control = tiny.config_module("base").get_config().to_dict()
    assert all(control[group] == {} for group in OPTIONS)
    assert sorted([*flatten(control), *OPTIONS]) == sorted(field_names(config_lib.Config))
    assert config_lib.resolve(control).system == "roberta"


def test_help_lists_every_field_with_its_default_and_comment() -> None:
    text = describe(config_lib.Config)
    names = [line.split("=")[0].split("config.")[1] for line in text.splitlines()]
    assert names == field_names(config_lib.Config)
    assert re.search(r"--config.data.format=doc_sentences .* One of: blank_infilling, cont", text)
    assert re.search(r"--config.model.ffn_width=None +None: 4 \* width", text)
    assert re.search(r"--config.optim.learning_rate=0.0001 +at .*warm-up", text)
    assert re.search(r"--config.long.epoch_rate=None +Its epochs .* alone,\n?.*", text)


def test_a_missing_field_is_named_and_a_misspelt_one_with_the_nearest() -> None:
    values = tiny.values()
    del values["optim"]["beta2"]
    with pytest.raises(ValueError, match="optim.beta2"):
        config_lib.resolve(values)
    values["model"]["widht"] = 64
    with pytest.raises(ValueError, match="'model.widht'.*'width'"):
        config_lib.resolve(values)


def test_a_field_of_later_that_may_be_none_is_none() -> None:
    """A folder that was written before the field came is read, and differs in nothing."""
    ours, values = tiny.values(), tiny.values()
    del values["long"]["epoch_rate"], values["system_options"]
    assert config_lib.resolve(values).long.epoch_rate is None
    assert config_lib.science_diff(config_lib.resolve(ours), values) == []
    ours["long"]["epoch_rate"] = 0.5
    lines = config_lib.science_diff(config_lib.resolve(ours), values)
    assert lines == ["long.epoch_rate: 'absent' -> 0.5"]


@pytest.mark.parametrize(("field", "value"), [
    ("model.width", "128"), ("model.width", 128.0), ("model.width", True), ("model.width", None),
    ("model.dropout_rate", True), ("model.ffn_width", "big"), ("tokenizer.lowercase", 1),
    ("optim", 3),
])  # fmt: skip
def test_a_wrong_type_is_refused(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"config.{field}: expected"):
        resolved(**{field.replace(".", "__"): value})


def test_whole_numbers_serve_as_floats_and_none_where_it_may() -> None:
    """And a phase that is left out may be longer than the positions."""
    assert resolved(model__max_len=128, long__example_rate=0.0).long.max_len > 128
    config = resolved(model__dropout_rate=0, optim__clip_norm=None, model__ffn_width=None)
    assert type(config.model.dropout_rate) is float
    assert config.optim.clip_norm is None and config.model.ffn_width is None


# --- Values that cannot go together ---------------------------------------------------------------


@pytest.mark.parametrize("fields", [
    dict(model__num_heads=3), dict(model__num_heads=0), dict(model__width=-8),
    dict(long__max_len=1024), dict(short__max_len=1024, long__example_rate=0.0),
    dict(short__batch_size=63, machine__num_microbatches=2), dict(eval__every_steps=0),
    dict(model__ffn_width=0), dict(model__dropout_rate=1.0), dict(long__example_rate=-0.1),
    dict(long__epoch_rate=-1.0), dict(model__dtype="float64"), dict(model__output_embedding="own"),
    dict(data__errors="ignore"), dict(machine__loader="torch"), dict(machine__prefetch=-1),
    dict(mask_rate=0.0), dict(seed=2**63), dict(data__order_seed=-(2**63)), dict(seed=2**32),
    dict(seed=-1), dict(optim__learning_rate=-1e-4),
    dict(optim__learning_rate=float("nan")), dict(optim__beta2=1.0), dict(optim__eps=0.0),
    dict(optim__eps=1e-60), dict(optim__learning_rate=1e38), dict(optim__weight_decay=1e300),
    dict(optim__clip_norm=0.0), dict(optim__schedule="liner"), dict(machine__remat="some"),
])  # fmt: skip
def test_impossible_values_are_refused_by_field_and_value(fields: dict[str, object]) -> None:
    field, value = next(iter(fields.items()))
    place = field.replace("__", ".")
    with pytest.raises(ValueError, match=f"{place} = .*{re.escape(str(value))}"):
        resolved(**fields)


@pytest.mark.parametrize(("kind", "field", "known"), [
    (config_lib.Optim, "schedule", adamw.SCHEDULES),
    (finetuning.Optim, "schedule", adamw.SCHEDULES),
    (config_lib.Machine, "remat", REMAT_POLICIES),
])  # fmt: skip
def test_choices_are_those_that_the_code_knows(kind: type, field: str, known: Any) -> None:
    _, (expected, _) = typing.get_args(typing.get_type_hints(kind, include_extras=True)[field])
    assert sorted(expected.split(" or ")) == sorted(map(repr, known))


# --- Budgets --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("fields", "message"), [
    (dict(optim__total_steps=5), "2 of: optim.total_epochs, optim.total_steps"),
    (dict(optim__total_epochs=None), "0 of: .*total_secs"),
    (dict(optim__total_epochs=0.0), "total_epochs"),
    (dict(optim__warmup_tokens=5.0), "optim.warmup_steps; got .*warmup_tokens"),
    (dict(optim__total_epochs=None, optim__total_tokens=1e6), "optim.warmup_tokens; .*warmup_st"),
    (dict(optim__total_epochs=None, optim__total_steps=9, optim__warmup_steps=9), "warmup_steps"),
])  # fmt: skip
def test_impossible_budgets_are_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        resolved(**fields)


def test_epochs_become_steps_as_in_table_7_1() -> None:
    """Protocol: epochs x (short / 64 + long / 16) = 137,040 (RoBERTa) and 137,682 steps (BERT)."""
    roberta = [634_808 // 64, 60_591 // 16]
    bert = [1_007_708 // 64, 115_240 // 16]
    for system, steps, total in (("roberta", roberta, 137_040), ("bert", bert, 137_682)):
        config = resolved(f"system={system}")
        plan = durations.make_plan(config, steps, {})
        assert (plan.clock, plan.total, plan.warmup) == ("steps", total, 1000)
        assert plan.ends == (config.optim.total_epochs * steps[0], total)
    config = resolved(optim__total_epochs=1.0, optim__warmup_steps=100)
    with pytest.raises(ValueError, match="warmup_steps = 100"):
        durations.make_plan(config, [90, 10], {})
    assert durations.make_plan(config, [90, 11], {}).total == 101


def test_other_budgets_are_shared_by_examples_and_batch_sizes() -> None:
    """0.9 / 64 steps to 0.1 / 16: 9 in 13; where a long step costs twice as much, 9 in 17."""

    def ends(arguments: str, **fields: float) -> tuple[float, ...]:
        costs = {"tokens": [1, 1], "flops": [5e3, 10e3]}
        return durations.make_plan(resolved(arguments, **fields), [1, 1], costs).ends

    assert ends("steps=1300") == (900, 1300)
    assert ends("tokens=2600") == (1800, 2600)
    assert ends("flops=1.7e6") == pytest.approx((0.9e6, 1.7e6))
    assert ends("steps=70", long__example_rate=0.0) == (70,)
    assert ends("steps=70", long__epoch_rate=0.0) == (70,)
    assert ends("steps=1100", long__epoch_rate=0.5) == (900, 1100)


def test_the_second_phase_may_have_epochs_of_its_own() -> None:
    """Protocol, 7.5.5: 5 epochs of 15,745 short steps, and of 7,202 long ones 3 (5 x 0.6)."""
    totals = {None: 114_735, 1.0: 114_735, 0.6: 78_725 + 21_606, 0.0: 78_725, 0.2: 85_927}
    for rate, total in totals.items():
        config = resolved("system=bert", optim__total_epochs=5.0, long__epoch_rate=rate)
        plan = durations.make_plan(config, [15_745, 7_202], {})
        assert plan.total == total and plan.ends[0] == 78_725


# --- Science and machine --------------------------------------------------------------------------


def test_what_may_change_a_result_is_everything_but_machine() -> None:
    config = resolved()
    names = set(field_names(config_lib.Config))
    machine = {f"machine.{f.name}" for f in dataclasses.fields(config.machine)}
    options = {"objective_options.whole_words"}
    assert set(config_lib.science(config)) == (names - machine - OPTIONS) | options


def test_differences_are_told_by_field() -> None:
    ours = resolved("system=bert")
    other = dataclasses.asdict(resolved("system=bert,seed=3", machine__prefetch=1))
    theirs = json.loads(json.dumps(other))  # as config.json has it
    del theirs["model"]["dtype"]
    lines = config_lib.science_diff(ours, theirs)
    assert lines == ["model.dtype: 'absent' -> 'float32'", "seed: 3 -> 0"]


def test_no_field_is_dead() -> None:
    """Every field is read as an attribute outside scalelab/config, or in its durations."""
    read = set()
    for path in (tiny.ROOT / "scalelab").rglob("*.py"):
        if path.parent.name == "config" and path.name != "durations.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                read.add(node.attr)
    in_config = {f"total_{clock}" for clock in ("epochs", *durations.CLOCKS)}
    in_config |= {f"warmup_{clock}" for clock in durations.CLOCKS}  # `durations` reads them by name
    in_config |= {field.name for field in dataclasses.fields(config_lib.AdamW)}  # passed by name
    fields = {name.rpartition(".")[2] for name in field_names(config_lib.Config)}
    assert fields - read - in_config == set()


# --- configs/pretrain.py --------------------------------------------------------------------------


def test_arguments() -> None:
    config = resolved("system=bert,shape=4x256x9,corpus=wikitext:../data/wiki,steps=500,seed=7")
    assert config.system == "bert" and config.seed == 7
    assert (config.model.num_heads, config.model.width, config.model.num_layers) == (4, 256, 9)
    assert config.data.corpus == "wikitext:../data/wiki"
    assert config.optim.total_steps == 500 and config.optim.total_epochs is None
    assert config.optim.warmup_steps == 50
    assert config.objective == "mlm+nsp" and config.data.format == "segment_pair"
    epochs = [resolved(f"system={system}").optim.total_epochs for system in ("bert", "gpt2")]
    assert epochs == [6.0, 10.0]  # the protocol's, without a budget


@pytest.mark.parametrize(("name", "arguments"), [
    ("pretrain", "steps=9"), ("pretrain", "tokens=1e6"), ("finetune", ""),
    *(("study", f"scale={scale}") for scale in ("full", "medium", "small", "tiny")),
])  # fmt: skip
def test_a_field_without_a_value_has_a_type(name: str, arguments: str) -> None:
    """So that --config.<field>=... can set it."""

    def typeless(config: ml_collections.ConfigDict) -> list[str]:
        found = [field for field in config if config.get_type(field) is type(None)]
        parts = [part for part in config.values() if isinstance(part, ml_collections.ConfigDict)]
        return found + [field for part in parts for field in typeless(part)]

    assert typeless(tiny.config_module(name).get_config(arguments)) == []


@pytest.mark.parametrize(("argument", "field", "total", "warmup"), [
    ("steps=20000", "steps", 20_000, 1000), ("epochs=2.5", "epochs", 2.5, 1000),
    ("tokens=1e9", "tokens", 1e9, 1e7), ("tokens=1e6", "tokens", 1e6, 1e5),
    ("flops=1e15", "flops", 1e15, 1e13), ("secs=100", "secs", 100.0, 1.0),
])  # fmt: skip
def test_each_budget(argument: str, field: str, total: float, warmup: float) -> None:
    optim = resolved(argument).optim
    assert getattr(optim, f"total_{field}") == total
    assert getattr(optim, f"warmup_{field.replace('epochs', 'steps')}") == pytest.approx(warmup)


@pytest.mark.parametrize(("argument", "rate", "every", "lines"), [
    ("steps=50", 4e-3, 50, 1), ("tokens=1e5", 4e-3, 12, 1), ("steps=500", 1e-3, 100, 10),
    ("tokens=20e6", 1e-3, 245, 48), ("steps=60000", 1e-4, 1000, 50), ("epochs=1", 1e-4, 1000, 50),
    ("steps=100000", 1e-4, 1000, 50), ("flops=1e12", 1e-4, 1000, 50),
])  # fmt: skip
def test_short_budgets_have_their_own_rate_and_intervals(argument, rate, every, lines) -> None:
    config = resolved(f"system=bert,{argument}")
    assert config.optim.learning_rate == rate
    assert (config.eval.every_steps, config.machine.log_every_steps) == (every, lines)
    typed = resolved("system=gpt2,steps=100000")
    assert typed.optim.learning_rate == 2.5e-4  # as declared at the protocol's budget


@pytest.mark.parametrize("steps", [20, 200, 2000, 20_000])
@pytest.mark.parametrize("batch_size", [8, 64])
def test_all_validations_cost_at_most_15_percent_of_the_steps(steps: int, batch_size: int) -> None:
    """Counted one by one: a pass over a batch is a third of a step, and each batch has four."""
    config = resolved(f"steps={steps}", short__batch_size=batch_size, long__batch_size=batch_size)
    every, num = config.eval.every_steps, config.eval.num_examples
    ends = (round(0.9 * steps), steps)
    times = 1 + sum(k % every == 0 or k in ends for k in range(1, steps + 1))
    cost = times * -(-num // batch_size) * 4 / 3
    assert cost <= 0.15 * steps or (num, every) == (batch_size, steps)
    assert num >= 200 or every == steps  # few examples only where one validation is all there is


@pytest.mark.parametrize(("written", "corpus"), [
    ("text:data/a,b/*.txt", "text:data/a,b/*.txt"), ("text:x/seed,y/z", "text:x/seed,y/z"),
    ("text:x/a,y/b=1", "text:x/a,y/b=1"), ("text:data/{a,,b=c}.txt", "text:data/{a,b=c}.txt"),
    ("text:a/x=1,,seed=2", "text:a/x=1,seed=2"),
])  # fmt: skip
def test_a_comma_may_stand_in_a_glob(written: str, corpus: str) -> None:
    config = resolved(f"corpus={written},steps=5")
    assert config.data.corpus == corpus
    assert config.optim.total_steps == 5
    assert config.seed == 0
    study = tiny.config_module("study").get_config(f"corpus={written},data=/x,seeds=3")
    assert (study.pretrain.data.corpus, study.finetune.data, study.seeds) == (corpus, "/x", 3)


@pytest.mark.parametrize(("arguments", "message"), [
    ("sytem=bert", "'sytem'.*'system'"), ("bert", "'bert'"), ("system=brt", "'brt'.*'bert'"),
    ("shape=2x128", "'2x128'"), ("shape=2x-128x2", "'2x-128x2'"), ("steps=many", "'many'"),
    ("steps=5.5", "'5.5'"), ("steps=5,tokens=100", "steps and tokens"),
    ("system=bert,stesp=5", "'stesp'.*'steps'"), ("seed=1,2", "'2'"),
    ("corpus=text:a/b,stesp=5", "'stesp'.*'steps'.*comma .*corpus"),
])  # fmt: skip
def test_wrong_arguments_are_refused(arguments: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tiny.values(arguments)


def test_an_objective_is_a_weighted_sum() -> None:
    config = resolved("system=bert", objective="mlm+50*nsp")
    assert config.objective_weights == {"mlm": 1.0, "nsp": 50.0}
    assert state.make_model(config).loss_weights == {"mlm_loss": 1.0, "nsp_loss": 50.0}
    for text in ("", "x*mlm", "-1*mlm", "0*mlm", "inf*mlm", "2*", "mlm+2*mlm"):
        with pytest.raises(ValueError, match=re.escape(f"config.objective = {text!r}")):
            resolved(objective=text)


@dataclasses.dataclass(frozen=True)
class Options:
    slope: Probability = 0.5
    kind: str = "a"


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    """A system with options, which takes its options for a model."""
    exports = vars(systems.load("roberta")) | {"Options": Options}
    exports["build"] = lambda _, given, __: given
    scratch.add(monkeypatch, "systems", "fake", **exports)


def test_options_are_filled_kept_and_reach_the_system(fake: None) -> None:
    config = resolved(system="fake", system_options={"slope": 0})
    assert config.system_options == {"slope": 0.0, "kind": "a"}
    assert config_lib.resolve(json.loads(json.dumps(dataclasses.asdict(config)))) == config
    assert config_lib.science(config)["system_options.kind"] == "a"
    assert state.make_model(config).net == Options(0.0, "a")


@pytest.mark.parametrize(("fields", "message"), [
    ({"system": "fake", "system_options": {"slop": 1}}, "config.system_options.slop .*'slope'"),
    ({"system": "fake", "system_options": {"slope": "x"}}, "system_options.slope: expected float"),
    ({"system": "fake", "system_options": {"slope": 2.0}}, "system_options.slope = 2.0"),
    ({"system_options": {"slope": 1}}, "config.system_options.slope of roberta: .* no options"),
    ({"objective_options": {"slope": 1}}, "config.objective_options.slope of mlm: .*'?whole_words"),
])  # fmt: skip
def test_options_are_strict(fields: dict[str, Any], message: str, fake: None) -> None:
    with pytest.raises(ValueError, match=message):
        resolved(**fields)


EXTREMES = (math.nan, math.inf, -math.inf, 0, -1, 2**31, 2**63, 1e300, 10**400)
CLOCKS = ("optim.total_", "optim.warmup_")


def numeric_fields(cls: type, prefix: str = "") -> Iterator[str]:
    """Yields the dotted name of every field that may be a number, whatever its default."""
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        kinds = {hints[field.name], *typing.get_args(hints[field.name])}
        if dataclasses.is_dataclass(hints[field.name]):
            yield from numeric_fields(hints[field.name], f"{prefix}{field.name}.")
        elif kinds & {int, float}:
            yield prefix + field.name


@pytest.mark.parametrize(("config", "resolve"), [
    (config_lib.Config(), config_lib.resolve), (finetuning.FinetuneConfig(), finetuning.resolve),
])  # fmt: skip
def test_no_number_of_a_config_can_be_one_that_a_run_cannot_take(config, resolve) -> None:
    """What is accepted fits float32 or 64 bits, and has a plan; what is refused names its field."""
    values, fields = dataclasses.asdict(config), list(numeric_fields(type(config)))
    assert len(fields) > 25
    for name, value in itertools.product(fields, EXTREMES):
        changed = finetuning.override(values, {name: value})
        if resolve is config_lib.resolve and name.startswith(CLOCKS):
            others = {n: None for n in flatten(values) if n.startswith(CLOCKS)}
            if name.startswith("optim.warmup_"):
                others["optim.total_steps"] = 10
            changed = finetuning.override(values, others | {name: value})
        try:
            made = resolve(changed)
            if resolve is config_lib.resolve:
                costs = {"tokens": [8192.0] * 2, "flops": [1e9] * 2}
                durations.make_plan(made, [1e5, 1e4], costs)
        except ValueError as error:
            assert name.rpartition(".")[2] in str(error), (name, value, error)
            continue
        found = flatten(dataclasses.asdict(made))[name]
        assert type(found) is int or np.isfinite(np.float32(found)), (name, value)
        assert type(found) is float or -(2**63) < found < 2**63


@pytest.mark.parametrize("package", [systems, objectives])
def test_no_number_of_an_option_ends_in_a_traceback(package) -> None:
    """What is accepted makes a model; what is refused names the option."""
    field = {systems: "system_options", objectives: "objective_options"}[package]
    tried = 0
    for name in sorted(module.name for module in pkgutil.iter_modules(package.__path__)):
        options = getattr(importlib.import_module(f"{package.__name__}.{name}"), "Options", None)
        own = f"system={name}" if package is systems else "system=roberta"
        values = {} if package is systems else {"objective": name}
        for option in () if options is None else numeric_fields(options):
            for value in (*EXTREMES, 1e-37, 2**31 - 1):
                given, tried = values | {f"{field}__{option}": value}, tried + 1
                try:
                    model = state.make_model(resolved(f"{own},shape=2x16x2,steps=2", **given))
                    state.check_memory(model, 8, tiny.one_device(), 10**9)
                except ValueError as error:
                    told = option in str(error) or "needs" in str(error) or "sizes" in str(error)
                    assert told, (name, option, value, error)
    assert tried > 40


def accepted(values: dict[str, Any]) -> list[tuple[str, float]]:
    """Returns numbers, most of them extreme, with which a config is resolved and planned."""
    found = []
    numbers = (-1, 0, 1, 2, 0.5, 1e-30, 1e30, 2**31 - 1, 2**32 - 1, 2**63 - 1, 1e300)
    fields = [f for f in numeric_fields(config_lib.Config) if not f.startswith("optim.total_")]
    for name, value in itertools.product(fields, numbers):
        with suppress(ValueError):
            made = config_lib.resolve(finetuning.override(values, {name: value}))
            durations.make_plan(made, [1e5, 1e4], {"tokens": [8192.0] * 2, "flops": [1e9] * 2})
            found.append((name, value))
    return found


@pytest.mark.parametrize("count", [3, pytest.param(40, marks=pytest.mark.slow)])
def test_an_accepted_number_trains_two_steps_or_is_refused_by_one_message(
    count: int, wikitext, cache_dir, tmp_path, capsys, monkeypatch
) -> None:
    monkeypatch.setattr(plots, "draw_curves", lambda *_: None)
    fields = tiny.small(cache_dir) | {"long__example_rate": 0.0}
    sample = accepted(tiny.values(f"system=bert,shape=2x8x1,steps=2,corpus={wikitext}", **fields))
    assert len(sample) > 100
    for name, value in random.Random(0).sample(sample, count):
        workdir = tmp_path / f"{name}={value}"
        flags = tiny.train_flags(workdir, wikitext, cache_dir, steps=2)
        code = in_process.code(train, [*flags, f"--config.{name}={value}"])
        errors = capsys.readouterr().err
        assert code in (0, 2) and "Traceback" not in errors, (name, value, errors)
        if code == 2:
            assert len(re.findall("^error: ", errors, re.MULTILINE)) == 1, (name, value, errors)
            continue
        result = json.loads((workdir / "result.json").read_text())
        losses = [own["loss"] for own in result["eval"].values()]
        assert losses and np.isfinite(losses).all(), (name, value, losses)
