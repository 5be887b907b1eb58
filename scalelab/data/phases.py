"""The two lengths of the protocol: which documents train the short phase and which the long one.

The protocol fixes the share of *examples* at the long length (10%). Documents are put in a seeded
hash order, and the first of them, up to a share of all tokens, go to the long phase. If all
documents at the long length would make r times the examples that they make at the short one, a
share x of the tokens gives x r : (1 - x) examples, so that a share e of the examples is long at x =
e / (e + r (1 - e)).
"""

import dataclasses
from collections.abc import Callable

import numpy as np

from scalelab.data.store import ExampleStore
from scalelab.formats import draws
from scalelab.formats.documents import Documents

VERSION = 1  # of the split between the phases
SENTENCES_FOR_RATIO = 200_000


@dataclasses.dataclass(frozen=True)
class PhaseData:
    """The examples of one phase.

    Attributes:
      max_len: tokens of the longest example, T.
      batch_size: B.
      train: examples of the phase's share of the training documents.
      valid: examples of all validation documents, at the phase's length.
    """

    max_len: int
    batch_size: int
    train: ExampleStore
    valid: ExampleStore

    @property
    def steps_per_epoch(self) -> int:
        """Whole batches in one epoch of the phase."""
        return len(self.train) // self.batch_size


def long_documents(documents: Documents, share: float, seed: int) -> np.ndarray:
    """Chooses documents with about `share` of all tokens, by a seeded hash of their index.

    Returns:
      Their indices, int64, ascending.
    """
    token_starts = np.asarray(documents.sentence_starts)[documents.document_starts]
    order = np.argsort(
        draws.bits(draws.key(seed), np.arange(documents.num_documents)), kind="stable"
    )
    num_tokens = np.diff(token_starts)[order]
    # A document goes where its middle falls, so that the share is as often above as below.
    middles = np.cumsum(num_tokens) - num_tokens / 2
    return np.sort(order[middles < share * (token_starts[-1] - token_starts[0])])


def long_share(
    documents: Documents,
    count_examples: Callable[[np.ndarray, int], int],
    lengths: tuple[int, int],
    rate: float,
) -> float:
    """Share of the tokens that makes `rate` of the examples long ones.

    Args:
      documents: the training split.
      count_examples: of some documents, given their indices, at a length.
      lengths: of the short and of the long phase.
      rate: of the examples, in [0, 1).
    """
    stride = -(-documents.num_sentences // SENTENCES_FOR_RATIO)
    sample = np.arange(0, documents.num_documents, max(stride, 1))
    num_short, num_long = (count_examples(sample, length) for length in lengths)
    ratio = num_long / max(num_short, 1)
    return rate / (rate + ratio * (1 - rate)) if rate else 0.0


def split_documents(
    documents: Documents,
    count_examples: Callable[[np.ndarray, int], int],
    lengths: tuple[int, int],
    rate: float,
    seed: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Splits the training documents between the phases; arguments as for `long_share`.

    Returns:
      Indices of the documents of the short and of the long phase, int64, ascending.
    """
    share = long_share(documents, count_examples, lengths, rate)
    is_long = np.zeros(documents.num_documents, bool)
    is_long[long_documents(documents, share, seed)] = True
    return np.flatnonzero(~is_long), np.flatnonzero(is_long)
