"""Markov sources of order k: a token depends only on the k tokens before it.

The entropy rate follows Shannon 1948 (section 7): the entropy of the next token in each context,
weighted by the context's frequency. The bound for a model that sees fewer than k tokens is exact,
too.
"""

import dataclasses
import functools

import numpy as np

MAX_CONTEXTS = 4096  # V**k; their frequencies solve one linear system


def entropy(chances: np.ndarray) -> np.ndarray:
    """Returns the entropy in nats along the last axis; 0 log 0 is 0."""
    logs = np.log(chances, out=np.zeros(chances.shape), where=chances > 0)
    return -(chances * logs).sum(-1)


@dataclasses.dataclass(frozen=True, eq=False)
class Source:
    """A stationary source of order k: k + 1 axes of size V; [a, b, x] = p(x after a, b)."""

    transitions: np.ndarray

    @property
    def order(self) -> int:
        """Number k of tokens that the next token depends on."""
        return self.transitions.ndim - 1

    @property
    def vocab_size(self) -> int:
        """Number V of different tokens."""
        return self.transitions.shape[-1]

    @functools.cached_property
    def stationary(self) -> np.ndarray:
        """The frequency of each context: k axes of size V, sum 1."""
        size = self.vocab_size**self.order
        moves = np.zeros((size, size))  # a context to the next, which drops its first token
        rows = np.repeat(np.arange(size), self.vocab_size)
        columns = (rows * self.vocab_size) % size + np.tile(np.arange(self.vocab_size), size)
        np.add.at(moves, (rows, columns), self.transitions.ravel())
        system = np.vstack([moves.T - np.eye(size), np.ones(size)])
        found, *_ = np.linalg.lstsq(system, np.append(np.zeros(size), 1.0))
        return np.maximum(found, 0).reshape([self.vocab_size] * self.order)

    def bound(self, num_seen: int) -> float:
        """Returns the loss, in nats per token, of the best predictor from `num_seen` tokens."""
        seen = min(num_seen, self.order)
        joint = self.stationary[..., None] * self.transitions
        ends = joint.sum(tuple(range(self.order - seen)))  # seen tokens and the next
        return float(entropy(ends.ravel()) - entropy(ends.sum(-1).ravel()))

    def facts(self) -> dict[str, float]:
        """Returns the entropy rate, and the bounds from 0 to k tokens seen, in nats per word."""
        bounds = {f"nats_per_word_seeing_{k}": self.bound(k) for k in range(self.order + 1)}
        return {"nats_per_word": self.bound(self.order)} | bounds

    def sample(self, rng: np.random.Generator, count: int, length: int) -> np.ndarray:
        """Draws texts from the stationary distribution: [count, length] int32."""
        tokens = np.zeros((count, length), np.int32)
        for place in range(length):
            seen = min(place, self.order)
            context = tuple(tokens[:, place - seen : place].T)
            chances = np.broadcast_to(self.next_chances(seen)[context], (count, self.vocab_size))
            limits = chances.cumsum(-1)
            drawn = (limits <= rng.random((count, 1)) * limits[:, -1:]).sum(-1)
            tokens[:, place] = np.minimum(drawn, self.vocab_size - 1)
        return tokens

    def next_chances(self, seen: int) -> np.ndarray:
        """Returns the probabilities of the next token after `seen` <= k tokens: seen + 1 axes."""
        if seen == self.order:
            return self.transitions
        joint = self.stationary.sum(tuple(range(seen + 1, self.order)))
        before = joint.sum(-1, keepdims=True)
        return np.divide(joint, before, out=np.zeros_like(joint), where=before > 0)


def draw(vocab_size: int, order: int, seed: int, concentration: float = 0.1) -> Source:
    """Draws a source with Dirichlet probabilities after each context.

    Args:
      vocab_size: V, at least 2.
      order: tokens of a context, at least 1.
      seed: seed of the probabilities.
      concentration: of the Dirichlet distribution, above 0; small: few tokens are probable.

    Raises:
      ValueError: too many contexts, or an argument below its minimum.
    """
    if vocab_size < 2 or order < 1:
        raise ValueError(
            f"expected 2 tokens or more and an order of 1 or more, got {vocab_size} and {order}"
        )
    if vocab_size**order > MAX_CONTEXTS:
        raise ValueError(
            f"{vocab_size} tokens and order {order} make {vocab_size**order} contexts; at most"
            f" {MAX_CONTEXTS} are possible"
        )
    rng = np.random.default_rng(seed)
    shape = (vocab_size,) * (order + 1)
    drawn = rng.standard_gamma(concentration, shape) + 1e-6  # above 0: all contexts are reachable
    return Source(drawn / drawn.sum(-1, keepdims=True))
