"""BART's published sizes and exports; tests/interop/test_parity.py compares it with its class."""

import json
import pathlib
from collections.abc import Callable
from typing import Any

import glue_folder
import in_process
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import subjects
import tiny
from safetensors import numpy as safetensors

from scalelab import objectives, step, systems
from scalelab.eval import program
from scalelab.interop import exporting, importing
from scalelab.systems import bart


def test_the_base_model_has_the_published_number_of_parameters() -> None:
    """139,420,416 with two rows of each table of positions that nothing uses."""
    sizes = systems.Sizes(12, 768, 6, ffn_width=3072, max_len=1024, dropout_rate=0.1)
    net, terms = bart.build(sizes, None, 50_265), tiny.terms(bart, "seq2seq", size=50_265)
    params = objectives.abstract_variables(net, terms, max_len=16)["params"]
    assert sum(x.size for x in jax.tree.leaves(params)) == 139_420_416 - 4 * 768


def test_a_bias_of_scores_is_refused(wikitext: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """The class has a buffer of them, which published models leave at 0."""
    tiny.write_run(tmp_path / "run", "bart", wikitext, tmp_path / "cache")
    exporting.run(tmp_path / "run", out := tmp_path / "out")
    file = out / "model.safetensors"
    bias = {"final_logits_bias": np.zeros((1, 300), np.float32)}
    safetensors.save_file(safetensors.load_file(file) | bias, file)
    importing.run(str(out), tmp_path / "zeros")
    bias["final_logits_bias"][0, 7] = 0.5
    safetensors.save_file(safetensors.load_file(file) | bias, file)
    with pytest.raises(ValueError, match="final_logits_bias is not zero"):
        importing.run(str(out), tmp_path / "others")


@pytest.mark.parametrize(
    ("fields", "message"),
    [({"model__output_embedding": "untied"}, "tie_word_embeddings .*model.output_embedding"),
     ({"model__norm_epsilon": 0.01}, "norm_epsilon is 0.01")],
)  # fmt: skip
def test_what_the_class_lacks_is_not_exported(
    wikitext: pathlib.Path, tmp_path: pathlib.Path, fields: dict[str, str], message: str
) -> None:
    tiny.write_run(tmp_path / "run", "bart", wikitext, tmp_path / "cache", **fields)
    with pytest.raises(ValueError, match=message):
        exporting.run(tmp_path / "run", tmp_path / "out")


@pytest.mark.ci
@pytest.mark.parametrize(
    ("task", "kind", "name"),
    [("rte", "double", "BartForSequenceClassification"),
     ("squad", "single", "BartForQuestionAnswering")],
)  # fmt: skip
def test_a_fine_tuning_is_exported_and_scores_the_same_when_it_is_back(
    pretrained_runs: Callable[[str], pathlib.Path], cache_dir: pathlib.Path, tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str], task: str, kind: str, name: str,
) -> None:  # fmt: skip
    """Without --as=text: a class, and a span of the text."""
    data = glue_folder.write(tmp_path / "data")
    (data / "squad").mkdir()
    asked = {"question": "Who?", "id": "q", "answers": [{"text": "Ada", "answer_start": 0}]}
    article = {"title": "t", "paragraphs": [{"context": "Ada saw it.", "qas": [asked]}]}
    for split in ("train", "dev"):
        text = json.dumps({"data": [article], "version": "1.1"})
        (data / f"squad/{split}-v1.1.json").write_text(text)
    fields = {"batch_size": 1, "epochs": 2.0, "max_len": 64, "machine.cache_dir": cache_dir,
              "machine.compile_cache_dir": None, "machine.tracker": None}  # fmt: skip
    flags = [task, f"--data={data}", *(f"--config.{k}={value}" for k, value in fields.items())]

    def score(init: pathlib.Path, work: pathlib.Path, *more: str) -> Any:
        given = [*flags, f"--init={init}", f"--workdir={work}", *more]
        assert in_process.code(program, given) == 0, capsys.readouterr().err
        return json.loads((work / "seed0/result.json").read_text())

    first = score(pretrained_runs("bart"), tmp_path / "work")
    assert first["settings"]["head.kind"] == kind and first["steps"] > 0
    exporting.run(tmp_path / "work/seed0", out := tmp_path / "out")
    config = json.loads((out / "config.json").read_text())
    assert config["architectures"] == [name]
    importing.run(str(out), tmp_path / "back")
    again = score(tmp_path / "back", tmp_path / "scored", "--eval_only")
    assert again["eval"] == first["eval"] and again["steps"] == 0


@pytest.mark.ci
def test_without_noise_it_learns_to_copy() -> None:
    """The loss of a batch of copies goes to 0, by the sources: those of others give a high loss."""
    subject = subjects.get("bart")
    now, batch = subject.state(), tiny.batch(subject.module, 1)
    batch |= {"source": batch["tokens"], "source_lengths": batch["lengths"]}
    for rate in np.repeat(np.float32([1e-2, 1e-3]), 200):
        now, _ = subject.run(now, subject.put(batch), jnp.float32(rate))
    evaluate = jax.jit(step.make_eval_step(subject.parts.net, subject.parts.terms))

    def loss(**changes: np.ndarray) -> float:
        metrics, _ = evaluate(now.params, batch | changes, jax.random.key(0))
        total, weight = metrics["seq2seq_loss"]
        return float(total / weight)

    assert loss() < 0.1
    others = {name: np.roll(batch[name], 1, axis=0) for name in ("source", "source_lengths")}
    assert loss(**others) > 1
