"""Speed and memory of preparation, from raw text to examples, beside a straightforward peer.

  python -m benchmarks.prepare [--corpus=builtin] [--vocab_size=30000] [--num_workers=2]
      [--json=FILE]

Every step runs once in an empty cache: sentences, a byte-level BPE tokenizer, tokens, and
DOC-SENTENCES examples of length 128. The peer is a Python loop that calls a `transformers`
tokenizer (the one just trained) on 20,000 of the same sentences, one by one; it only encodes.

Target: `wikitext:../shared/data/wikipedia-2019` in at most 4 minutes on two cores, encoding at
least 5x the peer.
"""

import argparse
import itertools
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import common
from scalelab import formats
from scalelab.config import cli
from scalelab.data import prepare, store, tokenizers

ROLES = (("bos", "<s>"), ("pad", "<pad>"), ("eos", "</s>"), ("unk", "<unk>"), ("mask", "<mask>"))
FRAME = (("<s>",), ("</s>",), ("</s>",))
NUM_SENTENCES = 20_000  # given to the peer


def loop_over_calls(tokenizer_dir: Path, sentences: list[str]) -> float:
    """Returns tokens per second of calls of a `transformers` tokenizer, one sentence a call."""
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(tokenizer_dir)
    tokenizer("The first call loads what is loaded lazily.")
    started = time.perf_counter()
    count = sum(len(tokenizer(x, add_special_tokens=False)["input_ids"]) for x in sentences)
    return count / (time.perf_counter() - started)


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """Prepares the corpus in an empty cache and then asks the peer."""
    spec = tokenizers.TokenizerSpec("bytebpe", given.vocab_size, False, ROLES, *FRAME)
    with tempfile.TemporaryDirectory() as name:
        folder, began = Path(name), time.perf_counter()
        prepared = prepare.prepare_documents(
            given.corpus, spec, folder / "cache", num_workers=given.num_workers, valid_rate=0.02
        )
        begun_format = time.perf_counter()
        (folder / "examples").mkdir()
        form, specials = formats.load("doc_sentences"), prepared.tokenizer.specials(FRAME)
        made = form.build(prepared.documents["train"], specials=specials, max_len=128, seed=0)
        store.write(made, folder / "examples", form.ARRAYS, 128)
        ended = time.perf_counter()
        (text,) = (folder / "cache").glob("sentences-*/train.txt")
        with text.open(encoding="utf-8", newline="\n") as file:
            lines = (line.rstrip("\n") for line in file if line != "\n")
            peer = loop_over_calls(
                prepared.tokenizer_dir, list(itertools.islice(lines, NUM_SENTENCES))
            )
    secs = dict(prepared.timings) | {"examples": ended - begun_format}
    num_tokens = sum(len(d.tokens) for d in prepared.documents.values())
    used = [resource.getrusage(x) for x in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return {
        "corpus": given.corpus,
        "megabytes": sum(int(d.sentence_bytes.sum()) for d in prepared.documents.values()) / 1e6,
        "tokens": num_tokens,
        "secs": secs,
        "total_secs": ended - began,
        "peak_megabytes": [part.ru_maxrss / 1e3 for part in used],
        "encoding_tokens_per_sec": num_tokens / secs["tokens"],
        "peer_tokens_per_sec": peer,
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


def parser() -> cli.Parser:
    """Returns the command line."""
    made = common.make_parser("prepare", __doc__, threads=False)
    made.add_argument("--corpus", default="builtin", help="reader:argument")
    made.add_argument("--vocab_size", type=int, default=30_000)
    made.add_argument("--num_workers", type=int, default=2)
    return made


if __name__ == "__main__":
    common.start(parser(), measure, report)
