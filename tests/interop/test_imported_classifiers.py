"""An imported classifier: its classes, scored as it is, and as the beginning of a fine-tuning."""

import dataclasses
import json
import pathlib
import shutil
from collections.abc import Callable
from typing import Any

import fine_tuned
import glue_folder
import jax
import numpy as np
import pytest
from fine_tuned import KINDS, WITH_SOURCE, prepare, values

from scalelab import finetune
from scalelab.finetuning import imported, warm_start
from scalelab.finetuning import results as finetune_results
from scalelab.finetuning.run import TaskRun
from scalelab.interop import exporting, importing, maps
from scalelab.records import predictions
from scalelab.tasks import batches
from scalelab.tasks.task import load, load_task
from scalelab.training import pretrained

Runs = Callable[[str], pathlib.Path]
MNLI = ["contradiction", "entailment", "neutral"]


@pytest.fixture(autouse=True)
def one_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "BUCKETS", (64,))


@pytest.fixture
def data(tmp_path: pathlib.Path) -> pathlib.Path:
    return glue_folder.write(tmp_path / "glue")


@pytest.fixture(scope="module")
def back(pretrained_runs: Runs, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A BERT of three classes that came from elsewhere; do not write into it."""
    folder = tmp_path_factory.mktemp("classifier")
    return fine_tuned.from_elsewhere(pretrained_runs("bert"), folder, "double", labels=MNLI)


def score(
    init: pathlib.Path, task: str, data: pathlib.Path, folder: pathlib.Path, config: Any
) -> Any:
    """What --eval_only does."""
    start = warm_start.open_start(str(init))
    asked = finetune.Request(start, config, data=str(data), eval_only=True)
    return finetune.fine_tune(load_task(task), asked, folder)


def outputs(run: TaskRun, params: Any) -> np.ndarray:
    examples = next(iter(run.dev.values()))
    assert examples is not None
    return run.predict_with(params, examples)


# --- The classes ---------------------------------------------------------------------------------


def classifier(*labels: str, regression: bool = False) -> imported.ImportedClassifier:
    return imported.ImportedClassifier(pathlib.Path("runs/x"), labels, regression, "double", {})


@pytest.mark.parametrize(("task", "labels", "order", "matched"), [
    ("mnli", ("CONTRADICTION", "Entailment", "neutral"), [1, 2, 0], "by name"),
    ("cola", ("LABEL_0", "LABEL_1"), [0, 1], "by number"),
    # Numbers in the files have names; names decide, not numbers.
    ("sst2", ("POSITIVE", "NEGATIVE"), [1, 0], "by name"),
    ("mrpc", ("not equivalent", "Equivalent"), [0, 1], "by name"),
    ("qqp", ("duplicate", "not-duplicate"), [1, 0], "by name"),
])  # fmt: skip
def test_classes_are_matched_by_name_else_by_number(
    task: str, labels: tuple[str, ...], order: list[int], matched: str
) -> None:
    found, how = classifier(*labels).order(load_task(task))
    assert found == order and matched in how


@pytest.mark.parametrize(("made", "task"), [
    (classifier("good", "bad"), "sst2"),
    (classifier("a", "b"), "mnli"),
    (classifier("neutral", "b", "c"), "mnli"),
    (classifier("x", regression=True), "cola"),
    (classifier("a", "b"), "stsb"),
])  # fmt: skip
def test_classes_that_do_not_fit(made: imported.ImportedClassifier, task: str) -> None:
    title = load_task(task).title
    with pytest.raises(ValueError, match=f"(?s){title}.*runs/x"):
        made.order(load_task(task))


@pytest.mark.parametrize("labels", [["0", "1"], ["1", "0"]])
def test_numbered_classes_have_their_names(pretrained_runs: Runs, tmp_path, labels) -> None:
    """In an export, but for a task of one's own of that name."""
    made = {"task": "sst2", "labels": labels}
    fine_tuned.make(pretrained_runs("bert"), tmp_path / "run", "double", 2, **made)
    exporting.run(tmp_path / "run", tmp_path / "out")
    config = json.loads((tmp_path / "out/config.json").read_text())
    named = ["negative", "positive"] if labels == ["0", "1"] else labels
    assert config["id2label"] == {"0": named[0], "1": named[1]}


@pytest.mark.parametrize(("change", "name"), [
    ({"labels": 3}, "labels"), ({"labels": None}, "labels"), ({"regression": 1}, "regression"),
    ({"head": {"kind": 5}}, "head.kind"), ({"system": "bret"}, "'bert'"),
    ({"model": {"num_heads": 2, "num_layers": 2, "width": -1}}, "model.width"),
    ({"labels": ["a", "b"]}, "out/bias"), ({"head": {"kind": "single"}}, "head/dense/bias"),
], ids=str)  # fmt: skip
def test_a_damaged_import(back: pathlib.Path, tmp_path, change: dict[str, Any], name: str) -> None:
    shutil.copytree(back, tmp_path / "run")
    config = json.loads((back / "config.json").read_text()) | change
    (tmp_path / "run/config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=name):
        warm_start.open_start(str(tmp_path / "run"))


# --- Scores and fine-tunings ---------------------------------------------------------------------


def test_what_does_not_fit_is_not_scored(back, data, cache_dir, tmp_path) -> None:
    with pytest.raises(ValueError, match="--eval_only.*RTE"):
        score(back, "rte", data, tmp_path / "scored", values(cache_dir))
    assert not (tmp_path / "scored/seed0/result.json").exists()
    with pytest.raises(ValueError, match="--mnli gives weights"):
        warm_start.open_start(str(back), None, str(tmp_path))


def test_a_fine_tuning_begins_with_body_and_head(back, data, cache_dir, tmp_path) -> None:
    given = pretrained.load_trained(back)
    run = prepare(back, "mnli", data, tmp_path / "mnli", **values(cache_dir))
    params = run.first_params(0)
    jax.tree.map(np.testing.assert_array_equal, params["body"], given["body"])
    ours, theirs = params["head"], given["head"]
    jax.tree.map(np.testing.assert_array_equal, ours["dense"], theirs["dense"])
    # MNLI's order is entailment, neutral, contradiction.
    np.testing.assert_array_equal(ours["out"]["kernel"], theirs["out"]["kernel"][:, [1, 2, 0]])
    np.testing.assert_array_equal(ours["out"]["bias"], theirs["out"]["bias"][np.array([1, 2, 0])])
    assert "matched by name" in finetune_results.describe(run)
    other = prepare(back, "rte", data, tmp_path / "rte", **values(cache_dir))
    params = other.first_params(0)
    jax.tree.map(np.testing.assert_array_equal, params["body"], given["body"])
    assert params["head"]["out"]["kernel"].shape[-1] == 2
    assert "RTE" in (text := finetune_results.describe(other)) and "new head" in text
    single = prepare(back, "mnli", data, tmp_path / "x", **values(cache_dir, head__kind="single"))
    assert single.head is None and "new head" in finetune_results.describe(single)


def test_the_head_is_of_the_kind_of_the_import(
    back, data, tmp_path, monkeypatch: pytest.MonkeyPatch, cache_dir
) -> None:
    """Unless another is asked for."""
    kinds = []
    monkeypatch.setattr(finetune, "train", lambda runs, *_: kinds.append(runs[0].config.head.kind))
    start = warm_start.open_start(str(back))
    as_if = dataclasses.replace(start.classifier, kind="single")
    start = dataclasses.replace(start, classifier=as_if)
    for kind in (None, "double"):
        config = values(cache_dir, head__kind=kind)
        asked = finetune.Request(start, config, data=str(data))
        with pytest.raises(ValueError, match="no result.json"):  # nothing was trained
            finetune.fine_tune(load_task("mnli"), asked, tmp_path / "run")
    assert kinds == ["single", "double"]


@pytest.mark.slow
@pytest.mark.parametrize("system", ["bert", "gpt2"])
def test_it_is_fine_tuned_and_exported_again(
    pretrained_runs: Runs, data, cache_dir, tmp_path, system: str
) -> None:
    """A pair without an order is read once, as the import reads it, so an export can hold it."""
    kind = KINDS[system]
    run = pretrained_runs(system)
    back = fine_tuned.from_elsewhere(run, tmp_path, kind, labels=["1", "0"])
    config = values(cache_dir, head__kind=kind)
    asked = finetune.Request(warm_start.open_start(str(back)), config, data=str(data))
    (result,) = finetune.fine_tune(load_task("mrpc"), asked, tmp_path / "mrpc")
    assert result["steps"] == 2
    exporting.run(tmp_path / "mrpc/seed0", tmp_path / "again")
    importing.run(str(tmp_path / "again"), tmp_path / "third")
    (scored,) = score(tmp_path / "third", "mrpc", data, tmp_path / "scored", config)
    assert scored["eval"] == result["eval"]
    again = dataclasses.replace(asked, eval_only=True)  # now of what was trained there
    (result_again,) = finetune.fine_tune(load_task("mrpc"), again, tmp_path / "mrpc")
    assert result_again == result


@pytest.mark.parity
@pytest.mark.parametrize("task", ["sst2", "mnli"])
@pytest.mark.parametrize("system", WITH_SOURCE)
def test_its_scores_are_those_of_transformers(
    data, cache_dir, tmp_path: pathlib.Path, system: str, task: str
) -> None:
    """Names decide, not numbers; the predictions that are written follow."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    import peers
    import real_text
    import transformers

    names = {"sst2": ["positive", "negative"], "mnli": ["neutral", "contradiction", "entailment"]}
    order = {"sst2": [1, 0], "mnli": [2, 0, 1]}[task]
    more = {"id2label": dict(enumerate(names[task])), "num_labels": len(order)}
    model = peers.make(system, (3, 24, 2), 64, "classify", vocab_size=real_text.VOCAB, **more)
    model.float().save_pretrained(tmp_path / "theirs")
    tokenizer = transformers.AutoTokenizer.from_pretrained(real_text.tokenizer_dir(system))
    tokenizer.save_pretrained(tmp_path / "theirs")
    importing.run(str(tmp_path / "theirs"), tmp_path / "run")
    (result,) = score(tmp_path / "run", task, data, tmp_path / "scored", values(cache_dir))
    splits = load(load_task(task), data, tests=False)
    records = next(iter(splits.dev.values()))
    assert records is not None
    segments = {"return_token_type_ids": "token_type_ids" in maps.load(system).inputs}
    rows = [tokenizer(*texts, **segments) for texts in zip(*records.texts, strict=True)]
    types = {tokenizer.convert_tokens_to_ids(f"<{role}>"): i
             for role, i in maps.load(system).token_types.items()}  # fmt: skip
    for row in rows if types else ():
        pairs = zip(row["input_ids"], row["token_type_ids"], strict=True)
        row["token_type_ids"] = [types.get(token, type_id) for token, type_id in pairs]
    with torch.no_grad():
        expected = np.concatenate(
            [model(**{k: torch.tensor([v]) for k, v in row.items()}).logits.numpy() for row in rows]
        )[:, order]
    config = values(cache_dir, head__kind=WITH_SOURCE[system])
    run = prepare(tmp_path / "run", task, data, tmp_path / "x", **config)
    ours = outputs(run, {"body": run.start.opened.params, "head": run.head})
    np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-4)
    written = predictions.read(tmp_path / "scored/seed0/predictions.tsv").predicted
    np.testing.assert_array_equal(written, expected.argmax(axis=1))
    assert any("matched by name" in remark for remark in result["remarks"])
    assert result["steps"] == 0 and result["init"] == str(tmp_path / "run")
