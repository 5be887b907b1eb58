"""BERT from left to right: GPT's objective on BERT's own model under a causal mask."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from flax import linen as nn

from scalelab import objectives, systems
from scalelab.nn.heads import token_logits
from scalelab.objectives import Pass
from scalelab.systems import bert, bert_ltr

SIZES = systems.Sizes(2, 8, 3, 32, tiny.LENGTH, 0.0)
BATCH = tiny.batch(bert, 0, size=2)
TERMS = tiny.terms(bert_ltr, "clm")


def losses(module, params, batch) -> float:
    net = module.build(SIZES, None, tiny.VOCAB)
    ctx = Pass(jax.random.key(0))
    found, _ = jax.jit(lambda p: objectives.forward(net, p, batch, TERMS, ctx))(params)
    total, weight = found["clm"]["loss"]
    return float(total / weight)


@pytest.mark.ci
def test_it_is_clm_on_berts_net_under_a_causal_mask() -> None:
    net, nats = bert_ltr.build(SIZES, None, tiny.VOCAB), []
    made = objectives.init_variables(jax.random.key(1), net, TERMS, max_len=tiny.LENGTH)["params"]
    large = lambda x: x + 0.5 * jax.random.normal(jax.random.key(2), x.shape)  # noqa: E731
    params = jax.tree.map(large, nn.unbox(made))
    places = jnp.broadcast_to(jnp.arange(tiny.LENGTH), BATCH["tokens"].shape)
    left = jnp.stack([jnp.zeros_like(places), places + 1], axis=-1)
    ours = losses(bert_ltr, params, BATCH)
    assert ours == pytest.approx(losses(bert, params, BATCH | {"visible": left}), rel=1e-6)
    assert abs(ours - losses(bert, params, BATCH)) > 1e-2  # BERT's own mask

    # Worked out from scores of prefixes alone, as GPT factorises a text.
    @jax.jit
    def log_chances(tokens: jax.Array, length: jax.Array, second: jax.Array) -> jax.Array:
        prefix = {"tokens": tokens[None], "lengths": length[None], "second_starts": second[None]}
        prefix["examples"] = jnp.zeros(1, jnp.int32)
        hidden, _ = net.apply({"params": params}, prefix, train=False)
        scores = net.apply({"params": params}, hidden[0, length - 1], method=token_logits)
        return jax.nn.log_softmax(scores)

    given = (BATCH[name] for name in ("tokens", "lengths", "second_starts"))
    for tokens, length, second in zip(*given, strict=True):
        for k in range(1, length):
            seen = np.where(np.arange(tiny.LENGTH) < k, tokens, 0)
            nats.append(-log_chances(seen, jnp.int32(k), second)[tokens[k]])
    assert ours == pytest.approx(float(np.mean(nats)), rel=1e-5)
