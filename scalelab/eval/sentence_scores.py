"""Scores of sentences, by a rule that suits what the net predicts.

| rule | of each token | nets |
|---|---|---|
| log_likelihood | log p given the tokens before it | those that predict the next token |
| pll | log p where it alone is masked (Salazar et al. 2020, eq. 1) | masked nets |
| pll_word | the same, with the rest of its word masked (Kauf and Ivanova 2023) | masked nets |
| pll, pll_word | the same, from the state before the token, which sees the row | GPT-BERT |
| conditional | log p given the tokens before it and a source of special tokens | encoder-decoders |
| discriminator | log p that it is original (Clark et al. 2020, 2) | ELECTRA's discriminator |

A sentence's score is the sum over its tokens. If the state before a token predicts the token, a net
without a start token does not score the first one.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import numpy as np
from flax import linen as nn
from flax.errors import ScopeParamNotFoundError

from scalelab import objectives
from scalelab.eval import likelihood
from scalelab.eval.likelihood import Reading
from scalelab.eval.placement import Placed
from scalelab.objectives import Pass
from scalelab.runs.pretrained import Pretrained

Spans = tuple[tuple[int, int], ...]  # from each first character to the one after the last
BY_PREDICTION = {"next": ("log_likelihood",), "masked": ("pll", "pll_word"), None: ()}


class Scores(NamedTuple):
    """Scores of texts, token by token."""

    log_probs: np.ndarray  # [n] float32, nats; NaN: not scored
    starts: np.ndarray  # [num_texts + 1] int64, where each text's tokens begin
    stops: np.ndarray  # [n] int64, the character after each token in its text

    def add_up(self, spans: Sequence[Spans | None]) -> tuple[np.ndarray, np.ndarray]:
        """Adds up each text's scores, where `spans` [num_texts] says which characters count.

        A token counts where its last character does; None: all tokens do.

        Returns:
          [num_texts] float64 each: sums, and the numbers of scored tokens.
        """
        used = ~np.isnan(self.log_probs) & _inside(self.starts, self.stops, spans)
        values = np.where(used, self.log_probs, 0.0), used
        totals = [np.concatenate([[0.0], np.cumsum(x, dtype=np.float64)]) for x in values]
        sums, counts = (x[self.starts[1:]] - x[self.starts[:-1]] for x in totals)
        return sums, counts


def _inside(starts: np.ndarray, stops: np.ndarray, spans: Sequence[Spans | None]) -> np.ndarray:
    """Returns for each token [n] whether its last character is in the spans of its text."""
    inside = np.ones(len(stops), bool)
    for k, own in enumerate(spans):
        if own is not None:
            part = slice(starts[k], starts[k + 1])
            begins, ends = np.array(own).reshape(-1, 2).T
            inside[part] = ((stops[part, None] > begins) & (stops[part, None] <= ends)).any(axis=1)
    return inside


def rules(opened: Pretrained) -> list[str]:
    """Returns the rules that can score with the net of a run, the default first."""
    if opened.system.HAS_SOURCE:
        return ["conditional"] if opened.predicts == "next" else []
    found = ["discriminator"] if _is_discriminator(opened) else []
    found += BY_PREDICTION[opened.predicts]
    return found + [*BY_PREDICTION["masked"]] * opened.shifts_masks


def choose_rule(opened: Pretrained, rule: str | None) -> str:
    """Returns `rule`, or the net's default.

    Raises:
      ValueError: the net has no such rule, or none at all.
    """
    able = rules(opened)
    if not able:
        raise ValueError(
            f"{opened.path} was trained on {opened.config.objective!r}, which predicts no tokens:"
            " nothing in it scores a sentence"
        )
    if rule is not None and rule not in able:
        raise ValueError(f"rule {rule!r} does not suit {opened.path}: expected {', '.join(able)}")
    return rule or able[0]


def _is_discriminator(opened: Pretrained) -> bool:
    """Whether the net was trained to tell replaced tokens."""
    if not any("replaced" in objectives.load(term.name).HEADS for term in opened.terms):
        return False
    batch = objectives.example_batch(1, ())

    def apply(model: nn.Module) -> jax.Array:
        return model.replaced_logits(Pass(jax.random.key(0)).hidden(model, batch))

    try:
        jax.eval_shape(nn.apply(apply, opened.net), {"params": opened.params})
    except ScopeParamNotFoundError:  # it restores tokens
        return False
    return True


def make_reading(opened: Pretrained, rule: str) -> Reading:
    """Returns the reading of a rule: each sentence is one row, with the special tokens of training.

    Raises:
      ValueError: the net reads a source, and its system puts no special tokens around texts.
    """
    frame, causal = opened.tokenizer.frame(), rule == "log_likelihood"
    if rule == "conditional":
        return _read_source(opened)
    end = () if causal else frame.end
    room = opened.config.net.max_len - len(frame.begin) - len(end)
    mask_id = opened.tokenizer.special_ids["mask"] if rule.startswith("pll") else None
    shifted = mask_id is not None and opened.shifts_masks
    return Reading(frame.begin, end, mask_id, room, room, rule == "discriminator", shifted)


def _read_source(opened: Pretrained) -> Reading:
    """Returns the reading of an encoder-decoder: the source has special tokens only."""
    frame, roles = opened.tokenizer.frame(), opened.tokenizer.special_ids
    source, room = (*frame.begin, *frame.end), opened.config.net.max_len - 1
    if not source:
        raise ValueError(
            f"the net in {opened.path} reads a source without special tokens around it, so nothing"
            " is the source of a sentence alone; expected a system whose FRAME has some"
        )
    return Reading((roles[vars(opened.system)["START"]],), (), None, room, room, source=source)


def choose_batch_size(reading: Reading, batch_tokens: int | None) -> int:
    """Returns the rows of a full context that a batch has; None: what suits the device."""
    # On CPU a step of 4,096 tokens took three times as long a token as one of 2,048 (LOG.md).
    batch_tokens = batch_tokens or (2048 if jax.default_backend() == "cpu" else 65_536)
    return max(1, batch_tokens // (reading.context + reading.num_special))


def scorer(
    opened: Pretrained, placed: Placed, rule: str, batch_tokens: int | None = None
) -> Callable[..., Scores]:
    """Returns the function (texts, their spans or None for all characters) -> scores.

    A token outside the spans may lack its score.

    Args:
      opened: the run.
      placed: its net on the devices.
      rule: one of `rules(opened)`.
      batch_tokens: tokens in a batch, padding included; None: what suits the device.
    """
    reading = make_reading(opened, rule)
    batch_size = choose_batch_size(reading, batch_tokens)

    def score(texts: Sequence[str], spans: Sequence[Spans | None] | None = None) -> Scores:
        starts, tokens, (_, stops, words) = opened.tokenizer.encode_aligned(texts)
        lengths = np.diff(starts)
        assert lengths.max(initial=0) <= reading.context, "left out by the caller"
        word_stops = _word_stops(words, starts) if rule == "pll_word" else None
        ids = tokens.astype(np.int32)
        wanted = None if spans is None else _inside(starts, stops, spans)
        nats = likelihood.token_nats(
            placed, ids, starts, reading, batch_size, word_stops, wanted, show=False
        )
        return Scores(-nats, starts, stops)

    return score


def _word_stops(words: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Returns for each token [n] the place after the last token of its word."""
    begins = np.ones(len(words) + 1, bool)
    begins[1:-1] = words[1:] != words[:-1]
    begins[starts] = True
    edges = np.flatnonzero(begins)
    return edges[np.searchsorted(edges, np.arange(len(words)), side="right")]
