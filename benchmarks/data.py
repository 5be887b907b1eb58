"""Speed of ready batches on one core, from each loader.

  python -m benchmarks.data [--tokens=20000000] [--secs=5] [--json=FILE]

Works on a generated corpus (sentence and document lengths like those of English Wikipedia's
sections, ids by a power law), so it measures the same everywhere. The peer is a Python loop that
pads one example after another. Padding is not counted. Tokens per CPU second are comparable on a
busy machine too.

Target: at least 2,000,000 tokens/s.
"""

import argparse
import itertools
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks import common
from scalelab import formats
from scalelab.config import cli
from scalelab.data import store
from scalelab.data.batches import Batches, iterate
from scalelab.formats import Documents, Specials

SPECIALS = Specials((2,), (3,), (3,))


def make_documents(num_tokens: int) -> Documents:
    """Sections of 1 to about 30 sentences, of 28 tokens on average."""
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.gamma(3.0, 9.4, num_tokens // 28), 1, None).astype(np.int64)
    per_document = rng.geometric(1 / 8.7, len(lengths))
    ends = np.cumsum(per_document)
    document_starts = np.concatenate([[0], ends[ends < len(lengths)], [len(lengths)]])
    tokens = 5 + (29_995 * rng.random(lengths.sum()) ** 4).astype(np.uint16)
    return Documents(
        tokens=tokens,
        sentence_starts=np.concatenate([[0], np.cumsum(lengths)]),
        sentence_bytes=(4 * lengths).astype(np.int32),
        document_starts=document_starts,
    )


def loop_over_examples(examples: store.ExampleStore, size: int, max_len: int) -> Iterator[dict]:
    """Shuffled batches as one would first write them: a list of examples, padded one by one."""
    order = np.random.default_rng(0).permutation(len(examples))
    for begin in range(0, len(order) - size + 1, size):
        rows = [examples.gather(order[begin + i : begin + i + 1], max_len) for i in range(size)]
        yield {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}


def drain(batches: Iterator[dict], secs: float) -> dict[str, float]:
    """Takes batches for about `secs` seconds after the first few; returns tokens per second."""
    for _ in itertools.islice(batches, 5):
        pass
    count, until = 0, time.perf_counter() + secs

    def take() -> None:
        nonlocal count
        for batch in batches:
            count += int(batch["lengths"].sum())
            if time.perf_counter() > until:
                return

    spent = common.timed(take)
    return common.rates(count, [spent])


def measure(given: argparse.Namespace) -> list[dict[str, Any]]:
    """Measures tokens in ready batches per second, on one core."""
    common.pin_to_cores(1)
    documents, results = make_documents(given.tokens), []
    for name, max_len, size in (("doc_sentences", 128, 64), ("segment_pair", 512, 16)):
        with tempfile.TemporaryDirectory() as folder:
            form = formats.load(name)
            chunks = form.build(documents, specials=SPECIALS, max_len=max_len, seed=0)
            store.write(chunks, folder, form.ARRAYS, max_len)
            examples = store.ExampleStore.open(folder)
            streams = {"loop": loop_over_examples(examples, size, max_len)}
            batches = Batches(examples, size, max_len, seed=0)
            for loader in ("numpy", "tf"):
                streams[loader] = iterate(batches, 0, 2**31, loader, prefetch=4)
            for loader, stream in streams.items():
                row = {"name": f"{name} {size}x{max_len}", "loader": loader}
                results.append(row | drain(stream, given.secs))
                stream.close()
    return results


def report(found: list[dict[str, Any]]) -> None:
    """Prints a table."""
    print(f"{'one core, millions of tokens':34}{'a second':>10}{'CPU second':>12}")
    for row in found:
        rates = (row[name] / 1e6 for name in ("per_sec", "per_cpu_sec"))
        print(f"{row['name']:24}{row['loader']:10}" + "{:10.2f}{:12.2f}".format(*rates))


def parser() -> cli.Parser:
    """Returns the command line."""
    made = common.make_parser("data", __doc__, threads=False)
    made.add_argument("--tokens", type=int, default=20_000_000, help="of the generated corpus")
    made.add_argument("--secs", type=float, default=5.0, help="of each measurement")
    return made


if __name__ == "__main__":
    common.start(parser(), measure, report)
