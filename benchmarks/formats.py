"""Speed of the formats with a source, on one core.

  python -m benchmarks.formats [--max_lens=128,512] [--num_tokens=2000000] [--secs=1] [--json=FILE]

`build` makes examples of documents of random tokens with Zipf's frequencies; `corrupt` changes
batches of 64 of them. Tokens are those of source and target, without padding; times are CPU time,
so that other programs on the core hardly count. Target: 1,000,000 tokens/s.
"""

import argparse
import functools
import itertools
import tempfile
import time
from typing import Any

import numpy as np

from benchmarks import common
from scalelab import formats, systems
from scalelab.config.fields import make_options
from scalelab.data import store
from scalelab.formats import denoising, text_noise

# Formats with the option that says how they work, where there are several ways.
CASES: list[tuple[str, dict[str, str]]] = [
    ("span_corruption", {}),
    *(("denoising", {"style": x}) for x in denoising.STYLES),
    *(("text_noise", {"noise": x}) for x in (*text_noise.NOISES, "infilling+permutation")),
    *(("gap_sentences", {"choose": x}) for x in ("lead", "random", "independent", "sequential")),
    *((name, {}) for name in ("continuation", "masked_fragment", "blank_infilling")),
]
BATCH, VOCAB = 64, 8000


def make_documents(num_tokens: int, first: int) -> formats.Documents:
    """Makes documents of 20 sentences of 25 tokens; ids are `first` or more."""
    rng, shares = np.random.default_rng(0), 1 / np.arange(1, VOCAB - first + 1)
    starts = np.arange(0, num_tokens + 1, 25)
    tokens = first + rng.choice(len(shares), starts[-1], p=shares / shares.sum())
    documents = np.append(np.arange(0, len(starts) - 1, 20), len(starts) - 1)
    sizes = np.full(len(starts) - 1, 100, np.int32)
    return formats.Documents(tokens.astype(np.uint16), starts, sizes, documents)


def measure_case(
    case: tuple[str, dict[str, str]], max_len: int, asked: argparse.Namespace
) -> dict[str, float]:
    """Returns millions of tokens per CPU second: build, corrupt."""
    name, given = case
    form, ids = formats.load(name), systems.special_ids(systems.load("transformer"))
    specials = formats.Specials(end=(ids["eos"],), ids=ids, vocab_size=VOCAB)
    documents = make_documents(asked.num_tokens, max(ids.values()) + 1)
    options, begun = make_options(form, given), time.process_time()
    own = {"specials": specials, "max_len": max_len, "options": options}
    chunks = list(form.build(documents, seed=0, **own))
    built = time.process_time() - begun
    found = {"build": sum(len(chunk.ragged["tokens"].values) for chunk in chunks) / built / 1e6}
    if not hasattr(form, "corrupt"):
        return found
    with tempfile.TemporaryDirectory() as folder:
        store.write(iter(chunks), folder, formats.arrays_of(name, given, stored=True), max_len)
        examples, count, spent, epoch = store.ExampleStore.open(folder), 0, 0.0, 0
        while spent < asked.secs:
            rows = np.arange(BATCH * epoch, BATCH * (epoch + 1)) % len(examples)
            batch, epochs = examples.gather(rows), np.full(BATCH, epoch)
            begun = time.process_time()
            made = form.corrupt(batch, seed=0, epochs=epochs, examples=rows, **own)
            spent += (time.process_time() - begun) * (epoch > 0)  # the first one loads things
            count += int(made["lengths"].sum() + made["source_lengths"].sum()) * (epoch > 0)
            epoch += 1
    return found | {"corrupt": count / spent / 1e6}


def measure(given: argparse.Namespace) -> list[dict[str, Any]]:
    """Measures each format in each of its ways."""
    common.pin_to_cores(1)
    rows = []
    for case, max_len in itertools.product(CASES, map(int, given.max_lens)):
        row = {"format": case[0], "way": "".join(case[1].values()), "max_len": max_len}
        rows.append(row | measure_case(case, max_len, given))
    return rows


def report(found: list[dict[str, Any]]) -> None:
    """Prints millions of tokens per CPU second."""
    speeds = [[f"{row[x]:.1f}" if x in row else "-" for x in ("build", "corrupt")] for row in found]
    names = [[row["format"], row["way"], str(row["max_len"])] for row in found]
    header = ["format", "way", "max_len", "build, M tokens/s", "corrupt, M tokens/s"]
    common.print_table(header, [[*a, *b] for a, b in zip(names, speeds, strict=True)])


parser = functools.partial(
    common.make_parser, "formats", __doc__, max_lens=["128", "512"], num_tokens=2_000_000, secs=1.0
)


if __name__ == "__main__":
    common.start(parser(), measure, report)
