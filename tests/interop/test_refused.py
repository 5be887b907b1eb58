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
from safetensors.numpy import load_file, save_file

from scalelab import pretrained
from scalelab.interop import exporting, hf, importing

pytestmark = pytest.mark.slow

Runs = Callable[[str], pathlib.Path]


@pytest.fixture(scope="module")
def good(pretrained_runs: Runs, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A sound folder; do not write into it."""
    folder = tmp_path_factory.mktemp("good") / "bert"
    exporting.run(pretrained_runs("bert"), folder)
    return folder


def tensors(**changed: Any) -> Callable[[pathlib.Path], None]:
    """Replaces tensors, by the end of their names; None removes."""

    def damage(folder: pathlib.Path) -> None:
        file = folder / "model.safetensors"
        found = load_file(file)
        for end, value in changed.items():
            end = end.replace("__", ".")
            (name,) = [n for n in found if n.endswith(end)] or [end]
            old = found.pop(name, None)
            if value is not None:
                found[name] = value(old)
        save_file(found, file)

    return damage


def config(**changed: Any) -> Callable[[pathlib.Path], None]:
    def damage(folder: pathlib.Path) -> None:
        values = json.loads((folder / "config.json").read_text()) | changed
        (folder / "config.json").write_text(json.dumps(values))

    return damage


def raw(change: Callable[[bytes], bytes]) -> Callable[[pathlib.Path], None]:
    def damage(folder: pathlib.Path) -> None:
        file = folder / "model.safetensors"
        file.write_bytes(change(file.read_bytes()))

    return damage


def header(change: Callable[[dict], None]) -> Callable[[pathlib.Path], None]:
    """Changes the header of the file of tensors."""

    def rewrite(data: bytes) -> bytes:
        (length,) = struct.unpack("<Q", data[:8])
        entries = json.loads(data[8 : 8 + length])
        change(entries)
        new = json.dumps(entries).encode()
        return struct.pack("<Q", len(new)) + new + data[8 + length :]

    return raw(rewrite)


def beyond(entries: dict) -> None:
    name = next(name for name in entries if name.endswith("word_embeddings.weight"))
    begin, _ = entries[name]["data_offsets"]
    entries[name] |= {"shape": [10**6, 8], "data_offsets": [begin, begin + 32 * 10**6]}


def disagree(entries: dict) -> None:
    name = next(name for name in entries if name.endswith("word_embeddings.weight"))
    entries[name]["shape"] = [7, 7]


def pickled(folder: pathlib.Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def indexed(**places: str) -> Callable[[pathlib.Path], None]:
    def damage(folder: pathlib.Path) -> None:
        found = load_file(folder / "model.safetensors")
        (folder / "model.safetensors").rename(folder / "model-00001-of-00001.safetensors")
        all_places = dict.fromkeys(found, "model-00001-of-00001.safetensors") | places
        index = {"metadata": {}, "weight_map": all_places}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))

    return damage


def without(*names: str) -> Callable[[pathlib.Path], None]:
    def damage(folder: pathlib.Path) -> None:
        for name in names:
            (folder / name).unlink()

    return damage


def float64(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float64)


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
