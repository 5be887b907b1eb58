"""The examples of each phase: made of the documents that are its share, or found made."""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from scalelab import formats
from scalelab.config.pretraining import Config
from scalelab.data import cache, phases, store
from scalelab.data.phases import PhaseData
from scalelab.data.store import ExampleStore
from scalelab.formats.documents import Documents, Examples, Frame
from scalelab.helpers.bar import bar

PAIRS_BYTES = 1.6  # random second segments use text twice (protocol, Table 7.1: 1.58)
VALID_SEED = 0  # the validation examples are the same for every seed, so that their losses compare


def make_phases(
    config: Config, documents: dict[str, Documents], frame: Frame, key: Any, progress: bool = False
) -> tuple[PhaseData, ...]:
    """Makes, or finds made, the examples of each phase.

    Args:
      config: the run.
      documents: by split; "train" and "valid" are used.
      frame: special ids around text.
      key: what the documents were made from, plain json; names the cached examples.
      progress: whether to show how far the making of examples is.

    Raises:
      ValueError: too few examples for one batch of a phase, or none for validation.
    """
    maker = _Maker(config, documents, frame, key, progress)
    return tuple(maker.phase(place) for place in range(len(config.phases)))


class _Maker:
    """Makes examples; arguments as for `make_phases`."""

    def __init__(
        self,
        config: Config,
        documents: dict[str, Documents],
        frame: Frame,
        key: Any,
        progress: bool,
    ) -> None:
        self._config, self._documents, self._frame = config, documents, frame
        self._progress = progress
        self._form = formats.load(config.data.format)
        self._made_from = {
            "documents": key,
            "frame": dataclasses.asdict(frame),
            "format": config.data.format,
            "version": [self._form.VERSION, phases.VERSION],
            "store": store.VERSION,
            "short_rate": config.data.short_rate,
        }

    def phase(self, place: int) -> PhaseData:
        """The examples of the phase at a place.

        Raises:
          ValueError: they are too few.
        """
        config, seed = self._config, self._config.seed
        max_len, batch_size = config.phases[place].max_len, config.phases[place].batch_size
        rate = config.long.example_rate
        lengths = [config.short.max_len, *([config.long.max_len] if rate else [])]
        train = self._stored(
            {"split": "train", "lengths": lengths, "example_rate": rate, "place": place}
            | {"seed": seed},
            lambda: self._build("train", max_len, seed, self._training_ids[place]),
        )
        valid = self._stored(
            {"split": "valid", "max_len": max_len, "seed": VALID_SEED},
            lambda: self._build("valid", max_len, VALID_SEED),
        )
        _check_size(max_len, batch_size, train, valid)
        return PhaseData(max_len, batch_size, train, valid)

    @functools.cached_property
    def _training_ids(self) -> tuple[np.ndarray | None, ...]:
        """The documents of each phase; needed only where examples have to be made."""
        config = self._config
        if not config.long.example_rate:
            return (None,)
        return phases.split_documents(
            self._documents["train"],
            lambda ids, max_len: sum(map(len, self._build("train", max_len, config.seed, ids))),
            (config.short.max_len, config.long.max_len),
            config.long.example_rate,
            config.seed,
        )

    def _build(
        self, split: str, max_len: int, seed: int, ids: np.ndarray | None = None
    ) -> Iterator[Examples]:
        return self._form.build(
            self._documents[split],
            frame=self._frame,
            max_len=max_len,
            seed=seed,
            document_ids=ids,
            short_rate=self._config.data.short_rate,
        )

    def _stored(
        self, own_key: dict[str, Any], make: Callable[[], Iterator[Examples]]
    ) -> ExampleStore:
        """The examples that `make` gives, from the cache where it has them."""
        split, size = own_key["split"], self._num_bytes(own_key)
        folder = cache.entry(
            Path(self._config.machine.cache_dir).expanduser(),
            "examples",
            self._made_from | own_key,
            lambda directory: _write(make(), directory, split, size, self._progress),
        )
        return ExampleStore.open(folder)

    def _num_bytes(self, own_key: dict[str, Any]) -> int:
        """About how much text goes into examples."""
        rate, split, place = (
            self._config.long.example_rate,
            own_key["split"],
            own_key.get("place", 0),
        )
        total = int(np.sum(self._documents[split].sentence_bytes, dtype=np.int64))
        share = (1 - rate, rate)[place] if rate and split == "train" else 1
        return round(total * share * (PAIRS_BYTES if self._form.HAS_PAIRS else 1))


def _write(
    examples: Iterator[Examples], directory: Path, split: str, num_bytes: int, progress: bool
) -> None:
    """Writes a store, showing the bytes of text that went into examples."""
    with bar(f"examples ({split})", num_bytes, show=progress) as tick:

        def told() -> Iterator[Examples]:
            for chunk in examples:
                tick(int(chunk.num_bytes.sum()))
                yield chunk

        store.write(told(), directory)


def _check_size(max_len: int, batch_size: int, train: ExampleStore, valid: ExampleStore) -> None:
    """Refuses a phase without a whole batch for training or without any validation."""
    if len(train) < batch_size:
        raise ValueError(
            f"the corpus is too small: it makes {len(train)} training examples of length {max_len},"
            f" fewer than one batch of {batch_size}; use more text, a smaller batch_size, or"
            " --config.long.example_rate=0 for a single phase"
        )
    if not len(valid):
        raise ValueError(
            f"the validation split makes no example of length {max_len};"
            " use more text, or a larger --config.data.valid_rate"
        )
