"""Speed and memory of the data path, from raw text to ready batches, beside a peer.

  python -m benchmarks.prepare [--corpus=builtin] [--vocab_size=30000] [--num_workers=2]
      [--json=FILE]

Every step runs once in an empty cache: sentences, a byte-level BPE tokenizer, tokens, and
DOC-SENTENCES examples of length 128. The peer is a Python loop that calls a `transformers`
tokenizer (the one just trained) on 20,000 of the same sentences, one by one; it only encodes. Then
each loader makes batches of 64 examples on one core for --secs=5. Padding is not counted.

Targets: `wikitext:../shared/data/wikipedia-2019` in at most 4 minutes on two cores, encoding at
least 5x the peer; at least 2,000,000 tokens/s of ready batches.
"""

import argparse
import functools
import itertools
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import common
from scalelab import formats
from scalelab.config.pretraining import Data
from scalelab.data import prepare, store, tokenizers
from scalelab.data.batches import Batches, iterate
from scalelab.data.corpora import open_corpus

ROLES = (("bos", "<s>"), ("pad", "<pad>"), ("eos", "</s>"), ("unk", "<unk>"), ("mask", "<mask>"))
FRAME = (("<s>",), ("</s>",), ("</s>",))
NUM_SENTENCES = 20_000  # given to the peer
MAX_LEN = 128


def loop_over_calls(tokenizer_dir: Path, sentences: list[str]) -> float:
    """Returns tokens per second of calls of a `transformers` tokenizer, one sentence a call."""
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(tokenizer_dir)
    tokenizer("The first call loads what is loaded lazily.")
    started = time.perf_counter()
    count = sum(len(tokenizer(x, add_special_tokens=False)["input_ids"]) for x in sentences)
    return count / (time.perf_counter() - started)


def drain(examples: store.ExampleStore, loader: str, secs: float) -> dict[str, float]:
    """Takes batches for some seconds, after the first few; returns tokens per second."""
    stream = iterate(Batches(examples, 64, MAX_LEN, seed=0), 0, 2**31, loader, prefetch=4)
    for _ in itertools.islice(stream, 5):
        pass
    tokens = []

    def take() -> None:
        until = time.perf_counter() + secs
        while time.perf_counter() < until:
            tokens.append(int(next(stream)["lengths"].sum()))

    spent = common.timed(take)
    stream.close()
    return common.rates(sum(tokens), spent)


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """Prepares the corpus in an empty cache, asks the peer, and then takes batches."""
    spec = tokenizers.TokenizerSpec("bytebpe", given.vocab_size, False, ROLES, *FRAME)
    with tempfile.TemporaryDirectory() as name:
        folder, began = Path(name), time.perf_counter()
        source = open_corpus(given.corpus, Data(valid_rate=0.02))
        text = prepare.Sentences(source, folder / "cache", given.num_workers)
        prepared = prepare.prepare_documents(text, spec)
        begun_format = time.perf_counter()
        (folder / "examples").mkdir()
        form, specials = formats.load("doc_sentences"), prepared.tokenizer.specials(FRAME)
        made = form.build(prepared.documents["train"], specials=specials, max_len=MAX_LEN, seed=0)
        store.write(made, folder / "examples", form.ARRAYS, MAX_LEN)
        ended = time.perf_counter()
        path = text.folder / "train.txt"
        documents = prepare.read_sentences(path, lambda num_bytes: None)
        lines = (line for document in documents for line in document.split("\n"))
        chosen = list(itertools.islice(lines, NUM_SENTENCES))
        peer = loop_over_calls(prepared.tokenizer_dir, chosen)
        used = [resource.getrusage(x) for x in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        common.pin_to_cores(1)
        examples = store.ExampleStore.open(folder / "examples")
        batches = {loader: drain(examples, loader, given.secs) for loader in ("numpy", "tf")}
    secs = dict(prepared.timings) | {"examples": ended - begun_format}
    num_tokens = sum(len(d.tokens) for d in prepared.documents.values())
    return {
        "corpus": given.corpus,
        "megabytes": sum(int(d.sentence_bytes.sum()) for d in prepared.documents.values()) / 1e6,
        "tokens": num_tokens,
        "secs": secs,
        "total_secs": ended - began,
        "peak_megabytes": [part.ru_maxrss / 1e3 for part in used],
        "encoding_tokens_per_sec": num_tokens / secs["tokens"],
        "peer_tokens_per_sec": peer,
        "batches": batches,
    }


def report(found: dict[str, Any]) -> None:
    """Prints the numbers as a table."""
    print(f"\n{found['corpus']}: {found['megabytes']:.1f} MB, {found['tokens']:,} tokens\n")
    for step, secs in (found["secs"] | {"all": found["total_secs"]}).items():
        print(f"{step:12} {secs:8.1f} s")
    own, workers = found["peak_megabytes"]
    encoding, peer = found["encoding_tokens_per_sec"], found["peer_tokens_per_sec"]
    print(f"peak memory {own:,.0f} MB, of a worker {workers:,.0f} MB")
    print(f"encoding {encoding:,.0f} tokens/s, {encoding / peer:.1f}x the peer's {peer:,.0f}")
    for loader, rate in found["batches"].items():
        each = (rate[name] / 1e6 for name in ("per_sec", "per_cpu_sec"))
        print(f"batches by {loader}" + ": {:.1f} M tokens/s, {:.1f} a CPU second".format(*each))


parser = functools.partial(
    common.make_parser, "prepare", __doc__, corpus="builtin", vocab_size=30_000, num_workers=2,
    secs=5.0,
)  # fmt: skip


if __name__ == "__main__":
    common.start(parser(), measure, report)
