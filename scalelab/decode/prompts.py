"""Prompts and sources of many lengths in one array, of few shapes: each is compiled once."""

import dataclasses
from collections.abc import Sequence

import numpy as np

SHORTEST = 16  # bucket; the others are its doubles


@dataclasses.dataclass(frozen=True)
class Sources:
    """What an encoder-decoder continues: its prompts are then optional.

    Attributes:
      texts: token ids, each [n], n >= 1.
      start_token: the prompt of all texts where there are no prompts.
    """

    texts: Sequence[np.ndarray]
    start_token: int


def check(prompts: Sequence[np.ndarray], max_new_tokens: int, max_len: int) -> None:
    """Refuses prompts that a net of `max_len` positions cannot continue.

    Raises:
      ValueError: a prompt is empty, or has no room for the new tokens.
    """
    lengths = list(map(len, prompts))
    if min(lengths, default=0) < 1 or max_new_tokens < 1:
        raise ValueError("an empty prompt, or no new tokens: expected at least one of each")
    if max(lengths) + max_new_tokens > max_len:
        raise ValueError(
            f"a prompt of {max(lengths)} tokens and {max_new_tokens} new ones make"
            f" {max(lengths) + max_new_tokens}, but the net has {max_len} positions; shorten the"
            " prompt or lower max_new_tokens"
        )


def pad(
    prompts: Sequence[np.ndarray], max_new_tokens: int, max_len: int
) -> tuple[np.ndarray, np.ndarray]:
    """Puts prompts into the rows of one array; arguments and errors are those of `check`.

    Returns:
      [B, P] int32, zeros behind each prompt, and their lengths [B] int32. P is SHORTEST, doubled
      until it holds the longest, or max_len if that is less.
    """
    check(prompts, max_new_tokens, max_len)
    return _rows(prompts, max_len)


def pad_with_sources(
    prompts: Sequence[np.ndarray] | None,
    sources: Sources | None,
    max_new_tokens: int,
    max_len: int,
) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray] | None]:
    """Puts prompts, and sources if there are any, into arrays as `pad` does.

    Raises:
      ValueError: as for `check`; or the sources do not fit the net or the prompts.
    """
    if sources is None:
        assert prompts is not None, "neither prompts nor sources"
        return pad(prompts, max_new_tokens, max_len), None
    if prompts is None:
        prompts = [np.array([sources.start_token])] * len(sources.texts)
    lengths = list(map(len, sources.texts))
    if len(lengths) != len(prompts):
        raise ValueError(f"{len(prompts)} prompts, {len(lengths)} sources: expected as many of both")
    if not 1 <= min(lengths, default=0) <= max(lengths) <= max_len:
        raise ValueError(
            f"sources of {lengths} tokens: expected at least one source, and 1 to {max_len} tokens"
        )
    return pad(prompts, max_new_tokens, max_len), _rows(sources.texts, max_len)


def _rows(texts: Sequence[np.ndarray], max_len: int) -> tuple[np.ndarray, np.ndarray]:
    lengths = np.array([len(text) for text in texts], np.int32)
    length = SHORTEST
    while length < lengths.max():
        length *= 2
    tokens = np.zeros((len(texts), min(length, max_len)), np.int32)
    for row, text in zip(tokens, texts, strict=True):
        row[: len(text)] = text
    return tokens, lengths
