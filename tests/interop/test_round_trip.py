"""Runs and checkpoints go to the other layout and back: bits, dtypes, sizes, token ids, classes."""

import dataclasses
import json
import pathlib
import shutil
from collections.abc import Callable
from typing import Any

import fine_tuned
import in_process
import jax
import ml_dtypes
import numpy as np
import pytest
import tiny
from damage import config, indexed, rename, tensors
from fine_tuned import KINDS, WITH_SOURCE
from safetensors.numpy import load_file

from scalelab import formats, objectives, systems
from scalelab.finetuning import imported
from scalelab.interop import exporting, hf, importing, maps, output_folder
from scalelab.interop.mapping import TASK_HEADS
from scalelab.training import pretrained

pytestmark = pytest.mark.slow

Runs = Callable[[str], pathlib.Path]


def equal(a: Any, b: Any) -> bool:
    same = jax.tree.map(lambda x, y: np.array_equal(x, y) and x.dtype == y.dtype, a, b)
    return all(jax.tree.leaves(same)) and len(jax.tree.leaves(a)) > 10


def there_and_back(folder: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    """Imports a folder and exports it again."""
    importing.run(str(folder), tmp_path / "run")
    exporting.run(tmp_path / "run", tmp_path / "again")
    return tmp_path / "again"


def check_same_tensors(a: pathlib.Path, b: pathlib.Path) -> None:
    before, after = (load_file(folder / "model.safetensors") for folder in (a, b))
    assert before.keys() == after.keys()
    for name, x in before.items():
        assert x.dtype == after[name].dtype and x.shape == after[name].shape, name
        assert x.tobytes() == after[name].tobytes(), name


def settings(folder: pathlib.Path) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_text())


# --- Runs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("system", KINDS)
def test_a_pretraining(pretrained_runs: Runs, tmp_path, system: str) -> None:
    run = pretrained_runs(system)
    opened = pretrained.load(run)
    if systems.parts(opened.system, opened.config.model, opened.config.system_options):
        pytest.skip("it is exported part by part: see its tests")
    exporting.run(run, tmp_path / "out")
    check_same_tensors(tmp_path / "out", there_and_back(tmp_path / "out", tmp_path))
    before, after = pretrained.load(run), pretrained.load(tmp_path / "run")
    assert equal(before.params, after.params) and after.finished and after.step == 0
    for field in ("num_heads", "width", "num_layers", "max_len", "dropout_rate"):
        assert getattr(before.config.model, field) == getattr(after.config.model, field)
    assert before.config.objective == after.config.objective
    assert before.config.tokenizer == after.config.tokenizer
    texts = ["Plain words, and [MASK] <mask> <|endoftext|>.", "żółw 🐢"]
    for text in texts:
        ids = (opened.tokenizer.encode(text) for opened in (before, after))
        np.testing.assert_array_equal(*ids)
    assert before.tokenizer.special_ids == after.tokenizer.special_ids


@pytest.mark.parametrize("system", WITH_SOURCE)
def test_a_classifier(pretrained_runs: Runs, tmp_path, system: str) -> None:
    """Twelve classes, of which 10 is before 2 as text; a GPT's bias, which moves, needs fewer."""
    kind = WITH_SOURCE[system]
    moods = [f"mood {letter}" for letter in {"double": "zyxwvutsrqpo"}.get(kind, "cba")]
    changed = {"task": "moods", "labels": moods}
    run, out = tmp_path / "tuned", tmp_path / "out"
    _, params = fine_tuned.make(pretrained_runs(system), run, kind, len(moods), **changed)
    lines = exporting.run(run, out)
    assert any("special token" in line for line in lines)
    assert settings(out)["id2label"] == {str(i): mood for i, mood in enumerate(moods)}
    config(id2label=dict(sorted(settings(out)["id2label"].items())))(out)
    again = there_and_back(out, tmp_path)
    check_same_tensors(out, again)
    found = pretrained.load_trained(tmp_path / "run")
    if (path := maps.load(system).last_shift) is not None:  # test_transformers.py has its scores
        before, after = imported.flat(params), imported.flat(found)
        assert not after["head/out/bias"].any() and (before[path] != after[path]).any()
        params, found = (
            {k: x for k, x in flat.items() if k not in (path, "head/out/bias")}
            for flat in (before, after)
        )
    assert equal(params, found)
    assert settings(tmp_path / "run")["labels"] == moods
    card = (out / "README.md").read_text()
    assert "fine-tuned on moods" in card and "| dev accuracy | 0.5 |" in card


def test_the_model_card(pretrained_runs: Runs, tmp_path) -> None:
    """An unfinished run has the clocks and the validation at the step of its parameters."""
    run = tmp_path / "run"
    shutil.copytree(pretrained_runs("bert"), run)
    (run / "result.json").unlink()
    lines = [
        {"step": step, "tokens": 100 * step, "flops": 1e6 * step, "seconds": step / 4}
        | {"eval/loss": 7.0 - step, "eval/max_len": 32}
        for step in (2, 3, 4)
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    corpus = f"| corpus | {settings(run)['data']['corpus']} |"
    expected = ["pipeline_tag: fill-mask", corpus, "| 2x8x1 |"]
    expected += ["| tokens | 300 |", "| flops | 3e+06 |", "| 32 loss | 4 |"]
    exporting.run(run, tmp_path / "out")
    card = (tmp_path / "out/README.md").read_text()
    assert [line for line in expected if line not in card] == []


# --- Checkpoints as others store them ------------------------------------------------------------


def more_rows(x: np.ndarray) -> np.ndarray:
    return np.concatenate([x, np.full((4, *x.shape[1:]), 0.5, x.dtype)])


@pytest.mark.parametrize("system", KINDS)
def test_a_padded_vocabulary_and_dtypes(pretrained_runs: Runs, tmp_path, system: str) -> None:
    """Each tensor has the next of three dtypes; ours are float32, without the rows of no token."""
    out = tmp_path / "out"
    exporting.run(pretrained_runs(system), out)
    assert len({path.stat().st_mode for path in out.iterdir()}) == 1  # as the umask has them
    found = load_file(out / "model.safetensors")
    dtypes = (ml_dtypes.bfloat16, np.float32, np.float16)
    rounded = {name: x.astype(dtypes[i % 3]) for i, (name, x) in enumerate(sorted(found.items()))}
    padded = {name: more_rows(x) if len(x) == 300 else x for name, x in rounded.items()}
    tensors(**{name: lambda _, x=x: x for name, x in padded.items()})(out)
    config(vocab_size=304)(out)
    again = there_and_back(out, tmp_path)
    assert settings(again)["vocab_size"] == 300
    for name, x in load_file(again / "model.safetensors").items():
        assert x.dtype == np.float32 and np.array_equal(x, rounded[name].astype(np.float32)), name


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_on_request(
    pretrained_runs: Runs, tmp_path, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    exporting.run(pretrained_runs("gpt"), tmp_path / "whole")
    in_process.run(
        hf, ["export", str(pretrained_runs("gpt")), f"--to={tmp_path}/half", f"--dtype={dtype}"]
    )
    whole, half = (load_file(tmp_path / n / "model.safetensors") for n in ("whole", "half"))
    for name, x in whole.items():
        np.testing.assert_array_equal(half[name], x.astype(getattr(ml_dtypes, dtype, dtype)))
    opened = pretrained.load(pretrained_runs("gpt"))
    large = dataclasses.replace(opened, params=jax.tree.map(lambda x: 0 * x - 7e4, opened.params))
    monkeypatch.setattr(pretrained, "load", lambda *_: large)
    with pytest.raises(ValueError, match=r"\S\.\w+ .*--dtype=float16"):
        exporting.run(pretrained_runs("gpt"), tmp_path / "large", "float16")


def test_a_step_on_request(pretrained_runs: Runs, tmp_path, capsys) -> None:
    run = pretrained_runs("gpt2")
    for name, more in (("new", []), ("3", ["--step=3"]), ("0", ["--step=0"])):
        in_process.run(hf, ["export", str(run), f"--to={tmp_path / name}", *more])
    new, last, first = (load_file(tmp_path / k / "model.safetensors") for k in ("new", "3", "0"))
    assert all((new[name] == x).all() for name, x in last.items())
    assert not any((new[name] == x).all() for name, x in first.items())
    assert json.loads((tmp_path / "0" / output_folder.MARKER).read_text())["step"] == 0
    with pytest.raises(SystemExit) as ended:
        in_process.run(hf, ["export", str(run), f"--to={tmp_path}/other", "--step=2"])
    assert ended.value.code == 2 and "0, 3" in capsys.readouterr().err


def old_norms(name: str) -> str:
    return name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
        "LayerNorm.bias", "LayerNorm.beta"
    )


def without_prefix(name: str) -> str:
    return name.removeprefix("transformer.")


POOLER, MASK = np.ones((8, 8), np.float32), np.tril(np.ones((1, 1, 64, 64), np.float32))


@pytest.mark.parametrize(("system", "change", "more"), [
    ("bert", old_norms, {"bert.embeddings.position_ids": np.arange(64)[None]}),
    ("roberta", str, {"roberta.pooler.dense.weight": POOLER}),
    ("gpt2", without_prefix, {"h.0.attn.bias": MASK}),  # as the hub's gpt2
    ("gpt", without_prefix, {}),
])  # fmt: skip
def test_names_of_other_times(pretrained_runs: Runs, tmp_path, system, change, more) -> None:
    run = pretrained_runs(system)
    exporting.run(run, tmp_path / "out")
    rename(change, **more)(tmp_path / "out")
    indexed()(tmp_path / "out")  # as a shard
    importing.run(str(tmp_path / "out"), tmp_path / "run")
    assert equal(pretrained.load(run).params, pretrained.load(tmp_path / "run").params)


@pytest.mark.parametrize("system", KINDS)
def test_a_table_stored_twice(pretrained_runs: Runs, tmp_path, system: str) -> None:
    """Tied heads may be in the file too, or alone; one that differs must be called untied."""
    name, original = maps.load(system).tied[0]
    out, apart = tmp_path / "out", tmp_path / "alone"
    exporting.run(pretrained_runs(system), out)
    shutil.copytree(out, apart)
    other = {original: name for name, original in maps.load(system).tied}
    rename(lambda name: other.get(name, name))(apart)  # as safetensors.torch.save_model leaves it
    check_same_tensors(out, there_and_back(apart, tmp_path))
    table = load_file(out / "model.safetensors")[original]
    rename(str, **{name: table})(out)
    importing.run(str(out), tmp_path / "back")
    rename(str, **{name: table + 1})(out)
    with pytest.raises(ValueError, match=f"{name} differs from {original}"):
        importing.run(str(out), tmp_path / "no")


# --- Maps ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("system", KINDS)
def test_maps_and_nets_name_each_other(system: str) -> None:
    """What a map says of a model is so: epsilons, objectives, and rows that are used once."""
    assert {m.system for m in maps.load_all()} <= set(tiny.SYSTEMS)
    family, module = maps.load(system), systems.load(system)
    (epsilon,) = (choice.own for choice in family.choices if choice.name == "norm_epsilon")
    assert epsilon == module.LAYER_NORM_EPSILON
    options = getattr(module, "Options", None)
    names = {field.name for field in dataclasses.fields(options)} if options else set()
    assert names >= {field.name for field in family.options} | family.required.keys()
    for architecture in family.architectures:
        rows = family.rows(architecture)
        for names in ([p for r in rows for p in r.paths], [n for r in rows for n in r.tensors]):
            assert len(set(names)) == len(names)
        served = [head for head in architecture.heads if head not in TASK_HEADS]
        needed = [array for name in served for array in objectives.load(name).NEEDS]
        made = next(iter(formats.declarations(needed[0]))) if needed else "segment_pair"
        objectives.check(served, heads=module.HEADS, sees=module.SEES, format=made)
        scores_tokens = any(name.endswith("lm") for name in served)
        assert architecture.predicts == (module.PREDICTS if scores_tokens else None)
