"""Fine-tunings are held to the plan and to each other: what differs is named, or not compared."""

import dataclasses
import json
import pathlib
from typing import Any

import pytest
import reported_study

from scalelab.lab.compare import comparability
from scalelab.lab.load import study_runs
from scalelab.lab.show import report

A, B = "bert-2x16x2-seed0/tasks/qnli/seed0", "gpt2-2x16x2-seed0/tasks/qnli/seed1"


@pytest.fixture
def workdir(tmp_path) -> pathlib.Path:
    """Two systems, one shape and seed, two fine-tunings each."""
    return reported_study.write(
        tmp_path / "w", shapes=((2, 16, 2),), seeds=1, tasks=("qnli",), tables=["large"], figures=[]
    )


def edit(path: pathlib.Path, field: str, value: Any) -> None:
    """Sets a dotted field of a json file, whose own names may be dotted too."""
    content = json.loads(path.read_text())
    group, name = content, field
    while name not in group:
        first, _, name = name.partition(".")
        group = group[first]
    group[name] = value
    path.write_text(json.dumps(content))


def adapt(workdir: pathlib.Path, field: str, value: Any, run: str = B) -> None:
    """Makes a fine-tuning another one, in all of its files."""
    edit(workdir / "runs" / run / "config.json", field, value)
    result_field = {"optim.learning_rate": "settings.learning_rate", "epochs": "settings.epochs",
            "head.kind": "settings.head.kind", "init": "init_digest"}.get(field, field)  # fmt: skip
    if field != "dropout_rate":
        edit(workdir / "runs" / run / "result.json", result_field, value)
    else:
        edit(workdir / "runs" / run / "config.json", "model.dropout_rate", value)


def check(workdir: pathlib.Path, *allow: str) -> list[str]:
    study = study_runs.read(workdir)
    return comparability.check(
        dataclasses.replace(study, facts=dataclasses.replace(study.facts, allow=allow))
    )


def test_what_was_planned_passes(workdir) -> None:
    assert check(workdir) == []


@pytest.mark.parametrize(("field", "value", "named"), [
    ("optim.learning_rate", 1e-4, "finetune.optim.learning_rate: 2e-05 in .*, 0.0001 in "),
    ("epochs", 2.0, "finetune.epochs: 3.0 in .*, 2.0 in "),
    ("head.kind", "single", "finetune.head.kind: 'double' in .*, 'single' in "),
    ("dropout_rate", 0.0, "finetune.dropout_rate: 0.1 in .*, 0.0 in "),
    ("recipe", "turc", "finetune.recipe: 'thesis' in .*, 'turc' in "),
    ("data.train", "others", "finetune.data: .*train.*'others'"),
    ("init", "other", "finetune.init: .*'other' in "),
])  # fmt: skip
def test_differences_name_the_field_and_two_runs(workdir, field, value, named) -> None:
    adapt(workdir, field, value)
    with pytest.raises(ValueError, match=f"(?s)undeclared fields.*{named}") as caught:
        check(workdir)
    name = named.partition(":")[0]
    other = A if field != "init" else B.replace("seed1", "seed0")
    assert B in str(caught.value) and other in str(caught.value)
    (footnote,) = check(workdir, name)
    assert f": {name}: " in footnote


def test_what_a_variant_changes_of_its_fine_tuning_may_differ(workdir) -> None:
    """Both variants have the values that were planned for them."""
    (path,) = (workdir / "studies").glob("*.json")
    content = json.loads(path.read_text())
    content["variants"]["longer"] = ["finetune.epochs=2"]
    for run in content["runs"]:
        run["variant"] = "longer" if run["system"] == "gpt2" else run["variant"]
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="finetune.epochs: 3.0 in .*, planned 2"):
        check(workdir)
    for seed in ("seed0", "seed1"):
        adapt(workdir, "epochs", 2.0, B.replace("seed1", seed))
    assert check(workdir) == []
    adapt(workdir, "epochs", 2.0, A)
    with pytest.raises(ValueError, match="finetune.epochs: "):
        check(workdir)


def test_an_arm_may_answer_in_words(workdir) -> None:
    """Such a fine-tuning also names its kind; that of classes names none."""
    (path,) = (workdir / "studies").glob("*.json")
    content = json.loads(path.read_text())
    content["variants"]["words"] = ["finetune.head.kind=words"]
    for run in content["runs"]:
        run["variant"] = "words" if run["system"] == "gpt2" else run["variant"]
    path.write_text(json.dumps(content))
    for seed in ("seed0", "seed1"):
        own = B.replace("seed1", seed)
        adapt(workdir, "head.kind", "words", own)
        config = workdir / "runs" / own / "config.json"
        config.write_text(json.dumps(json.loads(config.read_text()) | {"kind": "words"}))
    assert check(workdir) == []


def test_what_a_system_declares_of_its_fine_tuning_may_differ(workdir) -> None:
    """As ALBERT's dropout of 0; another field still may not."""
    for run in ("seed0", "seed1"):
        adapt(workdir, "dropout_rate", 0.0, B.replace("seed1", run))
    for path in (workdir / "studies").glob("*.json"):
        known = json.loads(path.read_text())["departures"]["gpt2"]
        own = {"field": "finetune.dropout_rate", "value": 0.0, "source": "its paper"}
        edit(path, "departures.gpt2", [*known, own])
    assert check(workdir) == []
    adapt(workdir, "epochs", 2.0)
    with pytest.raises(ValueError, match="finetune.epochs"):
        check(workdir)


def test_all_alike_but_not_as_planned(workdir) -> None:
    """Such as fine-tunings of an earlier start, before the study's fields were changed."""
    path = workdir / "studies/invented.json"
    edit(path, "adaptation.qnli", reported_study.ADAPTATION | {"epochs": 4.0})
    with pytest.raises(ValueError, match=rf"finetune.epochs: 3.0 in {A}, planned 4.0"):
        check(workdir)
    assert len(check(workdir, "finetune.epochs")) == 1


def test_what_a_grid_chooses_is_each_ones_own(workdir) -> None:
    plan = {k: v for k, v in reported_study.ADAPTATION.items() if k != "optim.learning_rate"}
    path = workdir / "studies/invented.json"
    edit(path, "adaptation.qnli", plan)
    edit(path, "chosen", ["optim.learning_rate"])
    adapt(workdir, "optim.learning_rate", 1e-4)
    assert check(workdir) == []


def test_unfinished_ones_and_other_tasks_do_not_count(workdir) -> None:
    adapt(workdir, "epochs", 2.0)
    (workdir / "runs" / B / "result.json").unlink()
    assert check(workdir) == []
    edit(workdir / "studies/invented.json", "tasks", [])
    adapt(workdir, "epochs", 9.0, B.replace("seed1", "seed0"))
    assert check(workdir) == []


def test_footnotes_stand_in_every_file_and_once_in_the_report(workdir, tmp_path) -> None:
    adapt(workdir, "epochs", 2.0)
    edit(workdir / "studies/invented.json", "hypotheses", ["1a"])
    edit(workdir / "studies/invented.json", "allow", ["finetune.epochs"])
    page = report.make(workdir, None, tmp_path / "out")
    expected = f"finetune.epochs: 3.0 in {A}, 2.0 in {B}"
    files = [page.with_name("report.md")]
    files += [*page.parent.glob("tables/*.csv")]
    for path in [page, *files]:
        if path.stem != "declared_differences":
            assert expected in path.read_text(), path
    for path in (page, page.with_name("report.md")):
        assert path.read_text().count(expected) == 1, path
    assert r"finetune.epochs" in (page.parent / "tables/hypotheses.tex").read_text()
