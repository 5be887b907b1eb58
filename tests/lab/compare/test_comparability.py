"""The comparability contract: what was not declared free may not differ."""

import dataclasses
import functools
import json
import pathlib
import re

import pytest
import reported_study
import study_folders

from scalelab.config.fields import fill
from scalelab.config.pretraining import Shape
from scalelab.lab.compare import comparability
from scalelab.lab.load import study_runs
from scalelab.lab.load.study_runs import PretrainRun, Row, Study
from scalelab.records.run_files import Environment, RunResult
from scalelab.records.study_file import StudyFile

CONFIG = {
    "system": "bert",
    "objective": "mlm+nsp",
    "seed": 0,
    "model": {"num_heads": 2, "width": 8, "num_layers": 1, "ffn_width": None},
    "optim": {"learning_rate": 1e-3},
    "data": {"corpus": "builtin"},
    "machine": {"prefetch": 4},
}
GPT = {"system": "gpt2", "objective": "clm"}


def make(runs: dict[str, dict], **facts) -> Study:
    """A study of runs {dotted field: value}, with "result", "environment" and "variant"."""
    points = []
    for name, fields in runs.items():
        config = json.loads(json.dumps(CONFIG))
        for field, value in fields.items():
            *groups, last = field.split(".")
            if groups or field in config:
                functools.reduce(dict.__getitem__, groups, config)[last] = value
        shape = Shape(2, config["model"]["width"], 1)
        result = RunResult(**{
            "status": "completed", "system": config["system"], "seed": config["seed"],
            "shape": shape, "n_model": shape.n_model, "params": shape.n_model, "data_hash": "d",
            "steps": 100, "tokens": 1000, "flops": 1e9, "seconds": 10.0,
        } | fields.get("result", {}))  # fmt: skip
        environment = Environment(**{"numerics": 1} | fields.get("environment", {}))
        variant = fields.get("variant", "default")
        run = PretrainRun(
            name, "main", config["system"], shape, variant, config["seed"], config,
            n_model=shape.n_model, folder=pathlib.Path(name), result=result, damaged=None,
            tuned={"tasks": {}, "scratch": {}}, environment=environment,
        )  # fmt: skip
        points.append(Row(config["system"], shape, variant, (run,)))
    values = study_folders.FACTS | {"runs": []} | {
        "name": "s", "matched": "steps", "system_fields": {},
        "variants": {"default": [], "half": ["optim.learning_rate=x0.5"]},
        "departures": {"bert": [{"field": "objective", "value": "mlm+nsp", "source": ""}],
                       "gpt2": [{"field": "objective", "value": "clm", "source": ""}]},
    } | facts  # fmt: skip
    return Study(pathlib.Path(), fill(StudyFile, values, strict=False), tuple(points))


def test_declared_differences_pass() -> None:
    runs = {
        "a": {},
        "b": GPT,
        "c": {"seed": 1},
        "d": {"model.width": 16},
        "e": {"variant": "half", "optim.learning_rate": 5e-4},
        "f": {"machine.prefetch": 9},
    }
    study = make(runs)
    del study.runs[2].config["model"]["ffn_width"]  # a missing field is off
    assert comparability.check(study) == []


def test_a_variant_with_another_corpus_has_other_data() -> None:
    other = {"data.corpus": "wikitext:x", "result": {"data_hash": "e"}}
    facts = {"variants": {"default": [], "other": ["data.corpus=wikitext:x"], "half": []}}
    runs = {"a": {"data.corpus": "wikitext:y"}, "b": other | {"variant": "other"}}
    assert comparability.check(make(runs, **facts)) == []
    runs["b"] = other | {"variant": "half"}
    with pytest.raises(ValueError, match=r"\n  data: 'd' in a, 'e' in b"):
        comparability.check(make(runs, **facts))


@pytest.mark.parametrize(("other", "facts", "field"), [
    ({"optim.learning_rate": 2e-3}, {}, "optim.learning_rate"),
    (GPT | {"optim.learning_rate": 2e-3}, {}, "optim.learning_rate"),
    ({"objective": "mlm"}, {}, "objective"),  # a declared difference is free between systems alone
    ({"seed": 1}, {"free": ["system"]}, "seed"),
    ({"model.width": 16}, {"free": ["seed"]}, "model.width"),
    (GPT, {"free": ["seed"]}, "system"),
    ({"result": {"data_hash": "e"}}, {}, "data"),
    ({"environment": {"numerics": 2}}, {}, "numerics"),
    ({"environment": {"earlier_starts": (Environment(numerics=2),)}}, {}, "numerics"),
    ({"result": {"steps": 120}}, {}, "matched"),
])  # fmt: skip
def test_undeclared_differences_are_named(other, facts, field) -> None:
    study = make({"a": {}, "b": other}, **facts)
    with pytest.raises(ValueError, match=rf"(?s)undeclared fields.*{field}.* a.* b") as refused:
        comparability.check(study)
    allow = re.findall(r"'([^']+)'", str(refused.value).rpartition("config.allow=")[2])
    facts = dataclasses.replace(study.facts, allow=tuple(allow))
    allowed = dataclasses.replace(study, facts=facts)
    (footnote,) = [x for x in comparability.check(allowed) if field in x]
    assert footnote.startswith(comparability.ALLOWED)


def test_unfinished_runs_are_not_compared() -> None:
    study = make({"a": {}, "b": {"optim.learning_rate": 2e-3}})
    (run,) = study.points[1].runs
    point = dataclasses.replace(study.points[1], runs=(dataclasses.replace(run, result=None),))
    assert comparability.check(dataclasses.replace(study, points=(study.points[0], point))) == []


@pytest.mark.parametrize("clock", ["steps", "tokens", "flops", "secs"])
def test_every_clock_can_be_matched(clock) -> None:
    """Within 5% a run counts as equal; it is held on the clock asked for and on no other."""
    field = {"secs": "seconds"}.get(clock, clock)
    at = {"steps": 100, "tokens": 1000, "flops": 1e9, "seconds": 10.0}[field]
    near, far = {"result": {field: at * 1.04}}, {"result": {field: at * 1.06}}
    assert comparability.check(make({"a": {}, "b": near}, matched=clock)) == []
    with pytest.raises(ValueError, match="matched: "):
        comparability.check(make({"a": {}, "b": far}, matched=clock))
    other = "tokens" if field != "tokens" else "steps"
    assert comparability.check(make({"a": {}, "b": far}, matched=other)) == []


def test_an_unknown_clock_cannot_be_matched() -> None:
    study = make({"a": {}}, matched="tokenz")
    with pytest.raises(ValueError, match="'tokenz'.*'tokens'"):
        comparability.check(study)


# --- What is said of the matched clock ------------------------------------------------------------


def clocked(tmp_path, clock: str = "tokens", **facts) -> Study:
    reported_study.write(
        tmp_path, systems=("bert",), shapes=((2, 16, 2),), tasks=(), matched=clock, **facts
    )
    return study_runs.read(tmp_path)


def with_tokens(study: Study, scale: dict[str, float]) -> Study:
    """Scales the tokens of the runs whose names contain a word."""
    points = []
    for point in study.points:
        runs = []
        for run in point.runs:
            factor = next((x for word, x in scale.items() if word in run.name), 1)
            tokens = int(run.result.tokens * factor)
            result = dataclasses.replace(run.result, tokens=tokens)
            runs.append(dataclasses.replace(run, result=result))
        points.append(dataclasses.replace(point, runs=tuple(runs)))
    return dataclasses.replace(study, points=tuple(points))


def test_variants_that_are_about_the_clock_are_told_with_their_numbers(tmp_path) -> None:
    made = with_tokens(clocked(tmp_path, variants=("default", "half_steps")), {"half_steps": 0.5})
    tokens = made.points[0].runs[0].result.tokens
    text = comparability.describe_clock(made)
    assert f"default {tokens:,.0f}; half_steps {tokens / 2:,.0f}" in text
    first = comparability.describe_clock(dataclasses.replace(made, points=made.points[:1]))
    assert first.startswith("Held equal: tokens")
    assert comparability.check(made) == []  # between variants it is what the study is about


LOSS = {
    "objective": "spans", "mask_rate": 0.15, "data": {"format": "spans", "corpus": "a"},
    "objective_options": {"weight": 1}, "format_options": {"rate": 0.15},
    "tokenizer": {"vocab_size": 300},
}  # fmt: skip


@pytest.mark.parametrize(("change", "loss", "bits"), [
    ({}, [], []),
    ({"mask_rate": 0.5}, ["mask_rate"], ["mask_rate"]),
    ({"objective_options": {"weight": 2}}, *[["objective_options.weight"]] * 2),
    ({"format_options": {"rate": 0.5}}, ["format_options.rate"], ["format_options.rate"]),
    ({"tokenizer": {"vocab_size": 9}}, ["tokenizer.vocab_size"], []),
    ({"data": {"format": "plain", "corpus": "a"}, "format_options": {}},
     ["data.format", "format_options.rate"], []),
])  # fmt: skip
def test_every_option_decides_whether_losses_compare(
    change: dict, loss: list[str], bits: list[str]
) -> None:
    for score, expected in (("loss", loss), ("bits_per_byte", bits)):
        assert sorted(comparability.loss_apart(LOSS, LOSS | change, score)) == expected


def test_options_of_one_format_are_compared_beside_another_format() -> None:
    """Bits per byte compare between formats, and between rates of one format they do not."""
    study = make({str(k): {"seed": k} for k in range(3)})
    plain = {"data": {"format": "plain", "corpus": "a"}, "format_options": {}}
    changes = {}, plain, {"format_options": {"rate": 0.5}}
    for point, change in zip(study.points, changes, strict=True):
        point.runs[0].config.update(LOSS | change)
    apart = comparability.differing_losses(study.points, "bits_per_byte")
    assert apart == {"format_options.rate": [0.15, None, 0.5]}
    assert not comparability.differing_losses(study.points[:2], "bits_per_byte")
