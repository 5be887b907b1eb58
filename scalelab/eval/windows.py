"""Sliding windows over a document that is longer than what the net sees at once.

A window of `context` tokens moves on by `stride`. In each the tokens are scored that no window
before it has scored: every token once. What a token is scored with is decided by `behind` and
`ahead`, the tokens that a window keeps on either side of those it scores (the document's own ends
apart): behind + stride + ahead = context.
"""

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class Windows:
    """The windows of one document, in order; indices of its tokens.

    Attributes:
      starts: [n] int64, the first token that each window sees.
      stops: [n] int64, behind the last one.
      firsts: [n] int64, the first token that it scores.
      lasts: [n] int64, behind the last one.
    """

    starts: np.ndarray
    stops: np.ndarray
    firsts: np.ndarray
    lasts: np.ndarray

    def __len__(self) -> int:
        return len(self.starts)


def slide(num_tokens: int, context: int, stride: int, ahead: int) -> Windows:
    """Lays windows over a document.

    Args:
      num_tokens: of the document, at least 1.
      context: tokens of it that the net sees at once.
      stride: tokens that a window adds, in [1, context].
      ahead: tokens that a scored one has behind it at least, in [0, context - stride]; before it
        are then at least context - stride - ahead. Both hold but at the document's ends.
    """
    assert num_tokens > 0 and 1 <= stride <= context and 0 <= ahead <= context - stride
    count = 1 + max(0, -(-(num_tokens - context) // stride))
    starts = np.arange(count, dtype=np.int64) * stride
    firsts = starts + (context - stride - ahead)
    firsts[0] = 0
    lasts = np.append(firsts[1:], num_tokens)
    return Windows(starts, np.minimum(starts + context, num_tokens), firsts, lasts)
