"""Scores of sentences, by a rule that suits the model's objective.

| rule | score of a token | models |
|---|---|---|
| log_likelihood | log p given the tokens before it | left-to-right models |
| pll | log p with only this token masked (Salazar et al. 2020, eq. 1) | masked models |
| pll_word | the same, with the rest of its word masked (Kauf and Ivanova 2023) | masked models |
| pll, pll_word | the same, from the state before the token, which sees the row | GPT-BERT |
| conditional | log p given the tokens before it and a source of special tokens | encoder-decoders |
| discriminator | log p that it is original (Clark et al. 2020, 2) | ELECTRA's discriminator |

A sentence's score is the sum over its tokens, in nats. If the state before a token predicts the
token, a model without a start token does not score the first token.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np
from flax import linen as nn
from flax.errors import ScopeParamNotFoundError

from scalelab import objectives
from scalelab.data.tokenizers import Tokenizer
from scalelab.eval import likelihood, placement, token_scores
from scalelab.eval.evaluation import Asked
from scalelab.eval.items import Spans
from scalelab.eval.likelihood import Reading
from scalelab.objectives import Pass
from scalelab.training.pretrained import Pretrained

AT_ONCE = 8192  # texts that are encoded together
CAUSAL = ("log_likelihood", "conditional")
BY_PREDICTION = {"next": ("log_likelihood",), "masked": ("pll", "pll_word"), None: ()}


class Encoded(NamedTuple):
    """Texts as concatenated token ids [n]."""

    tokens: np.ndarray  # [n] int32
    starts: np.ndarray  # [num_texts + 1] int64, offset of each text
    stops: np.ndarray  # [n] int64, index in the text of the character after each token
    words: np.ndarray  # [n] int64, index of each token's word in its text
    inside: np.ndarray  # [n] bool, whether a token's last character is in the spans of its text

    @property
    def lengths(self) -> np.ndarray:
        """The number of tokens of each text: [num_texts] int64."""
        return np.diff(self.starts)

    def add_up(self, values: np.ndarray) -> np.ndarray:
        """Returns each text's sum of the values [n] inside its spans, without NaN: [num_texts]."""
        used = np.where(self.inside & ~np.isnan(values), values, 0.0)
        totals = np.concatenate([[0.0], np.cumsum(used, dtype=np.float64)])
        return totals[self.starts[1:]] - totals[self.starts[:-1]]

    def spread(self, values: np.ndarray) -> np.ndarray:
        """Repeats `values` [num_texts] for each token of the text: [n]."""
        return np.repeat(values, self.lengths)


def encode(
    tokenizer: Tokenizer, texts: Sequence[str], spans: Sequence[Spans | None] | None = None
) -> Encoded:
    """Encodes texts.

    Args:
      tokenizer: the model's tokenizer.
      texts: the texts.
      spans: [num_texts] character ranges that count; None, or None for a text: all.
    """
    parts = [
        tokenizer.encode_aligned(texts[k : k + AT_ONCE]) for k in range(0, len(texts), AT_ONCE)
    ]
    lengths = np.concatenate([[0], *(np.diff(starts) for starts, _, _ in parts)])
    tokens, stops, words = (
        np.concatenate(own) for own in zip(*((x, *y[1:]) for _, x, y in parts), strict=True)
    )
    starts, inside = np.cumsum(lengths), np.ones(len(tokens), bool)
    for k, own in enumerate(spans or ()):
        if own is not None:
            part = slice(starts[k], starts[k + 1])
            begins, ends = np.array(own).reshape(-1, 2).T
            inside[part] = ((stops[part, None] > begins) & (stops[part, None] <= ends)).any(axis=1)
    return Encoded(tokens.astype(np.int32), starts, stops, words, inside)


def rules(opened: Pretrained) -> list[str]:
    """Returns the rules that can score with the model of a run, the default first."""
    if opened.system.HAS_SOURCE:
        return ["conditional"] if opened.predicts == "next" else []
    found = ["discriminator"] if _is_discriminator(opened) else []
    found += BY_PREDICTION[opened.predicts]
    return found + [*BY_PREDICTION["masked"]] * opened.shifts_masks


def choose_rule(opened: Pretrained, rule: str | None) -> str:
    """Returns the rule by which a model scores sentences.

    Args:
      opened: the model.
      rule: name of the rule; None: the model's default.

    Raises:
      ValueError: the model does not have the rule, or has no rule.
    """
    able = rules(opened)
    if not able:
        raise ValueError(
            f"{opened.path} was trained on {opened.config.objective!r}, which predicts no tokens:"
            " nothing in it scores a sentence"
        )
    if rule is not None and rule not in able:
        raise ValueError(f"rule={rule}: expected a rule of {opened.path}: {', '.join(able)}")
    return rule or able[0]


def _is_discriminator(opened: Pretrained) -> bool:
    """Returns True if the model was trained to detect replaced tokens."""
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
    """Returns the `Reading` of a rule: each sentence is one row, with its special tokens."""
    is_masked = rule.startswith("pll")
    made = likelihood.make_reading(opened, causal=rule in CAUSAL, masked=is_masked)
    shifted = is_masked and opened.shifts_masks
    return made._replace(in_place=rule == "discriminator", shifted=shifted)


def choose_batch_size(reading: Reading, batch_tokens: int | None) -> int:
    """Returns the number of rows of full length in a batch.

    Args:
      reading: context and special tokens of a row.
      batch_tokens: tokens of a batch, padding included; None: chosen for the device.
    """
    # On CPU a step of 4,096 tokens cost three times the time per token of 2,048 tokens (LOG.md).
    batch_tokens = batch_tokens or (2048 if jax.default_backend() == "cpu" else 65_536)
    return max(1, batch_tokens // (reading.context + reading.num_special))


def score(
    opened: Pretrained,
    encoded: Encoded,
    rule: str,
    asked: Asked,
    *,
    reading: Reading | None = None,
    judge: token_scores.Judge | None = None,
    wanted: np.ndarray | None = None,
    words: np.ndarray | None = None,
) -> np.ndarray:
    """Scores the tokens of texts inside their spans: the engine of all evaluations of texts.

    A text that is longer than a row loses its first tokens.

    Args:
      opened: the run.
      encoded: the texts.
      rule: one of `rules(opened)`.
      asked: batch size, devices and file for partial results.
      reading: the way to read them; None: from `make_reading`.
      judge: a function of token_scores; None: `token_scores.nats`.
      wanted: [num_texts] bool, the texts that need scores; None: all.
      words: [n], word indices for the rule pll_word; None: the tokenizer's words.

    Returns:
      [n, ...] float32, minus the log-probabilities in nats or the judge's results; NaN for tokens
      without a score. Tokens outside the spans may have no score.

    Raises:
      ValueError: a score is not finite.
    """
    reading = reading or make_reading(opened, rule)
    kept = encoded.spread(encoded.starts[1:]) - np.arange(len(encoded.tokens)) <= reading.context
    starts = np.concatenate([[0], np.cumsum(np.minimum(encoded.lengths, reading.context))])
    inside = encoded.inside if wanted is None else encoded.inside & encoded.spread(wanted)
    word_stops = None
    if rule == "pll_word":
        word_stops = _word_stops((encoded.words if words is None else words)[kept], starts)
    made = likelihood.score(
        placement.place(opened, asked.tensor_parallel), encoded.tokens[kept], starts, reading,
        choose_batch_size(reading, asked.batch_tokens), judge=judge, word_stops=word_stops,
        wanted=None if inside.all() else inside[kept], partial=asked.partial,
    )  # fmt: skip
    found = np.full((len(kept), *made.shape[1:]), np.nan, np.float32)
    found[kept] = made
    return found


def _word_stops(words: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Returns for each token the index after the last token of its word: [n]."""
    begins = np.ones(len(words) + 1, bool)
    begins[1:-1] = words[1:] != words[:-1]
    begins[starts] = True
    edges = np.flatnonzero(begins)
    return edges[np.searchsorted(edges, np.arange(len(words)), side="right")]
