"""Texts that two models write together: the mean of their probabilities, by hand."""

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import small_encdec as small
from test_source import (
    NET,
    PROMPTS,
    SOURCES,
    beams,
    beams_by_hand,
    begun,
    greedy,
    greedy_by_hand,
    next_logs,
)

from scalelab.decode import stepper

NETS = NET, small.build(num_layers=(1, 2), num_heads=3)
MEMBERS = tuple(stepper.prepare(net, small.parameters(net)) for net in NETS)
TOGETHER = stepper.Ensemble(MEMBERS)


def mean_logs(source: Any, text: Any) -> np.ndarray:
    return np.log(np.mean([np.exp(next_logs(source, text, net)) for net in NETS], axis=0))


@flax.struct.dataclass
class Product(stepper.Ensemble):
    """Wrong: the mean of scores, which is a product of probabilities."""

    def __call__(self, tokens: Any, lengths: Any, cache: Any) -> Any:
        own = [cache.replace(layers=layers) for layers in cache.layers]
        found = [m(tokens, lengths, c) for m, c in zip(self.members, own, strict=True)]
        _, cache = super().__call__(tokens, lengths, cache)
        return jnp.mean(jnp.stack([jax.nn.log_softmax(logits) for logits, _ in found]), 0), cache


def test_greedy_is_the_search_by_hand() -> None:
    pairs = zip(SOURCES, begun(PROMPTS), strict=True)
    expected = [greedy_by_hand(*pair, mean_logs) for pair in pairs]
    assert greedy(SOURCES, PROMPTS, made=TOGETHER) == expected
    for wrong in (*MEMBERS, Product(MEMBERS)):
        assert greedy(SOURCES, PROMPTS, made=wrong) != expected


def test_beams_are_the_search_by_hand() -> None:
    found = beams(SOURCES, PROMPTS, TOGETHER)
    for texts, source, prompt in zip(found, SOURCES, begun(PROMPTS), strict=True):
        expected = beams_by_hand(source, prompt, mean_logs)
        assert [text.tokens.tolist() for text in texts] == [text for _, text in expected]
        np.testing.assert_allclose([t.score for t in texts], [s for s, _ in expected], rtol=1e-3)


def test_a_model_with_itself_is_the_model() -> None:
    twice = stepper.Ensemble(MEMBERS[:1] * 3)
    assert greedy(SOURCES, PROMPTS, made=twice) == greedy(SOURCES, PROMPTS, made=MEMBERS[0])
