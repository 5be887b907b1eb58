"""The world of neighbours: what each reader can know, by hand and by counting."""

import math

import numpy as np
import pytest

from scalelab.worlds import neighbours
from scalelab.worlds.neighbours import Neighbours


def test_by_hand() -> None:
    """Left of 0 everything is 0; left of 1 the right neighbour is all there is to know."""
    world = Neighbours(np.array([[0, 0], [0, 1]]))
    assert world.left_nats == pytest.approx(math.log(2) / 2)
    assert world.left_accuracy == pytest.approx(3 / 4)
    assert world.entropy_rate == pytest.approx(math.log(2) / 2)


def test_texts_keep_the_rule() -> None:
    world = neighbours.draw(5, seed=0)
    tokens = world.sample(np.random.default_rng(0), 500, 21)
    left, decided, right = tokens[:, :-2:2], tokens[:, 1::2], tokens[:, 2::2]
    assert tokens[:, ::2].max() < 5 <= decided.min() and decided.max() < world.vocab_size
    np.testing.assert_array_equal(decided, 5 + world.table[left, right])


def test_what_the_left_tells_is_what_counting_finds() -> None:
    world = neighbours.draw(5, seed=0)
    tokens = world.sample(np.random.default_rng(0), 5000, 21)
    counts = np.zeros((5, 5))
    np.add.at(counts, (tokens[:, :-2:2].ravel(), tokens[:, 1::2].ravel() - 5), 1)
    np.testing.assert_allclose(
        counts / counts.sum(1, keepdims=True), world.given_left, rtol=0, atol=0.02
    )
    assert 0.5 < world.left_nats < math.log(5)
    assert world.left_accuracy < 0.6


def test_the_chain_rule_holds() -> None:
    """Read from the left, free tokens lose what the decided ones have told of them."""
    world = neighbours.draw(4, seed=2)
    joint = np.zeros((4, 4, 4))  # left, decided, right
    for left in range(4):
        for right in range(4):
            joint[left, world.table[left, right], right] += 1 / 16
    before = joint.sum(-1)
    there = joint > 0
    ratios = np.divide(before[..., None], joint, where=there, out=np.ones_like(joint))
    free = (joint * np.log(ratios)).sum()
    assert world.left_nats + free == pytest.approx(2 * world.entropy_rate)
