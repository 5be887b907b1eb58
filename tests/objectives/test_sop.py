"""Sentence-order prediction: the loss by hand, and padding."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from scalelab import objectives


class Scores:
    """A net whose scores of pairs are given."""

    def __init__(self, logits: np.ndarray) -> None:
        self.logits = jnp.array(logits)

    def __call__(self, batch: Any, **_: Any) -> Any:
        return batch["tokens"], None

    def pair_logits(self, hidden: jax.Array) -> jax.Array:
        return self.logits


def test_the_loss_is_that_of_the_label_swapped() -> None:
    logits = np.array([[2.0, -1.0], [0.5, 0.7], [-3.0, 1.0], [9.0, -9.0]], np.float32)
    labels = np.array([0, 0, 1, 1])
    batch = {
        "tokens": jnp.zeros((4, 3), jnp.int32),
        "lengths": jnp.array([3, 2, 3, 0]),  # the last is padding
        "swapped": jnp.array(labels, jnp.int32),
    }
    (term,) = objectives.make({"sop": 1.0}, objectives.Setting(9, {}, 0.15))
    ctx = objectives.Pass(jax.random.key(0), accuracy=True)
    found = term.objective.losses(Scores(logits), term.objective.prepare(batch, ctx.rng), ctx)
    margins = logits[:, 1] - logits[:, 0]
    expected = np.log1p(np.exp(np.where(labels, -margins, margins)))[:3].sum()
    np.testing.assert_allclose(found["loss"], (expected, 3), rtol=1e-6)
    assert found["accuracy"] == (2, 3)
