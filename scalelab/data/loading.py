"""From a corpus to batches; a training calls `load_data`.

corpora (documents) -> sentences -> tokenizers (ids) -> formats (examples) -> store -> batches.
`cache` keeps each step that takes long.
"""

import dataclasses
import functools
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from scalelab import formats
from scalelab.config.pretraining import Config
from scalelab.data.batches import evaluation_batches
from scalelab.data.phases import PhaseData, PhaseMaker
from scalelab.helpers.progress import timed

if TYPE_CHECKING:
    from scalelab.data.prepare import Prepared
    from scalelab.data.tokenizers import Tokenizer
    from scalelab.systems import System

MOST_COUNTED = 100_000_000  # tokens


@dataclasses.dataclass(frozen=True)
class Data:
    """What a run trains on."""

    tokenizer: "Tokenizer"
    tokenizer_dir: Path  # its files, in Hugging Face layout
    corpus_hash: str  # SHA-256 of the corpus as it was read
    unigram_nats: float  # entropy of the token frequencies; a model that has learned is below it
    train: formats.Documents  # the text of the training split
    valid: formats.Documents  # the same of the validation split
    phases: tuple[PhaseData, ...]  # the short phase, and the long one where there is one
    facts: dict[str, str]  # lines for the start of a run, by name

    @property
    def fingerprint(self) -> str:
        """Digests of the corpus and of the training examples of each phase."""
        digests = [phase.train.fingerprint() for phase in self.phases]
        return "-".join([self.corpus_hash[:12], *digests])

    def unigram_nats_of(self, array: str) -> float:
        """Returns the unigram entropy of an array of the training examples, in nats per token.

        It is estimated from up to 10,000 examples of the first phase, evenly spread. If the format
        corrupts its examples, one draw is used.
        """
        phase, lengths = self.phases[0], formats.lengths_name(array)
        size = min(len(phase.train), 100)
        batches = evaluation_batches(phase.train, size, 100, phase.corrupt)
        rows = [
            row[:length]
            for batch in batches
            for row, length in zip(batch[array], batch[lengths], strict=True)
        ]
        return unigram_entropy(np.concatenate(rows))

    @functools.cached_property
    def words_per_token(self) -> float:
        """Words of text for each token on the token clock, special ones included.

        An estimate from up to 2,000 training examples of the first phase, evenly spread: decoded,
        split at blanks, parts without a letter or digit left out.
        """
        phase, special = self.phases[0], list(self.tokenizer.special_ids.values())
        store = phase.train
        num = min(len(store), 2000)
        rows, num_words, num_tokens = np.arange(num) * len(store) // num, 0, 0
        starts = store.arrays["tokens_starts"]
        for start, stop in zip(starts[rows], starts[rows + 1], strict=True):
            tokens = store.arrays["tokens"][start:stop]
            text = self.tokenizer.decode(tokens[~np.isin(tokens, special)])
            num_words += sum(any(map(str.isalnum, part)) for part in text.split())
            num_tokens += len(tokens)
        stored = int(store.arrays["tokens_starts"][-1])  # the clock may count other arrays
        return num_words / num_tokens * (stored / phase.epoch_tokens)


def load_data(
    config: Config,
    system: "System",
    *,
    tokenizer_dir: Path | None = None,
    progress: bool = True,
) -> Data:
    """Prepares everything from the corpus to the examples, or finds it prepared.

    Args:
      config: config of the pre-training.
      system: its module.
      tokenizer_dir: folder of the tokenizer; None: that of the run in config.machine.init, or a new
        one with the special tokens of `system`.
      progress: whether bars are shown.

    Raises:
      ValueError: the corpus is missing, unreadable or too small, or does not suit the format.
    """
    formats.load(config.data.format)  # a misspelt name is refused before the long work
    prepared = _prepare(config, system, tokenizer_dir, progress=progress)
    specials = prepared.tokenizer.specials(system.FRAME, getattr(system, "START", None))
    given, timings = (config, prepared.documents, specials, prepared.key), prepared.timings
    with timed(timings, "examples"):
        phases = PhaseMaker(*given, system.ORDER, progress, prepared.tokenizer).make()
    train, valid = (prepared.documents[split] for split in ("train", "valid"))
    entropy = unigram_entropy(train.tokens)
    facts = {"corpus": f"{config.data.corpus}, sha256 {prepared.corpus_hash[:12]}"}
    for split, documents in prepared.documents.items():
        count = f"{documents.num_documents:,} with {len(documents.tokens):,} tokens"
        facts[f"documents for {split}"] = count
    for phase in phases:
        read = phase.num_validated(config.eval.num_examples)
        count = f"{len(phase.train):,} for training, {len(phase.valid):,} for validation"
        count += f", which reads {read:,}" * (read != len(phase.valid))
        facts[f"examples of {phase.max_len}"] = count
    facts["unigram entropy"] = f"{entropy:.4f} nats a token"
    facts["prepared in"] = ", ".join(f"{name} {secs:.1f} s" for name, secs in timings.items())
    return Data(
        prepared.tokenizer,
        prepared.tokenizer_dir,
        prepared.corpus_hash,
        unigram_nats=entropy,
        train=train,
        valid=valid,
        phases=phases,
        facts=facts,
    )


def load_tokenizer(config: Config, system: "System") -> "Tokenizer":
    """Returns the tokenizer that `load_data` uses."""
    return _prepare(config, system, None, progress=False).tokenizer


def _prepare(
    config: Config, system: "System", tokenizer_dir: Path | None, *, progress: bool
) -> "Prepared":
    from scalelab.data import prepare  # slow to import, and not needed for batches
    from scalelab.data.corpora import open_corpus
    from scalelab.data.tokenizers import TokenizerSpec

    if tokenizer_dir is None and config.machine.init is not None:
        tokenizer_dir = Path(config.machine.init) / "tokenizer"
    own = dataclasses.asdict(config.tokenizer) | {"special_tokens": system.SPECIAL_TOKENS}
    own |= dict(zip(("begin", "between", "end"), system.FRAME, strict=True))
    source = open_corpus(config.data.corpus, config.data)
    machine = config.machine
    text = prepare.Sentences(source, machine.cache_dir, machine.num_workers, progress)
    return prepare.prepare_documents(text, tokenizer_dir or TokenizerSpec(**own))


def unigram_entropy(tokens: np.ndarray) -> float:
    """Returns the entropy in nats of the frequencies of ids [n], -sum p log p (Shannon 1948, 6).

    Only the first MOST_COUNTED are counted.
    """
    counts = np.bincount(tokens[:MOST_COUNTED])
    p = counts[counts > 0] / counts.sum()
    return float(-(p * np.log(p)).sum())
