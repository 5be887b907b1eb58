"""Shows what a model reads of a corpus: counts, lengths, and examples as text.

  python -m scalelab.data.inspect --config=configs/pretrain.py:system=bert,corpus=wikitext:DIR

It prepares the data as training would (and training then finds it prepared), and prints

- a table in the shape of the protocol's Table 7.1: for each phase and split the examples, the
  tokens (special ones included), the mean length, the share of the text that was cut off, and the
  steps of an epoch;
- for formats with pairs, how many examples carry each label;
- the distribution of lengths;
- some examples of each phase, `--examples=N`, with special tokens spelt out.

`--verify` first compares all prepared data in the cache folder with its checksums, and removes
damaged entries, which are then prepared again. A training compares sizes and first bytes only.
"""

import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from absl import flags

from scalelab import systems
from scalelab.config import cli, durations
from scalelab.config.pretraining import Config
from scalelab.data import Data, cache, load_data
from scalelab.data.phases import PhaseData
from scalelab.data.store import BIN_WIDTH, ExampleStore

if TYPE_CHECKING:
    from scalelab.data.tokenizers import Tokenizer

EXAMPLES = flags.DEFINE_integer(
    "examples", 2, "How many examples of each phase to show.", lower_bound=0
)

VERIFY = flags.DEFINE_bool(
    "verify", False, "Compare prepared data with its checksums; remove what is damaged."
)
BAR_WIDTH = 50
MAX_BARS = 16
LABELS = {0: "B follows A", 1: "B is random"}


def align(rows: list[list[str]]) -> str:
    """Lays out rows as columns: the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *rest in rows:
        cells = [cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *cells]))
    return "\n".join(lines)


def table(phases: Sequence[PhaseData]) -> str:
    """Formats the counts of each phase and split, after Table 7.1 of the protocol."""
    rows = [
        ["phase, split", "examples", "tokens", "mean length", "cut off", "batch", "steps/epoch"]
    ]
    for phase, split, store in _splits(phases):
        meta = store.meta
        text = meta["num_text_tokens"] + meta["dropped_tokens"]
        rows.append([
            f"{phase.max_len}, {split}",
            f"{len(store):,}",
            f"{meta['num_tokens']:,}",
            f"{meta['num_tokens'] / max(len(store), 1):.2f}",
            f"{meta['dropped_tokens'] / max(text, 1):.1%}",
            str(phase.batch_size),
            f"{phase.steps_per_epoch:,}" if split == "train" else "",
        ])  # fmt: skip
    return align(rows)


def balance(phases: Sequence[PhaseData]) -> str:
    """Formats the labels of each phase and split; empty where the format has none."""
    rows = [["phase, split", LABELS[0], LABELS[1], "share of random"]]
    for phase, split, store in _splits(phases):
        if store.meta["label_counts"]:
            follows, random = store.meta["label_counts"]
            share = f"{random / max(follows + random, 1):.2%}"
            rows.append([f"{phase.max_len}, {split}", f"{follows:,}", f"{random:,}", share])
    return align(rows) if len(rows) > 1 else ""


def _splits(phases: Sequence[PhaseData]) -> Iterator[tuple[PhaseData, str, ExampleStore]]:
    for phase in phases:
        yield phase, "train", phase.train
        yield phase, "valid", phase.valid


def histogram(counts: list[int], bin_width: int) -> str:
    """Draws the distribution of lengths in at most MAX_BARS bars.

    Args:
      counts: examples in bins of `bin_width` tokens, the first from 1.
      bin_width: tokens.
    """
    merge = -(-len(counts) // MAX_BARS)
    padded = np.pad(np.asarray(counts), (0, -len(counts) % merge))
    merged = padded.reshape(-1, merge).sum(1)
    step = merge * bin_width
    rows = []
    for place, count in enumerate(merged.tolist()):
        bar = "#" * round(BAR_WIDTH * count / max(merged.max(), 1))
        label = f"{place * step + 1:4d} to {(place + 1) * step:4d}"
        rows.append([label, f"{count / max(merged.sum(), 1):6.1%}", bar.ljust(BAR_WIDTH)])
    return "\n".join(line.rstrip() for line in align(rows).split("\n"))


def example(batch: dict[str, np.ndarray], row: int, tokenizer: "Tokenizer") -> str:
    """Formats one example as text, segment by segment.

    Args:
      batch: from `ExampleStore.gather`.
      row: its row.
      tokenizer: decodes the ids.
    """
    length, boundary = int(batch["lengths"][row]), int(batch["boundaries"][row])
    ids = batch["tokens"][row, :length]
    facts = f"{length} tokens, {int(batch['num_bytes'][row])} bytes of text"
    parts = {"": ids}
    if "nsp_labels" in batch:
        facts += f", {LABELS[int(batch['nsp_labels'][row])]}"
        parts = {"A: ": ids[:boundary], "B: ": ids[boundary:]}
    lines = [f"- {facts}"]
    for name, piece in parts.items():
        text = name + tokenizer.decode(piece)
        lines += textwrap.wrap(text, 100, initial_indent="    ", subsequent_indent="    ")
    return "\n".join(lines)


def report(config: Config, data: Data, num_examples: int) -> str:
    """Formats everything that is printed.

    Args:
      config: the run.
      data: its data.
      num_examples: to show of each phase, spread over its training examples.
    """
    steps_per_epoch = [phase.steps_per_epoch for phase in data.phases]
    per_epoch = sum(durations.steps_of_epoch(config, steps_per_epoch))
    pieces = f"{config.tokenizer.kind} {config.tokenizer.vocab_size:,}"
    facts = "\n".join(f"  {name}: {fact}" for name, fact in data.facts.items())
    title = f"{config.system}: {config.data.format}, {pieces}\n{facts}"
    steps = f"{per_epoch:,.0f} steps an epoch"
    if config.optim.total_epochs:
        epochs = config.optim.total_epochs
        steps += f", {int(epochs * per_epoch + 1e-6):,} in {epochs:g} epochs"
    parts = [title, table(data.phases), steps, balance(data.phases)]
    for phase in data.phases:
        drawn = histogram(phase.train.meta["length_histogram"], BIN_WIDTH)
        parts.append(f"Tokens in a training example of at most {phase.max_len}:\n{drawn}")
    for phase in data.phases:
        count = min(num_examples, len(phase.train))
        if count:
            ids = np.arange(count, dtype=np.int64) * len(phase.train) // count
            batch = phase.train.gather(ids, phase.max_len)
            shown = [example(batch, row, data.tokenizer) for row in range(count)]
            parts.append(
                f"Training examples of at most {phase.max_len} tokens:\n" + "\n".join(shown)
            )
    return "\n\n".join(part for part in parts if part)


def main(argv: list[str]) -> None:
    """Reads the flags, prepares and prints."""
    del argv
    config = cli.read_config()
    from scalelab import formats, objectives  # they import JAX, so after the flags

    system = systems.load(config.system)
    objectives.check(
        config.objectives,
        served=system.OBJECTIVES,
        causal=system.CAUSAL,
        has_pairs=formats.load(config.data.format).HAS_PAIRS,
    )
    if VERIFY.value:
        found = cache.verify(config.machine.cache_dir)
        for folder, problem in found.items():
            if problem is not None:
                print(f"removed {folder}: {problem}")
        print(f"{len(found)} cached entries, {sum(p is not None for p in found.values())} damaged")
    data = load_data(config, system)
    print(report(config, data, EXAMPLES.value))


if __name__ == "__main__":
    cli.run(main)
