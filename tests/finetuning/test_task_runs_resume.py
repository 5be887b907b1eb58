"""A folder holds one fine-tuning: other columns, tokenizers, weights or data are told apart."""

import dataclasses
import json
import pathlib
import shutil
import types
from collections.abc import Callable
from typing import Any

import pytest
import tiny

from scalelab import finetune
from scalelab.config.finetuning import override, resolve
from scalelab.eval.tsv import make_task
from scalelab.finetune import Request
from scalelab.finetuning import plan, warm_start
from scalelab.finetuning.run import TaskRun
from scalelab.tasks import batches
from scalelab.tasks.task import Task, load_task

Runs = Callable[[str], pathlib.Path]
ROWS = "a\tb\tlabel\tother\nby do\tgo\t0\t1\nif in\tme no\t1\t1\nor up\tat by\t0\t0\nme\tgo\t1\t0\n"


@pytest.fixture(autouse=True)
def one_bucket(monkeypatch) -> None:
    """Every batch has the same shape: compiling takes longest."""
    monkeypatch.setattr(batches, "BUCKETS", (32,))


@pytest.fixture
def data(tmp_path) -> pathlib.Path:
    """A folder of a user's own task."""
    folder = tmp_path / "mine"
    folder.mkdir()
    for name in ("train", "dev"):
        (folder / f"{name}.tsv").write_text(ROWS)
    return folder


@pytest.fixture
def values(cache_dir) -> dict[str, Any]:
    small = {
        "epochs": 1.0, "batch_size": 4, "max_len": 32, "machine.cache_dir": str(cache_dir),
        "machine.compile_cache_dir": None, "machine.eval_batch_size": 4,
    }  # fmt: skip
    return override(tiny.config_module("finetune").get_config().to_dict(), small)


def mine(data: pathlib.Path, *columns: str) -> Task:
    return make_task(data, "classification", columns)


def left(workdir: pathlib.Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in sorted(workdir.rglob("*")) if p.is_file()}


def test_another_choice_of_the_same_files_is_another_run(
    pretrained_runs, data, values, tmp_path, capsys
) -> None:
    """It is refused, with the field, by training and by --eval_only, and nothing is touched."""
    work, start = tmp_path / "work", warm_start.open_start(str(pretrained_runs("bert")))
    first, request = mine(data, "a", "label"), Request(start, values, data=str(data))
    again = dataclasses.replace(request, eval_only=True)
    (result,) = finetune.fine_tune(first, request, work)
    before = left(work)
    capsys.readouterr()
    assert finetune.fine_tune(first, request, work) == [result]
    assert "finished already" in capsys.readouterr().out
    gpt = warm_start.open_start(str(pretrained_runs("gpt2")))
    for task, began, fields, message in (
        (mine(data, "b", "label"), start, {}, r"columns: \['a', 'label'\] -> \['b', 'label'\]"),
        (mine(data, "a", "other"), start, {}, r"columns: .*'other'"),
        (mine(data, "a", "b", "label"), start, {}, r"columns: .*relation: 'single'"),
        (first, gpt, {}, r"init: .*system: 'bert' -> 'gpt2'"),
        (first, start, {"head.kind": "single"}, "head.kind: 'double' -> 'single'"),
    ):
        for asked in (request, again):
            asked = dataclasses.replace(asked, start=began, values=override(values, fields))
            with pytest.raises(ValueError, match=r"(?s)another config.*" + message):
                finetune.fine_tune(task, asked, work)
    (data / "dev.tsv").write_text(ROWS + "or\tif\t0\t1\n")
    with pytest.raises(ValueError, match=r"data.dev: "):
        finetune.fine_tune(first, again, work)
    assert left(work) == before
    (data / "dev.tsv").write_text(ROWS)
    (work / "seed0/predictions.tsv").unlink()
    finetune.fine_tune(first, again, work)
    assert left(work) == before


def prepared(task: Task, data: Any, start: Any, values: dict[str, Any], folder: Any) -> TaskRun:
    from scalelab.tasks.task import load

    return TaskRun(task, load(task, data, tests=False), start, resolve(values), folder)


def test_another_tokenizer_is_another_run(pretrained_runs, data, values, tmp_path) -> None:
    """Where there are no weights to tell models apart."""
    like = tmp_path / "like"
    shutil.copytree(pretrained_runs("bert"), like)
    path = like / "tokenizer/tokenizer.json"
    path.write_text(path.read_text().replace('"lowercase": true', '"lowercase": false') + " ")
    (like / "environment.json").unlink()  # as if it had this tokenizer from its start
    task, folder = mine(data, "a", "label"), tmp_path / "work"
    ours, theirs = (
        prepared(task, data, warm_start.open_start("none", str(run)), values, folder)
        for run in (pretrained_runs("bert"), like)
    )
    ours.claim(0)
    config = ours.describe(0)
    (folder / "seed0/config.json").write_text(json.dumps(config))
    assert ours.claim(0) is None
    with pytest.raises(ValueError, match=r"another config.*\n.*tokenizer_digest: '"):
        theirs.claim(0)
    del config["columns"]
    (folder / "seed0/config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"columns: 'absent' -> \['a', 'label'\]"):
        ours.claim(0)


def test_a_start_from_mnli_is_told_by_those_weights(
    pretrained_runs, data, values, tmp_path, monkeypatch
) -> None:
    """Each seed's own: MNLI trained otherwise is another start."""
    bert = str(pretrained_runs("bert"))
    start = warm_start.open_start(bert)
    digests = {}
    for rate in (1e-2, 1e-3):
        folder = tmp_path / f"mnli-{rate}"
        changed = override(values, {"optim.learning_rate": rate})
        run = prepared(mine(data, "a", "label"), data, start, changed, folder)
        for seed in (0, 1):
            finetune.train([run], seed, run.workdir)
        for path in folder.glob("seed*/[cr]*.json"):  # config and result
            path.write_text(json.dumps(json.loads(path.read_text()) | {"task": "mnli"}))
        began = warm_start.open_start(bert, None, str(folder))
        assert began.mnli_first and "mine" in began.remarks[0]
        rte = prepared(mine(data, "a", "b", "label"), data, began, values, tmp_path / "rte")
        for seed in (0, 1):
            digests[rate, seed] = rte.describe(seed)["init"]
    assert len({start.digest(0), *digests.values()}) == 5


def start_of(*, causal: bool = False, max_len: int = 512) -> Any:
    """What a plan asks of the initial weights."""
    net = types.SimpleNamespace(max_len=max_len)
    config = types.SimpleNamespace(model=net, system="gpt2" if causal else "bert")
    predicts = "next" if causal else "masked"
    system = types.SimpleNamespace(HAS_SOURCE=False)
    opened = types.SimpleNamespace(config=config, predicts=predicts, system=system)
    return types.SimpleNamespace(classifier=None, opened=opened)


def test_what_the_user_has_set_wins_over_the_recipe() -> None:
    """Over its values for a task, and over its grid; --per_task wins over both."""
    made = tiny.config_module("finetune").get_config

    def planned(recipe: str, fixed: tuple[str, ...] = (), **fields: Any) -> tuple[Any, Any]:
        given = made(f"recipe={recipe}").to_dict() | {"epochs": 1.0, "batch_size": 4}
        return plan.plan(load_task("rte"), Request(start_of(), given, {"rte": fields}, fixed=fixed))

    assert planned("layerwise")[0]["epochs"] == 10.0
    assert planned("layerwise", ("epochs",))[0]["epochs"] == 1.0
    assert planned("layerwise", ("epochs",), epochs=5.0)[0]["epochs"] == 5.0
    values, axes = planned("turc", ("batch_size", "epochs"))
    assert values["batch_size"] == 4 and list(axes) == ["optim.learning_rate"]
    assert list(planned("turc", batch_size=16)[1]) == ["optim.learning_rate"]
    assert not planned("turc", ("batch_size", "optim.learning_rate"))[1]


def test_a_system_brings_fields_of_its_own() -> None:
    """Over those of a recipe; what a recipe has for a task, and what the user sets, win."""
    made, start = tiny.config_module("finetune").get_config, start_of()
    start.opened.system.RECIPE = {"dropout_rate": 0.0, "epochs": 7.0}

    def planned(task: str, **options: Any) -> tuple[float, float]:
        given = made("recipe=layerwise").to_dict()
        values, _ = plan.plan(load_task(task), Request(start, given, **options))
        return values["dropout_rate"], values["epochs"]

    assert planned("cola") == (0.0, 7.0)
    assert planned("rte") == (0.0, 10.0)
    assert planned("cola", fixed=("dropout_rate",)) == (0.1, 7.0)


def test_the_protocols_length_and_auxiliary_loss() -> None:
    """512 tokens, or the model's positions; a masked model has no auxiliary loss, and refuses
    it."""
    given = tiny.config_module("finetune").get_config("recipe=thesis").to_dict()
    task = load_task("rte")
    for start, length in ((start_of(), 512), (start_of(causal=True, max_len=64), 64)):
        values, _ = plan.plan(task, Request(start, given))
        assert (values["max_len"], values["lm_weight"]) == (length, 0.5)
    longer = Request(start_of(max_len=64), given, {"rte": {"max_len": 96}})
    assert plan.plan(task, longer)[0]["max_len"] == 96
    with pytest.raises(ValueError, match="lm_weight"):
        plan.plan(task, Request(start_of(), given, {"rte": {"lm_weight": 0.5}}))
