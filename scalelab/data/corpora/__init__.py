"""Corpora: text collections as streams of documents, one reader a file.

A corpus is named `reader:argument`, such as `wikitext:data/wikitext-2`. A reader is a module of
this package with a `VERSION` and a function `read(argument, settings) -> Source`; it is found by
its name. Readers share the functions at the end of this file.
"""

import dataclasses
import functools
import glob
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from scalelab.config.pretraining import Data
from scalelab.formats import ENTITY, PHRASE, SPEAKER, TURN
from scalelab.helpers.files import read_byte_lines, reading
from scalelab.helpers.names import check_names, load_module, module_names

MAX_CHARS = 1 << 22  # a longer document becomes several
SPLIT_SEED = 0
# A validation has so many documents or words, or a tenth of the corpus if that is less; and
# LEAST_RATE of the documents where that is more.
ENOUGH_DOCUMENTS, ENOUGH_WORDS, LEAST_RATE = 100, 50_000, 0.005

UNITS = {"phrase": PHRASE, "entity": ENTITY}  # kind of a span -> its bit
TURNS = {f"turn{k}": TURN + k * SPEAKER for k in range(4)}  # by speaker; 3: any after the third

Tick = Callable[[int], None]  # called with the number of bytes read since the last call
Span = tuple[int, int, str]  # first character, the one after the last, kind in UNITS or TURNS


@dataclasses.dataclass(frozen=True)
class Source:
    """An opened source of documents; its splits are "train", perhaps "valid" and "test".

    A stream starts anew at each call and reports the bytes on disk that it passes.
    """

    streams: dict[str, Callable[[Tick], Iterator[str]]]
    num_bytes: dict[str, int]  # on disk, of each split, where known
    identity: Callable[[], object]  # returns JSON values that change with the content
    # Streams the documents with their spans, sorted, for readers that know spans; raises ValueError
    # with document and place if spans overlap or run past it. The only split is "train".
    spans: Callable[[], Iterator[tuple[str, list[Span]]]] | None = None


@dataclasses.dataclass(frozen=True)
class Corpus:
    """A text collection with a training, a validation and, where there is one, a test split."""

    spec: str
    settings: Data
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

    @functools.cached_property
    def valid_rate(self) -> float:
        """The share of the documents for validation; without a given one, see `choose_rate`."""
        if self.settings.valid_rate is not None:
            return self.settings.valid_rate
        return choose_rate(self.source.streams["train"](lambda num_bytes: None))

    def documents(self, split: str, tick: Tick = lambda num_bytes: None) -> Iterator[str]:
        """Streams the documents of one of `splits`, paragraphs joined by line breaks."""
        check_names([split], self.splits, f"corpus {self.spec} has no split")
        source_split = "train" if self.divided and split == "valid" else split
        return (text for name, text in self._read(source_split, tick) if name == split)

    def labeled(self, tick: Tick = lambda num_bytes: None) -> Iterator[tuple[str, str]]:
        """Streams all documents, each with its split, passing over every file once."""
        for name in self.source.streams:
            yield from self._read(name, tick)

    def _read(self, name: str, tick: Tick) -> Iterator[tuple[str, str]]:
        for document in self.source.streams[name](tick):
            split = name
            if self.divided and name == "train":
                split = assign_split(document, self.valid_rate)
            for piece in pieces(document, MAX_CHARS):
                yield split, piece

    def fingerprint(self) -> str:
        """Returns a SHA-256 over the source's content, the settings and the reader's version."""
        settings: dict[str, Any] = {"keep_headings": self.settings.keep_headings}
        settings["errors"] = self.settings.errors
        if self.divided:
            settings |= {"valid_rate": self.valid_rate, "split_seed": SPLIT_SEED}
        facts = [self.spec.partition(":")[0], self.version, settings, self.source.identity()]
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def open_corpus(spec: str, settings: Data = Data()) -> Corpus:  # noqa: B008 frozen
    """Opens the corpus `reader:argument`; `builtin` takes no argument.

    Of the `settings` it reads keep_headings, errors and valid_rate. Without a valid_rate the
    corpus has VALID_RATE of the reader, or the share that is enough, see `choose_rate`.

    Raises:
      ValueError: unknown reader, nothing there to read, or a setting out of range.
    """
    if settings.errors not in ("strict", "replace"):
        raise ValueError(f"data.errors must be strict or replace, got {settings.errors!r}")
    if settings.valid_rate is not None and not 0.0 < settings.valid_rate < 1.0:
        raise ValueError(f"data.valid_rate must lie between 0 and 1, got {settings.valid_rate}")
    name, _, argument = spec.partition(":")
    readers = module_names("data.corpora")
    if name == "imported":
        raise ValueError("the run was imported, so it has no corpus")
    if name not in readers and (found := _suggest_reader(spec)):
        raise ValueError(f"corpus {spec} names no reader: did you mean {found}?")
    check_names([name], readers, f"corpus {spec!r}: unknown reader")
    reader = load_module("data.corpora", name)
    if settings.valid_rate is None:
        rate = getattr(reader, "VALID_RATE", None)
        settings = dataclasses.replace(settings, valid_rate=rate)
    return Corpus(spec, settings, reader.read(argument, settings), reader.VERSION)


def _suggest_reader(spec: str) -> str | None:
    """Returns the name of the corpus at a path that has no reader before it; None: no such path."""
    path = Path(os.path.expanduser(spec))
    if path.is_file():
        return f"{'jsonl' if '.jsonl' in path.suffixes else 'text'}:{spec}"
    if not spec or not path.is_dir():
        return None
    patterns = {"wikitext": "*.train.raw", "parquet": "*.parquet", "jsonl": "*.jsonl*"}
    reader = next((name for name, own in patterns.items() if any(path.glob(own))), "text")
    ends = {"jsonl": "/*.jsonl", "text": "/*.txt"}
    return f"{reader}:{spec.rstrip('/')}{ends.get(reader, '')}"


def assign_split(document: str, valid_rate: float) -> str:
    """Returns the split, "train" or "valid", of a document of a source that has no validation.

    The share of "valid" is `valid_rate`. The split depends on the text alone: a document keeps it
    when others are added, and two copies of a text are never on both sides.
    """
    return "valid" if _draw(document) < valid_rate * 2**64 else "train"


def _draw(document: str) -> int:
    """Returns the place of a text in the order in which texts are taken for validation."""
    text = document.encode("utf-8", "surrogatepass")
    salt = SPLIT_SEED.to_bytes(8, "little", signed=True)
    return int.from_bytes(hashlib.blake2b(text, digest_size=8, salt=salt).digest(), "little")


def choose_rate(documents: Iterable[str]) -> float:
    """Returns the share of the documents that makes a validation large enough.

    At least ENOUGH_DOCUMENTS documents or ENOUGH_WORDS words, or a tenth of either if that is
    less; never below LEAST_RATE. Words are no more than tokens, which are not known yet. Reads no
    further than LEAST_RATE needs to be enough. The split of a document can change when others are
    added, unlike the split by a given share.
    """
    words: dict[int, int] = {}  # place of each text -> its words
    drawn, drawn_words = 0, 0  # within LEAST_RATE
    for document in documents:
        place = _draw(document)
        if place in words:
            continue
        words[place] = len(document.split())
        if place < LEAST_RATE * 2**64:
            drawn, drawn_words = drawn + 1, drawn_words + words[place]
            if drawn >= ENOUGH_DOCUMENTS or drawn_words >= ENOUGH_WORDS:
                return LEAST_RATE
    most, most_words = len(words) / 10, sum(words.values()) / 10
    places, total = sorted(words), 0
    for count, place in enumerate(places[:-1], start=1):
        total += words[place]
        if count >= min(ENOUGH_DOCUMENTS, most) or total >= min(ENOUGH_WORDS, most_words):
            return max(LEAST_RATE, (place + places[count]) / 2**65)
    return LEAST_RATE  # one text cannot be split


def pieces(document: str, max_chars: int) -> Iterator[str]:
    """Cuts a text before a line break or space, at most every max_chars, to bound its memory."""
    start = 0
    while len(document) - start > max_chars:
        end = start + max_chars
        breaks = (document.rfind(char, start + 1, end) for char in "\n ")
        end = max(0, *breaks) or end
        yield document[start:end]
        start = end
    yield document[start:]


def from_files(
    files: dict[str, list[Path]], read: Callable[[list[Path], Tick], Iterator[str]]
) -> Source:
    """Makes a source of the files of each split; `read` streams the documents of files."""
    return Source(
        streams={
            split: lambda tick, paths=paths: read(paths, tick) for split, paths in files.items()
        },
        num_bytes={split: sum(p.stat().st_size for p in paths) for split, paths in files.items()},
        identity=lambda: {split: [digest(p) for p in paths] for split, paths in files.items()},
    )


def find(pattern: str, reader: str) -> list[Path]:
    """Returns the files that match a glob (`**` crosses folders), sorted; each file once."""
    if not pattern:
        raise ValueError(f"corpus {reader}: needs a file or pattern, such as {reader}:texts/*.txt")
    paths = sorted(Path(p) for p in glob.glob(os.path.expanduser(pattern), recursive=True))
    if os.path.isdir(os.path.expanduser(pattern)):
        ending = {"text": "txt"}.get(reader, reader)
        raise ValueError(
            f"corpus {reader}:{pattern} is a folder; name its files, such as"
            f" {reader}:{pattern.rstrip('/')}/*.{ending}"
        )
    once: dict[Path, Path] = {}  # links may lead to a file, or in circles
    for path in sorted(paths, key=lambda path: len(path.parts)):
        if path.is_file():
            once.setdefault(path.resolve(), path)
    if not any(path.stat().st_size for path in once):
        problem = "every file that matches is empty" if once else "no file matches"
        raise ValueError(f"corpus {reader}:{pattern}: {problem} (from {Path.cwd()})")
    return sorted(once.values())


def folder(argument: str, reader: str) -> Path:
    """Returns the folder that a corpus is in; raises ValueError if it is not there."""
    path = Path(argument).expanduser()
    if not argument or not path.is_dir():
        raise ValueError(
            f"corpus {reader}:{argument}: expected a folder, found none (from {Path.cwd()})"
        )
    return path


def digest(path: Path) -> str:
    """Returns the SHA-256 of a file's bytes."""
    with reading(path), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def lines(path: Path, errors: str, tick: Tick) -> Iterator[str]:
    """Streams the lines of a file as `read_byte_lines` does, decoded; `errors` as in `decode`."""
    for number, (offset, line) in enumerate(read_byte_lines(path, tick)):
        yield decode(line, errors, path, offset).removeprefix("\ufeff" * (number == 0))


def decode(text: bytes | str, errors: str, where: object, offset: int = 0) -> str:
    """Returns UTF-8 text; JSON can spell lone surrogates in a `str`, which UTF-8 cannot encode.

    Args:
      text: bytes of a file, or a text of a JSON file.
      errors: "strict" or "replace", as in `bytes.decode`.
      where: name of the place, for the message.
      offset: bytes of the place before the text.

    Raises:
      ValueError: `errors` is "strict" and the text is not UTF-8; the message names the byte.
    """
    try:
        if isinstance(text, bytes):
            return text.decode("utf-8", errors)
        text.encode("utf-8")
    except UnicodeError as error:
        if errors == "strict":
            raise ValueError(
                f"{where}: invalid UTF-8 at byte {offset + error.start} ({error.reason}); set"
                " --config.data.errors=replace to go on with a replacement character"
            ) from error
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
