"""The world of neighbours: what each reader can know, by hand and by counting."""

import math

import numpy as np
import pytest

from scalelab.worlds import neighbours
from scalelab.worlds.neighbours import Neighbours

LEFT, GUESS = "nats_of_decided_word_from_left", "accuracy_of_decided_word_from_left"


def test_by_hand() -> None:
    """Left of 0 everything is 0; left of 1 the right neighbour is all there is to know."""
    world = Neighbours(np.array([[0, 0], [0, 1]]))
    assert world.facts()[LEFT] == pytest.approx(math.log(2) / 2)
    assert world.facts()[GUESS] == pytest.approx(3 / 4)
    assert world.facts()["nats_per_word"] == pytest.approx(math.log(2) / 2)


def test_texts_keep_the_rule() -> None:
    world = neighbours.draw(5, seed=0)
    tokens = world.sample(np.random.default_rng(0), 500, 21)
    left, decided, right = tokens[:, :-2:2], tokens[:, 1::2], tokens[:, 2::2]
    assert tokens[:, ::2].max() < 5 <= decided.min() and decided.max() < world.vocab_size
    np.testing.assert_array_equal(decided, 5 + world.table[left, right])


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
    assert world.facts()[LEFT] + free == pytest.approx(2 * world.facts()["nats_per_word"])
