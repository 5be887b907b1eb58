"""Texts of many lengths in one array, of few shapes: each shape is compiled once."""

from collections.abc import Sequence

import numpy as np

SHORTEST = 16  # bucket; the others are its doubles


def begin(
    prompts: Sequence[np.ndarray] | None,
    sources: Sequence[np.ndarray] | None,
    start_token: int | None,
) -> Sequence[np.ndarray]:
    """Returns the first tokens of each text: the start token, then its prompt.

    Without prompts the start token alone begins the text of each source.

    Raises:
      ValueError: there are no prompts, and no sources or no start token.
    """
    if prompts is None:
        if sources is None or start_token is None:
            raise ValueError("without prompts, texts need sources and a start token")
        prompts = [np.zeros(0, np.int32)] * len(sources)
    if start_token is None:
        return prompts
    return [np.concatenate([[start_token], prompt]).astype(np.int32) for prompt in prompts]


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
    """Puts prompts into the rows of one array, see `fill`; raises ValueError as `check` does."""
    check(prompts, max_new_tokens, max_len)
    return fill(prompts, max_len)


def fill(texts: Sequence[np.ndarray], max_len: int) -> tuple[np.ndarray, np.ndarray]:
    """Puts texts into the rows of one array.

    Returns:
      [B, P] int32, zeros behind each text, and their lengths [B] int32. P is SHORTEST, doubled
      until it holds the longest, or max_len if that is less.

    Raises:
      ValueError: a text is empty, or longer than max_len.
    """
    lengths = np.array([len(text) for text in texts], np.int32)
    if lengths.min() < 1 or lengths.max() > max_len:
        wrong = lengths.min() if lengths.min() < 1 else lengths.max()
        raise ValueError(f"a text of {wrong} tokens: expected 1 to {max_len}, as the net has")
    length = SHORTEST
    while length < lengths.max():
        length *= 2
    tokens = np.zeros((len(texts), min(length, max_len)), np.int32)
    for row, text in zip(tokens, texts, strict=True):
        row[: len(text)] = text
    return tokens, lengths
