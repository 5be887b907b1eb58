"""The comparability contract: what was not declared free may not differ."""

import json
import pathlib

import pytest
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


def test_a_folder_edited_by_hand(tmp_path) -> None:
    write(tmp_path, {"a": {}, "b": GPT})
    path = tmp_path / "runs/b/config.json"
    path.write_text(path.read_text().replace("0.001", "0.002"))
    first, second = (
        run
        for point in study_runs.check_plan(study_runs.read(tmp_path)).points
        for run in point.runs
    )
    assert "planned" not in str(first.damaged) and not second.finished
    assert "optim.learning_rate" in str(second.damaged)


def test_unfinished_runs_are_not_compared(tmp_path) -> None:
    study = write(tmp_path, {"a": {}, "b": {"optim.learning_rate": 2e-3}})
    (tmp_path / "runs/b/result.json").unlink()
    assert comparability.check(study_runs.read(tmp_path)) == []
    assert not study_runs.read(tmp_path).points[0].runs[1].finished
    del study


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
    with pytest.raises(ValueError, match=message):
        comparability.check(write(tmp_path, {"a": {}}), [allow])


def test_an_unknown_clock(tmp_path) -> None:
    with pytest.raises(ValueError, match="unknown clock 'tokenz': did you mean 'tokens'"):
        comparability.check(write(tmp_path, {"a": {}}, matched="tokenz"))


def test_a_folder_from_before_a_field_came_has_it_off(tmp_path) -> None:
    """A field that is None is off; a folder that lacks it is neither edited nor different."""
    write(tmp_path, {"a": {}, "b": {"seed": 1}})
    path = tmp_path / "runs/a/config.json"
    values = json.loads(path.read_text())
    del values["net"]["ffn_width"]
    path.write_text(json.dumps(values))
    assert all(run.finished for run in study_runs.check_plan(study_runs.read(tmp_path)).runs)
