"""ALBERT's identities: the factorised embedding, and the paper's size.

That shared layers are copies is in tests/nn/test_shared_layers.py.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from scalelab import objectives, systems
from scalelab.interop import exporting
from scalelab.nn import ffn
from scalelab.nn.ffn import gelu_exact
from scalelab.systems import albert, bert

SIZES = systems.Sizes(2, 12, 4, 20, tiny.LENGTH, dropout_rate=0.0)
WIDTH = 6


TERMS = tiny.terms(albert, "mlm+sop")


def build(**options: Any) -> Any:
    given = albert.Options(**{"embed_width": WIDTH} | options)
    return albert.build(dataclasses.replace(SIZES, dtype=jnp.float32), given, tiny.VOCAB)


@functools.partial(jax.jit, static_argnums=0)
def states(net: Any, params: Any, batch: Any) -> jax.Array:
    return net.apply({"params": params}, batch, train=False)[0]


def test_without_a_projection_it_is_bert(monkeypatch) -> None:
    """Embedding as wide as the model, unshared layers, and BERT's activation."""
    net = build(embed_width=None, shared="none")
    params = tiny.draw(net, TERMS)
    assert "projection" not in params["embed"]
    batch = tiny.batch(albert, 1)
    hidden = states(net, params, batch)
    eye = {"kernel": jnp.eye(SIZES.width), "bias": jnp.zeros(SIZES.width)}
    square = params | {"embed": params["embed"] | {"projection": eye}}
    projected = build(embed_width=SIZES.width, shared="none")
    np.testing.assert_allclose(states(projected, square, batch), hidden, atol=1e-5)
    monkeypatch.setitem(ffn.ACTIVATIONS, "gelu_tanh", gelu_exact)
    ours = states(build(embed_width=None, shared="none"), params, batch)
    theirs = states(bert.build(SIZES, None, tiny.VOCAB), params, batch)
    np.testing.assert_array_equal(ours, theirs)
    assert np.abs(ours - hidden).max() > 1e-4


def test_albert_large_has_the_papers_size() -> None:
    """Lan et al. 2020, table 1: 18M; layers, embedding and pooler, without the heads."""
    sizes = systems.Sizes(16, 1024, 24, 4096, 512, dropout_rate=0.0)
    net = albert.build(sizes, albert.Options(), 30_000)
    made = objectives.abstract_variables(net, tiny.terms(albert, "sop"), max_len=8)["params"]
    made["pair_head"].pop("classifier")
    count = sum(x.size for x in jax.tree.leaves(made))
    h, e, f = 1024, 128, 4096
    layer = 4 * (h * h + h) + (h * f + f) + (f * h + h) + 4 * h
    embed = (30_000 + 512 + 2) * e + 2 * e + e * h + h
    assert count == embed + layer + h * h + h == 17_683_968
    assert albert.n_model(sizes, albert.Options()) == 12 * h * h
    each = dataclasses.replace(albert.Options(), shared="none")
    assert albert.n_model(sizes, each) == 24 * 12 * h * h


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [{"shared": "attention"}, {"shared": "none"}, {"embed_width": None}], ids=str
)
def test_a_net_that_no_class_can_hold(wikitext, cache_dir, tmp_path, options) -> None:
    run = tiny.write_run(tmp_path / "run", "albert", wikitext, cache_dir, system_options=options)
    with pytest.raises(ValueError, match=f"system_options.{next(iter(options))} "):
        exporting.run(run, tmp_path / "out")
    assert not (tmp_path / "out").exists()
