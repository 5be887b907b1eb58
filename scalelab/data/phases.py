"""The two phases of a training: which documents each has, and the examples made of them.

The protocol fixes the share of *examples* at the long length. Documents are put in a seeded
hash order, and the first of them, up to a share of all tokens, go to the long phase. If all
documents at the long length would make r times the examples that they make at the short one, a
share x of the tokens gives x r : (1 - x) examples, so that a share e of the examples is long at x =
e / (e + r (1 - e)).
"""

import dataclasses
import functools
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from scalelab import formats
from scalelab.config.fields import make_options
from scalelab.config.pretraining import Config
from scalelab.data import cache, store
from scalelab.data.batches import Batch, Corrupt, evaluation_batches
from scalelab.data.store import ExampleStore
from scalelab.formats import COMMON, Array, Documents, Examples, Specials, draws, lengths_name
from scalelab.helpers.progress import show_bar

if TYPE_CHECKING:
    from scalelab.data.tokenizers import Tokenizer

logger = logging.getLogger(__name__)
VERSION = 1  # version of the split between the phases
SENTENCES_FOR_RATIO = 200_000
NUM_SAMPLED_BATCHES = 16  # batches from which the tokens of an epoch are estimated
VALID_SEED = 0  # all seeds share the validation examples, so that their losses compare


@dataclasses.dataclass(frozen=True)
class PhaseData:
    """The examples of one phase."""

    max_len: int  # tokens of the longest example, T
    batch_size: int  # B
    train: ExampleStore  # the phase's share of the training documents
    valid: ExampleStore  # all validation documents, at the phase's length
    corrupt: Corrupt | None = None  # the format's, applied to every batch
    arrays: tuple[Array, ...] = COMMON  # declarations of the arrays of a batch

    @property
    def steps_per_epoch(self) -> int:
        """Whole batches in one epoch of the phase."""
        return len(self.train) // self.batch_size

    @property
    def step_tokens(self) -> float:
        """Mean tokens of a batch, without padding."""
        return self.batch_size * self.epoch_tokens / len(self.train)

    @property
    def counted_arrays(self) -> tuple[str, ...]:
        """Names of the arrays whose tokens the token clock counts."""
        return tuple(array.name for array in self.arrays if array.is_counted)

    @functools.cached_property
    def epoch_tokens(self) -> int:
        """Tokens of an epoch in `counted_arrays`; an estimate if the format corrupts its rows."""
        return self.count_tokens(self.train)

    def count_tokens(self, store: ExampleStore) -> int:
        """Returns `epoch_tokens` for the examples of a store, `train` or `valid`."""
        if self.corrupt is None:
            return sum(int(store.arrays[f"{name}_starts"][-1]) for name in self.counted_arrays)
        found = self.lengths(store).values()
        return round(sum(int(x.sum()) for x in found) / max(map(len, found)) * len(store))

    def lengths(self, store: ExampleStore) -> dict[str, np.ndarray]:
        """Returns the lengths of the rows of each of `counted_arrays` in the n examples of a store.

        If the format corrupts its rows, n is a sample.
        """
        if self.corrupt is None:
            return {x: np.diff(store.arrays[f"{x}_starts"]) for x in self.counted_arrays}
        most = self.batch_size, NUM_SAMPLED_BATCHES
        batches = list(evaluation_batches(store, *most, self.corrupt))
        there = np.concatenate([batch["lengths"] > 0 for batch in batches])
        rows = {x: [batch[lengths_name(x)] for batch in batches] for x in self.counted_arrays}
        return {name: np.concatenate(own)[there] for name, own in rows.items()}

    def num_validated(self, most: int | None) -> int:
        """Returns how many examples a validation reads, of about `most`: its batches are whole."""
        size = -(-(most or len(self.valid)) // self.batch_size) * self.batch_size
        return min(len(self.valid), size)

    @property
    def padding_share(self) -> float:
        """Share of padding in `counted_arrays`, in [0, 1]."""
        width = sum(a.shape(self.max_len, 1)[1] for a in self.arrays if a.is_counted)
        return 1 - self.epoch_tokens / (len(self.train) * width)


@dataclasses.dataclass
class PhaseMaker:
    """Makes the examples of the phases of a run, or finds them in the cache."""

    config: Config
    documents: dict[str, Documents]  # split, "train" or "valid" -> its documents
    specials: Specials  # special ids of the examples
    key: object  # plain JSON, on which the documents depend; part of the cache's key
    order: str = "shuffled"  # the system's ORDER, or "contiguous"
    progress: bool = False  # whether bars are shown
    tokenizer: "Tokenizer | None" = None  # needed by formats that annotate documents

    def __post_init__(self) -> None:
        self.form, rate = formats.load(self.config.data.format), self.config.long.example_rate
        self.options = make_options(self.form, self.config.format_options)
        self.choices: dict[str, Any] = {"specials": self.specials, "options": self.options}
        self.lengths = [self.config.short.max_len, *([self.config.long.max_len] if rate else [])]

    @functools.cached_property
    def annotated(self) -> dict[str, Documents]:
        """The documents, with their units marked where the format does so."""
        annotate = getattr(self.form, "annotate", None)
        if annotate is None or self.tokenizer is None:
            return self.documents
        made = annotate(self.documents, self.tokenizer, self.options)
        has_units = any(array.name == "units" for array in self.form.ARRAYS)
        if has_units and not np.any(made["train"].units & formats.ENTITY):
            logger.warning(
                "The training text has no entities, so that words are masked in their place: they"
                " are spans of the corpus or runs of capitals, which tokenizer.lowercase=True"
                " removes"
            )
        return made

    @functools.cached_property
    def training_ids(self) -> tuple[np.ndarray | None, ...]:
        """The training documents of each phase; None is all."""
        rate = self.config.long.example_rate
        if not rate:
            return (None,)
        build = functools.partial(self.form.build, **self.choices)
        return split_documents(self.documents["train"], build, self.lengths, rate, self.config.seed)

    def make(self) -> tuple[PhaseData, ...]:
        """Opens the examples of each phase, and makes those that the cache lacks.

        Raises:
          ValueError: too few examples for one batch of a phase, or none for validation; in
            contiguous order, fewer documents than rows of a batch.
        """
        phases = self.config.phases
        for place, phase in enumerate(phases if self.order == "contiguous" else ()):
            ids = self.training_ids[place]
            count = self.documents["train"].num_documents if ids is None else len(ids)
            if count < phase.batch_size:
                name = ("short", "long")[place]
                raise ValueError(
                    f"{self.config.system} reads documents in their order, in each of the"
                    f" {phase.batch_size} rows of a batch others, but the training split has"
                    f" {count} for length {phase.max_len}: use more text, or set"
                    f" config.{name}.batch_size to {count} or less"
                )
        return tuple(map(self.open_phase, range(len(phases))))

    def open_phase(self, place: int) -> PhaseData:
        """Opens the examples of a phase."""
        arrays = formats.arrays_of(self.config.data.format, self.config.format_options)
        phase, corrupt = self.config.phases[place], getattr(self.form, "corrupt", None)
        if corrupt is not None:
            change = functools.partial(corrupt, **self.choices, max_len=phase.max_len)
            corrupt = functools.partial(_corrupt, change, arrays, phase.max_len)
        own = {"lengths": self.lengths, "example_rate": self.config.long.example_rate}
        own |= {"place": place, "seed": self.config.seed}
        train = self.open_store("train", place, own)
        valid = self.open_store("valid", place, {"max_len": phase.max_len, "seed": VALID_SEED})
        if len(train) < phase.batch_size:
            raise ValueError(
                f"the corpus is too small: it makes {len(train)} training examples of length"
                f" {phase.max_len}, fewer than one batch of {phase.batch_size}; use more text, a"
                " smaller batch_size, or --config.long.example_rate=0 for a single phase"
            )
        if not len(valid):
            raise ValueError(
                f"the validation split makes no example of length {phase.max_len};"
                " use more text, or a larger --config.data.valid_rate"
            )
        return PhaseData(phase.max_len, phase.batch_size, train, valid, corrupt, arrays)

    def open_store(self, split: str, place: int, own_key: dict[str, Any]) -> ExampleStore:
        """Opens the examples of a split; `own_key` has its seed."""
        write = functools.partial(self._write, split, place, own_key["seed"])
        key = own_key | {
            "split": split,
            "documents": self.key,
            "specials": dataclasses.asdict(self.specials),
            "options": self.options and dataclasses.asdict(self.options),
            "format": self.config.data.format,
            "version": [self.form.VERSION, VERSION],
            "store": store.VERSION,
        }
        return ExampleStore.open(cache.entry(self.config.machine.cache_dir, "examples", key, write))

    def _write(self, split: str, place: int, seed: int, directory: Path) -> None:
        """Writes the examples of a split into a folder."""
        max_len, documents = self.config.phases[place].max_len, self.documents[split]
        ids = self.training_ids[place] if split == "train" else None
        share = 1 if ids is None else len(ids) / documents.num_documents
        examples = self.form.build(
            self.annotated[split], max_len=max_len, seed=seed, document_ids=ids, **self.choices
        )
        label, total = f"examples ({split}, {max_len})", round(share * len(documents.tokens))
        name, options = self.config.data.format, self.config.format_options
        arrays = formats.arrays_of(name, options, stored=True)
        with show_bar(label, total, show=self.progress) as tick:
            store.write(_ticked(examples, tick), directory, arrays, max_len)


def _corrupt(
    change: Corrupt, arrays: Iterable[Array], max_len: int, batch: Batch, **address: Any
) -> Batch:
    """Corrupts a batch by `change`, and checks the result against the declared arrays."""
    changed = change(batch, **address)
    formats.check_batch(arrays, changed, max_len)
    return changed


def _ticked(examples: Iterator[Examples], tick: Callable[[int], object]) -> Iterator[Examples]:
    for chunk in examples:
        yield chunk
        tick(len(chunk.ragged["tokens"].values))


def split_documents(
    documents: Documents,
    build: Callable[..., Iterator[Examples]],
    lengths: Sequence[int],
    rate: float,
    seed: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Splits the training documents between two phases.

    Args:
      documents: of the split "train".
      build: `Format.build` with all but documents, max_len, seed and document_ids.
      lengths: max_len of the short and of the long phase.
      rate: share of the examples that are long, in (0, 1).
      seed: seed of the choice.

    Returns:
      Indices of the documents of each phase, int64, ascending.
    """
    stride = max(-(-documents.num_sentences // SENTENCES_FOR_RATIO), 1)
    sample = np.arange(0, documents.num_documents, stride)
    num_short, num_long = (
        sum(map(len, build(documents, max_len=length, seed=seed, document_ids=sample)))
        for length in lengths
    )
    ratio = num_long / max(num_short, 1)
    is_long = choose_documents(documents, rate / (rate + ratio * (1 - rate)), seed)
    return np.flatnonzero(~is_long), np.flatnonzero(is_long)


def choose_documents(documents: Documents, share: float, seed: int) -> np.ndarray:
    """Chooses documents by a seeded hash, about `share` of all tokens: bool [num_documents]."""
    token_starts = np.asarray(documents.sentence_starts)[documents.document_starts]
    places = draws.bits(draws.key(seed), np.arange(documents.num_documents))
    order = np.argsort(places, kind="stable")
    num_tokens = np.diff(token_starts)[order]
    # A document goes where its middle falls, so that the share is as often above as below.
    middles = np.cumsum(num_tokens) - num_tokens / 2
    is_chosen = np.zeros(documents.num_documents, bool)
    is_chosen[order] = middles < share * (token_starts[-1] - token_starts[0])
    return is_chosen
