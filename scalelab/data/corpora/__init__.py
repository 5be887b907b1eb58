"""Corpora: text collections as streams of documents, one reader a file.

A corpus is named `reader:argument`, such as `wikitext:data/wikitext-2`. A reader is a module of
this package with a `VERSION` and a function `read(argument, settings) -> Source`; it is found by
its name.
"""

import dataclasses
import hashlib
import json
from collections.abc import Iterator

from scalelab.data.corpora._source import Settings, Source, Tick, ignore
from scalelab.helpers.names import load_module, module_names, nearest

MAX_CHARS = 1 << 22  # of a document; a longer one becomes several


@dataclasses.dataclass(frozen=True)
class Corpus:
    """A text collection with a training, a validation and, where there is one, a test split."""

    spec: str
    settings: Settings
    source: Source
    version: str

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits: "train", "valid" and perhaps "test"."""
        return ("train", "valid") + (("test",) if "test" in self.source.streams else ())

    @property
    def divided(self) -> bool:
        """Whether validation is taken from the training documents, the source having none."""
        return "valid" not in self.source.streams

    @property
    def num_bytes(self) -> int:
        """The bytes on disk that reading everything passes over; 0 if not known."""
        return sum(self.source.num_bytes.values())

    def documents(self, split: str, tick: Tick = ignore) -> Iterator[str]:
        """Streams the documents of a split, paragraphs joined by line breaks.

        Args:
          split: one of `splits`.
          tick: called with the number of bytes on disk that were passed since the last call.
        """
        if split not in self.splits:
            raise ValueError(
                f"corpus {self.spec} has no split {split!r}: {nearest(split, self.splits)}"
            )
        if self.divided and split != "test":
            return (document for name, document in self.labelled(tick) if name == split)
        documents = self.source.streams[split](tick)
        return (piece for document in documents for piece in pieces(document))

    def labelled(self, tick: Tick = ignore) -> Iterator[tuple[str, str]]:
        """Streams all documents, each with its split, passing over every file once."""
        for name, stream in self.source.streams.items():
            for document in stream(tick):
                split = name
                if self.divided and name == "train":
                    split = split_of(document, self.settings.split_seed, self.settings.valid_rate)
                for piece in pieces(document):
                    yield split, piece

    def fingerprint(self) -> str:
        """Returns a SHA-256 over the source's content, the settings and the reader's version."""
        settings = dataclasses.asdict(self.settings)
        if not self.divided:
            del settings["split_seed"], settings["valid_rate"]
        facts = [self.spec.partition(":")[0], self.version, settings, self.source.identity()]
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def open_corpus(
    spec: str,
    *,
    keep_headings: bool = False,
    errors: str = "strict",
    split_seed: int = 0,
    valid_rate: float = 0.005,
) -> Corpus:
    """Opens a corpus by its name.

    Args:
      spec: `reader:argument`; `builtin` takes no argument.
      keep_headings: keeps a WikiText section's heading as the first line of its document.
      errors: what invalid UTF-8 does: "strict" stops, naming file and byte; "replace" goes on.
      split_seed: seed of the split of a source that has no validation part.
      valid_rate: share of the documents that this split gives to validation.

    Raises:
      ValueError: unknown reader, nothing there to read, or a setting out of range.
    """
    if errors not in ("strict", "replace"):
        raise ValueError(f"data.errors must be strict or replace, got {errors!r}")
    if not 0.0 < valid_rate < 1.0:
        raise ValueError(f"data.valid_rate must lie between 0 and 1, got {valid_rate}")
    name, _, argument = spec.partition(":")
    readers = module_names("data.corpora")
    if name not in readers:
        raise ValueError(f"unknown corpus reader {name!r} in {spec!r}: {nearest(name, readers)}")
    settings = Settings(keep_headings, errors, split_seed, valid_rate)
    reader = load_module("data.corpora", name)
    return Corpus(spec, settings, reader.read(argument, settings), reader.VERSION)


def split_of(document: str, seed: int, valid_rate: float) -> str:
    """Returns the split, "train" or "valid", of a document of a source that has no validation.

    The split depends on the text alone: a document keeps it when others are added, and two copies
    of a text are never on both sides.
    """
    text = document.encode("utf-8", "surrogatepass")
    salt = seed.to_bytes(8, "little", signed=True)
    drawn = hashlib.blake2b(text, digest_size=8, salt=salt).digest()
    return "valid" if int.from_bytes(drawn, "little") < valid_rate * 2**64 else "train"


def pieces(document: str) -> Iterator[str]:
    """Cuts a document at a line break or space every MAX_CHARS, to bound the memory it takes."""
    start = 0
    while len(document) - start > MAX_CHARS:
        end = start + MAX_CHARS
        breaks = (document.rfind(char, start + 1, end) for char in "\n ")
        end = max(0, *breaks) or end
        yield document[start:end]
        start = end
    yield document[start:]
