"""The Transformer's formats, and what its class and PEGASUS' class cannot hold.

tests/systems/test_source_systems.py has what every system with a source owes.
"""

import pathlib

import damage
import numpy as np
import pytest
import tiny

from scalelab import formats, systems
from scalelab.interop import exporting, importing
from scalelab.systems import transformer


@pytest.mark.parametrize("name", formats.declarations("source"))
def test_it_has_the_special_tokens_of_every_format_with_a_source(name: str) -> None:
    starts = np.arange(13)
    documents = formats.Documents(
        tokens=np.arange(80, 176, dtype=np.uint16) % 97,
        sentence_starts=8 * starts,
        sentence_bytes=np.full(12, 40, np.int32),
        document_starts=starts[::4],
    )
    ids = systems.special_ids(transformer)
    specials = formats.Specials(end=(ids["eos"],), ids=ids, vocab_size=97)
    made = list(formats.load(name).build(documents, specials=specials, max_len=40, seed=0))
    assert sum(map(len, made)) >= 3


@pytest.fixture(scope="module", params=["transformer", "pegasus"])
def exported(
    request: pytest.FixtureRequest,
    wikitext: pathlib.Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> pathlib.Path:
    """A folder with a run and its export."""
    folder = tmp_path_factory.mktemp(request.param)
    tiny.write_run(folder / "run", request.param, wikitext, folder / "cache")
    exporting.run(folder / "run", folder / "out")
    return folder


def test_an_import_with_a_bias_on_the_scores_is_refused(
    exported: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """The classes write the bias, zeros if nobody trained one, and the sinusoids."""
    extra = {f"model.{s}.embed_positions.weight": np.ones((64, 8)) for s in ("encoder", "decoder")}
    extra = {name: x.astype(np.float32) for name, x in extra.items()}
    bias = np.zeros((1, 300), np.float32)
    damage.rename(lambda name: name, final_logits_bias=bias, **extra)(exported / "out")
    importing.run(str(exported / "out"), tmp_path / "zeros")
    damage.tensors(final_logits_bias=lambda x: x + 1e-3)(exported / "out")
    with pytest.raises(ValueError, match="final_logits_bias is not zero"):
        importing.run(str(exported / "out"), tmp_path / "ones")


@pytest.mark.parametrize(("field", "value", "message"), [
    ("model__output_embedding", "untied", "tie_word_embeddings .*model.output_embedding"),
    ("model__norm_epsilon", 1e-6, "model.norm_epsilon is 1e-06"),
])  # fmt: skip
def test_what_the_class_cannot_be_is_not_exported(
    wikitext: pathlib.Path, tmp_path: pathlib.Path, field: str, value: object, message: str
) -> None:
    tiny.write_run(tmp_path / "run", "transformer", wikitext, tmp_path / "cache", **{field: value})
    with pytest.raises(ValueError, match=f"MarianMTModel cannot .*{message}"):
        exporting.run(tmp_path / "run", tmp_path / "out")
