"""Responses of a dialogue: GPT-2's conditional likelihoods of the turns behind the first."""

import jax
import numpy as np
import pytest
import tiny

from scalelab import objectives, systems
from scalelab.config import pretraining
from scalelab.nn.heads import token_logits
from scalelab.systems import gpt2

EOS, T = systems.special_ids(gpt2)["eos"], 9
ROWS = ([7, 8, EOS, 9, EOS, 10, 11, EOS], [7, EOS, 8], [7, 8, 9, EOS], [7, 8, 9], [EOS, 7])


def test_the_loss_is_that_of_the_turns_behind_the_first() -> None:
    """p(T_2, T_3 | T_1), token by token, each from a row that ends before it."""
    net = gpt2.build(systems.Sizes(2, 8, 2, 16, T, dropout_rate=0.0), None, tiny.VOCAB)
    (term,) = tiny.terms(gpt2, "response")
    params = tiny.draw(net, (term,), T)

    @jax.jit
    def log_probs(batch):
        hidden, _ = net.apply({"params": params}, batch, train=False)
        return jax.nn.log_softmax(net.apply({"params": params}, hidden, method=token_logits))

    def batch_of(rows):
        tokens = np.zeros((len(ROWS), T), np.int32)
        for made, row in zip(tokens, rows, strict=True):
            made[: len(row)] = row
        lengths = np.array([*map(len, rows)], np.int32)
        return {"tokens": tokens, "lengths": lengths, "examples": np.arange(len(ROWS))}

    total, count = 0.0, 0
    for n in range(1, T):
        found = np.asarray(log_probs(batch_of([row[:n] for row in ROWS])))
        for i, row in enumerate(ROWS):
            if n < len(row) and EOS in row[:n]:
                total, count = total - found[i, n - 1, row[n]], count + 1
    ctx = objectives.Pass(jax.random.key(0))
    loss, weight = objectives.forward(net, params, batch_of(ROWS), (term,), ctx)[0]["response"][
        "loss"
    ]
    assert (float(loss), float(weight)) == (pytest.approx(total, rel=1e-5), count)
    assert count == 5 + 1 + 0 + 0 + 1


def test_the_config_is_gpt2s_with_dialogues() -> None:
    made = tiny.config_module("dialogpt").get_config("shape=2x8x1,steps=7,corpus=builtin")
    ours = pretraining.resolve(made.to_dict())
    theirs = pretraining.resolve(tiny.values("system=gpt2,shape=2x8x1,steps=7,corpus=builtin"))
    assert ours.model == theirs.model and ours.optim == theirs.optim
    assert (ours.objective, ours.data.format) == ("response", "dialogue")
    assert ours.format_options == {"closed": True}
