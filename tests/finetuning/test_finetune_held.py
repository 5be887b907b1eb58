"""A folder holds one fine-tuning: other columns, tokenizers, weights or data are told apart."""

import json
import pathlib
import shutil
from collections.abc import Callable
from typing import Any

import pytest
import tiny

from scalelab import finetune
from scalelab.config.finetuning import override, resolve
from scalelab.eval.tsv import make_task
from scalelab.finetune import Options
from scalelab.finetuning import loop as finetune_loop
from scalelab.finetuning import start as finetune_start
from scalelab.finetuning.run import TaskRun
from scalelab.tasks import examples
from scalelab.tasks.task import Task, load_task

Runs = Callable[[str], pathlib.Path]
ROWS = "a\tb\tlabel\tother\nby do\tgo\t0\t1\nif in\tme no\t1\t1\nor up\tat by\t0\t0\nme\tgo\t1\t0\n"


@pytest.fixture(autouse=True)
def one_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every batch has the same shape: compiling takes longest."""
    monkeypatch.setattr(examples, "BUCKETS", (32,))


@pytest.fixture
def data(tmp_path: pathlib.Path) -> pathlib.Path:
    """A folder of a user's own task."""
    folder = tmp_path / "mine"
    folder.mkdir()
    for name in ("train", "dev"):
        (folder / f"{name}.tsv").write_text(ROWS)
    return folder


@pytest.fixture
def values(cache_dir: pathlib.Path) -> dict[str, Any]:
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
    pretrained_runs: Runs, data, values, tmp_path, capsys
) -> None:
    """It is refused, with the field, by training and by --eval_only, and nothing is touched."""
    bert, work, options = str(pretrained_runs("bert")), tmp_path / "work", Options(data=str(data))
    again = Options(data=str(data), eval_only=True)
    start = finetune_start.open_start(bert)
    first = mine(data, "a", "label")
    (result,) = finetune.fine_tune(first, start, values, work, options)
    before = left(work)
    capsys.readouterr()
    assert finetune.fine_tune(first, start, values, work, options) == [result]
    assert "mine seed 0: finished already, not trained again" in capsys.readouterr().out
    gpt = finetune_start.open_start(str(pretrained_runs("gpt2")))
    for task, began, fields, message in (
        (mine(data, "b", "label"), start, {}, r"columns: \['a', 'label'\] -> \['b', 'label'\]"),
        (mine(data, "a", "other"), start, {}, r"columns: .*'other'"),
        (mine(data, "a", "b", "label"), start, {}, r"columns: .*relation: 'single'"),
        (first, gpt, {}, r"init: .*system: 'bert' -> 'gpt2'"),
        (first, start, {"head.kind": "single"}, "head.kind: 'double' -> 'single'"),
    ):
        for asked in (options, again):
            with pytest.raises(
                ValueError, match=r"(?s)holds a run with another config.*" + message
            ):
                finetune.fine_tune(task, began, override(values, fields), work, asked)
    (data / "dev.tsv").write_text(ROWS + "or\tif\t0\t1\n")
    with pytest.raises(ValueError, match=r"data.dev: "):
        finetune.fine_tune(first, start, values, work, again)
    assert left(work) == before
    (data / "dev.tsv").write_text(ROWS)
    (work / "seed0/predictions.tsv").unlink()
    finetune.fine_tune(first, start, values, work, again)
    assert left(work) == before


def prepared(task: Task, data: Any, start: Any, values: dict[str, Any], folder: Any) -> TaskRun:
    from scalelab.tasks.task import load

    return TaskRun(task, load(task, data, tests=False), start, resolve(values), folder)


def test_another_tokenizer_is_another_run(pretrained_runs: Runs, data, values, tmp_path) -> None:
    """Where there are no weights to tell nets apart; folders from before it was told are read."""
    like = tmp_path / "like"
    shutil.copytree(pretrained_runs("bert"), like)
    path = like / "tokenizer/tokenizer.json"
    path.write_text(path.read_text().replace('"lowercase": true', '"lowercase": false') + " ")
    task, folder = mine(data, "a", "label"), tmp_path / "work"
    one, other = (
        prepared(task, data, finetune_start.open_start("none", str(run)), values, folder)
        for run in (pretrained_runs("bert"), like)
    )
    one.claim(0)
    config = one.describe(0)
    (folder / "seed0/config.json").write_text(json.dumps(config))
    assert one.claim(0) is None
    with pytest.raises(ValueError, match=r"another config.*\n.*tokenizer_digest: '"):
        other.claim(0)
    del config["tokenizer_digest"]
    (folder / "seed0/config.json").write_text(json.dumps(config))
    assert other.claim(0) is None
    del config["columns"]  # a run of a user's files from before they were told
    (folder / "seed0/config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"columns: 'absent' -> \['a', 'label'\]"):
        one.claim(0)


def test_of_a_task_of_the_labs_own_the_name_says_the_columns(
    pretrained_runs: Runs, data, values, tmp_path
) -> None:
    """So that what was finished before columns were told is still the same run."""
    start = finetune_start.open_start(str(pretrained_runs("bert")))
    for name, columns in (("rte", None), ("mine", ["a", "b", "label"])):
        task = mine(data, "a", "b", "label") if name == "mine" else load_task(name)
        splits = finetune.task_lib.load(mine(data, "a", "b", "label"), data, tests=False)
        run = TaskRun(task, splits, start, resolve(values), tmp_path / name)
        assert run.describe(0)["columns"] == columns


def test_a_start_from_mnli_is_told_by_those_weights(
    pretrained_runs: Runs, data, values, tmp_path, monkeypatch
) -> None:
    """Each seed's own: MNLI trained otherwise is another start."""
    bert = str(pretrained_runs("bert"))
    start = finetune_start.open_start(bert)
    digests = {}
    for rate in (1e-2, 1e-3):
        folder = tmp_path / f"mnli-{rate}"
        of = override(values, {"optim.learning_rate": rate})
        run = prepared(mine(data, "a", "label"), data, start, of, folder)
        finetune_loop.train(run, [0, 1])
        for seed in (0, 1):
            path = folder / f"seed{seed}/config.json"
            path.write_text(json.dumps(json.loads(path.read_text()) | {"task": "mnli"}))
        began = finetune_start.open_start(bert, None, str(folder))
        assert began.mnli_first
        rte = prepared(mine(data, "a", "b", "label"), data, began, values, tmp_path / "rte")
        for seed in (0, 1):
            digests[rate, seed] = rte.describe(seed)["init"]
    assert len({start.digest(0), *digests.values()}) == 5


def test_what_the_user_has_set_wins_over_the_recipe() -> None:
    """Over its values for a task, and over its grid; --per_task wins over both."""
    made = tiny.config_module("finetune").get_config

    def planned(recipe: str, fixed: tuple[str, ...] = (), **fields: Any) -> tuple[Any, Any]:
        given = made(f"recipe={recipe}").to_dict() | {"epochs": 1.0, "batch_size": 4}
        return finetune._planned(load_task("rte"), given, Options(fixed=fixed), fields)

    assert planned("layerwise")[0]["epochs"] == 10.0
    assert planned("layerwise", ("epochs",))[0]["epochs"] == 1.0
    assert planned("layerwise", ("epochs",), epochs=5.0)[0]["epochs"] == 5.0
    of, axes = planned("turc", ("batch_size", "epochs"))
    assert of["batch_size"] == 4 and list(axes) == ["optim.learning_rate"]
    assert list(planned("turc", batch_size=16)[1]) == ["optim.learning_rate"]
    assert not planned("turc", ("batch_size", "optim.learning_rate"))[1]
