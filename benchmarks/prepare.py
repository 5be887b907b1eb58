"""Speed and memory of preparation, from raw text to examples, beside a straightforward peer.

  python -m benchmarks.prepare [--corpus=SPEC] [--kind=bytebpe] [--vocab_size=30000]
      [--format=doc_sentences] [--num_workers=2] [--json=FILE] [--quick]

Every step runs once in an empty cache. The peer is a Python loop that calls a `transformers`
tokenizer (the one just trained) on a sample of the same sentences, one by one. The peer only
encodes, so the table has two ratios: encoding, and all of preparation. CPU seconds are comparable
on a busy machine too.

Target: `wikitext:../shared/data/wikipedia-2019` in at most 4 minutes on two cores, encoding at
least 5x the peer.
"""

import argparse
import json
import resource
import tempfile
import time
from pathlib import Path

from benchmarks import common
from scalelab import formats
from scalelab.data import prepare, store, tokenizers
from scalelab.data.corpora import open_corpus

ROLES = (
    ("bos", "<s>"),
    ("pad", "<pad>"),
    ("eos", "</s>"),
    ("unk", "<unk>"),
    ("mask", "<mask>"),
)
QUICK_BYTES = 2_000_000


def cpu_secs() -> float:
    """CPU time of this process and of its children that ended."""
    each = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(used.ru_utime + used.ru_stime for used in each)


def shortened(corpus: str, folder: Path) -> str:
    """Writes the first documents of a corpus to a file and returns its name as a corpus."""
    path = folder / "corpus.jsonl"
    length = 0
    with path.open("w", encoding="utf-8") as file:
        for _, document in open_corpus(corpus).labelled():
            file.write(json.dumps({"text": document}) + "\n")
            length += len(document)
            if length > QUICK_BYTES:
                break
    return f"jsonl:{path}"


def loop_over_calls(tokenizer_dir: Path, sentences: list[str]) -> float:
    """Returns tokens per second of calls of a `transformers` tokenizer, one sentence a call."""
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(tokenizer_dir)
    tokenizer("The first call loads what is loaded lazily.")
    started = time.perf_counter()
    count = sum(len(tokenizer(x, add_special_tokens=False)["input_ids"]) for x in sentences)
    return count / (time.perf_counter() - started)


def make_examples(prepared: prepare.Prepared, name: str, folder: Path) -> None:
    """Writes the training split in a format, at length 128."""
    made = formats.load(name).build(
        prepared.documents["train"], frame=prepared.tokenizer.frame(), max_len=128, seed=0
    )
    store.write(made, folder)


def measure(given: argparse.Namespace, folder: Path) -> dict:
    """Prepares the corpus in an empty cache and then asks the peer."""
    corpus, vocab_size = given.corpus, given.vocab_size
    if given.quick:
        corpus = shortened(corpus, folder)
    spec = tokenizers.TokenizerSpec(
        given.kind, vocab_size, False, ROLES, ("<s>",), ("</s>",), ("</s>",)
    )
    began, cpu = time.perf_counter(), cpu_secs()
    prepared = prepare.prepare_documents(
        corpus, spec, folder / "cache", num_workers=given.num_workers, valid_rate=0.02
    )
    begun_format = time.perf_counter()
    (folder / "examples").mkdir()
    make_examples(prepared, given.format, folder / "examples")
    secs = dict(prepared.timings) | {given.format: time.perf_counter() - begun_format}
    total, total_cpu = time.perf_counter() - began, cpu_secs() - cpu

    (text,) = (folder / "cache").glob("sentences-*/train.txt")
    sample: list[str] = []
    with text.open(encoding="utf-8", newline="\n") as file:
        for line in file:
            if line != "\n":
                sample.append(line.rstrip("\n"))
            if len(sample) == given.sample:
                break
    num_tokens = sum(len(d.tokens) for d in prepared.documents.values())
    return {
        "corpus": given.corpus,
        "corpus_sha256": prepared.corpus_hash,
        "quick": given.quick,
        "tokenizer": f"{given.kind} {vocab_size}",
        "megabytes": sum(prepared.num_bytes.values()) / 1e6,
        "tokens": num_tokens,
        "sentences": sum(d.num_sentences for d in prepared.documents.values()),
        "secs": secs,
        "total_secs": total,
        "total_cpu_secs": total_cpu,
        "peak_megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
        "peak_megabytes_of_a_worker": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e3,
        "tokens_per_sec": num_tokens / total,
        "encoding_tokens_per_sec": num_tokens / secs["tokens"],
        "peer_tokens_per_sec": loop_over_calls(prepared.tokenizer_dir, sample),
    }


def report(found: dict) -> None:
    """Prints the numbers as a table."""
    size = found["megabytes"]
    print(f"\n{found['corpus']}{' (beginning)' if found['quick'] else ''}, {found['tokenizer']}")
    print(f"{size:.1f} MB, {found['sentences']:,} sentences, {found['tokens']:,} tokens\n")
    for step, secs in found["secs"].items():
        print(f"{step:24} {secs:8.1f} s  {size / max(secs, 1e-9):8.1f} MB/s")
    total, cpu = found["total_secs"], found["total_cpu_secs"]
    print(f"{'all':24} {total:8.1f} s  {size / total:8.1f} MB/s  ({cpu:.0f} CPU seconds)")
    print(
        f"peak memory {found['peak_megabytes']:,.0f} MB, of a worker "
        f"{found['peak_megabytes_of_a_worker']:,.0f} MB\n"
    )
    peer = found["peer_tokens_per_sec"]
    for what, key in (
        ("peer", "peer_tokens_per_sec"),
        ("encoding", "encoding_tokens_per_sec"),
        ("all of preparation", "tokens_per_sec"),
    ):
        print(f"{what:24} {found[key]:12,.0f} tokens/s  {found[key] / peer:6.1f}x")


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    made = common.make_parser("prepare", __doc__, threads=False)
    kinds = common.choice("kind", tokenizers.KINDS)
    known = common.choice("format", formats.format_names())
    made.add_argument("--corpus", default="builtin", help="reader:argument")
    made.add_argument("--kind", type=kinds, default="bytebpe", help=", ".join(tokenizers.KINDS))
    made.add_argument("--vocab_size", type=common.count(16), default=30_000)
    made.add_argument("--format", type=known, default="doc_sentences",
                      help=", ".join(formats.format_names()))  # fmt: skip
    made.add_argument("--num_workers", type=common.count(), default=2)
    made.add_argument("--sample", type=common.count(), default=20_000,
                      help="sentences given to the peer")  # fmt: skip
    return common.parse(made, argv, {"vocab_size": 4_000})


def main(given: argparse.Namespace) -> None:
    """Measures and prints."""
    with tempfile.TemporaryDirectory() as folder:
        found = measure(given, Path(folder))
    common.write_json(found, given.json)
    report(found)


if __name__ == "__main__":
    common.start(parse, main)
