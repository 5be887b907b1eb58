"""Heads with a table of their own (tie_word_embeddings = false): parity, and there and back."""

import pathlib
from typing import Any

import numpy as np
import pytest
import tiny
from damage import config, rename
from safetensors.numpy import load_file

from scalelab.config.pretraining import resolve
from scalelab.interop import exporting, importing, maps
from scalelab.runs import pretrained

pytestmark = pytest.mark.parity
torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install '.[parity]'")
import peers  # noqa: E402
import real_text  # noqa: E402
import sides  # noqa: E402
import transformers  # noqa: E402
from test_parity import GRADIENT_TOLERANCE, TOLERANCE, WRONG  # noqa: E402
from test_transformers import save, token_logits  # noqa: E402

SHAPE, LENGTH = (3, 24, 2), 12
UNTIED = {"tie_word_embeddings": False}


@pytest.fixture
def theirs(tmp_path: pathlib.Path, request: pytest.FixtureRequest) -> tuple[Any, pathlib.Path]:
    """A model whose every parameter is drawn by itself, and its folder."""
    system = request.node.callspec.params["system"]
    model = peers.make(system, SHAPE, LENGTH, vocab_size=real_text.VOCAB, **UNTIED)
    save(model, system, tmp_path / "theirs")
    return model, tmp_path / "theirs"


def close(run: pathlib.Path, model: Any) -> float:
    """How far apart logits are, in units of the largest."""
    opened = pretrained.load(run)
    row = real_text.batch(opened.config.system, 0, length=LENGTH)["tokens"][:1, : LENGTH // 2]
    out = model(input_ids=torch.tensor(row.astype(np.int64)))
    logits = out.prediction_logits if hasattr(out, "prediction_logits") else out.logits
    return sides.relative(token_logits(opened, row), logits.detach().numpy())


@pytest.mark.parametrize("system", tiny.SYSTEMS)
def test_losses_and_gradients_are_theirs(system: str) -> None:
    """Of every parameter, the second table among them; scored with the first they are not."""
    shape, length = (3, 24, 3), 13
    model = peers.make(system, shape, length, **UNTIED)
    params, exact = peers.weights(model), sides.theirs(system, model, length)
    run = sides.ours(system, shape, length, gradients=True, output_embedding="untied")
    found = sides.errors(system, run(params), exact)
    assert any("output_embed" in name for name in found)
    limits = {k: GRADIENT_TOLERANCE if sides.is_gradient(k) else TOLERANCE for k in found}
    assert {k: v for k, v in found.items() if not v < limits[k]} == {}
    wrong = sides.ours(system, shape, length)(
        {k: params[k] for k in params.keys() - {"output_embed"}}
    )
    assert sides.relative(wrong["logits"], exact["logits"]) > WRONG


@pytest.mark.parametrize("system", tiny.SYSTEMS)
def test_an_import_scores_as_they_do_and_goes_out_bit_for_bit(tmp_path, theirs, system) -> None:
    model, folder = theirs
    importing.run(str(folder), tmp_path / "run")
    assert close(tmp_path / "run", model) < 1e-5
    exporting.run(tmp_path / "run", tmp_path / "ours")
    expected = load_file(folder / "model.safetensors")
    found = load_file(tmp_path / "ours/model.safetensors")
    assert found.keys() == expected.keys()
    assert [n for n, x in expected.items() if not np.array_equal(x, found[n])] == []
    again = type(model).from_pretrained(tmp_path / "ours").eval()
    assert again.config.tie_word_embeddings is False
    assert close(tmp_path / "run", again) < 1e-5


@pytest.mark.parametrize("system", tiny.SYSTEMS)
def test_a_run_of_ours_goes_out_and_comes_back(tmp_path, theirs, system: str) -> None:
    """As if it had been trained here: nothing is kept of where it came from."""
    importing.run(str(theirs[1]), tmp_path / "run")
    (tmp_path / "run/imported/source.json").unlink()
    exporting.run(tmp_path / "run", tmp_path / "out")
    name = maps.load(system).architectures[0].name
    model = getattr(transformers, name).from_pretrained(tmp_path / "out").eval()
    assert close(tmp_path / "run", model) < 1e-5
    importing.run(str(tmp_path / "out"), tmp_path / "back")
    before, after = (pretrained.load(tmp_path / x).params for x in ("run", "back"))
    assert np.array_equal(before["output_embed"]["table"], after["output_embed"]["table"])
    assert not np.array_equal(after["output_embed"]["table"], after["embed"]["tokens"]["table"])


@pytest.mark.parametrize("system", ["bert", "roberta"])
def test_a_bias_that_older_versions_stored_once(tmp_path, theirs, system: str) -> None:
    folder = theirs[1]
    (name, original) = maps.load(system).tied[1]
    bias = load_file(folder / "model.safetensors")[name]
    rename(lambda n: original if n == name else n, **{original: bias})(folder)
    importing.run(str(folder), tmp_path / "run")
    assert np.array_equal(pretrained.load(tmp_path / "run").params["token_head"]["bias"], bias)


@pytest.mark.parametrize("system", tiny.SYSTEMS)
def test_equal_tables_stay_two(tmp_path, theirs, system: str) -> None:
    """Declared untied, a head may begin as the embedding is, and differ in its bias alone."""
    model, folder = theirs
    name, original = maps.load(system).tied[0]
    rename(lambda n: n, **{name: load_file(folder / "model.safetensors")[original]})(folder)
    importing.run(str(folder), tmp_path / "run")
    exporting.run(tmp_path / "run", tmp_path / "ours")
    expected, found = (load_file(p / "model.safetensors") for p in (folder, tmp_path / "ours"))
    assert found.keys() == expected.keys()
    assert [n for n, x in expected.items() if not np.array_equal(x, found[n])] == []
    assert type(model).from_pretrained(tmp_path / "ours").config.tie_word_embeddings is False


def test_a_class_that_scores_no_tokens_may_be_called_untied(tmp_path) -> None:
    sizes = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64)
    made = transformers.BertConfig(vocab_size=real_text.VOCAB, **sizes, **UNTIED)
    save(transformers.BertForNextSentencePrediction(made), "bert", tmp_path / "theirs")
    importing.run(str(tmp_path / "theirs"), tmp_path / "run")
    assert pretrained.load(tmp_path / "run").config.net.output_embedding is None


@pytest.mark.parametrize("system", ["gpt2"])
def test_a_pre_training_must_say_that_it_goes_on_untied(tmp_path, theirs, system: str) -> None:
    importing.run(str(theirs[1]), tmp_path / "run")
    given = {"net__max_len": LENGTH, "short__max_len": LENGTH, "long__max_len": LENGTH}
    begun = tiny.values(
        f"system={system},shape=3x24x2", machine__init=str(tmp_path / "run"), **given
    )
    with pytest.raises(ValueError, match="output_embedding"):
        pretrained.begin(resolve(begun), tmp_path / "new")


@pytest.mark.parametrize("system", tiny.SYSTEMS)
def test_a_second_table_must_be_declared(tmp_path, theirs, system: str) -> None:
    """Where config.json calls the head tied, transformers' versions do not agree on what it is."""
    config(tie_word_embeddings=True)(theirs[1])
    with pytest.raises(ValueError, match="differs from .*tie_word_embeddings"):
        importing.run(str(theirs[1]), tmp_path / "run")
