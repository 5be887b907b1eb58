"""SpanBERT goes to Hugging Face as a BERT, which scores tokens as the run does."""

import pathlib

import fine_tuned
import jax
import numpy as np
import pytest
import tiny
from flax import linen as nn

from scalelab.interop import exporting, importing
from scalelab.nn.heads import token_logits
from scalelab.training import pretrained

pytestmark = [pytest.mark.slow, pytest.mark.parity]
torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install '.[parity]'")
import transformers  # noqa: E402


def scores(run: pathlib.Path, tokens: np.ndarray) -> np.ndarray:
    opened = pretrained.load(run)
    rows, length = tokens.shape
    batch = {"tokens": tokens, "lengths": np.full(rows, length), "examples": np.arange(rows)}

    def forward(model: nn.Module) -> jax.Array:
        return token_logits(model, model(batch, train=False)[0])  # pyright: ignore

    return np.asarray(jax.jit(nn.apply(forward, opened.net))({"params": opened.params}))


def test_out_as_a_bert_and_back(wikitext, cache_dir, tmp_path) -> None:
    run = tiny.write_run(tmp_path / "run", "spanbert", wikitext, cache_dir)
    lines = exporting.run(run, tmp_path / "out")
    assert "this is the encoder of the run" in lines
    model, info = transformers.BertForMaskedLM.from_pretrained(
        tmp_path / "out", output_loading_info=True
    )
    assert not info["missing_keys"] and not info["unexpected_keys"]
    tokens = np.random.default_rng(0).integers(5, 300, (3, 16))
    expected = model.eval()(torch.tensor(tokens)).logits.detach().numpy()
    np.testing.assert_allclose(scores(run, tokens), expected, rtol=1e-4, atol=1e-4)
    importing.run(str(tmp_path / "out"), tmp_path / "back")
    assert pretrained.load(tmp_path / "back").config.system == "bert"
    np.testing.assert_allclose(scores(tmp_path / "back", tokens), expected, rtol=1e-4, atol=1e-4)
    fine_tuned.make(run, tmp_path / "tuned", "double")
    exporting.run(tmp_path / "tuned", tmp_path / "classifier")
    _, info = transformers.BertForSequenceClassification.from_pretrained(
        tmp_path / "classifier", output_loading_info=True
    )
    assert not info["missing_keys"] and not info["unexpected_keys"]
