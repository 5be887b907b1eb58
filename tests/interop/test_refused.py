"""Mistakes and damaged files end in one message that names them, and leave nothing behind."""

import dataclasses
import json
import pathlib
import shutil
from collections.abc import Callable
from typing import Any

import fine_tuned
import in_process
import law_folders
import numpy as np
import pytest
from damage import Damage, config, indexed, raw, tensors, without, written

from scalelab.interop import exporting, hf, importing, maps
from scalelab.training import pretrained

pytestmark = pytest.mark.slow

Runs = Callable[[str], pathlib.Path]
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"


@pytest.fixture(scope="module")
def folder(pretrained_runs: Runs, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A sound folder in Hugging Face layout; do not write into it."""
    made = tmp_path_factory.mktemp("good") / "bert"
    exporting.run(pretrained_runs("bert"), made)
    return made


@pytest.fixture(scope="module")
def tuned(pretrained_runs: Runs, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A sound fine-tuning; do not write into it."""
    made = tmp_path_factory.mktemp("tuned")
    fine_tuned.make(pretrained_runs("bert"), made / "good", "double")
    return made / "good"


def refused(capsys: pytest.CaptureFixture, *arguments: str) -> str:
    """Runs the program, which must end in one message and exit code 2; returns the message."""
    code, _, message = law_folders.start(capsys, hf, *arguments)
    assert code == 2 and message.startswith("error: ") and "Traceback" not in message
    return message


def both(*damages: Damage) -> Damage:
    return lambda folder: [damage(folder) for damage in damages]


def zeros(shape: tuple[int, ...], dtype: Any) -> Callable[[Any], np.ndarray]:
    return lambda _: np.zeros(shape, dtype)


# What is done to a sound folder, and what the message must name.
DAMAGED_FOLDERS: dict[str, tuple[Damage, tuple[str, ...]]] = {
    "cut": (raw(lambda data: data[:-100]), (WEIGHTS,)),
    "a header of garbage": (raw(lambda data: data[:8] + b"x" * (len(data) - 8)), (WEIGHTS,)),
    "a packed tensor": (tensors(query__weight=zeros((8, 3), np.int64)), ("query.weight", "I64")),
    "a wrong shape": (tensors(pooler__dense__weight=zeros((8, 9), np.float32)), ("pooler",)),
    "not a number": (tensors(query__weight=lambda x: x * np.nan), ("query.weight", "finite")),
    "a tensor too many": (tensors(bert__extra=zeros((3,), np.float32)), ("bert.extra",)),
    "a tensor too few": (tensors(**{"query.bias": None}), ("attention.self.query.bias",)),
    "a pickle": (lambda f: (f / WEIGHTS).rename(f / "pytorch_model.bin"),
                 ("pytorch_model.bin", "pickle", "save_pretrained")),
    "an index of numbers": (both(indexed(), written(INDEX, '{"weight_map": {"a": 1}}')), (INDEX,)),
    "an index of absent files": (indexed(nothing="gone.safetensors"), ("gone.safetensors",)),
    "an index that leads elsewhere": (indexed(nothing="../x.safetensors"), ("../x",)),
    "no config": (without("config.json"), ("config.json",)),
    "a damaged config": (written("config.json", "{"), ("config.json",)),
    "a run folder": (config(system="bert", machine={}), ("export",)),
    "no tokenizer": (without(*TOKENIZER), ("tokenizer.json", "vocab.txt")),
    "an empty vocabulary": (both(without(*TOKENIZER), written("vocab.txt", "")), ("tokenizer",)),
    **{name: (written(name, "[]"), ("tokenizer",)) for name in TOKENIZER},
    "a smaller vocabulary": (config(vocab_size=299), ("vocab_size", "299")),
    "more layers": (config(num_hidden_layers=2), ("2 layers", "encoder.layer.1")),
    "layers in words": (config(num_hidden_layers="two"), ("num_hidden_layers", "'two'")),
    "layers beyond memory": (config(num_hidden_layers=10**9), ("1,000,000,000",)),
    **{
        f"{field} of another model": (config(**{field: 304}), ("config.json",))
        for field in ("vocab_size", "max_position_embeddings", "intermediate_size", "hidden_size")
    },
    "another activation": (config(hidden_act="mish"), ("hidden_act", "'mish'", "'gelu_new'")),
    "no activation": (config(hidden_act=["gelu"]), ("hidden_act", "['gelu']")),
    "an epsilon of zero": (config(layer_norm_eps=0), ("layer_norm_eps", "= 0;", "number")),
    "an epsilon in words": (config(layer_norm_eps="1e-5"), ("layer_norm_eps", "'1e-5'")),
    "perhaps a decoder": (config(is_decoder=None), ("is_decoder",)),
    "untied without a table": (config(tie_word_embeddings=False), ("tie_word_embeddings",)),
    "an unsupported family": (config(model_type="bloom"), ("'bloom'", "GPT2LMHeadModel")),
    "a family that is no name": (config(model_type=["bert"]), ("['bert']",)),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGED_FOLDERS)
def test_a_damaged_folder(folder: pathlib.Path, tmp_path, name: str, capsys) -> None:
    damage, names = DAMAGED_FOLDERS[name]
    shutil.copytree(folder, tmp_path / "source")
    damage(tmp_path / "source")
    message = refused(capsys, "import", f"{tmp_path}/source", f"--workdir={tmp_path}/run")
    assert len(message) < 2000 and [x for x in names if x not in message] == []
    assert [p.name for p in tmp_path.iterdir()] == ["source"]  # nothing is left behind


def test_an_xlnet_that_reads_otherwise(pretrained_runs: Runs, tmp_path, capsys) -> None:
    """Fields that change what its class computes, and a size that its tensors have not."""
    exporting.run(pretrained_runs("xlnet"), tmp_path / "good")
    capsys.readouterr()
    changes = {"d_inner": 33, "same_length": True, "clamp_len": 8, "bi_data": True}
    changes |= {"attn_type": "uni", "reuse_len": 4, "summary_type": "mean", "d_head": 3}
    changes |= {"mem_len": 70_000}
    for field, value in changes.items():
        shutil.copytree(tmp_path / "good", tmp_path / field)
        config(**{field: value})(tmp_path / field)
        message = refused(capsys, "import", f"{tmp_path / field}", f"--workdir={tmp_path}/run")
        assert ("ffn" if field == "d_inner" else field) in message, message
        assert not (tmp_path / "run").exists()


def test_a_tensor_that_must_be_zero(folder: pathlib.Path, tmp_path, monkeypatch) -> None:
    """A bias that our model does not have would change every score."""
    family = dataclasses.replace(maps.load("bert"), zeros=("final_bias",))
    monkeypatch.setattr(maps, "load_all", lambda: [family])
    source = tmp_path / "source"
    shutil.copytree(folder, source)
    tensors(final_bias=zeros((1, 300), np.float32))(source)
    importing.run(str(source), tmp_path / "run")
    tensors(final_bias=lambda x: x + np.eye(1, 300, 7, np.float32))(source)
    with pytest.raises(ValueError, match="final_bias is not zero, and scalelab's bert has no such"):
        importing.run(str(source), tmp_path / "other")


@pytest.mark.parametrize(("changed", "name"), [
    ({"problem_type": "multi_label_classification"}, "problem_type"),
    ({"problem_type": "regression"}, "regression"),
    ({"id2label": {"0": "a", "1": "a", "2": "b"}}, "id2label"),
    ({"id2label": {"0": "a", "1": "b"}}, "id2label"),
    ({"id2label": ["a", "b", "c"]}, "config.json"),
    ({"classifier_dropout": 3}, "classifier_dropout"),
], ids=str)  # fmt: skip
def test_a_classifier_that_ours_cannot_be(tuned, tmp_path, changed, name, capsys) -> None:
    exporting.run(tuned, tmp_path / "out")
    config(**changed)(tmp_path / "out")
    assert name in refused(capsys, "import", f"{tmp_path}/out", f"--workdir={tmp_path}/run")


DAMAGED_RUNS: dict[str, tuple[Damage, tuple[str, ...]]] = {
    "no tokenizer": (lambda f: shutil.rmtree(f / "tokenizer"), ("tokenizer.json",)),
    "a damaged tokenizer": (written("tokenizer/tokenizer.json", "{"), ("tokenizer",)),
    "special tokens": (
        written("tokenizer/special_tokens_map.json", '{"pad_token": 5}'), ("special_tokens_map",)),
    "nothing but a task": (written("config.json", '{"task": "x"}'), ("system",)),
    "other labels": (config(labels=["a", "b"]), ("head/out/bias", "(2,)", "(3,)")),
    "a family without a map": (config(system="unilm"), ("'unilm'",)),
    "no checkpoints": (lambda f: shutil.rmtree(f / "checkpoints"), ("fine-tuning",)),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGED_RUNS)
def test_a_damaged_run(tuned: pathlib.Path, tmp_path, name: str, capsys) -> None:
    damage, names = DAMAGED_RUNS[name]
    shutil.copytree(tuned, tmp_path / "run")
    damage(tmp_path / "run")
    message = refused(capsys, "export", f"{tmp_path}/run", f"--to={tmp_path}/out")
    assert [x for x in names if x not in message] == []
    assert [p.name for p in tmp_path.iterdir()] == ["run"]  # nothing is left behind


@pytest.mark.parametrize(("system", "kind", "changed", "reason"), [
    ("gpt2", "double", {}, "GPT2ForSequenceClassification .*head"),
    ("gpt", "single", {"relation": "similarity"}, "both orders"),
    ("bert", "double", {"feature_layers": 2}, "several layers"),
])  # fmt: skip
def test_a_classifier_that_no_class_can_hold(
    pretrained_runs: Runs, tmp_path, system: str, kind: str, changed: Any, reason: str
) -> None:
    fine_tuned.make(pretrained_runs(system), tmp_path / "run", kind, **changed)
    with pytest.raises(ValueError, match=reason):
        exporting.run(tmp_path / "run", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_hugging_face_folder_is_to_be_imported_first(folder: pathlib.Path, tmp_path) -> None:
    command = f"interop.hf import {folder} --workdir"
    with pytest.raises(ValueError, match=command):
        pretrained.load(str(folder))
    with pytest.raises(ValueError, match=command):
        exporting.run(folder, tmp_path / "out")


@pytest.mark.parametrize(("arguments", "name"), [
    (["imprt", "x"], "import"),
    (["import", "x"], "--workdir"),
    (["import", "./nowhere", "--workdir=y"], "./nowhere"),
    (["export", "nowhere", "--to=y"], "nowhere"),
])  # fmt: skip
def test_arguments(arguments: list[str], name: str, capsys: pytest.CaptureFixture) -> None:
    message = refused(capsys, *arguments)
    assert name in message and message.count("\n") == 1


def test_a_name_on_the_hub(folder: pathlib.Path, tmp_path, monkeypatch, capsys) -> None:
    import huggingface_hub

    asked = []

    def download(name: str, *, allow_patterns: list[str]) -> str:
        asked.append((name, allow_patterns))
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    in_process.run(hf, ["import", "some/bert", f"--workdir={tmp_path / 'run'}"])
    assert "some/bert" in capsys.readouterr().out
    assert asked[0][0] == "some/bert" and not any("bin" in name for name in asked[0][1])
    result = json.loads((tmp_path / "run/result.json").read_text())
    assert result["imported"]["source"] == "some/bert"

    def refuse(*_: Any, **__: Any) -> str:
        raise ConnectionError("no route")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    with pytest.raises(ValueError, match="some/bert.*no route"):
        importing.run("some/bert", tmp_path / "other")
