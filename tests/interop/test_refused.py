"""Mistakes end in one message that says what was expected, what came, and what to do."""

import json
import pathlib
import shutil
import struct
import sys
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from damage import config, header, indexed, raw, tensors, without, written

from scalelab.interop import exporting, hf, importing
from scalelab.runs import pretrained

pytestmark = pytest.mark.slow

Runs = Callable[[str], pathlib.Path]


@pytest.fixture(scope="module")
def good(pretrained_runs: Runs, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A sound folder; do not write into it."""
    folder = tmp_path_factory.mktemp("good") / "bert"
    exporting.run(pretrained_runs("bert"), folder)
    return folder


def beyond(entries: dict) -> None:
    name = next(name for name in entries if name.endswith("word_embeddings.weight"))
    begin, _ = entries[name]["data_offsets"]
    entries[name] |= {"shape": [10**6, 8], "data_offsets": [begin, begin + 32 * 10**6]}


def disagree(entries: dict) -> None:
    name = next(name for name in entries if name.endswith("word_embeddings.weight"))
    entries[name]["shape"] = [7, 7]


def overlap(entries: dict) -> None:
    both = [entries[n] for n in entries if n.endswith(("query.bias", "key.bias"))]
    first = min(entry["data_offsets"] for entry in both)
    for entry in both:
        entry["data_offsets"] = first


def hole(entries: dict) -> None:
    entries.pop("bert.encoder.layer.0.attention.self.query.bias")


def deep(data: bytes) -> bytes:
    return struct.pack("<Q", len(DEEP)) + DEEP.encode() + data


def no_vocabulary(folder: pathlib.Path) -> None:
    without(*TOKENIZER)(folder)
    (folder / "vocab.txt").touch()


def pickled(folder: pathlib.Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def float64(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float64)


DEEP = "[" * 200_000
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
# What is done to a sound folder, and what the message must say.
DAMAGES = {
    "empty": (raw(lambda data: b""), "truncated or no safetensors file"),
    "cut": (raw(lambda data: data[:-100]), r"truncated: its header puts .* at bytes"),
    "cut in the header": (raw(lambda data: data[:100]), "promise a header of .* the file has 100"),
    "not safetensors": (raw(lambda data: b"PK\3\4" * 99), "promise a header of"),
    "header of garbage": (
        raw(lambda data: data[:8] + b"x" * (len(data) - 8)),
        "corrupt: its header cannot be read",
    ),
    "longer than its header": (raw(lambda data: data + b"more"), "of which its header explains"),
    "header beyond the file": (header(beyond), "word_embeddings.weight at bytes .* only"),
    "header against itself": (header(disagree), r"gives .*, F32 \[7, 7\]"),
    "tensors that overlap": (
        header(overlap),
        r"corrupt: its header puts .*(query|key).bias at .* but .*(query|key).bias ends.* overlap",
    ),
    "a hole": (header(hole), "corrupt: .* puts .* ends at .*: they leave 32 bytes between them"),
    "a deep header": (raw(deep), "its header cannot be read .RecursionError"),
    "a deep config": (written("config.json", DEEP), "config.json is damaged .*recursion"),
    "a header of a list": (raw(lambda _: struct.pack("<Q", 2) + b"[]"), r"expected an object, got"),
    "a shape of 4,000 digits": (
        header(lambda entries: list(entries.values())[-1].update(shape=[10**4000])),
        r"whole numbers below 2\^60, found .{,140}fetch it again$",
    ),
    "a size of 4,000 digits": (config(vocab_size=10**4000), "vocab_size = 1000.{,150}$"),
    "classes of one name": (
        config(id2label={"0": "a", "1": "a"}, num_labels=2),
        "id2label = .* gives two classes one name",
    ),
    "padding beyond the vocabulary": (
        config(pad_token_id=10**9),
        "pad_token_id = 1000000000; expected one of its 300 token ids",
    ),
    "a packed tensor": (
        tensors(query__weight=lambda x: np.zeros((8, 3), np.int64)),
        "query.weight in .* has dtype I64",
    ),
    "a config that is a folder": (
        lambda f: ((f / "config.json").unlink(), (f / "config.json").mkdir()),
        "has no config.json .it holds README.md, config.json/",
    ),
    "a deep index": (
        lambda f: (indexed()(f), written("model.safetensors.index.json", DEEP)(f)),
        "index.json is damaged .*recursion",
    ),
    **{
        f"{field} beyond any memory": (
            config(**{field: 10**13}),
            "contradicts the tensors: its sizes .* the files hold",
        )
        for field in ("vocab_size", "max_position_embeddings", "intermediate_size")
    },
    "layers beyond any memory": (config(num_hidden_layers=10**9), "its sizes .*1,000,000,000"),
    "a class that is no name": (config(architectures=[5]), r"architectures = \[5\]; expected"),
    "a family that is no name": (config(model_type=["bert"]), r"unsupported.*\['bert'\]"),
    "tied to no": (config(tie_word_embeddings="no"), "= 'no'; expected true or false"),
    "labels in a list": (config(id2label=["a", "b"]), r"id2label = \['a', 'b'\]; expected an obj"),
    "labels with a gap": (config(id2label={"0": "a", "2": "b"}), "id2label = .*expected an object"),
    "a text of classes": (config(num_labels="3"), "num_labels = '3'; expected a positive"),
    "a text of dropout": (config(classifier_dropout="x"), "dropout = 'x'; expected a probability"),
    "dropout of 3": (config(classifier_dropout=3), "classifier_dropout = 3; expected a prob"),
    "an empty vocabulary": (no_vocabulary, "the tokenizer in .* is empty"),
    "wrong dtype": (
        tensors(pooler__dense__bias=float64),
        r"bert.pooler.dense.bias in .* has dtype F64; expected .*F32, F16, BF16",
    ),
    "integers": (
        tensors(pooler__dense__bias=lambda x: np.zeros(8, np.int32)),
        "has dtype I32",
    ),
    "wrong shape": (
        tensors(pooler__dense__weight=lambda x: np.zeros((8, 9), np.float32)),
        r"bert.pooler.dense.weight: config.json makes it \[8, 8\], the file has \[8, 9\]",
    ),
    "a tensor too many": (
        tensors(bert__extra=lambda _: np.zeros(3, np.float32)),
        "(?s)1 there that are not expected:.*bert.extra",
    ),
    "a tensor too few": (
        tensors(**{"query.bias": None}),
        r"(?s)1 expected that are not there:.*bert.encoder.layer.0.attention.self.query.bias",
    ),
    "no config": (without("config.json"), "no config.json .it holds"),
    "a damaged config": (
        lambda f: (f / "config.json").write_text("{"),
        "config.json is damaged",
    ),
    "no weights": (without("model.safetensors"), "has no model.safetensors and no"),
    "pickle": (pickled, r"pytorch_model.bin: a pickle, and loading one can run .*save_pretrained"),
    "no tokenizer": (without(*TOKENIZER), "has no tokenizer"),
    "a damaged tokenizer": (
        lambda f: (f / "tokenizer.json").write_text("{}"),
        "the tokenizer in .* cannot be read",
    ),
    "unsupported family": (
        config(model_type="t5", architectures=["T5Model"]),
        r"unsupported architecture: .*'t5'.*supported are bert.*GPT2LMHeadModel",
    ),
    "unsupported class": (
        config(architectures=["BertForQuestionAnswering"]),
        "unsupported architecture 'BertForQuestionAnswering': .*supported are BertFor",
    ),
    "nearly a class": (
        config(architectures=["BertModell"]),
        "'BertModell': did you mean 'BertModel'.; supported",
    ),
    "more layers": (
        config(num_hidden_layers=2),
        r"(?s)of 2 layers; 16 expected that are not there:.*bert.encoder.layer.1",
    ),
    "another width": (
        config(hidden_size=16),
        r"(?s)contradicts the tensors.*config.json makes it \[300, 16\], the file has \[300, 8\]",
    ),
    "another vocabulary": (
        config(vocab_size=299),
        "vocab_size = 299, but the tokenizer beside it has ids up to 299",
    ),
    "more rows than the file": (
        config(vocab_size=304),
        r"word_embeddings.weight: config.json makes it \[304, 8\], the file has \[300, 8\]",
    ),
    "heads that do not divide": (config(num_attention_heads=3), "3 attention heads do not divide"),
    "no size": (config(num_hidden_layers="two"), "num_hidden_layers = 'two'; expected a positive"),
    "another activation": (
        config(hidden_act="gelu_new", layer_norm_eps=1e-5),
        r"(?s)cannot compute.*hidden_act = 'gelu_new': expected 'gelu'.*layer_norm_eps = 1e-05",
    ),
    "a decoder": (config(is_decoder=True), "is_decoder = True: expected False"),
    "a decoder perhaps": (config(is_decoder=None), "is_decoder = None: expected False"),
    "a deviation in words": (
        config(initializer_range="x"),
        "^config.json in .* cannot be read: .*initializer_range",
    ),
    "untied without a table": (config(tie_word_embeddings=False), "tie_word_embeddings = false"),
    "an index of lies": (
        indexed(nothing="model-00001-of-00001.safetensors"),
        "puts nothing into model-00001-of-00001.safetensors, where it is not",
    ),
    "an index of absent files": (indexed(nothing="gone.safetensors"), "names gone.safetensors: no"),
    "an index that leads elsewhere": (indexed(nothing="../x.safetensors"), "is damaged"),
    "a run folder": (config(system="bert", machine={}), "is a run folder of scalelab already"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_folder(
    good: pathlib.Path, tmp_path, name: str, capsys: pytest.CaptureFixture
) -> None:
    damage, message = DAMAGES[name]
    shutil.copytree(good, tmp_path / "source")
    damage(tmp_path / "source")
    with pytest.raises(ValueError, match=message):
        importing.run(str(tmp_path / "source"), tmp_path / "run")
    assert [p.name for p in tmp_path.iterdir()] == ["source"]  # nothing is left behind
    with pytest.raises(SystemExit) as end:
        hf.main(["import", str(tmp_path / "source"), f"--workdir={tmp_path / 'run'}"])
    said = capsys.readouterr().err
    assert end.value.code == 2 and said.startswith("error: ") and "Traceback" not in said


def test_sharded_is_whole(good: pathlib.Path, tmp_path) -> None:
    shutil.copytree(good, tmp_path / "source")
    indexed()(tmp_path / "source")
    importing.run(str(tmp_path / "source"), tmp_path / "run")
    importing.run(str(good), tmp_path / "plain")
    sharded, plain = (pretrained.load(tmp_path / name).params for name in ("run", "plain"))
    jax.tree.map(np.testing.assert_array_equal, sharded, plain)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["imprt", "x"], "unknown command 'imprt': did you mean 'import'"),
        (["import", "x"], "required: --workdir"),
        (["import", "./nowhere", "--workdir=y"], "no folder './nowhere'"),
        (["export", "nowhere", "--to=y"], "no run in 'nowhere'"),
        ([], "required: {import,export}"),
    ],
)
def test_arguments(arguments: list[str], message: str, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as end:
        hf.main(arguments)
    said = capsys.readouterr().err
    assert end.value.code == 2 and message in said and said.count("\n") == 1


def test_a_name_on_the_hub(
    good: pathlib.Path, tmp_path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    import huggingface_hub

    asked = []

    def download(name: str, *, allow_patterns: list[str]) -> str:
        asked.append((name, allow_patterns))
        return str(good)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    monkeypatch.setattr(
        sys, "argv", ["hf", "import", "someone/bert", f"--workdir={tmp_path / 'run'}"]
    )
    hf.main()
    assert "from someone/bert" in capsys.readouterr().out
    assert asked[0][0] == "someone/bert" and "*.bin" not in asked[0][1]
    result = json.loads((tmp_path / "run/result.json").read_text())
    assert result["imported"]["source"] == "someone/bert"

    def refuse(*_: Any, **__: Any) -> str:
        raise ConnectionError("no route to host")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    with pytest.raises(ValueError, match="the hub gives no model.*no route to host"):
        importing.run("someone/bert", tmp_path / "other")
