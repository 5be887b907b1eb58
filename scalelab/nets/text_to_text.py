"""A pre-trained model that generates the answers of a task (Raffel et al. 2020, T5, 2.4)."""

import jax
import jax.numpy as jnp
from flax import linen as nn

from scalelab.nets.classifier import Batch, States

Targets = tuple[tuple[int, ...], ...]  # the tokens of each target, its end and then -1: [C][M]


class TextToText(nn.Module):
    """Model -> scores of all tokens where the target's tokens are predicted.

    Attributes:
      body: a system's model.
      longest: M, tokens of the longest target, its end included.
      end: id of the token that ends a target.
      targets: the only possible targets, such as label words; None: any text.
      start: `START`, with which a target behind a source begins; None: it is behind the prompt.
      num_rows: 1, the rows of an example, for callers that also have classifiers.
    """

    body: nn.Module
    longest: int
    end: int
    targets: Targets | None = None
    start: int | None = None
    num_rows: int = 1

    def __call__(self, batch: Batch, ctx: States, *, train: bool) -> jax.Array:
        """Returns scores [B, M, V], given batch["labels"], the targets [B, M]."""
        del train  # `ctx` knows
        labels = batch.get("labels", jnp.zeros((len(batch["lengths"]), self.longest), jnp.int32))
        inputs, counts = jnp.maximum(labels[:, :-1], 0), jnp.sum(labels >= 0, axis=1) - 1
        prompt = self._prompt(batch)
        places = prompt["lengths"][:, None] - 1 + jnp.arange(self.longest)
        rows = jnp.arange(len(places))[:, None]
        room = 0 if self.start is None else self.longest - 1
        tokens = jnp.pad(prompt["tokens"], ((0, 0), (0, room)))
        tokens = tokens.at[rows, places[:, 1:]].set(inputs)
        read = prompt | {"tokens": tokens, "lengths": prompt["lengths"] + counts}
        return self.body.token_logits(ctx.hidden(self.body, read)[rows, places])

    def _prompt(self, batch: Batch) -> Batch:
        """Returns what stands before the target, for which rows without a source have room."""
        lengths, ones = batch["lengths"], jnp.ones_like(batch["lengths"])
        read = {"examples": batch["examples"]}
        if self.start is None:
            own = jnp.maximum(lengths - self.longest + 1, 1)
            return read | {"tokens": batch["tokens"], "lengths": own}
        read |= {"source": batch["tokens"], "source_lengths": lengths}
        return read | {"tokens": ones[:, None] * self.start, "lengths": ones}

    def predict(self, batch: Batch) -> jax.Array:
        """Decodes greedily, as `_choose` with targets and as `_write` without."""
        read, size = self._prompt(batch), len(batch["lengths"])
        if "source" in read:
            source = {name: read.pop(name) for name in ("source", "source_lengths")}
            cache = self.body.encode(source | {"examples": read["examples"]}, self.longest)
        else:
            cache = self.body.init_cache(size, read["tokens"].shape[1])
        hidden, cache = self.body(read, train=False, cache=cache)
        scores = self.body.token_logits(hidden[jnp.arange(size), read["lengths"] - 1])
        return (self._write if self.targets is None else self._choose)(scores, cache)

    def _choose(self, scores: jax.Array, cache: object) -> jax.Array:
        """Returns [B, 2] float32: the target, and 1 if no other token had a higher score, else 0.

        `scores` [B, V] are those of the first token.
        """
        targets = jnp.array(self.targets)
        reached = jnp.ones((len(scores), len(targets)), bool)
        valid = jnp.ones(len(scores), bool)
        for place, own in enumerate(targets.T):  # [C], the tokens of all targets at one place
            allowed = reached & (own >= 0)
            best = own[jnp.argmax(jnp.where(allowed, scores[:, own], -jnp.inf), axis=1)]
            ended = ~allowed.any(axis=1)
            valid &= ended | (scores.argmax(axis=1) == best)
            reached &= ended[:, None] | (own == best[:, None])
            if place + 1 < targets.shape[1]:
                scores, cache = next_scores(self.body, best, cache)
        return jnp.stack([reached.argmax(axis=1), valid], axis=1).astype(jnp.float32)

    def _write(self, scores: jax.Array, cache: object) -> jax.Array:
        """Returns the tokens of the texts [B, M] float32, -1 behind their ends."""
        body, variables = self.body.unbind()

        def extend(state: tuple) -> tuple:
            place, scores, ended, written, cache = state
            best = scores.argmax(axis=1).astype(jnp.int32)
            written = written.at[:, place].set(jnp.where(ended, -1, best))
            scores, cache = nn.apply(next_scores, body)(variables, best, cache)
            return place + 1, scores, ended | (best == self.end), written, cache

        def continues(state: tuple) -> jax.Array:
            return (state[0] < self.longest) & ~state[2].all()

        none = jnp.zeros(len(scores), bool), jnp.full((len(scores), self.longest), -1, jnp.int32)
        state = jax.lax.while_loop(continues, extend, (0, scores, *none, cache))
        return state[3].astype(jnp.float32)


def next_scores(body: nn.Module, tokens: jax.Array, cache: object) -> tuple[jax.Array, object]:
    """Reads one more token [B] of each text: the scores [B, V] of the next, and the cache."""
    ones = jnp.ones_like(tokens)
    read = {"tokens": tokens[:, None], "lengths": ones, "examples": jnp.arange(len(tokens))}
    hidden, cache = body(read, train=False, cache=cache)
    return body.token_logits(hidden[:, 0]), cache
