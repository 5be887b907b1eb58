"""Makes two fine-tuning tasks from unlabeled text, in GLUE's layout.

  python -m scalelab.tasks.self_supervised --corpus=builtin --to=DIR
  python -m scalelab.eval same_document --init=RUN --workdir=WORKDIR --data=DIR
  python -m scalelab.eval swapped_words --init=RUN --workdir=WORKDIR --data=DIR

same_document: are two passages from one document? swapped_words: were two words of a sentence
exchanged? The way a row is made determines its label; nobody has judged the labels. The tasks show
whether a model has learned topics and word order; they are not a benchmark.

The documents come from the corpus's training split, so models pre-trained on it have read them,
without the labels. They come from the cache of prepared data if a training has made it. DIR gets
SameDocument/ and SwappedWords/, each with train.tsv and dev.tsv, and probes.json with the
arguments. Equal arguments give equal files. No shortcut gives a label away:

- Rows come in groups. A group has each class equally often and is in one split. A group of
  swapped_words is a sentence in both versions, so the classes have the same words, lengths and
  endings. A group of same_document is a passage A and a later passage B of each of two documents;
  both B have the same number of words. AB and A'B' are "same", AB' and A'B are not. So every
  passage is in one row of each class, and both classes have the same pairs of lengths.
- B is later in its document than A in both classes, so the place in the document does not reveal
  the label. The order of the two passages is drawn once for all rows of a group.
- A document is in one group. Only the first occurrence of a sentence is used, so no text is on both
  sides of a pair, or in training and dev sets. Case and spaces do not count.
- At least one sentence is between A and B: B never continues A.
- Exchanged words consist of lower-case letters and are neither first nor last, so capitals and
  punctuation stay in place. They may be adjacent; they differ in more than case.
- White space is a single space everywhere: tabs and line breaks would break the files.
"""

import argparse
import hashlib
import itertools
import json
import os
import pathlib
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from scalelab.config import cli
from scalelab.config.pretraining import Data
from scalelab.records import json_files
from scalelab.tasks.task import load_task

VERSION = "1"  # version of the rules above
ABOUT = "probes.json"
MOST_BYTES = 1 << 26  # text that is kept in memory
PASSAGE_WORDS = (16, 48)  # minimum and maximum words of a passage of whole sentences
SENTENCE_WORDS = (8, 40)  # minimum and maximum words of a sentence for swapping
ROWS_MULTIPLE = 4  # the largest group of rows that belong together
DIFFERENT, SAME = ORIGINAL, SWAPPED = 0, 1  # classes of same_document and swapped_words

Words = list[str]


class Row(NamedTuple):
    """An example: one text or two, and its class."""

    texts: tuple[str, ...]
    label: int


# --- Rows ----------------


def draw(documents: Iterable[str], seed: int, share: float = 1.0) -> list[str]:
    """Draws documents, each text once, in the order of a seeded hash of the text.

    Args:
      documents: the texts.
      seed: seed of the hash.
      share: share of the documents, in (0, 1].
    """
    key = seed.to_bytes(8, "little", signed=True)
    drawn: dict[int, str] = {}
    for document in documents:
        text = document.encode("utf-8", "surrogatepass")
        place = int.from_bytes(hashlib.blake2b(text, digest_size=8, key=key).digest())
        if place < share * 2**64:
            drawn[place] = document
    return [drawn[place] for place in sorted(drawn)]


def _fresh(documents: Iterable[str]) -> Iterator[list[Words | None]]:
    """Yields the sentences of each document; None for a sentence that occurred before."""
    seen: set[str] = set()
    for document in documents:
        sentences: list[Words | None] = []
        for line in document.split("\n"):
            words = line.split()
            sentences.append(None if _key(words) in seen else words)
            seen.add(_key(words))
        yield sentences


def _key(words: Iterable[str]) -> str:
    """Returns the same key for texts that differ only in case and spaces."""
    return " ".join(words).casefold()


def _versions(documents: Sequence[str], rng: np.random.Generator) -> Iterator[list[Row]]:
    """Yields for each document with a fitting sentence the two rows, original and swapped."""
    least, most = SENTENCE_WORDS
    used: set[str] = set()
    for sentences in _fresh(documents):
        for at in rng.permutation(len(sentences)):
            words = sentences[at]
            other = swap(words, rng) if words and least <= len(words) <= most else None
            if words and other and not {_key(words), _key(other)} & used:
                used |= {_key(words), _key(other)}
                yield [Row((" ".join(words),), ORIGINAL), Row((" ".join(other),), SWAPPED)]
                break


def swap(words: Words, rng: np.random.Generator) -> Words | None:
    """Exchanges two words of a sentence; None if no two words qualify."""
    inner = range(1, len(words) - 1)
    plain = [i for i in inner if words[i].isalpha() and words[i] == words[i].lower()]
    pairs = [
        (i, j)
        for i, j in itertools.combinations(plain, 2)
        if words[i].casefold() != words[j].casefold()
    ]
    if not pairs:
        return None
    i, j = pairs[rng.integers(len(pairs))]
    other = list(words)
    other[i], other[j] = words[j], words[i]
    return other


def _crossings(documents: Sequence[str], rng: np.random.Generator) -> Iterator[list[Row]]:
    """Yields the four rows of two documents with second passages of equal length."""
    waiting: dict[int, tuple[str, str]] = {}
    for sentences in _fresh(documents):
        if (found := two_passages(sentences, rng)) is None:
            continue
        here, length = (" ".join(found[0]), " ".join(found[1])), len(found[1])
        if (there := waiting.pop(length, None)) is None:
            waiting[length] = here
            continue
        pairs = [(there, SAME), (here, SAME)]
        pairs += [((there[0], here[1]), DIFFERENT), ((here[0], there[1]), DIFFERENT)]
        turn = -1 if rng.integers(2) else 1
        yield [Row(texts[::turn], label) for texts, label in pairs]


def two_passages(
    sentences: Sequence[Words | None], rng: np.random.Generator
) -> tuple[Words, Words] | None:
    """Draws two passages of a document, the earlier first; None if the document has no two.

    Args:
      sentences: words of each sentence; None: it must not be used.
      rng: generator of the draws.
    """
    least, most = PASSAGE_WORDS
    # From each sentence, the shortest run of whole sentences that is long enough: start, end.
    found: list[tuple[int, int, Words]] = []
    for start in range(len(sentences)):
        words: Words = []
        for end, more in enumerate(sentences[start:], start + 1):
            if more is None or len(words) + len(more) > most:
                break
            words += more
            if len(words) >= least:
                found.append((start, end, words))
                break
    firsts = [(end, words) for _, end, words in found if end < found[-1][0]]
    if not firsts:
        return None
    stop, first = firsts[rng.integers(len(firsts))]
    later = [words for start, _, words in found if stop < start]
    return first, later[rng.integers(len(later))]


# Task -> generator of its groups, number of rows of a group, number of its random stream.
MAKERS = {"same_document": (_crossings, 4, 1), "swapped_words": (_versions, 2, 0)}


def make_rows(
    task: str, documents: Sequence[str], num_rows: Mapping[str, int], seed: int
) -> dict[str, list[Row]]:
    """Makes the splits of a task; a split does not depend on later splits.

    Args:
      task: a name in MAKERS.
      documents: in the order of `draw`.
      num_rows: split -> number of rows, a multiple of ROWS_MULTIPLE.
      seed: seed of all choices.

    Raises:
      ValueError: a number is not a multiple of 4, or there are too few documents.
    """
    make_groups, group_rows, stream = MAKERS[task]
    rng = np.random.default_rng([seed, stream])
    groups = make_groups(documents, rng)
    made: dict[str, list[Row]] = {}
    for split, num in num_rows.items():
        if num < ROWS_MULTIPLE or num % ROWS_MULTIPLE:
            raise ValueError(f"num_{split}: expected a multiple of {ROWS_MULTIPLE}, got {num}")
        made[split] = list(itertools.chain(*itertools.islice(groups, num // group_rows)))
        if len(made[split]) < num:
            raise ValueError(
                f"{task}: {len(documents):,} different documents give {len(made[split]):,} rows of"
                f" {split}, not {num:,}: take a larger corpus, or make fewer rows"
            )
        rng.shuffle(made[split])
    return made


# --- Files ----------------

Made = Mapping[str, Mapping[str, Sequence[Row]]]  # task -> split -> rows


def make(
    documents: Iterable[str], num_train: int, num_dev: int, seed: int, share: float = 1.0
) -> Made:
    """Makes the rows of both tasks.

    The dev set does not depend on the size of the training set.

    Args:
      documents: a line is a sentence.
      num_train: rows of the training set, a multiple of ROWS_MULTIPLE.
      num_dev: rows of the dev set, a multiple of it.
      seed: seed of all choices.
      share: share of the documents in use, in (0, 1].

    Raises:
      ValueError: as in `make_rows`.
    """
    drawn, num_rows = draw(documents, seed, share), {"dev": num_dev, "train": num_train}
    return {task: make_rows(task, drawn, num_rows, seed) for task in MAKERS}


def write(folder: pathlib.Path, made: Made, about: Mapping[str, object]) -> None:
    """Writes the folder of both tasks, all of it or nothing.

    A table has a line of column names, then tab-separated fields, as in GLUE.

    Args:
      folder: the folder.
      made: rows of the tasks.
      about: content of probes.json.
    """
    folder = folder.absolute()
    folder.parent.mkdir(parents=True, exist_ok=True)
    part = folder.with_name(f".{folder.name}.part")
    try:
        for task, splits in ((load_task(name), made[name]) for name in made):
            (part / task.folder).mkdir(parents=True)
            labels = task.labels or ()
            for split, rows in splits.items():
                lines = [("index", *task.columns.names)]
                lines += [
                    (str(index), *row.texts, labels[row.label]) for index, row in enumerate(rows)
                ]
                content = "".join("\t".join(line) + "\n" for line in lines).encode()
                (part / task.folder / f"{split}.tsv").write_bytes(content)
        text = json.dumps(about, indent=1, ensure_ascii=False) + "\n"
        (part / ABOUT).write_text(text, encoding="utf-8")
        os.replace(part, folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def parser() -> cli.Parser:
    """Returns the command line."""
    made = cli.Parser("python -m scalelab.tasks.self_supervised", __doc__)
    made.add_argument("--corpus", required=True, help="as in a training: builtin, wikitext:DIR")
    made.add_argument("--to", required=True, type=pathlib.Path, help="folder to make")
    for name, kind, default, text in (
        ("num_train", _number, 2000, "rows of each training set, a multiple of 4"),
        ("num_dev", _number, 500, "rows of each dev set, a multiple of 4"),
        ("seed", _number, 0, "of all draws"),
        ("cache_dir", str, "~/.cache/scalelab", "prepared data"),
        ("valid_rate", float, None, "share of the validation documents, as in the training"),
        ("errors", str, "strict", "invalid UTF-8: strict stops, replace inserts a character"),
    ):
        made.add_argument(
            f"--{name}", type=kind, default=default, help=f"{text}; default: %(default)s"
        )
    return made


def _number(text: str) -> int:
    if not text.isdecimal() or int(text) >= 1 << 63:
        raise argparse.ArgumentTypeError(f"expected a whole number, got {text!r}")
    return int(text)


def run(given: argparse.Namespace) -> None:
    """Makes the tasks; raises ValueError if corpus, folder or numbers do not allow it."""
    from scalelab.data import prepare  # after the arguments, so that --help answers at once
    from scalelab.data.corpora import open_corpus
    from scalelab.helpers.progress import show_bar

    corpus = open_corpus(given.corpus, Data(errors=given.errors, valid_rate=given.valid_rate))
    text = prepare.Sentences(corpus, given.cache_dir)
    about = {
        "what": "self-labeled probe tasks of scalelab, no benchmark",
        "corpus": given.corpus,
        "sentences": text.key,
        "rules": VERSION,
        "seed": given.seed,
        "num_train": given.num_train,
        "num_dev": given.num_dev,
    }
    if given.to.exists() and not (given.to.is_dir() and not any(given.to.iterdir())):
        try:
            found = json_files.read_object(given.to / ABOUT) or {}
            same = found | {"corpus": given.corpus} == about  # "sentences" has the corpus's hash
        except ValueError:
            same = False
        if not same:
            raise ValueError(f"--to={given.to} holds other files or tasks: choose another folder")
        print(f"{given.to} holds these tasks already")
        return
    path = text.folder / "train.txt"
    size = path.stat().st_size
    with show_bar("documents", size, show=True) as tick:
        documents = prepare.read_sentences(path, tick)
        share = MOST_BYTES / max(size, MOST_BYTES)
        made = make(documents, given.num_train, given.num_dev, given.seed, share)
    write(given.to, made, about)
    for name, splits in made.items():
        sizes = ", ".join(f"{split} {len(rows):,}" for split, rows in splits.items())
        print(f"wrote {given.to / load_task(name).folder}: {sizes} rows")


def main(given: argparse.Namespace) -> None:
    """Makes the tasks; messages name the flags of this program."""
    try:
        run(given)
    except (ValueError, OSError) as error:
        text = str(error).replace("--config.data.", "--").replace("--config.machine.", "--")
        raise ValueError(text) from error


if __name__ == "__main__":
    cli.run(main, parser())
