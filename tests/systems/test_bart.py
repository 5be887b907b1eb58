"""BART's published sizes and exports; tests/interop/test_parity.py compares it with its class."""

import pathlib

import jax
import numpy as np
import pytest
import tiny
from safetensors import numpy as safetensors

from scalelab import objectives, systems
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
    [({"net__output_embedding": "untied"}, "tie_word_embeddings .*net.output_embedding"),
     ({"net__norm_epsilon": 0.01}, "norm_epsilon is 0.01")],
)  # fmt: skip
def test_what_the_class_lacks_is_not_exported(
    wikitext: pathlib.Path, tmp_path: pathlib.Path, fields: dict[str, str], message: str
) -> None:
    tiny.write_run(tmp_path / "run", "bart", wikitext, tmp_path / "cache", **fields)
    with pytest.raises(ValueError, match=message):
        exporting.run(tmp_path / "run", tmp_path / "out")
