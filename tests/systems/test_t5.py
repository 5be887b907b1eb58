"""T5 against transformers, its buckets, its cache."""

import copy
import dataclasses
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from flax import linen as nn
from flax import traverse_util

from scalelab import systems
from scalelab.interop import convert, exporting, importing, maps
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


def logits(params: Any, batch: dict[str, Any], net: Any = NET) -> np.ndarray:
    def forward(model: Any) -> jax.Array:
        return model.token_logits(model(batch, train=False)[0])

    return np.asarray(jax.jit(lambda p: nn.apply(forward, net)({"params": p}))(params))


@pytest.fixture(scope="module")
def model() -> Any:
    """A class of transformers with parameters of deviation 0.5, in float32."""
    pytest.importorskip("torch", reason="PyTorch is not installed: pip install '.[parity]'")
    import peers
    import transformers

    num_heads, width, num_layers = SHAPE
    fields: dict[str, Any] = dict(
        vocab_size=VOCAB, d_model=width, d_kv=width // num_heads, d_ff=40, num_heads=num_heads,
        num_layers=num_layers, decoder_start_token_id=0, attn_implementation="eager",
    )  # fmt: skip
    config = transformers.T5Config(**fields)
    made = transformers.T5ForConditionalGeneration(config).double().eval()
    return peers.randomise(made, seed=0).float()


@pytest.fixture(scope="module")
def params(model: Any) -> Any:
    """The same parameters, as ours."""
    found = {name: p.detach().numpy() for name, p in model.named_parameters()}
    family = maps.load("t5")
    rows = family.rows(family.architectures[0])
    sizes = convert.Sizes(SHAPE[0], SHAPE[2], VOCAB, VOCAB)
    flat = convert.to_parameters(rows, found.__getitem__, sizes)
    assert sum(x.size for x in flat.values()) == sum(p.numel() for p in model.parameters())
    return traverse_util.unflatten_dict(flat, sep="/")


def theirs(model: Any, batch: dict[str, np.ndarray]) -> Any:
    """Their result for a batch."""
    import torch

    given = {k: torch.tensor(np.asarray(x, np.int64)) for k, x in batch.items()}
    mask = torch.arange(batch["source"].shape[1]) < given["source_lengths"][:, None]
    return model(given["source"], attention_mask=mask, decoder_input_ids=given["tokens"])


def relative(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.abs(a - b).max() / np.abs(b).max())


def is_token(batch: dict[str, np.ndarray]) -> np.ndarray:
    return np.arange(batch["tokens"].shape[1]) < batch["lengths"][:, None]


@pytest.mark.ci
@pytest.mark.parity
def test_agrees_with_hugging_face(model: Any, params: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores in both precisions: in float32, ours are about as near to float64 as theirs."""
    from transformers.models.t5.modeling_t5 import T5LayerNorm

    def in_double(norm: Any, x: Any) -> Any:  # theirs rounds to float32
        return norm.weight * x * (x.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt()

    batch = make_batch()
    valid, single = is_token(batch), theirs(model, batch).logits.detach().numpy()
    monkeypatch.setattr(T5LayerNorm, "forward", in_double)
    exact = theirs(copy.deepcopy(model).double(), batch).logits.detach().numpy()
    assert relative(single[valid], exact[valid]) < 1e-4
    assert relative(logits(params, batch)[valid], exact[valid]) < 1e-4
    with tiny.in_double():
        wide = jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), params)
        net = t5.build(dataclasses.replace(SIZES, dtype=jnp.float64), None, VOCAB)
        assert relative(logits(wide, batch, net)[valid], exact[valid]) < 1e-10


WRONG = {
    "scores are scaled": (
        "unscaled",
        lambda q, k, ctx: t5.product("btnk,bsnk->bnts", q, k) / 8**0.5,
    ),
    "no factor before the table": ("ScaledHead", t5.PlainHead),
    "one direction": ("bucket", lambda distance, causal, of=t5.bucket: of(distance, True)),
    "both directions": ("bucket", lambda distance, causal, of=t5.bucket: of(distance, False)),
    "nearer buckets": ("MAX_DISTANCE", 64),
}


@pytest.mark.ci
@pytest.mark.parity
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_net_does_not_agree(
    name: str, model: Any, params: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = make_batch()
    valid, exact = is_token(batch), theirs(model, batch).logits.detach().numpy()
    monkeypatch.setattr(t5, *WRONG[name])
    assert relative(logits(params, batch, t5.build(SIZES, None, VOCAB))[valid], exact[valid]) > 0.01


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
    import transformers

    run, out, again = (tmp_path / name for name in ("run", "out", "again"))
    tiny.write_run(run, "t5", wikitext, tmp_path / "cache", 0.5)
    exporting.run(run, out)
    importing.run(str(out), again)
    batch = make_batch()
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(out).eval()
    exact, valid = theirs(model, batch).logits.detach().numpy(), is_token(batch)
    for folder in (run, again):
        opened = pretrained.load(folder)
        found = logits(opened.params, batch, opened.net)
        assert relative(found[valid], exact[valid]) < 1e-4, folder


def test_an_untied_net_is_not_exported(wikitext: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """The class scores with the input's table, whatever its config says."""
    untied: dict[str, Any] = {"net__output_embedding": "untied"}
    tiny.write_run(tmp_path / "run", "t5", wikitext, tmp_path / "cache", **untied)
    message = "T5ForConditionalGeneration cannot .* by a table of its own"
    with pytest.raises(ValueError, match=message):
        exporting.run(tmp_path / "run", tmp_path / "out")
