"""T5's buckets, cache and exports; tests/interop/test_parity.py compares it with its class."""

import functools
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from flax import linen as nn

from scalelab import systems
from scalelab.interop import exporting, importing
from scalelab.systems import t5
from scalelab.training import pretrained

VOCAB, SHAPE, T, S = 97, (3, 24, 2), 41, 150  # further apart than the last bucket begins
SIZES = systems.Sizes(*SHAPE, ffn_width=40, max_len=S, dropout_rate=0.1)
NET = t5.build(SIZES, None, VOCAB)


def make_batch() -> dict[str, np.ndarray]:
    """Sources and targets of several lengths."""
    rng = np.random.default_rng(0)
    source, tokens = (rng.integers(70, VOCAB, (3, n)) for n in (S, T))
    given = {"source": source, "source_lengths": [S, 9, 70], "tokens": tokens}
    given |= {"lengths": [T, T, 7], "examples": np.arange(3)}
    return {name: np.asarray(x, np.int32) for name, x in given.items()}


@pytest.mark.parity
@pytest.mark.parametrize("causal", [False, True])
def test_buckets_are_those_of_transformers(causal: bool) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    from transformers.models.t5.modeling_t5 import T5Attention

    distance = np.arange(-600, 601)
    found = T5Attention._relative_position_bucket(torch.tensor(distance), not causal)
    np.testing.assert_array_equal(t5.bucket(jnp.asarray(distance), causal), found.numpy())


def test_buckets_by_hand() -> None:
    """The exact ones, and both ends of the logarithmic ones."""
    distance = jnp.array([0, -1, -7, -8, -127, -128, -900, 1, 7, 8, 900])
    assert t5.bucket(distance, False).tolist() == [0, 1, 7, 8, 15, 15, 15, 17, 23, 24, 31]
    assert t5.bucket(distance, True).tolist() == [0, 1, 7, 8, 31, 31, 31, 0, 0, 0, 0]


def test_decoding_with_a_cache_equals_the_forward_pass() -> None:
    """Token by token behind prompts of several lengths: distances count from the cache's places."""
    terms, batch = tiny.terms(t5, "seq2seq", size=VOCAB), make_batch()
    batch["lengths"] = np.full_like(batch["lengths"], T)
    params = {"params": tiny.draw(NET, terms)}
    full = np.asarray(NET.apply(params, batch, train=False)[0])
    read = {name: batch[name] for name in ("source", "source_lengths", "examples")}
    cache = NET.apply(params, read, T, method="encode")
    step = jax.jit(lambda cache, new: NET.apply(params, new, train=False, cache=cache))
    done = np.array([3, 1, 5])
    rows = {"tokens": batch["tokens"][:, :5], "lengths": done, "examples": batch["examples"]}
    found, cache = step(cache, rows)
    for row, n in enumerate(done):
        np.testing.assert_allclose(found[row, :n], full[row, :n], rtol=1e-3, atol=1e-4)
    for k in range(30):
        rows["tokens"] = batch["tokens"][np.arange(3), done + k][:, None]
        rows["lengths"] = np.ones(3, np.int32)
        found, cache = step(cache, rows)
        np.testing.assert_allclose(
            found[:, 0], full[np.arange(3), done + k], rtol=1e-3, atol=1e-4, err_msg=str(k)
        )


@pytest.mark.parity
def test_exports_and_imports_compute_the_same(
    wikitext: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed: pip install '.[parity]'")
    import sides
    import transformers

    run, out, again = (tmp_path / name for name in ("run", "out", "again"))
    tiny.write_run(run, "t5", wikitext, tmp_path / "cache", 0.5)
    exporting.run(run, out)
    importing.run(str(out), again)
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(out).eval()
    _, batch = sides.prepare("t5", 60)
    valid = sides.valid_places(batch)
    exact = model(**sides.inputs("t5", batch)).logits.detach().numpy()[valid]
    for folder in (run, again):
        opened = pretrained.load(folder)
        assert opened.config.data.format == "span_corruption"  # other formats make sources, too
        found = logits(opened.net, opened.params, batch)[valid]
        assert sides.relative(found, exact) < 1e-4, folder


@functools.partial(jax.jit, static_argnums=0)
def logits(net: nn.Module, params: Any, batch: dict[str, Any]) -> jax.Array:
    def forward(model: Any) -> jax.Array:
        return model.token_logits(model(batch, train=False)[0])

    return nn.apply(forward, net)({"params": params})


def test_an_untied_net_is_not_exported(wikitext: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """The class scores with the input's table, whatever its config says."""
    untied: dict[str, Any] = {"net__output_embedding": "untied"}
    tiny.write_run(tmp_path / "run", "t5", wikitext, tmp_path / "cache", **untied)
    message = "T5ForConditionalGeneration cannot .* by a table of its own"
    with pytest.raises(ValueError, match=message):
        exporting.run(tmp_path / "run", tmp_path / "out")
