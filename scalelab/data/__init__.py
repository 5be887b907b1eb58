"""From a corpus to batches; `load_data` is what a training calls.

corpora (documents) -> sentences -> tokenizers (ids) -> formats (examples) -> store -> batches ->
pipeline; each step that takes long is kept by `cache`.
"""

import dataclasses
import functools
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from scalelab import formats
from scalelab.config import Config
from scalelab.data import cache, phases, store
from scalelab.data.phases import PhaseData
from scalelab.data.progress import bar
from scalelab.data.store import ExampleStore
from scalelab.formats.documents import Documents, Examples, Frame

PAIRS_BYTES = 1.6  # random second segments use text twice (protocol, Table 7.1: 1.58)
VALID_SEED = 0  # the validation examples are the same for every seed, so that their losses compare


@dataclasses.dataclass(frozen=True)
class Data:
    """What a run trains on.

    Attributes:
      tokenizer: a `scalelab.data.tokenizers.Tokenizer`.
      tokenizer_dir: its files, in Hugging Face layout.
      corpus_hash: SHA-256 of the corpus as it was read.
      unigram_nats: entropy of the training tokens taken one by one; what a net must get below.
      num_documents: for training.
      num_tokens: of their text, each once, without special tokens.
      phases: the short phase, and the long one where there is one.
      facts: what to say of it at the start of a run, by name.
    """

    tokenizer: Any
    tokenizer_dir: Path
    corpus_hash: str
    unigram_nats: float
    num_documents: int
    num_tokens: int
    phases: tuple[PhaseData, ...]
    facts: dict[str, str]

    @property
    def pass_tokens(self) -> int:
        """Tokens, special ones included, of one pass over the training examples of all phases."""
        return sum(int(phase.train.meta["num_tokens"]) for phase in self.phases)


def load_data(
    config: Config,
    system: types.ModuleType,
    *,
    tokenizer_dir: Path | None = None,
    progress: bool = True,
) -> Data:
    """Prepares, or finds prepared, everything from the corpus to the examples.

    Args:
      config: the run.
      system: the module of its family, for the special tokens.
      tokenizer_dir: a tokenizer that the parameters are for; None: of the run in
        config.machine.init, or else it is trained.
      progress: whether to show progress bars.

    Raises:
      ValueError: the corpus is missing, unreadable or too small, or the format cannot be made of
        it.
      OSError: the cache folder is full or cannot be written.
    """
    from scalelab.data import prepare, tokenizers  # slow to import, and not needed for batches

    formats.load(config.data.format)  # a misspelt one is refused before the work, not after it
    begin, between, end = system.FRAME
    spec = tokenizers.TokenizerSpec(
        kind=config.tokenizer.kind,
        vocab_size=config.tokenizer.vocab_size,
        lowercase=config.tokenizer.lowercase,
        special_tokens=system.SPECIAL_TOKENS,
        begin=begin,
        between=between,
        end=end,
    )
    if tokenizer_dir is None and config.machine.init is not None:
        tokenizer_dir = Path(config.machine.init) / "tokenizer"
    prepared = prepare.prepare_documents(
        config.data.corpus,
        spec if tokenizer_dir is None else tokenizer_dir,
        config.machine.cache_dir,
        keep_headings=config.data.keep_headings,
        errors=config.data.errors,
        valid_rate=config.data.valid_rate,
        progress=progress,
        num_workers=config.machine.num_workers,
    )
    started = time.perf_counter()
    frame = prepared.tokenizer.frame_of(system.FRAME)
    made = make_phases(config, prepared.documents, frame, prepared.key, progress=progress)
    timings = prepared.timings | {"examples": time.perf_counter() - started}
    train = prepared.documents["train"]
    facts = {
        "corpus": f"{config.data.corpus}, sha256 {prepared.corpus_hash[:12]}",
        "documents": f"{train.num_documents:,} with {len(train.tokens):,} tokens for training,"
        f" {prepared.documents['valid'].num_documents:,} for validation",
    }
    for phase in made:
        facts[f"examples of {phase.max_len}"] = (
            f"{len(phase.train):,} for training, {len(phase.valid):,} for validation"
        )
    entropy = unigram_entropy(train.tokens)
    facts["unigram entropy"] = f"{entropy:.4f} nats a token"
    facts["prepared in"] = ", ".join(f"{stage} {secs:.1f} s" for stage, secs in timings.items())
    return Data(
        prepared.tokenizer,
        Path(prepared.tokenizer_dir),
        prepared.corpus_hash,
        entropy,
        train.num_documents,
        len(train.tokens),
        made,
        facts,
    )


def unigram_entropy(tokens: np.ndarray, most: int = 100_000_000) -> float:
    """Entropy in nats of the token frequencies, -sum p log p.

    Args:
      tokens: [n] ids.
      most: of a larger corpus, its first so many tokens are counted.
    """
    counts = np.bincount(tokens[:most])
    p = counts[counts > 0] / counts.sum()
    return float(-(p * np.log(p)).sum())


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
    form = formats.load(config.data.format)
    rate = config.long.example_rate
    plan = config.phases
    lengths = [config.short.max_len, *([config.long.max_len] if rate else [])]
    made_from = {
        "documents": key,
        "frame": dataclasses.asdict(frame),
        "format": config.data.format,
        "version": [form.VERSION, phases.VERSION],
        "store": store.VERSION,
        "short_rate": config.data.short_rate,
    }

    def build(
        split: str, max_len: int, seed: int, ids: np.ndarray | None = None
    ) -> Iterator[Examples]:
        return form.build(
            documents[split],
            frame=frame,
            max_len=max_len,
            seed=seed,
            document_ids=ids,
            short_rate=config.data.short_rate,
        )

    @functools.cache  # needed only where examples have to be made, then for both phases
    def training_ids() -> tuple[np.ndarray | None, ...]:
        if not rate:
            return (None,)
        return phases.split_documents(
            documents["train"],
            lambda ids, max_len: sum(map(len, build("train", max_len, config.seed, ids))),
            (config.short.max_len, config.long.max_len),
            rate,
            config.seed,
        )

    def num_bytes(own_key: dict[str, Any]) -> int:
        """About how much text goes into examples."""
        split, place = own_key["split"], own_key.get("place", 0)
        total = int(np.sum(documents[split].sentence_bytes, dtype=np.int64))
        share = (1 - rate, rate)[place] if rate and split == "train" else 1
        return round(total * share * (PAIRS_BYTES if form.HAS_PAIRS else 1))

    def stored(own_key: dict[str, Any], make: Callable[[], Iterator[Examples]]) -> ExampleStore:
        folder = cache.entry(
            Path(config.machine.cache_dir).expanduser(),
            "examples",
            made_from | own_key,
            lambda directory: _write(
                make(), directory, own_key["split"], num_bytes(own_key), progress
            ),
        )
        return ExampleStore.open(folder)

    def phase_data(place: int) -> PhaseData:
        max_len, batch_size = plan[place].max_len, plan[place].batch_size
        train_key = {"lengths": lengths, "example_rate": rate, "place": place, "seed": config.seed}
        train = stored(
            {"split": "train"} | train_key,
            lambda: build("train", max_len, config.seed, training_ids()[place]),
        )
        valid = stored(
            {"split": "valid", "max_len": max_len, "seed": VALID_SEED},
            lambda: build("valid", max_len, VALID_SEED),
        )
        _check_size(max_len, batch_size, train, valid)
        return PhaseData(max_len, batch_size, train, valid)

    return tuple(phase_data(place) for place in range(len(plan)))


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
