"""Shows what a model sees of a corpus: counts, lengths, and examples as text.

  python -m scalelab.data.inspect --config=configs/pretrain.py:system=bert,corpus=wikitext:DIR

It prepares the data as training would (and training then finds it prepared), and prints

- a table in the shape of the protocol's Table 7.1: for each phase and split the examples, the
  tokens (special ones included), the mean length, the share of the text that was cut off, and the
  steps of an epoch;
- for formats with pairs, how many examples carry each label;
- the distribution of lengths;
- some examples of each phase, `--examples=N`, with special tokens spelt out.
"""

import textwrap
from typing import Any

import numpy as np
from absl import flags

from scalelab import systems
from scalelab.config import cli, durations
from scalelab.config import pretraining as config_lib

EXAMPLES = flags.DEFINE_integer(
    "examples", 2, "How many examples of each phase to show.", lower_bound=0
)

BAR_WIDTH = 50
MAX_BARS = 16
LABELS = {0: "B follows A", 1: "B is random"}


def aligned(rows: list[list[str]]) -> str:
    """Lays out rows as columns: the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if place == 0 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )


def table(phases: tuple) -> str:
    """Counts of each phase and split, after Table 7.1 of the protocol.

    Args:
      phases: of `scalelab.data.PhaseData`.
    """
    rows = [
        ["phase, split", "examples", "tokens", "mean length", "cut off", "batch", "steps/epoch"]
    ]
    for phase in phases:
        for split, store in (("train", phase.train), ("valid", phase.valid)):
            meta = store.meta
            text = meta["num_text_tokens"] + meta["dropped_tokens"]
            rows.append(
                [
                    f"{phase.max_len}, {split}",
                    f"{len(store):,}",
                    f"{meta['num_tokens']:,}",
                    f"{meta['num_tokens'] / max(len(store), 1):.2f}",
                    f"{meta['dropped_tokens'] / max(text, 1):.1%}",
                    str(phase.batch_size),
                    f"{phase.steps_per_epoch:,}" if split == "train" else "",
                ]
            )
    return aligned(rows)


def balance(phases: tuple) -> str:
    """Labels of each phase and split; empty where the format has none."""
    rows = [["phase, split", LABELS[0], LABELS[1], "share of random"]]
    for phase in phases:
        for split, store in (("train", phase.train), ("valid", phase.valid)):
            if store.meta["label_counts"]:
                follows, random = store.meta["label_counts"]
                share = random / max(follows + random, 1)
                rows.append(
                    [f"{phase.max_len}, {split}", f"{follows:,}", f"{random:,}", f"{share:.2%}"]
                )
    return aligned(rows) if len(rows) > 1 else ""


def histogram(counts: list[int], bin_width: int) -> str:
    """Draws how many examples have which length, in at most MAX_BARS bars.

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
        share = count / max(merged.sum(), 1)
        rows.append(
            [
                f"{place * step + 1:4d} to {(place + 1) * step:4d}",
                f"{share:6.1%}",
                bar.ljust(BAR_WIDTH),
            ]
        )
    return "\n".join(line.rstrip() for line in aligned(rows).split("\n"))


def example(batch: dict[str, np.ndarray], row: int, tokenizer: Any) -> str:
    """One example as text, its segments apart.

    Args:
      batch: of `ExampleStore.gather`.
      row: which of its rows.
      tokenizer: with `decode(ids) -> str`.
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


def report(config: config_lib.Config, data: Any, num_examples: int) -> str:
    """Everything that is printed.

    Args:
      config: the run.
      data: a `scalelab.data.Data`.
      num_examples: to show of each phase, spread over its training examples.
    """
    from scalelab.data.store import BIN_WIDTH

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
    from scalelab import formats, objectives  # after the flags, so that --help answers at once
    from scalelab.data import load_data

    system = systems.load(config.system)
    objectives.check(
        config.objectives,
        served=system.OBJECTIVES,
        causal=system.CAUSAL,
        has_pairs=formats.load(config.data.format).HAS_PAIRS,
    )
    data = load_data(config, system)
    print(report(config, data, EXAMPLES.value))


if __name__ == "__main__":
    cli.run(main)
