"""Speed of the data path on one core: formats, and ready batches from each loader.

  python -m benchmarks.data [--quick] [--json=FILE]

Works on a generated corpus (sentence and document lengths like those of English Wikipedia's
sections, ids by a power law), so it measures the same everywhere. Each number stands beside a
straightforward peer in the same run: formats beside DOC-SENTENCES as a Python loop over sentences,
batches beside a Python loop that pads one example after another. Padding is not counted. Tokens per
CPU second are comparable on a busy machine too.

Target: at least 2,000,000 tokens/s of ready batches on one core.
"""

import argparse
import collections
import dataclasses
import itertools
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks import common
from scalelab import formats
from scalelab.data import store
from scalelab.data.batches import Batches, iterate
from scalelab.formats import Documents, Frame

FRAME = Frame((2,), (3,), (3,))
WIKIPEDIA_TOKENS = 60_000_000
TARGET = 2_000_000


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


def loop_over_sentences(documents: Documents, max_len: int) -> int:
    """DOC-SENTENCES as one would first write it; returns the number of examples."""
    starts, examples = documents.sentence_starts.tolist(), []
    bounds = documents.document_starts.tolist()
    for begin, end in itertools.pairwise(bounds):
        text: list[int] = []
        for sentence in range(begin, end):
            text.extend(documents.tokens[starts[sentence] : starts[sentence + 1]].tolist())
            if len(text) >= max_len - 2 or sentence + 1 == end:
                examples.append([2, *text[: max_len - 2], 3])
                text = []
    return len(examples)


def loop_over_examples(examples: store.ExampleStore, size: int, max_len: int) -> Iterator[dict]:
    """Shuffled batches as one would first write them: a list of examples, padded one by one."""
    order = np.random.default_rng(0).permutation(len(examples))
    for begin in range(0, len(order) - size + 1, size):
        rows = [examples.gather(order[begin + i : begin + i + 1], max_len) for i in range(size)]
        yield {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}


def drain(batches: Iterator[dict], secs: float) -> dict[str, Any]:
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


def measure_formats(documents: Documents) -> list[dict]:
    """Tokens of the corpus that each format consumes per second."""
    few = documents.num_documents // 10
    small = dataclasses.replace(documents, document_starts=documents.document_starts[: few + 1])
    num_few = int(documents.sentence_starts[documents.document_starts[few]])
    peer = num_few / common.timed(loop_over_sentences, small, 128).wall
    results = []
    for name, max_len in itertools.product(formats.format_names(), (128, 512)):
        built = formats.load(name).build(documents, frame=FRAME, max_len=max_len, seed=0)
        spent = common.timed(collections.deque, built, 0)
        row = {"name": f"format {name} {max_len}"} | common.rates(len(documents.tokens), [spent])
        results.append(row | ({"peer_per_sec": peer} if max_len == 128 else {}))
    return results


def measure_batches(documents: Documents, secs: float) -> list[dict]:
    """Tokens in ready batches per second."""
    results = []
    for name, max_len, size in (("doc_sentences", 128, 64), ("segment_pair", 512, 16)):
        with tempfile.TemporaryDirectory() as folder:
            chunks = formats.load(name).build(documents, frame=FRAME, max_len=max_len, seed=0)
            store.write(chunks, folder)
            examples = store.ExampleStore.open(folder)
            peer = drain(loop_over_examples(examples, size, max_len), secs / 2)["per_sec"]
            batches = Batches(examples, size, max_len, seed=0)
            for loader in ("numpy", "tf"):
                stream = iterate(batches, 0, 2**31, loader, prefetch=4)
                row = {"name": f"batches {name} {size}x{max_len} {loader}"} | drain(stream, secs)
                results.append(row | {"peer_per_sec": peer})
                stream.close()
    return results


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    made = common.make_parser("data", __doc__, threads=False)
    made.set_defaults(tokens=20_000_000, secs=5.0)
    return common.parse(made, argv, {"tokens": 2_000_000, "secs": 1.0})


def main(given: argparse.Namespace) -> None:
    """Measures on one core and prints a table."""
    common.pin_to_cores(1)
    documents = make_documents(given.tokens)
    results = measure_formats(documents) + measure_batches(documents, given.secs)
    common.write_json(results, given.json)
    print(f"{'one core, millions of tokens':40}  {'a second':>8}  {'CPU second':>10}  {'peer':>6}")
    for row in results:
        ours, peer = row["per_sec"], row.get("peer_per_sec")
        beside = f"  {peer / 1e6:6.2f}  {ours / peer:5.1f}x" if peer else ""
        print(f"{row['name']:40}  {ours / 1e6:8.2f}  {row['per_cpu_sec'] / 1e6:10.2f}{beside}")
    slowest = min(r["per_sec"] for r in results if r["name"].startswith("format"))
    ready = min(r["per_sec"] for r in results if r["name"].startswith("batches"))
    wikipedia = WIKIPEDIA_TOKENS / slowest
    print(f"\nslowest format on {WIKIPEDIA_TOKENS:,} tokens: {wikipedia:.1f} s")
    print(f"ready batches: at least {ready:,.0f} tokens/s; target {TARGET:,}")


if __name__ == "__main__":
    common.start(parse, main)
