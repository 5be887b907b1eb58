"""The two phases of a training: which documents each has, and the examples made of them.

The protocol fixes the share of *examples* at the long length (10%). Documents are put in a seeded
hash order, and the first of them, up to a share of all tokens, go to the long phase. If all
documents at the long length would make r times the examples that they make at the short one, a
share x of the tokens gives x r : (1 - x) examples, so that a share e of the examples is long at x =
e / (e + r (1 - e)).
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from scalelab import formats
from scalelab.config.pretraining import Config
from scalelab.data import cache, store
from scalelab.data.store import ExampleStore
from scalelab.formats import Documents, Examples, Frame, draws
from scalelab.helpers.progress import show_bar

VERSION = 1  # of the split between the phases
SENTENCES_FOR_RATIO = 200_000
PAIRS_BYTES = 1.6  # random second segments use text twice (protocol, Table 7.1: 1.58)
VALID_SEED = 0  # all seeds share the validation examples, so that their losses compare


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

    @property
    def step_tokens(self) -> float:
        """Mean tokens of a batch, without padding."""
        return self.batch_size * self.train.meta["num_tokens"] / len(self.train)


def make_phases(
    config: Config, documents: dict[str, Documents], frame: Frame, key: Any, progress: bool = False
) -> tuple[PhaseData, ...]:
    """Makes the examples of each phase, or finds them in the cache.

    Args:
      config: the run.
      documents: by split; "train" and "valid" are used.
      frame: special ids around text.
      key: what the documents depend on, plain JSON; part of the cache's key.
      progress: whether to show progress bars.

    Raises:
      ValueError: too few examples for one batch of a phase, or none for validation.
    """
    maker = _Maker(config, documents, frame, key, progress)
    return tuple(maker.make(place) for place in range(len(config.phases)))


@dataclasses.dataclass(frozen=True)
class _Maker:
    """Makes the examples of phases; fields as for `make_phases`."""

    config: Config
    documents: dict[str, Documents]
    frame: Frame
    key: Any
    progress: bool

    def make(self, place: int) -> PhaseData:
        """Returns the examples of the phase at a place."""
        config, seed = self.config, self.config.seed
        max_len, batch_size = config.phases[place].max_len, config.phases[place].batch_size
        rate = config.long.example_rate
        lengths = [config.short.max_len, *([config.long.max_len] if rate else [])]
        train = self._store(
            {"split": "train", "lengths": lengths, "example_rate": rate, "place": place}
            | {"seed": seed},
            lambda: self._build("train", max_len, seed, self._training_ids[place]),
        )
        valid = self._store(
            {"split": "valid", "max_len": max_len, "seed": VALID_SEED},
            lambda: self._build("valid", max_len, VALID_SEED),
        )
        if len(train) < batch_size:
            raise ValueError(
                f"the corpus is too small: it makes {len(train)} training examples of length"
                f" {max_len}, fewer than one batch of {batch_size}; use more text, a smaller"
                " batch_size, or --config.long.example_rate=0 for a single phase"
            )
        if not len(valid):
            raise ValueError(
                f"the validation split makes no example of length {max_len};"
                " use more text, or a larger --config.data.valid_rate"
            )
        return PhaseData(max_len, batch_size, train, valid)

    @functools.cached_property
    def _training_ids(self) -> tuple[np.ndarray | None, ...]:
        """The documents of each phase; computed only if examples have to be made."""
        config = self.config
        if not config.long.example_rate:
            return (None,)
        return split_documents(
            self.documents["train"],
            lambda ids, max_len: sum(map(len, self._build("train", max_len, config.seed, ids))),
            (config.short.max_len, config.long.max_len),
            config.long.example_rate,
            config.seed,
        )

    def _build(
        self, split: str, max_len: int, seed: int, ids: np.ndarray | None = None
    ) -> Iterator[Examples]:
        return formats.load(self.config.data.format).build(
            self.documents[split],
            frame=self.frame,
            max_len=max_len,
            seed=seed,
            document_ids=ids,
            short_rate=self.config.data.short_rate,
        )

    def _store(
        self, own_key: dict[str, Any], make: Callable[[], Iterator[Examples]]
    ) -> ExampleStore:
        """Returns the examples that `make` yields, from the cache if they are there."""
        config, form = self.config, formats.load(self.config.data.format)
        key = own_key | {
            "documents": self.key,
            "frame": dataclasses.asdict(self.frame),
            "format": config.data.format,
            "version": [form.VERSION, VERSION],
            "store": store.VERSION,
            "short_rate": config.data.short_rate,
        }
        split, rate = own_key["split"], config.long.example_rate
        num_bytes = np.sum(self.documents[split].sentence_bytes, dtype=np.int64)
        if rate and split == "train":
            num_bytes = num_bytes * (rate if own_key["place"] else 1 - rate)
        if form.HAS_PAIRS:
            num_bytes = num_bytes * PAIRS_BYTES

        def write(directory: Path) -> None:
            with show_bar(f"examples ({split})", round(num_bytes), show=self.progress) as tick:
                store.write(_with_progress(make(), tick), directory)

        cache_dir = Path(config.machine.cache_dir).expanduser()
        return ExampleStore.open(cache.entry(cache_dir, "examples", key, write))


def _with_progress(
    examples: Iterator[Examples], tick: Callable[[int], object]
) -> Iterator[Examples]:
    """Yields chunks of examples unchanged, ticking the bytes of their text."""
    for chunk in examples:
        tick(int(chunk.num_bytes.sum()))
        yield chunk


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


def long_share(
    documents: Documents,
    count_examples: Callable[[np.ndarray, int], int],
    lengths: tuple[int, int],
    rate: float,
) -> float:
    """Returns the share of the tokens that makes `rate` of the examples long ones.

    Args:
      documents: the training split.
      count_examples: (indices of documents, length) -> examples.
      lengths: of the short and of the long phase.
      rate: of the examples, in [0, 1).
    """
    stride = -(-documents.num_sentences // SENTENCES_FOR_RATIO)
    sample = np.arange(0, documents.num_documents, max(stride, 1))
    num_short, num_long = (count_examples(sample, length) for length in lengths)
    ratio = num_long / max(num_short, 1)
    return rate / (rate + ratio * (1 - rate)) if rate else 0.0


def long_documents(documents: Documents, share: float, seed: int) -> np.ndarray:
    """Chooses documents with about `share` of all tokens, by a seeded hash of their index.

    Returns:
      Their indices, int64, ascending.
    """
    token_starts = np.asarray(documents.sentence_starts)[documents.document_starts]
    places = draws.bits(draws.key(seed), np.arange(documents.num_documents))
    order = np.argsort(places, kind="stable")
    num_tokens = np.diff(token_starts)[order]
    # A document goes where its middle falls, so that the share is as often above as below.
    middles = np.cumsum(num_tokens) - num_tokens / 2
    return np.sort(order[middles < share * (token_starts[-1] - token_starts[0])])
