"""What the classes of an imported classifier are, to a task; and an import that was damaged."""

import dataclasses
import json
import pathlib
import shutil
from collections.abc import Callable
from typing import Any

import fine_tuned
import pytest

from scalelab.finetuning import imported
from scalelab.interop import exporting
from scalelab.tasks.task import load_task

Runs = Callable[[str], pathlib.Path]


def classifier(*labels: str, regression: bool = False) -> imported.ImportedClassifier:
    return imported.ImportedClassifier(pathlib.Path("runs/x"), labels, regression, "double", {})


def test_classes_are_matched_by_name_else_by_number() -> None:
    mnli, cola, stsb = (load_task(name) for name in ("mnli", "cola", "stsb"))
    order, said = classifier("CONTRADICTION", "Entailment", "neutral").order(mnli)
    assert order == [1, 2, 0] and said == "its classes are matched by name"
    order, said = classifier("LABEL_0", "LABEL_1").order(cola)
    assert order == [0, 1]
    assert said.endswith("by number: unacceptable is LABEL_0, acceptable is LABEL_1")
    assert classifier("LABEL_0", regression=True).order(stsb)[0] == [0]


@pytest.mark.parametrize(
    ("task", "labels", "order"),
    [
        ("sst2", ("POSITIVE", "NEGATIVE"), [1, 0]),  # swapped: names decide, not numbers
        ("sst2", ("negative", "positive"), [0, 1]),
        ("sst2", ("1", "0"), [1, 0]),
        ("cola", ("acceptable", "unacceptable"), [1, 0]),
        ("mrpc", ("not equivalent", "Equivalent"), [0, 1]),
        ("qqp", ("duplicate", "not-duplicate"), [1, 0]),
        ("wnli", ("entailment", "not_entailment"), [1, 0]),
        ("rte", ("not_entailment", "entailment"), [1, 0]),
    ],
)
def test_numbers_of_files_have_names(task: str, labels: tuple[str, str], order: list[int]) -> None:
    found, said = classifier(*labels).order(load_task(task))
    assert found == order and said == "its classes are matched by name"


def test_numbers_of_a_users_own_file_have_none() -> None:
    of_file = dataclasses.replace(load_task("sst2"), classes=None)
    order, said = classifier("bad", "good").order(of_file)
    assert order == [0, 1] and said.endswith("by number: 0 is bad, 1 is good")


@pytest.mark.parametrize(
    ("made", "task", "message"),
    [
        (classifier("good", "bad"), "sst2", "SST-2 asks for negative, positive; runs/x gives good,"
            " bad; .* write .* as labels in runs/x/config.json"),
        (classifier("LABEL_1", "LABEL_0"), "sst2", "as labels in"),
        (classifier("1", "2"), "cola", "as labels in"),
        (classifier(*(50 * str(i) for i in range(99))), "cola", r"\.\.\. \(99\)"),
        (classifier("a", "b"), "mnli", "MNLI asks for .*; runs/x gives a, b"),
        (classifier("neutral", "b", "c"), "mnli", "as labels in"),
        (classifier("x", regression=True), "cola", "runs/x gives a score"),
        (classifier("a", "b"), "stsb", "STS-B asks for a score; runs/x gives a, b"),
    ],
)  # fmt: skip
def test_classes_that_do_not_fit(
    made: imported.ImportedClassifier, task: str, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        made.order(load_task(task))


def test_classes_that_files_number_have_their_names(pretrained_runs: Runs, tmp_path) -> None:
    """In an export; what other programs read of the run stays as the files spell it."""
    made = {"task": "sst2", "labels": ["0", "1"]}
    fine_tuned.make(pretrained_runs("bert"), tmp_path / "run", "double", 2, **made)
    exporting.run(tmp_path / "run", tmp_path / "out")
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert config["id2label"] == {"0": "negative", "1": "positive"}
    assert config["label2id"] == {"negative": 0, "positive": 1}
    own = {"task": "sst2", "labels": ["1", "0"]}  # a task of one's own of that name
    assert imported.class_names(own) == ["1", "0"]


@pytest.fixture(scope="module")
def back(pretrained_runs: Runs, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A BERT of three classes that came from elsewhere."""
    return fine_tuned.from_elsewhere(pretrained_runs("bert"), tmp_path_factory.mktemp("classifier"))


def change(**fields: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda config: config.update(fields)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        *((lambda config, name=name: config.pop(name), "config.json does not describe")
          for name in ("system", "labels", "regression", "head", "net")),
        (change(labels=[]), "labels"), (change(labels=[1, 2]), "labels"),
        (change(labels=None), "labels"), (change(regression="no"), "regression"),
        (change(head=[]), "head.kind"), (change(head={"kind": 5}), "head.kind"),
        (change(system=["bert"]), "system"), (change(net=7), "net"),
        (change(system="bret"), "unknown .*'bret': did you mean 'bert'"),
        (change(net={"width": -1}), "net.width = -1"),
        (change(labels=["a", "b"]), r"head/out/bias: expected \(2,\), found \(3,\)"),
        (change(regression=True), r"head/out/bias: expected \(1,\), found \(3,\)"),
        (change(head={"kind": "single"}), r"head/dense/bias: expected None, found \(8,\)"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_a_damaged_import(
    back: pathlib.Path, tmp_path: pathlib.Path, damage: Callable[[Any], Any], message: str
) -> None:
    shutil.copytree(back, tmp_path / "run")
    config = json.loads((back / "config.json").read_text())
    damage(config)
    (tmp_path / "run/config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=message):
        imported.load(tmp_path / "run")
