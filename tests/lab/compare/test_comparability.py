"""The comparability contract: what was not declared free may not differ."""

import dataclasses
import json
import pathlib

import pytest
import reported_study
import study_folders

from scalelab.lab.compare import comparability
from scalelab.lab.load import study_runs

CONFIG = {
    "system": "bert",
    "objective": "mlm+nsp",
    "seed": 0,
    "net": {"num_heads": 2, "width": 8, "num_layers": 1, "ffn_width": None},
    "optim": {"learning_rate": 1e-3},
    "data": {"corpus": "builtin"},
    "machine": {"prefetch": 4},
}
GPT = {"system": "gpt2", "objective": "clm"}


def write(workdir: pathlib.Path, runs: dict[str, dict], **facts) -> study_runs.Study:
    """A study's folder; a run is {dotted field: value}, and "result", "numerics", "variant"."""
    planned = []
    for name, fields in runs.items():
        config = json.loads(json.dumps(CONFIG))
        for field, value in fields.items():
            if field in ("result", "numerics", "begun", "variant"):
                continue
            *groups, last = field.split(".")
            group = config
            for part in groups:
                group = group[part]
            group[last] = value
        net = config["net"]
        shape = {"A": net["num_heads"], "H": net["width"], "L": net["num_layers"]}
        folder = workdir / "runs" / name
        folder.mkdir(parents=True)
        result = {
            "status": "completed",
            "system": config["system"],
            "seed": config["seed"],
            "shape": shape,
            "n_model": 12 * net["num_layers"] * net["width"] ** 2,
            "data_hash": "d",
            "steps": 100,
            "tokens": 1000,
            "flops": 1e9,
            "seconds": 10.0,
            "eval": {"32": {"loss": 5.0}},
        } | fields.get("result", {})
        (folder / "result.json").write_text(json.dumps(result))
        (folder / "config.json").write_text(json.dumps(config))
        numerics = {"numerics": fields.get("numerics", 1)}
        numerics |= {"earlier_starts": [{"numerics": fields.get("begun", numerics["numerics"])}]}
        (folder / "environment.json").write_text(json.dumps(numerics))
        planned.append({
            "name": name, "stage": "main", "system": config["system"], "shape": shape,
            "variant": fields.get("variant", "baseline"), "seed": config["seed"],
            "config": config,
        })  # fmt: skip
    content = study_folders.FACTS | {
        "name": "s", "matched": "steps", "system_fields": {},
        "variants": {"baseline": [], "half": ["optim.learning_rate=x0.5"]},
        "departures": {"bert": [{"field": "objective", "value": "mlm+nsp", "source": ""}],
                       "gpt2": [{"field": "objective", "value": "clm", "source": ""}]},
        "runs": planned,
    } | facts  # fmt: skip
    (workdir / "studies").mkdir()
    (workdir / "studies/s.json").write_text(json.dumps(content))
    return study_runs.read(workdir)


def test_declared_differences_pass(tmp_path) -> None:
    runs = {
        "a": {},
        "b": GPT,
        "c": {"seed": 1},
        "d": {"net.width": 16},
        "e": {"variant": "half", "optim.learning_rate": 5e-4},
        "f": {"machine.prefetch": 9},
    }
    assert comparability.check(write(tmp_path, runs)) == []


@pytest.mark.parametrize(
    ("other", "facts", "field"),
    [
        ({"optim.learning_rate": 2e-3}, {}, "optim.learning_rate"),
        (GPT | {"optim.learning_rate": 2e-3}, {}, "optim.learning_rate"),
        ({"objective": "mlm"}, {}, "objective"),  # a departure is free between systems alone
        ({"seed": 1}, {"free": ["system"]}, "seed"),
        ({"net.width": 16}, {"free": ["seed"]}, "net.width"),
        (GPT, {"free": ["seed"]}, "system"),
        ({"result": {"data_hash": "e"}}, {}, "data"),
        ({"numerics": 2}, {}, "numerics"),
        ({"begun": 2}, {}, "numerics"),
        ({"result": {"steps": 120}}, {}, "matched"),
    ],
)
def test_undeclared_differences_are_named(tmp_path, other, facts, field) -> None:
    study = write(tmp_path, {"a": {}, "b": other}, **facts)
    with pytest.raises(ValueError, match=rf"(?s)undeclared fields.*{field}.* a.* b"):
        comparability.check(study)
    (footnote,) = [x for x in comparability.check(study, _all(study)) if field in x]
    assert "Allowed to differ" in footnote


def _all(study) -> list[str]:
    try:
        comparability.check(study)
    except ValueError as error:
        return str(error).rpartition("--allow=")[2].split(" ")[0].split(",")
    raise AssertionError


def test_unfinished_runs_are_not_compared(tmp_path) -> None:
    study = write(tmp_path, {"a": {}, "b": {"optim.learning_rate": 2e-3}})
    (tmp_path / "runs/b/result.json").unlink()
    assert comparability.check(study_runs.read(tmp_path)) == []
    assert study.runs[1].finished


@pytest.mark.parametrize("clock", ["steps", "tokens", "flops", "secs"])
def test_every_clock_can_be_matched(tmp_path, clock) -> None:
    """Within 5% a run counts as equal; it is held on the clock asked for and on no other."""
    field = {"secs": "seconds"}.get(clock, clock)
    at = {"steps": 100, "tokens": 1000, "flops": 1e9, "seconds": 10.0}[field]
    near, far = {"result": {field: at * 1.04}}, {"result": {field: at * 1.06}}
    assert comparability.check(write(tmp_path / "near", {"a": {}, "b": near}, matched=clock)) == []
    study = write(tmp_path / "far", {"a": {}, "b": far}, matched=clock)
    with pytest.raises(ValueError, match="matched: "):
        comparability.check(study)
    other = write(tmp_path / "other", {"a": {}, "b": far}, matched="tokens" if field != "tokens"
                  else "steps")  # fmt: skip
    assert comparability.check(other) == []


@pytest.mark.parametrize(
    ("allow", "message"),
    [
        ("optim.lerning_rate", "--allow=optim.lerning_rate: no such field: .*'optim.learning_rate"),
        ("finetune.dta", "no such field: .*'finetune.data'"),
        ("machine.prefetch", "no such field"),
    ],
)
def test_what_cannot_be_allowed(tmp_path, allow, message) -> None:
    study = write(tmp_path, {"a": {}})
    with pytest.raises(ValueError, match=message):
        comparability.check(study, [allow])
    study.facts["matched"] = "tokenz"
    with pytest.raises(ValueError, match="unknown clock 'tokenz': did you mean 'tokens'"):
        comparability.check(study)


def test_a_folder_from_before_a_field_came_has_it_off(tmp_path) -> None:
    """A field that is None is off; a folder that lacks it is neither edited nor different."""
    write(tmp_path, {"a": {}, "b": {"seed": 1}})
    path = tmp_path / "runs/a/config.json"
    values = json.loads(path.read_text())
    del values["net"]["ffn_width"]
    path.write_text(json.dumps(values))
    assert all(run.finished for run in study_runs.read(tmp_path).runs)


# --- What is said of the matched clock ------------------------------------------------------------


def clocked(tmp_path, clock: str = "tokens", **facts) -> study_runs.Study:
    reported_study.write(
        tmp_path, systems=("bert",), shapes=((2, 16, 2),), tasks=(), matched=clock, **facts
    )
    return study_runs.read(tmp_path)


def with_tokens(study: study_runs.Study, scale: dict[str, float]) -> study_runs.Study:
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


def test_examples_are_sequences_read(tmp_path) -> None:
    """64 a step in the short phase, 16 in the long one, by hand."""
    steps, longer = reported_study.STEPS, reported_study.LONG_STEPS - reported_study.STEPS
    made = clocked(tmp_path, "examples")
    assert comparability.reading(made.runs[0], "examples") == 64 * steps + 16 * longer == 59_200
    assert comparability.describe_clock(made, made.points) == "Held equal: examples, to 5%."
    assert comparability.check(made) == []
    config = json.loads(json.dumps(made.runs[0].config))
    config["long"]["max_len"] = 32
    one_length = dataclasses.replace(made.runs[0], config=config)
    with pytest.raises(ValueError, match="one length and different batches"):
        comparability.reading(one_length, "examples")
    (made.runs[0].folder / "metrics.jsonl").unlink()
    with pytest.raises(ValueError, match="examples cannot be told"):
        comparability.check(study_runs.read(tmp_path))


def test_variants_that_are_about_the_clock_are_told_with_their_numbers(tmp_path) -> None:
    made = with_tokens(clocked(tmp_path, variants=("baseline", "half_steps")), {"half_steps": 0.5})
    tokens = made.points[0].runs[0].result.tokens
    said = comparability.describe_clock(made, made.points)
    assert f"baseline {tokens:,.0f}; half_steps {tokens / 2:,.0f}" in said
    first = comparability.describe_clock(made, made.points[:1])
    assert first == "Held equal: tokens, to 5%."
    assert comparability.check(made) == []  # between variants it is what the study is about


def test_what_is_not_equal_is_not_called_so(tmp_path) -> None:
    made = with_tokens(clocked(tmp_path), {"seed1": 0.5})
    said = comparability.describe_clock(made, made.points)
    assert said.startswith("Not held equal: tokens, ") and "Held equal" not in said
    with pytest.raises(ValueError, match="matched: "):
        comparability.check(made)
