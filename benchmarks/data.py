"""Speed of the data path on one core: formats, and ready batches from each loader.

  python -m benchmarks.data [--quick] [--json=FILE]

Works on a generated corpus (sentence and document lengths like English Wikipedia's sections, ids by
a power law), so that it measures the same everywhere. Beside numbers of ours stands one of a
straightforward peer in the same run: formats against DOC-SENTENCES in a Python loop over sentences,
batches against a Python loop that pads one example after another. Tokens of batches are real ones,
padding is not counted. Tokens per CPU second tell what a machine that is busy otherwise hides.

Target: at least 2,000,000 tokens/s of ready batches on one core.
"""

import argparse
import dataclasses
import itertools
import tempfile
import time
from collections.abc import Iterator

import numpy as np

from benchmarks import arguments as command_line
from benchmarks import side_by_side
from scalelab import formats
from scalelab.data import pipeline, store
from scalelab.data.batches import Batches
from scalelab.formats.documents import Documents, Frame

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


def rates(num_tokens: int, started: tuple[float, float]) -> dict[str, float]:
    """Tokens per second and per CPU second since `started`, a result of `clocks`."""
    secs, cpu_secs = (now - then for now, then in zip(clocks(), started, strict=True))
    return {"tokens_per_sec": num_tokens / secs, "tokens_per_cpu_sec": num_tokens / cpu_secs}


def clocks() -> tuple[float, float]:
    """Wall time and CPU time of all threads of this process, in seconds."""
    return time.perf_counter(), time.process_time()


def drain(batches: Iterator[dict], secs: float) -> dict[str, float]:
    """Takes batches for about `secs` seconds, after the first few."""
    for _ in itertools.islice(batches, 5):
        pass
    started, count = clocks(), 0
    for batch in batches:
        count += int(batch["lengths"].sum())
        if time.perf_counter() - started[0] > secs:
            break
    return rates(count, started)


def measure_formats(documents: Documents) -> list[dict]:
    """Tokens of the corpus that each format consumes per second."""
    few = documents.num_documents // 10
    small = dataclasses.replace(documents, document_starts=documents.document_starts[: few + 1])
    started = clocks()
    loop_over_sentences(small, 128)
    num_few = int(documents.sentence_starts[documents.document_starts[few]])
    peer = rates(num_few, started)["tokens_per_sec"]
    results = []
    for name, max_len in itertools.product(formats.format_names(), (128, 512)):
        started = clocks()
        for _ in formats.load(name).build(documents, frame=FRAME, max_len=max_len, seed=0):
            pass
        row = {"name": f"format {name} {max_len}"} | rates(len(documents.tokens), started)
        results.append(row | ({"peer_tokens_per_sec": peer} if max_len == 128 else {}))
    return results


def measure_batches(documents: Documents, secs: float) -> list[dict]:
    """Tokens in ready batches per second."""
    results = []
    for name, max_len, size in (("doc_sentences", 128, 64), ("segment_pair", 512, 16)):
        with tempfile.TemporaryDirectory() as folder:
            chunks = formats.load(name).build(documents, frame=FRAME, max_len=max_len, seed=0)
            store.write(chunks, folder)
            examples = store.ExampleStore.open(folder)
            peer = drain(loop_over_examples(examples, size, max_len), secs / 2)["tokens_per_sec"]
            batches = Batches(examples, size, max_len, seed=0)
            for loader in ("numpy", "tf"):
                stream = pipeline.iterate(batches, 0, 2**31, loader, prefetch=4)
                row = {"name": f"batches {name} {size}x{max_len} {loader}"} | drain(stream, secs)
                results.append(row | {"peer_tokens_per_sec": peer})
                stream.close()
    return results


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    made = command_line.parser("data", __doc__)
    command_line.add_json(made, "a small corpus and short measurements")
    made.set_defaults(tokens=20_000_000, secs=5.0)
    return command_line.read(made, argv, {"tokens": 2_000_000, "secs": 1.0})


def main(arguments: argparse.Namespace) -> None:
    """Measures on one core and prints a table."""
    side_by_side.pin(1)
    documents = make_documents(arguments.tokens)
    results = measure_formats(documents) + measure_batches(documents, arguments.secs)
    side_by_side.keep(results, arguments.json)
    print(f"{'one core, millions of tokens':40}  {'a second':>8}  {'CPU second':>10}  {'peer':>6}")
    for row in results:
        ours, peer = row["tokens_per_sec"], row.get("peer_tokens_per_sec")
        beside = f"  {peer / 1e6:6.2f}  {ours / peer:5.1f}x" if peer else ""
        print(
            f"{row['name']:40}  {ours / 1e6:8.2f}  {row['tokens_per_cpu_sec'] / 1e6:10.2f}{beside}"
        )
    slowest = min(r["tokens_per_sec"] for r in results if r["name"].startswith("format"))
    ready = min(r["tokens_per_sec"] for r in results if r["name"].startswith("batches"))
    wikipedia = WIKIPEDIA_TOKENS / slowest
    print(f"\nslowest format on {WIKIPEDIA_TOKENS:,} tokens: {wikipedia:.1f} s")
    print(f"ready batches: at least {ready:,.0f} tokens/s; target {TARGET:,}")


if __name__ == "__main__":
    side_by_side.start(parse, main)
