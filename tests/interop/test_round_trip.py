"""Our runs to Hugging Face layout and back: every bit, and what is refused."""

import json
import pathlib
import shutil
from collections.abc import Callable
from typing import Any

import fine_tuned
import jax
import numpy as np
import pytest
import tiny
from damage import rename
from safetensors.numpy import load_file, save_file

from scalelab import finetune
from scalelab.config.finetuning import override
from scalelab.config.finetuning import resolve as resolve_finetuning
from scalelab.config.pretraining import resolve
from scalelab.eval.tsv import make_task
from scalelab.finetuning import run as finetune_run
from scalelab.finetuning import warm_start
from scalelab.interop import exporting, importing, maps
from scalelab.runs import pretrained
from scalelab.tasks.task import load

pytestmark = pytest.mark.slow

Runs = Callable[[str], pathlib.Path]


def equal(a: Any, b: Any) -> bool:
    same = jax.tree.map(lambda x, y: np.array_equal(x, y) and x.dtype == y.dtype, a, b)
    return all(jax.tree.leaves(same)) and len(jax.tree.leaves(a)) > 10


@pytest.mark.parametrize("system", tiny.SYSTEMS)
def test_a_pretraining_there_and_back(pretrained_runs: Runs, tmp_path, system: str) -> None:
    run = pretrained_runs(system)
    exporting.run(run, tmp_path / "out")
    said = importing.run(str(tmp_path / "out"), tmp_path / "back")
    assert said[0].startswith(str(tmp_path / "back")) and len(said) == 2
    before, after = pretrained.load(run), pretrained.load(tmp_path / "back")
    assert equal(before.params, after.params)
    assert after.finished and after.step == 0
    for field in ("num_heads", "width", "num_layers", "max_len", "dropout_rate"):
        assert getattr(before.config.net, field) == getattr(after.config.net, field)
    assert before.config.objective == after.config.objective
    assert before.config.tokenizer == after.config.tokenizer
    texts = ["Plain words, and [MASK] <mask> <|endoftext|>.", "żółw 🐢"]
    for a, b in zip(
        before.tokenizer.encode_batch(texts), after.tokenizer.encode_batch(texts), strict=True
    ):
        np.testing.assert_array_equal(a, b)
    assert before.tokenizer.special_ids == after.tokenizer.special_ids
    exporting.run(tmp_path / "back", tmp_path / "again")
    a, b = ((tmp_path / x / "model.safetensors").read_bytes() for x in ("out", "again"))
    assert a == b


def test_the_model_card_says_what_it_is(pretrained_runs: Runs, tmp_path) -> None:
    run = tmp_path / "run"
    shutil.copytree(pretrained_runs("bert"), run)
    config = resolve(json.loads((run / "config.json").read_text()))
    result = json.loads((run / "result.json").read_text())
    result |= {"params": 4321, "tokens": 12_345, "flops": 6.7e9, "seconds": 8.9}
    result["eval"]["32"] |= {"mlm_loss": 5.25, "nsp_accuracy": 0.5}
    (run / "result.json").write_text(json.dumps(result))
    environment = {"command": "python -m scalelab.train --x|y", "git_commit": "c0ffee"}
    environment |= {"git_dirty": True, "packages": {"jax": "1.2"}}
    (run / "environment.json").write_text(json.dumps(environment))
    said = exporting.run(run, tmp_path / "out")
    assert "BertForPreTraining" in said[0]
    card = (tmp_path / "out/README.md").read_text()
    for expected in (
        "pipeline_tag: fill-mask",
        f"| corpus | {config.data.corpus} |",
        "| 2x8x1 |",
        "| parameters | 4,321 |",
        "| steps | 3 |",
        "| tokens | 12,345 |",
        "| flops | 6.7e+09 |",
        "| seconds | 8.9 |",
        "| 32 mlm_loss | 5.25 |",
        "| command | `python -m scalelab.train --x\\|y` |",
        "| commit | c0ffee, with local changes |",
        "| packages | jax 1.2 |",
    ):
        assert expected in card, expected


def test_an_export_may_be_made_anew_but_nothing_else_is_touched(
    pretrained_runs: Runs, tmp_path
) -> None:
    run = pretrained_runs("gpt2")
    exporting.run(run, tmp_path / "out")
    exporting.run(run, tmp_path / "out")
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.tex").touch()
    with pytest.raises(ValueError, match="--to=.*thesis.tex"):
        exporting.run(run, other)
    with pytest.raises(ValueError, match="--workdir=.*thesis.tex"):
        importing.run(str(tmp_path / "out"), other)
    assert [p.name for p in sorted(tmp_path.iterdir())] == ["other", "out"]
    with pytest.raises(ValueError, match="no run in"):
        exporting.run(other, tmp_path / "new")


KINDS = {"bert": "double", "roberta": "double", "gpt": "single", "gpt2": "single"}


@pytest.mark.parametrize("system", ["bert", "roberta"])
def test_a_classifier_there_and_back(pretrained_runs: Runs, tmp_path, system: str) -> None:
    moods = ["sun", "rain", "between"]
    changed = {"task": "moods", "labels": moods}
    _, params = fine_tuned.make(pretrained_runs(system), tmp_path / "run", "double", **changed)
    exporting.run(tmp_path / "run", tmp_path / "out")
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert config["id2label"] == {str(i): mood for i, mood in enumerate(moods)}
    importing.run(str(tmp_path / "out"), tmp_path / "back")
    assert equal(params, pretrained.load_trained(tmp_path / "back"))
    exporting.run(tmp_path / "back", tmp_path / "again")
    a, b = ((tmp_path / x / "model.safetensors").read_bytes() for x in ("out", "again"))
    assert a == b
    card = (tmp_path / "out/README.md").read_text()
    assert "fine-tuned on moods" in card and "| dev accuracy | 0.5 |" in card
    with pytest.raises(ValueError, match="--eval_only"):
        pretrained.load(tmp_path / "back")


def test_a_second_table_trained_beside_the_task_stays_here(
    pretrained_runs: Runs, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an untied GPT's with lm_weight: the class of a classifier scores no tokens."""
    fine_tuned.make(pretrained_runs("gpt2"), tmp_path / "run", "single")
    flat, step = exporting._restore_classifier(tmp_path / "run")
    more = flat | {"output_embed/table": np.zeros_like(flat["embed/tokens/table"])}
    monkeypatch.setattr(exporting, "_restore_classifier", lambda _: (more, step))
    exporting.run(tmp_path / "run", tmp_path / "out")
    assert not any("lm_head" in name for name in load_file(tmp_path / "out/model.safetensors"))


@pytest.mark.slow
@pytest.mark.parametrize(("system", "kind"), [("bert", "double"), ("gpt2", "single")])
def test_what_a_fine_tuning_leaves(
    pretrained_runs: Runs, cache_dir: pathlib.Path, tmp_path, system: str, kind: str
) -> None:
    data = tmp_path / "moods"
    data.mkdir()
    rows = "text\tmood\n" + "go up\tsun\nno\train\nby me\tsun\ndo go\train\n" * 4
    for name in ("train.tsv", "dev.tsv"):
        (data / name).write_text(rows)
    task = make_task(data, "classification", ["text", "mood"])
    values = tiny.config_module("finetune").get_config().to_dict()
    small = {"epochs": 1.0, "batch_size": 8, "max_len": 32, "head.kind": kind}
    small |= {"machine.cache_dir": str(cache_dir), "machine.compile_cache_dir": None}
    run = finetune_run.TaskRun(
        task,
        load(task, data, tests=False),
        warm_start.open_start(str(pretrained_runs(system))),
        resolve_finetuning(override(values, small)),
        tmp_path / "moods-run",
    )
    finetune.train(run, [0])
    said = exporting.run(tmp_path / "moods-run/seed0", tmp_path / "out")
    assert "ForSequenceClassification" in said[0]
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert config["id2label"] == {"0": "rain", "1": "sun"}
    assert "fine-tuned on moods" in (tmp_path / "out/README.md").read_text()
    importing.run(str(tmp_path / "out"), tmp_path / "back")
    before, after = (pretrained.load_trained(tmp_path / p) for p in ("moods-run/seed0", "back"))
    assert equal(before, after)


@pytest.mark.parametrize(
    ("system", "change", "more"),
    [
        # As the first releases have it.
        (
            "bert",
            lambda n: n.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
                "LayerNorm.bias", "LayerNorm.beta"
            ),
            {"bert.embeddings.position_ids": np.arange(64)[None]},
        ),
        ("roberta", lambda n: n, {"roberta.pooler.dense.weight": np.zeros((8, 8), np.float32)}),
        # As the hub's gpt2: no prefix, and the causal mask in the file.
        (
            "gpt2",
            lambda n: n.removeprefix("transformer."),
            {
                "h.0.attn.bias": np.tril(np.ones((1, 1, 64, 64), np.float32)),
                "h.0.attn.masked_bias": np.array(-1e4, np.float32),
            },
        ),
        ("gpt", lambda n: n.removeprefix("transformer."), {}),
    ],
)
def test_names_of_other_times(pretrained_runs: Runs, tmp_path, system, change, more) -> None:
    run = pretrained_runs(system)
    exporting.run(run, tmp_path / "out")
    rename(change, **more)(tmp_path / "out")
    importing.run(str(tmp_path / "out"), tmp_path / "back")
    assert equal(pretrained.load(run).params, pretrained.load(tmp_path / "back").params)


@pytest.mark.parametrize("system", tiny.SYSTEMS)
def test_a_table_stored_twice(pretrained_runs: Runs, tmp_path, system: str) -> None:
    """Tied heads may be in the file; one that differs must be called untied (test_untied.py)."""
    name, original = maps.load(system).tied[0]
    exporting.run(pretrained_runs(system), tmp_path / "out")
    table = load_file(tmp_path / "out/model.safetensors")[original]
    rename(lambda n: n, **{name: table})(tmp_path / "out")
    importing.run(str(tmp_path / "out"), tmp_path / "back")
    rename(lambda n: n, **{name: table + 1})(tmp_path / "out")
    with pytest.raises(ValueError, match=f"{name} differs from {original}"):
        importing.run(str(tmp_path / "out"), tmp_path / "again")


def test_half_precision_becomes_float32(pretrained_runs: Runs, tmp_path) -> None:
    exporting.run(pretrained_runs("gpt2"), tmp_path / "whole")
    said = exporting.run(pretrained_runs("gpt2"), tmp_path / "half", "float16")
    assert any("float16" in line for line in said)
    whole, half = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "half"))
    assert whole.keys() == half.keys() and {x.dtype for x in half.values()} == {np.dtype("f2")}
    for name, x in half.items():
        np.testing.assert_array_equal(x, whole[name].astype(np.float16))
    importing.run(str(tmp_path / "half"), tmp_path / "back")
    table = pretrained.load(tmp_path / "back").params["embed"]["tokens"]["table"]
    np.testing.assert_array_equal(table, half["transformer.wte.weight"].astype(np.float32))
    assert table.dtype == np.float32


def test_half_precision_is_refused_where_it_overflows() -> None:
    with pytest.raises(ValueError, match="w .*--dtype=float16"):
        exporting._round("w", np.array([1.0, -7e4], np.float32), "float16")


def test_a_padded_vocabulary_is_cut_and_given_back(pretrained_runs: Runs, tmp_path) -> None:
    exporting.run(pretrained_runs("bert"), tmp_path / "out")
    file = tmp_path / "out/model.safetensors"
    tensors = load_file(file)
    for name in ("bert.embeddings.word_embeddings.weight", "cls.predictions.bias"):
        more = np.full((4, *tensors[name].shape[1:]), 0.5, np.float32)
        tensors[name] = np.concatenate([tensors[name], more])
    save_file(tensors, file, metadata={"format": "pt"})
    config = json.loads((tmp_path / "out/config.json").read_text()) | {"vocab_size": 304}
    (tmp_path / "out/config.json").write_text(json.dumps(config))
    said = importing.run(str(tmp_path / "out"), tmp_path / "back")
    assert "304" in said[2] and "300" in said[2]
    opened = pretrained.load(tmp_path / "back")
    assert opened.params["embed"]["tokens"]["table"].shape == (300, 8)
    exporting.run(tmp_path / "back", tmp_path / "again")
    again = load_file(tmp_path / "again/model.safetensors")
    assert again.keys() == tensors.keys()
    assert all(np.array_equal(again[name], x) for name, x in tensors.items())


@pytest.mark.parametrize("system", tiny.SYSTEMS)
def test_maps_and_nets_name_each_other(system: str) -> None:
    """What a map says of a net is so: epsilons, special fields, and rows that are used once."""
    from scalelab import systems
    from scalelab.interop.transforms import TRANSFORMS

    family, module = maps.load(system), systems.load(system)
    epsilon = next(f for f in family.fixed if f.theirs.startswith("layer_norm_eps"))
    assert epsilon.values == (module.LAYER_NORM_EPSILON,)
    for architecture in family.architectures:
        rows = family.rows(architecture)
        assert {r.transform for r in rows} <= TRANSFORMS.keys()
        for names in ([p for r in rows for p in r.ours], [n for r in rows for n in r.theirs]):
            assert len(set(names)) == len(names)
        assert set(architecture.serves) <= set(module.OBJECTIVES)
    assert family.head_kind in ("single", "double")


def test_every_system_has_a_map() -> None:
    assert sorted(m.system for m in maps.load_all()) == tiny.SYSTEMS


def test_the_card_of_an_unfinished_run(pretrained_runs: Runs, tmp_path) -> None:
    """All clocks and the last validation up to the step of the parameters, and none after it."""
    run = tmp_path / "run"
    shutil.copytree(pretrained_runs("bert"), run)
    (run / "result.json").unlink()
    clocks = [(2, 200, 2e6, 0.5), (3, 300, 3e6, 0.75), (4, 400, 4e6, 1.0)]
    lines = [
        {"step": step, "tokens": tokens, "flops": cost, "seconds": secs}
        | {"eval/loss": 7.0 - step, "eval/max_len": 32}
        for step, tokens, cost, secs in clocks
    ]
    for kept, expected in (
        (lines, ("| tokens | 300 |", "| flops | 3e+06 |", "| seconds | 0.75 |", "| 32 loss | 4 |")),
        (
            lines[:1],
            ("| tokens | 200 by step 2 |", "| seconds | 0.5 by step 2 |", "| 32 loss | 5 |"),
        ),
        ([], ()),
    ):
        (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in kept))
        exporting.run(run, tmp_path / "out")
        card = (tmp_path / "out/README.md").read_text()
        count = sum(x.size for x in jax.tree.leaves(pretrained.load(run).params))
        for line in (
            f"| parameters | {count:,} |", *expected,
        ):  # fmt: skip
            assert line in card, (line, card)


def test_both_ways_tell_that_special_tokens_in_a_text_are_text(
    pretrained_runs: Runs, tmp_path
) -> None:
    fine_tuned.make(pretrained_runs("bert"), tmp_path / "run", "double")
    of_classifier = exporting.run(tmp_path / "run", tmp_path / "out")
    of_import = importing.run(str(tmp_path / "out"), tmp_path / "back")
    of_masked = exporting.run(pretrained_runs("bert"), tmp_path / "x")
    told = [any("special token" in x for x in y) for y in (of_classifier, of_import, of_masked)]
    assert told == [True, True, False]
