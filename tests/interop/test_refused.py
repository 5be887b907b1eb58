"""Mistakes and damaged files end in one message that names them, and leave nothing behind."""

import json
import pathlib
import shutil
import struct
import sys
from collections.abc import Callable
from typing import Any

import fine_tuned
import jax
import numpy as np
import pytest
from damage import Damage, config, header, indexed, raw, tensors, without, written

from scalelab.interop import exporting, hf, importing
from scalelab.runs import pretrained

pytestmark = pytest.mark.slow

Runs = Callable[[str], pathlib.Path]
DEEP, LONG = "[" * 200_000, '{"x": ' + "9" * 5000 + "}"
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
SHARD = "model-00001-of-00001.safetensors"


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
    fine_tuned.make(pretrained_runs("bert"), made / "other", "double", 2)
    return made / "good"


def refused(capsys: pytest.CaptureFixture, *arguments: str) -> str:
    """Runs the program, which must end in one message and exit code 2; returns the message."""
    with pytest.raises(SystemExit) as end:
        hf.main(list(arguments))
    message = capsys.readouterr().err
    assert end.value.code == 2 and message.startswith("error: ") and "Traceback" not in message
    return message


# --- Damaged folders -----------------------------------------------------------------------------


def entry(end: str, **changed: Any) -> Damage:
    """Changes the header's entry of the tensor whose name ends so."""

    def change(entries: dict) -> None:
        name = next(name for name in entries if name.endswith(end))
        entries[name] |= changed

    return header(change)


def overlap(entries: dict) -> None:
    both = [entries[n] for n in entries if n.endswith(("query.bias", "key.bias"))]
    both[1]["data_offsets"] = both[0]["data_offsets"]


def rewritten_header(text: str) -> Damage:
    return raw(lambda data: struct.pack("<Q", len(text)) + text.encode() + data)


def both(*damages: Damage) -> Damage:
    return lambda folder: [damage(folder) for damage in damages]


def as_folder(name: str) -> Damage:
    return both(without(name), lambda folder: (folder / name).mkdir())


def replaced(shape: tuple[int, ...], dtype: Any) -> Callable[[Any], np.ndarray]:
    return lambda _: np.zeros(shape, dtype)


# What is done to a sound folder, and what the message must name.
DAMAGED_FOLDERS: dict[str, tuple[Damage, tuple[str, ...]]] = {
    "empty": (raw(lambda data: b""), (WEIGHTS,)),
    "cut": (raw(lambda data: data[:-100]), (WEIGHTS,)),
    "cut in the header": (raw(lambda data: data[:100]), (WEIGHTS,)),
    "a zip": (raw(lambda data: b"PK\3\4" * 99), (WEIGHTS,)),
    "a header of garbage": (raw(lambda data: data[:8] + b"x" * (len(data) - 8)), (WEIGHTS,)),
    "longer than its header": (raw(lambda data: data + b"more"), (WEIGHTS,)),
    "a shape against its bytes": (entry("word_embeddings.weight", shape=[7, 7]), (WEIGHTS,)),
    "overlapping tensors": (header(overlap), (WEIGHTS,)),
    "a hole": (header(lambda e: e.pop(next(n for n in e if "query.bias" in n))), (WEIGHTS,)),
    "a deep header": (rewritten_header(DEEP), (WEIGHTS,)),
    "a header of a list": (rewritten_header("[]"), (WEIGHTS,)),
    "a long number in the header": (rewritten_header(LONG), (WEIGHTS,)),
    "200,000 dimensions": (
        entry("query.bias", shape=[8] + [1] * 200_000), (WEIGHTS, "query.bias", "200,001")),
    "a packed tensor": (tensors(query__weight=replaced((8, 3), np.int64)), ("query.weight", "I64")),
    "float64": (tensors(pooler__dense__bias=replaced((8,), np.float64)), ("pooler", "F64", "BF16")),
    "a wrong shape": (tensors(pooler__dense__weight=replaced((8, 9), np.float32)),
                      ("pooler.dense.weight", "[8, 8]", "[8, 9]")),
    "a tensor too many": (tensors(bert__extra=replaced((3,), np.float32)), ("bert.extra",)),
    "a tensor too few": (tensors(**{"query.bias": None}), ("attention.self.query.bias",)),
    "no weights": (without(WEIGHTS), (WEIGHTS, INDEX)),
    "a pickle": (lambda f: (f / WEIGHTS).rename(f / "pytorch_model.bin"),
                 ("pytorch_model.bin", "pickle", "save_pretrained")),
    "a deep index": (both(indexed(), written(INDEX, DEEP)), (INDEX,)),
    "an index of a list": (both(indexed(), written(INDEX, "[]")), (INDEX,)),
    "an index of numbers": (both(indexed(), written(INDEX, '{"weight_map": {"a": 1}}')), (INDEX,)),
    "an index of lies": (indexed(nothing=SHARD), ("nothing", SHARD)),
    "an index of absent files": (indexed(nothing="gone.safetensors"), ("gone.safetensors",)),
    "an index that leads elsewhere": (indexed(nothing="../x.safetensors"), ("../x",)),
    "no config": (without("config.json"), ("config.json",)),
    "a config that is a folder": (as_folder("config.json"), ("config.json",)),
    "a damaged config": (written("config.json", "{"), ("config.json",)),
    "a deep config": (written("config.json", DEEP), ("config.json",)),
    "a config of a list": (written("config.json", "[1]"), ("config.json", "list")),
    "a config of a long number": (written("config.json", LONG), ("config.json",)),
    "a size of 4,000 digits": (config(vocab_size=10**4000), ("config.json",)),
    "a run folder": (config(system="bert", machine={}), ("export",)),
    "no tokenizer": (without(*TOKENIZER), ("tokenizer.json", "vocab.txt")),
    "an empty vocabulary": (both(without(*TOKENIZER), written("vocab.txt", "")), ("empty",)),
    **{
        f"{name} {content[:9]}": (written(name, content), ("tokenizer",))
        for name in ("tokenizer.json", "special_tokens_map.json", "tokenizer_config.json")
        for content in ("[]", "5", DEEP, LONG.replace("x", "pad_token"))
    },
    "a config of another width": (config(hidden_size=16), ("[300, 16]", "[300, 8]")),
    "a smaller vocabulary": (config(vocab_size=299), ("vocab_size", "299")),
    "more rows than the file": (config(vocab_size=304), ("word_embeddings", "[304, 8]")),
    "more layers": (config(num_hidden_layers=2), ("2 layers", "encoder.layer.1")),
    "indivisible heads": (config(num_attention_heads=3), ("heads", "width")),
    "layers in words": (config(num_hidden_layers="two"), ("num_hidden_layers", "'two'")),
    "layers beyond memory": (config(num_hidden_layers=10**9), ("1,000,000,000",)),
    **{
        f"{field} beyond memory": (config(**{field: 10**13}), ("10,000,000,000,000",))
        for field in ("vocab_size", "max_position_embeddings", "intermediate_size")
    },
    "padding beyond the vocabulary": (config(pad_token_id=10**9), ("pad_token_id", "300")),
    "another activation": (config(hidden_act="gelu_new"), ("hidden_act", "'gelu_new'", "'gelu'")),
    "another epsilon": (config(layer_norm_eps=1e-5), ("layer_norm_eps",)),
    "a decoder": (config(is_decoder=True), ("is_decoder",)),
    "perhaps a decoder": (config(is_decoder=None), ("is_decoder",)),
    "tied to no": (config(tie_word_embeddings="no"), ("tie_word_embeddings", "'no'")),
    "untied without a table": (config(tie_word_embeddings=False), ("tie_word_embeddings",)),
    "an unsupported family": (config(model_type="t5", architectures=["T5Model"]),
                              ("'t5'", "GPT2LMHeadModel")),
    "a family that is no name": (config(model_type=["bert"]), ("['bert']",)),
    "an unsupported class": (config(architectures=["BertForQuestionAnswering"]),
                             ("'BertForQuestionAnswering'", "BertForMaskedLM")),
    "nearly a class": (config(architectures=["BertModell"]), ("'BertModell'", "'BertModel'")),
    "a class that is no name": (config(architectures=[5]), ("architectures", "[5]")),
    "labels in a list": (config(id2label=["a", "b"]), ("config.json",)),
    "a text of classes": (config(num_labels="3"), ("config.json",)),
    "a deviation in words": (config(initializer_range="x"), ("config.json", "initializer_range")),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGED_FOLDERS)
def test_a_damaged_folder(folder: pathlib.Path, tmp_path, name: str, capsys) -> None:
    damage, names = DAMAGED_FOLDERS[name]
    shutil.copytree(folder, tmp_path / "source")
    damage(tmp_path / "source")
    message = refused(capsys, "import", f"{tmp_path}/source", f"--workdir={tmp_path}/run")
    assert len(message) < 2000 and [x for x in names if x not in message] == []
    assert [p.name for p in tmp_path.iterdir()] == ["source"]  # nothing is left behind


@pytest.mark.parametrize(
    ("changed", "names"),
    [
        ({"problem_type": "multi_label_classification"}, ("problem_type",)),
        ({"problem_type": "regression"}, ("regression", "3 scores")),
        ({"problem_type": ["regression"]}, ("problem_type",)),
        ({"id2label": {"0": "a", "1": "a", "2": "b"}}, ("id2label", "one name")),
        ({"id2label": {"0": "a", "2": "b"}}, ("id2label",)),
        ({"id2label": {"0": "a", "1": "b"}}, ("2 classes", "has 3")),
        ({"classifier_dropout": 3}, ("classifier_dropout", "3")),
        ({"classifier_dropout": "x"}, ("classifier_dropout", "'x'")),
    ],
    ids=str,
)
def test_a_classifier_that_ours_cannot_be(tuned, tmp_path, changed, names, capsys) -> None:
    exporting.run(tuned, tmp_path / "out")
    config(**changed)(tmp_path / "out")
    message = refused(capsys, "import", f"{tmp_path}/out", f"--workdir={tmp_path}/run")
    assert [x for x in names if x not in message] == []


def test_shards_are_one_checkpoint(folder: pathlib.Path, tmp_path) -> None:
    shutil.copytree(folder, tmp_path / "source")
    indexed()(tmp_path / "source")
    importing.run(str(tmp_path / "source"), tmp_path / "run")
    importing.run(str(folder), tmp_path / "plain")
    sharded, plain = (pretrained.load(tmp_path / name).params for name in ("run", "plain"))
    jax.tree.map(np.testing.assert_array_equal, sharded, plain)


# --- Damaged runs --------------------------------------------------------------------------------


def lacking(*names: str) -> Damage:
    """Removes fields of config.json."""

    def damage(folder: pathlib.Path) -> None:
        values = json.loads((folder / "config.json").read_text())
        kept = {name: x for name, x in values.items() if name not in names}
        (folder / "config.json").write_text(json.dumps(kept))

    return damage


NET = dict(num_heads=2, width=16, num_layers=1, ffn_width=32, max_len=64, dropout_rate=0.1)
DAMAGED_RUNS: dict[str, tuple[Damage, tuple[str, ...]]] = {
    "no tokenizer": (lambda f: shutil.rmtree(f / "tokenizer"), ("tokenizer.json",)),
    "half a tokenizer": (without("tokenizer/special_tokens_map.json"), ("special_tokens_map",)),
    "a damaged tokenizer": (written("tokenizer/tokenizer.json", "{"), ("tokenizer",)),
    **{
        f"{name} {content}": (written(f"tokenizer/{name}", content), ("tokenizer",))
        for name in ("special_tokens_map.json", "tokenizer_config.json")
        for content in ("[]", "5", "null", '{"pad_token": 5}')
        if (name, content) != ("tokenizer_config.json", '{"pad_token": 5}')
    },
    "no net": (lacking("net"), ("net.num_heads",)),
    "nothing but a task": (written("config.json", '{"task": "x"}'), ("head.kind",)),
    "a list": (written("config.json", "[1]"), ("run",)),
    "a deep config": (written("config.json", DEEP), ("config.json",)),
    "labels of no sort": (config(labels=3), ("labels = 3",)),
    "other labels": (config(labels=["a", "b"]), ("head/out/bias", "(2,)", "(3,)")),
    "another net": (config(net=NET), ("(16,)", "(8,)")),
    "a family without a map": (config(system="electra"), ("electra", "gpt2")),
    "scores of a regression": (config(regression=True, labels=None), ("(1,)", "(3,)")),
    "a config that is a folder": (as_folder("config.json"), ("config.json",)),
    "no checkpoints": (lambda f: shutil.rmtree(f / "checkpoints"), ("checkpoints",)),
    "an empty checkpoint": (
        lambda f: [shutil.rmtree(p) for p in (f / "checkpoints").iterdir() if p.is_dir()],
        ("parameters",)),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGED_RUNS)
def test_a_damaged_run(tuned: pathlib.Path, tmp_path, name: str, capsys) -> None:
    damage, names = DAMAGED_RUNS[name]
    shutil.copytree(tuned, tmp_path / "run")
    damage(tmp_path / "run")
    message = refused(capsys, "export", f"{tmp_path}/run", f"--to={tmp_path}/deep/out")
    assert [x for x in names if x not in message] == []
    assert [p.name for p in tmp_path.iterdir()] == ["run"]  # nothing is left behind


@pytest.mark.parametrize(
    ("system", "kind", "changed", "reason"),
    [
        ("gpt2", "double", {}, "GPT2ForSequenceClassification .*two layers"),
        ("bert", "single", {}, "BertForSequenceClassification .*one layer"),
        ("gpt", "single", {"relation": "similarity"}, "both orders"),
        ("bert", "double", {"feature_layers": 2}, "several layers"),
    ],
)
def test_a_classifier_that_no_class_can_hold(
    pretrained_runs: Runs, tmp_path, system: str, kind: str, changed: Any, reason: str
) -> None:
    fine_tuned.make(pretrained_runs(system), tmp_path / "run", kind, **changed)
    with pytest.raises(ValueError, match=reason):
        exporting.run(tmp_path / "run", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_folder_above_the_seeds(tuned: pathlib.Path, tmp_path) -> None:
    with pytest.raises(ValueError, match="good, other"):
        exporting.run(tuned.parent, tmp_path / "out")


def test_a_hugging_face_folder_is_to_be_imported_first(folder: pathlib.Path, tmp_path) -> None:
    command = f"interop.hf import {folder} --workdir"
    with pytest.raises(ValueError, match=command):
        pretrained.load(str(folder))
    with pytest.raises(ValueError, match=command):
        exporting.run(folder, tmp_path / "out")


# --- Arguments and the hub -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["imprt", "x"], "'import'"),
        (["import", "x"], "--workdir"),
        (["import", "./nowhere", "--workdir=y"], "./nowhere"),
        (["export", "nowhere", "--to=y"], "nowhere"),
        ([], "{import,export}"),
    ],
)
def test_arguments(arguments: list[str], name: str, capsys: pytest.CaptureFixture) -> None:
    message = refused(capsys, *arguments)
    assert name in message and message.count("\n") == 1


def test_a_dangling_link_is_no_target(tuned: pathlib.Path, tmp_path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    with pytest.raises(ValueError, match="--to=.* link"):
        exporting.run(tuned, tmp_path / "link")
    with pytest.raises(ValueError, match="--workdir=.* link"):
        importing.run(str(tuned), tmp_path / "link")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt"])
def test_a_pickle_as_source(tmp_path, name: str) -> None:
    (tmp_path / name).write_bytes(b"\x80\x02")
    with pytest.raises(ValueError, match=f"{name}: a pickle"):
        importing.run(str(tmp_path / name), tmp_path / "run")


def test_a_name_on_the_hub(folder: pathlib.Path, tmp_path, monkeypatch, capsys) -> None:
    import huggingface_hub

    asked = []

    def download(name: str, *, allow_patterns: list[str]) -> str:
        asked.append((name, allow_patterns))
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    monkeypatch.setattr(sys, "argv", ["hf", "import", "some/bert", f"--workdir={tmp_path / 'run'}"])
    hf.main()
    assert "some/bert" in capsys.readouterr().out
    assert asked[0][0] == "some/bert" and "*.bin" not in asked[0][1]
    result = json.loads((tmp_path / "run/result.json").read_text())
    assert result["imported"]["source"] == "some/bert"

    def refuse(*_: Any, **__: Any) -> str:
        raise ConnectionError("no route to host")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    with pytest.raises(ValueError, match="some/bert.*no route to host"):
        importing.run("some/bert", tmp_path / "other")


def test_a_pickle_on_the_hub_is_not_fetched(folder: pathlib.Path, tmp_path, monkeypatch) -> None:
    import huggingface_hub

    shutil.copytree(folder, tmp_path / "out")
    without(WEIGHTS)(tmp_path / "out")
    fetched = lambda *_, **__: str(tmp_path / "out")  # noqa: E731
    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetched)
    names = ["config.json", "pytorch_model.bin", "vocab.txt"]
    monkeypatch.setattr(huggingface_hub, "list_repo_files", lambda name: names)
    with pytest.raises(ValueError, match="some/one .*pytorch_model.bin: a pickle"):
        importing.run("some/one", tmp_path / "run")

    def unreachable(name: str) -> list[str]:
        raise ConnectionError("no route to host")

    monkeypatch.setattr(huggingface_hub, "list_repo_files", unreachable)
    with pytest.raises(ValueError, match=WEIGHTS):
        importing.run("some/one", tmp_path / "run")
