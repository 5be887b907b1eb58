"""From a corpus to batches; `load_data` is what a training calls.

corpora (documents) -> sentences -> tokenizers (ids) -> formats (examples) -> store -> batches ->
pipeline; each step that takes long is kept by `cache`.
"""

import dataclasses
import time
import types
from pathlib import Path
from typing import Any

import numpy as np

from scalelab import formats
from scalelab.config.pretraining import Config
from scalelab.data.phase_examples import make_phases
from scalelab.data.phases import PhaseData


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
    entropy = unigram_entropy(prepared.documents["train"].tokens)
    facts = _documents_said(config.data.corpus, prepared) | _examples_said(made)
    facts["unigram entropy"] = f"{entropy:.4f} nats a token"
    facts["prepared in"] = ", ".join(f"{stage} {secs:.1f} s" for stage, secs in timings.items())
    return Data(
        tokenizer=prepared.tokenizer,
        tokenizer_dir=Path(prepared.tokenizer_dir),
        corpus_hash=prepared.corpus_hash,
        unigram_nats=entropy,
        num_documents=prepared.documents["train"].num_documents,
        num_tokens=len(prepared.documents["train"].tokens),
        phases=made,
        facts=facts,
    )


def _documents_said(corpus: str, prepared: Any) -> dict[str, str]:
    train, valid = (prepared.documents[split] for split in ("train", "valid"))
    return {
        "corpus": f"{corpus}, sha256 {prepared.corpus_hash[:12]}",
        "documents": f"{train.num_documents:,} with {len(train.tokens):,} tokens for training,"
        f" {valid.num_documents:,} for validation",
    }


def _examples_said(made: tuple[PhaseData, ...]) -> dict[str, str]:
    return {
        f"examples of {phase.max_len}": f"{len(phase.train):,} for training,"
        f" {len(phase.valid):,} for validation"
        for phase in made
    }


def unigram_entropy(tokens: np.ndarray, most: int = 100_000_000) -> float:
    """Entropy in nats of the token frequencies, -sum p log p.

    Args:
      tokens: [n] ids.
      most: of a larger corpus, its first so many tokens are counted.
    """
    counts = np.bincount(tokens[:most])
    p = counts[counts > 0] / counts.sum()
    return float(-(p * np.log(p)).sum())
