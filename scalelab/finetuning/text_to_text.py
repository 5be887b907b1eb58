"""A pre-trained model that generates the answers of a task (Raffel et al. 2020, T5, 2.4)."""

import jax
import jax.numpy as jnp
from flax import linen as nn

from scalelab.decode import beam, loop, stepper
from scalelab.decode.choose import Rules
from scalelab.nets.classifier import Batch, States
from scalelab.nn.heads import token_logits

Targets = tuple[tuple[int, ...], ...]  # the tokens of each target, its end and then -1: [C][M]


class TextToText(nn.Module):
    """Model -> scores of all tokens where the target's tokens are predicted."""

    body: nn.Module  # a system's model
    longest: int  # M, tokens of the longest target, its end included
    end: int  # id of the token that ends a target
    targets: Targets | None = None  # the only possible targets, such as label words; None: any text
    # `START`, with which a target behind a source begins; None: it is behind the prompt.
    start: int | None = None
    num_beams: int = 1  # width of the search for a text; 1: greedy
    length_penalty: float = 1.0  # as of `beam.search`
    num_rows: int = 1  # 1, the rows of an example, for callers that also have classifiers

    def __call__(self, batch: Batch, states: States, *, train: bool) -> jax.Array:
        """Returns scores [B, M, V] of the tokens at the targets' places.

        Args:
          batch: a prompt, and labels [B, M], the targets, -1 behind their end.
          states: computes the states of the body, such as `objectives.Pass.hidden`.
          train: unused, as `states` knows it.
        """
        del train
        labels = batch.get("labels", jnp.zeros((len(batch["lengths"]), self.longest), jnp.int32))
        inputs, counts = jnp.maximum(labels[:, :-1], 0), jnp.sum(labels >= 0, axis=1) - 1
        prompt = self._prompt(batch)
        places = prompt["lengths"][:, None] - 1 + jnp.arange(self.longest)
        rows = jnp.arange(len(places))[:, None]
        tokens = jnp.pad(prompt["tokens"], ((0, 0), (0, self._room)))
        tokens = tokens.at[rows, places[:, 1:]].set(inputs)
        read = prompt | {"tokens": tokens, "lengths": prompt["lengths"] + counts}
        return token_logits(self.body, states(self.body, read)[rows, places])

    @property
    def _room(self) -> int:
        """Positions for the target, behind those that rows of prompts have."""
        return 0 if self.start is None else self.longest - 1

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
        """Decodes a batch of prompts; see `decode`."""
        body, variables = self.body.unbind()
        return self.decode(stepper.prepare(body, variables["params"]), batch)

    def decode(self, made: stepper.Reader, batch: Batch) -> jax.Array:
        """Decodes prompts with a model that is given; the parameters of `body` are not read.

        Args:
          made: the model, or several that write together.
          batch: prompts, as for `__call__`.

        Returns:
          As `_choose` with targets, else the tokens [B, M] float32, -1 behind the end.
        """
        read, size = self._prompt(batch), len(batch["lengths"])
        tokens, lengths = read["tokens"], read["lengths"]
        source = None if self.start is None else (read["source"], read["source_lengths"])
        max_len = tokens.shape[1] + self._room
        if self.targets is not None:
            cache = made.init_cache(size, max_len, source)
            return self._choose(made, *made(tokens, lengths, cache))
        given, sizes = (made, tokens, lengths, source), (self.longest, max_len, self.end)
        if self.num_beams > 1:
            found, _ = beam.search_rows(*given, self.num_beams, *sizes, self.length_penalty)
            written = found[:, 0]
        else:
            keys = jnp.broadcast_to(jax.random.key(0), size)  # nothing is drawn
            written, *_ = loop.generate_rows(*given, keys, Rules(), *sizes)
        return self._until_end(written)

    def _until_end(self, written: jax.Array) -> jax.Array:
        """Returns tokens [B, M] as float32, -1 behind the end."""
        ends = written == self.end
        return jnp.where(jnp.cumsum(ends, axis=1) > ends, -1.0, written)

    def _choose(self, made: stepper.Reader, scores: jax.Array, cache: object) -> jax.Array:
        """Returns [B, 2 + M] float32.

        They are the target, 1 if no other token had a higher score, else 0, and the tokens that
        greedy decoding over all tokens writes. `scores` [B, V] are those of the first token.
        """
        best, free = [scores.argmax(axis=1)], cache
        while len(best) < self.longest:
            following, free = made(best[-1][:, None], jnp.ones_like(best[-1]), free)
            best.append(following.argmax(axis=1))
        written = self._until_end(jnp.stack(best, axis=1))
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
                scores, cache = made(best[:, None], jnp.ones_like(best), cache)
        chosen = jnp.stack([reached.argmax(axis=1), valid], axis=1)
        return jnp.concatenate([chosen.astype(jnp.float32), written], axis=1)
