"""What every system with a source owes: cache, exports, and decoding as `transformers.generate`."""

import functools
import pathlib
from typing import Any

import jax
import numpy as np
import pytest
import tiny
from flax import linen as nn

from scalelab import systems
from scalelab.config.fields import make_options
from scalelab.helpers import names
from scalelab.interop import exporting, importing
from scalelab.nn.heads import token_logits
from scalelab.training import pretrained

NAMES = [name for name in tiny.SYSTEMS if systems.load(name).HAS_SOURCE]
MAPPED = [name for name in NAMES if name in names.module_names("interop.maps")]
VOCAB, SHAPE, T, S = 97, (3, 24, 2), 41, 150  # further apart than T5's last bucket begins
SIZES = systems.Sizes(*SHAPE, ffn_width=40, max_len=S, dropout_rate=0.1)


def make_batch() -> dict[str, np.ndarray]:
    """Sources and targets of several lengths."""
    rng = np.random.default_rng(0)
    source, tokens = (rng.integers(70, VOCAB, (3, n)) for n in (S, T))
    given = {"source": source, "source_lengths": [S, 9, 70], "tokens": tokens}
    given |= {"lengths": [T, T, 7], "examples": np.arange(3)}
    return {name: np.asarray(x, np.int32) for name, x in given.items()}


@pytest.mark.parametrize("name", NAMES)
def test_decoding_with_a_cache_equals_the_forward_pass(name: str) -> None:
    """Token by token behind prompts of several lengths: distances count from the cache's places."""
    module, batch = systems.load(name), make_batch()
    (objective,) = (d.value for d in module.DEPARTURES if d.field == "objective")
    net = module.build(SIZES, make_options(module, {}), VOCAB)
    drawn = tiny.draw(net, tiny.terms(module, str(objective), size=VOCAB))
    is_scale = lambda path: path[-1].key == "scale"  # noqa: E731
    params = jax.tree_util.tree_map_with_path(lambda path, x: x + is_scale(path), drawn)
    params = {"params": params}
    batch["lengths"] = np.full_like(batch["lengths"], T)

    @jax.jit
    def scores(batch: Any, cache: Any = None) -> tuple[jax.Array, Any]:
        hidden, cache = net.apply(params, batch, train=False, cache=cache)
        return net.apply(params, hidden, method=token_logits), cache

    full = np.asarray(scores(batch)[0])
    read = {name: batch[name] for name in ("source", "source_lengths", "examples")}
    cache = net.apply(params, read, T, method="encode")
    done = np.array([3, 1, 5])
    rows = {"tokens": batch["tokens"][:, :5], "lengths": done, "examples": batch["examples"]}
    found, cache = scores(rows, cache)
    for row, n in enumerate(done):
        np.testing.assert_allclose(found[row, :n], full[row, :n], rtol=1e-3, atol=1e-3)
    for k in range(30):
        rows["tokens"] = batch["tokens"][np.arange(3), done + k][:, None]
        rows["lengths"] = np.ones(3, np.int32)
        found, cache = scores(rows, cache)
        expected = full[np.arange(3), done + k]
        np.testing.assert_allclose(found[:, 0], expected, rtol=1e-3, atol=1e-3, err_msg=str(k))


@pytest.mark.parity
@pytest.mark.parametrize("name", MAPPED)
def test_exports_and_imports_compute_the_same(
    name: str, wikitext: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed: pip install '.[parity]'")
    import sides
    import transformers

    run, out, again = (tmp_path / folder for folder in ("run", "out", "again"))
    tiny.write_run(run, name, wikitext, tmp_path / "cache", 0.5)
    exporting.run(run, out)
    importing.run(str(out), again)
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(out).eval()
    _, batch = sides.prepare(name, 60)
    valid = sides.valid_places(batch)
    exact = model(**sides.inputs(name, batch)).logits.detach().numpy()[valid]
    for folder in (run, again):
        opened = pretrained.load(folder)
        found = logits(opened.net, opened.params, batch)[valid]
        assert sides.relative(found, exact) < 1e-4, folder
    kept = {folder: pretrained.load(folder).config.data.format for folder in (run, again)}
    assert kept[again] == kept[run]


@functools.partial(jax.jit, static_argnums=0)
def logits(net: nn.Module, params: Any, batch: dict[str, Any]) -> jax.Array:
    def forward(model: Any) -> jax.Array:
        return token_logits(model, model(batch, train=False)[0])

    return nn.apply(forward, net)({"params": params})


@pytest.mark.parity
@pytest.mark.parametrize("name", MAPPED)
def test_greedy_texts_are_those_of_transformers(name: str) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    import peers
    import sides

    from scalelab.decode import loop, stepper
    from scalelab.decode.choose import Rules

    max_len, new, module = 32, 12, systems.load(name)
    ids = systems.special_ids(module)
    sources = [np.random.default_rng(n).integers(5, peers.VOCAB, n) for n in (3, 20, 1, 9)]
    padded = np.full((4, 20), ids["pad"])
    for row, source in zip(padded, sources, strict=True):
        row[: len(source)] = source
    texts = []
    for seed in (2, 3):
        model = peers.make(name, SHAPE, max_len, seed=seed)
        with torch.no_grad():  # else one token would be the best whatever came before
            table = model.get_input_embeddings().weight
            table *= 2 / table.norm(dim=1, keepdim=True)
            trained = (found for found in model.named_parameters() if found[1].requires_grad)
            for parameter, value in trained:  # not sinusoids
                value *= 3 if "embed_positions" in parameter else 1
                value *= 0.1 if parameter.endswith("bias") else 1
        theirs = model.generate(
            torch.tensor(padded), attention_mask=torch.tensor(padded != ids["pad"]).long(),
            max_new_tokens=new, do_sample=False, num_beams=1, eos_token_id=None,
            pad_token_id=ids["pad"], forced_eos_token_id=None, decoder_start_token_id=ids["start"],
        )[:, 1:]  # fmt: skip
        made = stepper.prepare(sides.build(name, SHAPE, max_len), peers.weights(model))
        found = loop.generate(
            made, [np.array([ids["start"]], np.int32)] * 4, Rules(), end_token=None,
            max_len=max_len, max_new_tokens=new, sources=[x.astype(np.int32) for x in sources],
        )  # fmt: skip
        rows = [text.tokens.tolist() for text in found]
        assert rows == theirs.tolist()
        texts += rows
    # Scaled embeddings outweigh sinusoids, so that such texts repeat a token.
    least = (4, 2) if getattr(model.config, "scale_embedding", False) else (8, 4)
    assert len(set(map(tuple, texts))) >= least[0]
    assert max(len(set(row)) for row in texts) >= least[1]
