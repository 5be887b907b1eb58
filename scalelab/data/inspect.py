"""Shows a model's view of a corpus: counts, lengths, and examples as text.

  python -m scalelab.data.inspect --config=configs/pretrain.py:system=bert,corpus=wikitext:DIR

It prepares the data as training would (and training then finds it prepared), and prints

- a table in the shape of the protocol's Table 7.1: for each phase and split the examples, the
  tokens that the model reads (special ones included), the mean length, the share of the text that
  was cut off, the share of padding in the arrays that the token clock counts, a summary of each
  array that only some formats have, and the steps of an epoch;
- the distribution of lengths of each array that the token clock counts;
- some examples of each phase, `--examples=N`, with special tokens spelt out; of a format that
  changes rows at random, one draw.

`--verify` first compares all prepared data in the cache folder with its checksums, and removes
damaged entries, which are then prepared again. A training compares sizes and first bytes only.
"""

import argparse
import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from scalelab import formats
from scalelab.config import cli, durations
from scalelab.config.pretraining import Config
from scalelab.data import cache
from scalelab.data.batches import evaluation_batches
from scalelab.data.loading import Data, load_data
from scalelab.data.phases import PhaseData
from scalelab.data.store import ExampleStore
from scalelab.formats import COMMON, Array, lengths_name

if TYPE_CHECKING:
    from scalelab.data.tokenizers import Tokenizer

BAR_WIDTH = 50
BIN_WIDTH = 16  # tokens
MAX_BARS = 16
ALWAYS = {array.name for array in COMMON}


def table(phases: Sequence[PhaseData]) -> str:
    """Formats the counts of each phase and split, after Table 7.1 of the protocol."""
    rows = [["phase, split", "examples", "tokens", "mean length", "cut off",
             "padding", *summarize_arrays(phases[0].train), "batch", "steps/epoch"]]  # fmt: skip
    splits = [
        (p, n, store) for p in phases for n, store in (("train", p.train), ("valid", p.valid))
    ]
    for phase, split, store in splits:
        dropped = store.meta["dropped_tokens"]
        text = int(store.arrays["num_text_tokens"].sum()) + dropped
        rows.append([
            f"{phase.max_len}, {split}",
            f"{len(store):,}",
            f"{(num_tokens := phase.count_tokens(store)):,}",
            f"{num_tokens / max(len(store), 1):.2f}",
            f"{dropped / max(text, 1):.1%}",
            f"{phase.padding_share:.1%}" if split == "train" else "",
            *summarize_arrays(store).values(),
            str(phase.batch_size),
            f"{phase.steps_per_epoch:,}" if split == "train" else "",
        ])  # fmt: skip
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    cells = [[cell.rjust(width) for cell, width in zip(row, widths, strict=True)] for row in rows]
    return "\n".join("  ".join(row) for row in cells)


def summarize_arrays(store: ExampleStore) -> dict[str, str]:
    """Returns, for each array beside `formats.COMMON`, a share of 1s (labels) or a mean."""
    found = {}
    for name in (*store.meta["flat"], *store.meta["ragged"]):
        if name in ALWAYS:
            continue
        if name in store.meta["ragged"]:
            mean = np.diff(store.arrays[f"{name}_starts"]).mean()
            found[f"mean length of {name}"] = f"{mean:.2f}"
        elif store.arrays[name].dtype in (np.int8, np.bool_):
            found[f"{name} = 1"] = f"{np.mean(store.arrays[name] == 1):.2%}"
        else:
            found[f"mean {name}"] = f"{store.arrays[name].mean():.2f}"
    return found


def histogram(lengths: np.ndarray) -> str:
    """Draws how many of the lengths [n] lie in bins of BIN_WIDTH, or more, in MAX_BARS bars."""
    counts = np.bincount(np.maximum(lengths - 1, 0) // BIN_WIDTH, minlength=1)
    merge = -(-len(counts) // MAX_BARS)
    merged = np.pad(counts, (0, -len(counts) % merge)).reshape(-1, merge).sum(1)
    step = merge * BIN_WIDTH
    return "\n".join(
        f"{place * step + 1:4d} to {(place + 1) * step:4d}  {count / max(merged.sum(), 1):6.1%}  "
        + "#" * round(BAR_WIDTH * count / max(merged.max(), 1))
        for place, count in enumerate(merged.tolist())
    )


def example(
    batch: dict[str, np.ndarray],
    row: int,
    tokenizer: "Tokenizer",
    arrays: Iterable[Array] = COMMON,
) -> str:
    """Formats a row of a batch as text.

    Args:
      batch: arrays [B, ...].
      row: index of the row.
      tokenizer: decodes the tokens.
      arrays: the arrays of the batch; the ragged ones of the documents' token type are shown as
        text.
    """
    length = int(batch["lengths"][row])
    facts = f"- {length} tokens, {int(batch['num_bytes'][row])} bytes of text"
    known = ALWAYS | {"lengths", "examples"}
    rows = {array.name for array in arrays if array.kind == "ragged"}
    flat = (name for name in batch if name not in rows | known)
    facts += "".join(f", {name} {_show(batch[name][row])}" for name in flat)
    lines = [facts]
    for name in (a.name for a in arrays if a.kind == "ragged" and a.dtype is None):
        text = tokenizer.decode(batch[name][row, : batch[lengths_name(name)][row]])
        text = text if name == "tokens" else f"{name}: {text}"
        lines += textwrap.wrap(text, 100, initial_indent="    ", subsequent_indent="    ")
    return "\n".join(lines)


def _show(values: np.ndarray) -> str:
    """Formats an item of a flat array: its number, or the type, shape and mean of its numbers."""
    if values.ndim:
        return f"{values.dtype} {list(values.shape)}, mean {values.mean():.4g}"
    return f"{values:.4g}" if values.dtype.kind == "f" else str(values)


def report(config: Config, data: Data, num_examples: int) -> str:
    """Formats everything that is printed, with up to `num_examples` examples of each phase."""
    steps_per_epoch = [phase.steps_per_epoch for phase in data.phases]
    per_epoch = sum(durations.steps_of_epoch(config, steps_per_epoch))
    facts = "\n".join(f"  {name}: {fact}" for name, fact in data.facts.items())
    pieces = f"{config.tokenizer.kind} {config.tokenizer.vocab_size:,}"
    steps = f"{per_epoch:,.0f} steps an epoch"
    if epochs := config.optim.total_epochs:
        steps += f", {int(epochs * per_epoch + 1e-6):,} in {epochs:g} epochs"
    parts = [f"{config.system}: {config.data.format}, {pieces}\n{facts}", table(data.phases), steps]
    arrays = formats.arrays_of(config.data.format, config.format_options)
    for phase in data.phases:
        for name, lengths in (found := phase.lengths(phase.train)).items():
            array = f"{name}: tokens" if len(found) > 1 else "Tokens"
            sample = f", {len(lengths):,} examples" * (phase.corrupt is not None)
            title = f"{array} in a training example of at most {phase.max_len}{sample}:"
            parts.append(f"{title}\n{histogram(lengths)}")
        count = min(num_examples, len(phase.train))
        batches = evaluation_batches(phase.train, max(count, 1), 1, phase.corrupt)
        shown = [example(b, row, data.tokenizer, arrays) for b in batches for row in range(count)]
        title = f"Training examples of at most {phase.max_len} tokens:"
        parts += ["\n".join([title, *shown])] if shown else []
    return "\n\n".join(parts)


def parser() -> cli.Parser:
    """Returns the command line."""
    made = cli.Parser("python -m scalelab.data.inspect", __doc__, config=Config)
    add = made.add_argument
    add("--init", metavar="RUN", help=cli.INIT)
    add("--examples", type=cli.natural, default=2, metavar="N",
        help="how many examples of each phase to show; default: 2")  # fmt: skip
    add("--verify", action="store_true",
        help="compare prepared data with its checksums; remove what is damaged")  # fmt: skip
    return made


def main(given: argparse.Namespace) -> None:
    """Prepares and prints."""
    config = cli.read_config(given)
    from scalelab import objectives, systems  # import JAX, so after the flags

    system = systems.load(config.system)
    names = list(config.objective_weights)
    objectives.check(names, heads=system.HEADS, sees=system.SEES, format=config.data.format)
    if given.verify:
        found = cache.verify(config.machine.cache_dir)
        damaged = {folder: problem for folder, problem in found.items() if problem is not None}
        for folder, problem in damaged.items():
            print(f"removed {folder}: {problem}")
        print(f"{len(found)} cached entries, {len(damaged)} damaged")
    data = load_data(config, system)
    print(report(config, data, given.examples))


if __name__ == "__main__":
    cli.run(main, parser())
