"""An imported classifier: scored as it is, and as the beginning of a fine-tuning."""

import dataclasses
import json
import pathlib
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import fine_tuned
import glue_folder
import jax
import numpy as np
import pytest
import tiny
from fine_tuned import prepare, values

from scalelab import finetune
from scalelab.config.finetuning import resolve
from scalelab.finetuning import results as finetune_results
from scalelab.finetuning import warm_start
from scalelab.finetuning.run import TaskRun
from scalelab.interop import exporting, importing
from scalelab.runs import predictions, pretrained
from scalelab.tasks import batches
from scalelab.tasks.task import load, load_task

Runs = Callable[[str], pathlib.Path]
KINDS = {"bert": "double", "roberta": "double", "gpt": "single", "gpt2": "single"}


@pytest.fixture(autouse=True)
def one_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "BUCKETS", (64,))


@pytest.fixture
def data(tmp_path: pathlib.Path) -> Iterator[pathlib.Path]:
    yield glue_folder.write(tmp_path / "glue")


def score(init: pathlib.Path, task: str, data: pathlib.Path, folder: pathlib.Path, of: Any) -> Any:
    """What --eval_only does."""
    options = finetune.Options(data=str(data), eval_only=True)
    start = warm_start.open_start(str(init))
    return finetune.fine_tune(load_task(task), start, of, folder, options)


def found(folder: pathlib.Path) -> np.ndarray:
    """The chances of the classes, or the scores, of each example."""
    read = predictions.read(folder / "predictions.tsv")
    return read.predicted


@pytest.mark.parametrize(
    ("system", "labels"),
    [
        ("bert", ("entailment", "not_entailment")),
        ("bert", ("not_entailment", "entailment")),
        ("gpt2", ("not_entailment", "entailment")),
        pytest.param("roberta", ("entailment", "not_entailment"), marks=pytest.mark.slow),
        pytest.param("gpt", ("entailment", "not_entailment"), marks=pytest.mark.slow),
    ],
)
def test_an_import_scores_as_the_run_that_was_exported(
    pretrained_runs: Runs, data: pathlib.Path, cache_dir: pathlib.Path, tmp_path: pathlib.Path,
    system: str, labels: tuple[str, str],
) -> None:  # fmt: skip
    """The run's outputs are those of RTE's classes in `labels`; names decide, not numbers."""
    kind = KINDS[system]
    folder = tmp_path / "run"
    folder.mkdir()
    fine_tuned.make(pretrained_runs(system), folder / "seed0", kind, 2, labels=list(labels))
    run = prepare(
        pretrained_runs(system),
        "rte",
        data,
        folder,
        **values(cache_dir, head__kind=kind),
    )
    expected = outputs(run, run_params(run))
    if labels[0] == "not_entailment":
        expected = expected[:, ::-1]
    exporting.run(folder / "seed0", tmp_path / "out")
    importing.run(str(tmp_path / "out"), tmp_path / "back")
    (result,) = score(tmp_path / "back", "rte", data, tmp_path / "scored", values(cache_dir))
    task = load_task("rte")
    splits = load(task, data, tests=False)
    measured = finetune_results.measure(task, splits, {"dev": expected})
    assert result["eval"] == measured
    assert result["steps"] == 0 and result["init"] == str(tmp_path / "back")
    assert any("matched by name" in remark for remark in result["remarks"])
    assert "RTE scored as it was imported, without fine-tuning" in result["remarks"]
    again = prepare(
        tmp_path / "back",
        "rte",
        data,
        tmp_path / "x",
        **values(cache_dir, head__kind=kind),
    )
    head = {"body": again.start.opened.params, "head": again.head}
    np.testing.assert_allclose(outputs(again, head), expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(found(tmp_path / "scored/seed0"), expected.argmax(axis=1))


def run_params(run: TaskRun) -> Any:
    return pretrained.load_trained(run.folder(0))


def outputs(run: TaskRun, params: Any) -> np.ndarray:
    examples = next(iter(run.dev.values()))
    assert examples is not None
    return run.predict_with(params, examples)


@pytest.fixture(scope="module")
def back(pretrained_runs: Runs, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A BERT of three classes that came from elsewhere."""
    return fine_tuned.from_elsewhere(pretrained_runs("bert"), tmp_path_factory.mktemp("classifier"))


def test_what_does_not_fit_is_not_scored(
    back: pathlib.Path, data: pathlib.Path, cache_dir: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    with pytest.raises(ValueError, match="--eval_only scores.*RTE asks for.*a new head"):
        score(back, "rte", data, tmp_path / "scored", values(cache_dir))
    assert not (tmp_path / "scored/seed0/result.json").exists()
    with pytest.raises(ValueError, match="--mnli gives weights"):
        warm_start.open_start(str(back), None, str(tmp_path))


def test_a_fine_tuning_begins_with_body_and_head(
    back: pathlib.Path, data: pathlib.Path, cache_dir: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    given = pretrained.load_trained(back)
    run = prepare(back, "mnli", data, tmp_path / "mnli", **values(cache_dir))
    params = run.first_params(0)
    jax.tree.map(np.testing.assert_array_equal, params["body"], given["body"])
    ours, theirs = params["head"], given["head"]
    jax.tree.map(np.testing.assert_array_equal, ours["dense"], theirs["dense"])
    # MNLI's order is entailment, neutral, contradiction.
    np.testing.assert_array_equal(ours["out"]["kernel"], theirs["out"]["kernel"][:, [1, 2, 0]])
    np.testing.assert_array_equal(ours["out"]["bias"], theirs["out"]["bias"][np.array([1, 2, 0])])
    assert "has the head of" in finetune_results.describe(
        run
    ) and "matched by name" in finetune_results.describe(run)
    other = prepare(back, "rte", data, tmp_path / "rte", **values(cache_dir))
    params = other.first_params(0)
    jax.tree.map(np.testing.assert_array_equal, params["body"], given["body"])
    assert params["head"]["out"]["kernel"].shape[-1] == 2
    assert "RTE gets a new head: RTE asks for" in finetune_results.describe(other)
    single = prepare(back, "mnli", data, tmp_path / "x", **values(cache_dir, head__kind="single"))
    assert single.head is None and "gets a new head" in finetune_results.describe(single)


@pytest.mark.slow
@pytest.mark.parametrize("system", ["bert", "gpt2"])
def test_it_is_fine_tuned_and_exported_again(
    pretrained_runs: Runs, data: pathlib.Path, cache_dir: pathlib.Path, tmp_path: pathlib.Path,
    system: str,
) -> None:  # fmt: skip
    """A pair without an order is read once, as the import reads it, so an export can hold it."""
    kind = KINDS[system]
    fine_tuned.make(pretrained_runs(system), tmp_path / "run", kind, 2, labels=["1", "0"])
    exporting.run(tmp_path / "run", tmp_path / "out")
    importing.run(str(tmp_path / "out"), tmp_path / "back")
    options = finetune.Options(data=str(data))
    of = values(cache_dir, head__kind=kind)
    start = warm_start.open_start(str(tmp_path / "back"))
    (result,) = finetune.fine_tune(load_task("mrpc"), start, of, tmp_path / "mrpc", options)
    assert result["steps"] == 2
    exporting.run(tmp_path / "mrpc/seed0", tmp_path / "again")
    importing.run(str(tmp_path / "again"), tmp_path / "third")
    (scored,) = score(tmp_path / "third", "mrpc", data, tmp_path / "scored", of)
    assert scored["eval"] == result["eval"]
    again = dataclasses.replace(options, eval_only=True)  # now of what was trained there
    (result_again,) = finetune.fine_tune(load_task("mrpc"), start, of, tmp_path / "mrpc", again)
    assert result_again == result
    shutil.rmtree(tmp_path / "mrpc/seed0/checkpoints")
    config = json.loads((tmp_path / "mrpc/seed0/config.json").read_text())
    assert config["frame"] == "imported"


def test_the_head_is_of_the_kind_of_the_import(
    back: pathlib.Path, data: pathlib.Path, tmp_path: pathlib.Path, monkeypatch, cache_dir
) -> None:
    """Unless another is asked for; without an import it is the protocol's."""
    kinds = []
    monkeypatch.setattr(finetune, "train", lambda run, _: kinds.append(run.config.head.kind))
    start = warm_start.open_start(str(back))
    for kind in ("double", "single"):
        as_if = dataclasses.replace(start.classifier, kind=kind)
        for asked in (None, "single", "double"):
            of = values(cache_dir, head__kind=asked)
            options = finetune.Options(data=str(data))
            with pytest.raises(FileNotFoundError):  # nothing was trained
                finetune.fine_tune(
                    load_task("mnli"), dataclasses.replace(start, classifier=as_if), of,
                    tmp_path / "run", options,
                )  # fmt: skip
            assert kinds.pop() == (asked or kind)
    assert resolve(values(cache_dir)).head.kind == "double"


@pytest.mark.parity
@pytest.mark.parametrize("task", ["sst2", "mnli"])
@pytest.mark.parametrize("system", tiny.SYSTEMS)
def test_its_scores_are_those_of_transformers(
    data: pathlib.Path, cache_dir: pathlib.Path, tmp_path: pathlib.Path, system: str, task: str
) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    import peers
    import real_text
    import transformers

    names = {"sst2": ["negative", "positive"], "mnli": ["neutral", "contradiction", "entailment"]}
    order = {"sst2": [0, 1], "mnli": [2, 0, 1]}[task]
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
    segments = {"return_token_type_ids": system == "bert"}
    rows = [tokenizer(*texts, **segments) for texts in zip(*records.texts, strict=True)]
    with torch.no_grad():
        expected = np.concatenate(
            [model(**{k: torch.tensor([v]) for k, v in row.items()}).logits.numpy() for row in rows]
        )[:, order]
    kind = KINDS[system]
    run = prepare(
        tmp_path / "run",
        task,
        data,
        tmp_path / "x",
        **values(cache_dir, head__kind=kind),
    )
    ours = outputs(run, {"body": run.start.opened.params, "head": run.head})
    np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(found(tmp_path / "scored/seed0"), expected.argmax(axis=1))
    assert any("matched by name" in remark for remark in result["remarks"])
