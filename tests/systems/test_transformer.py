"""The Transformer's formats, and what its class and PEGASUS' class cannot hold.

tests/systems/test_source_systems.py has what every system with a source owes.
"""

import json
import pathlib
from typing import Any

import damage
import in_process
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
import tokenizers
from flax import linen as nn
from parts import context, init, normal

from scalelab import formats, sample, systems
from scalelab.interop import exporting, importing
from scalelab.nn.heads import token_logits
from scalelab.nn.positions import SinusoidPositions
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


SIZES = systems.Sizes(2, 12, 2, ffn_width=20, max_len=9, dropout_rate=0.1)


def test_an_encoder_without_positions_is_permutation_equivariant() -> None:
    encoder, order = transformer.build(SIZES, None, 13).encoder, np.array([3, 0, 5, 1, 6, 2, 4])
    x, ctx = normal(2, 7, 12), context(2, 7)
    variables = init(encoder, x, ctx, None)
    out, moved = (np.asarray(encoder.apply(variables, y, ctx, None)[0]) for y in (x, x[:, order]))
    np.testing.assert_allclose(moved, out[:, order], rtol=1e-4, atol=1e-4)
    assert np.abs(moved - out).max() > 0.1
    places = np.asarray(SinusoidPositions(12).apply({}, ctx.positions))
    out, moved = (encoder.apply(variables, y + places, ctx, None)[0] for y in (x, x[:, order]))
    assert np.abs(moved - out[:, order]).max() > 0.01


def test_the_table_gets_the_gradients_of_its_three_uses() -> None:
    """The rows of a table three times as long stand for source, target and scores."""
    net, thrice = (transformer.build(SIZES, None, size) for size in (13, 39))
    rng = np.random.default_rng(0)
    batch = {"source_lengths": [7, 4], "lengths": [5, 3], "examples": [0, 1]}
    batch |= {"source": rng.integers(0, 13, (2, 7)), "tokens": rng.integers(0, 13, (2, 5))}
    batch = {name: np.asarray(values, np.int32) for name, values in batch.items()}
    params = init(net, batch, train=False)["params"]

    def gradient(net: Any, batch: Any, table: Any, first: int) -> np.ndarray:
        def loss(table: jax.Array) -> jax.Array:
            def forward(model: Any) -> jax.Array:
                scores = token_logits(model, model(batch, train=False)[0])
                return jnp.sum(jnp.sin(scores[..., first : first + 13]))

            embed = params["decoder"]["embed"] | {"tokens": {"table": table}}
            given = params | {"decoder": params["decoder"] | {"embed": embed}}
            return nn.apply(forward, net)({"params": given})

        return np.asarray(jax.jit(jax.grad(loss))(table))

    table = params["decoder"]["embed"]["tokens"]["table"]
    tied = gradient(net, batch, table, 0)
    apart = gradient(thrice, batch | {"tokens": batch["tokens"] + 13}, jnp.tile(table, (3, 1)), 26)
    parts = apart.reshape(3, 13, -1)
    assert np.abs(parts).max(axis=(1, 2)).min() > 1e-2  # each use counts
    np.testing.assert_allclose(tied, parts.sum(axis=0), rtol=1e-5, atol=1e-5)


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


def test_an_import_without_sentinels_translates(
    exported: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its tokenizer needs none; the import names rules of decoding that `sample` does not have."""
    if exported.name.startswith("pegasus"):
        pytest.skip("PEGASUS' tokenizer has masks")
    exporting.run(exported / "run", folder := tmp_path / "out")
    special = ["<pad>", "</s>", "<unk>"]
    words = {token: i for i, token in enumerate([*special, *(f"w{i}" for i in range(20))])}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.add_special_tokens(special)
    ends = [("</s>", 1)]
    made.post_processor = tokenizers.processors.TemplateProcessing("$A </s>", special_tokens=ends)
    made.save(str(folder / "tokenizer.json"))
    facts = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    facts["tokenizer_class"] = "PreTrainedTokenizerFast"
    (folder / "tokenizer_config.json").write_text(json.dumps(facts))
    rules = {"forced_bos_token_id": 0, "forced_eos_token_id": 1, "min_length": 3}
    none = {"no_repeat_ngram_size": 0, "repetition_penalty": 1.0, "bad_words_ids": None}
    (folder / "generation_config.json").write_text(json.dumps(rules | none))
    (line,) = (x for x in importing.run(str(folder), tmp_path / "run") if "does not follow" in x)
    assert {*line.partition("follow ")[2].split(", ")} == {f"{k} = {x}" for k, x in rules.items()}
    given = [f"--run={tmp_path / 'run'}", "--source=w1 w2", "--max_new_tokens=3"]
    in_process.run(sample, given)
    assert capsys.readouterr().out.startswith("[1] ")


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
