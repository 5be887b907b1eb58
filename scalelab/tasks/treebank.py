"""Reads treebanks of Universal Dependencies: CoNLL-U files, plain or .xz.

Format: https://universaldependencies.org/format.html. Words are syntactic words: the parts ("do",
"n't") of a multiword token ("don't"). Empty nodes are left out.
"""

import pathlib
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from scalelab.tasks import data_files

SPLITS = ("train", "dev", "test")
NUM_FIELDS = 10
PUNCTUATION = "PUNCT"  # part of speech


class Sentence(NamedTuple):
    """A sentence of n words with its dependency tree."""

    words: list[str]
    upos: list[str]
    heads: list[int]  # number of the head, from 1; 0: the word is the root
    deprels: list[str]
    spaces: list[bool]  # whether a space follows each word

    @property
    def text(self) -> str:
        """The original text of the sentence."""
        return "".join(
            word + " " * space for word, space in zip(self.words, self.spaces, strict=True)
        )

    @property
    def stops(self) -> list[int]:
        """The index in `text` after each word's last character."""
        found, at = [], 0
        for word, space in zip(self.words, self.spaces, strict=True):
            found.append(at + len(word))
            at += len(word) + space
        return found


def read(folder: pathlib.Path, split: str) -> list[Sentence]:
    """Reads a split: the only file *-ud-<split>.conllu[.xz] of the folder.

    Raises:
      ValueError: no or several such files, no sentence in it, or a line that is not CoNLL-U.
    """
    names = f"*-ud-{split}.conllu", f"*-ud-{split}.conllu.xz"
    paths = sorted(path for name in names for path in folder.glob(name))
    if len(paths) != 1:
        raise ValueError(
            f"{folder}: expected one file {' or '.join(names)}, found"
            f" {', '.join(path.name for path in paths) or 'none'}"
        )
    return read_file(paths[0])


def read_file(path: pathlib.Path) -> list[Sentence]:
    """Reads one file; raises ValueError as `read`."""
    found = list(_sentences(path, data_files.read_lines(path)))
    if not found:
        raise ValueError(f"{path} has no sentence")
    return found


def _sentences(path: pathlib.Path, lines: Iterable[str]) -> Iterator[Sentence]:
    """Yields the sentences of a file's lines."""
    rows: list[tuple[int, list[str]]] = []  # line number, fields
    for number, line in enumerate([*lines, ""], 1):
        if line.startswith("#"):
            continue
        if line.strip():
            rows.append((number, line.split("\t")))
        elif rows:
            yield _parse(path, rows)
            rows = []


def _parse(path: pathlib.Path, rows: Sequence[tuple[int, list[str]]]) -> Sentence:
    """Parses the lines of a sentence; a ValueError names the line."""
    made, number = Sentence([], [], [], [], []), rows[0][0]
    last, spaced = 0, True  # last word of the multiword token; whether a space follows it
    try:
        for number, fields in rows:  # noqa: B007
            count = len(fields)
            _expect(count == NUM_FIELDS, f"expected {NUM_FIELDS} fields, found {count}")
            place, form, _, upos, _, _, head, deprel, _, misc = fields
            done, space = len(made.words), "SpaceAfter=No" not in misc.split("|")
            if "-" in place:
                first, last_text = place.split("-")
                _expect(int(first) == done + 1 > last and int(last_text) > done, f"range {place}")
                last, spaced = int(last_text), space
            elif "." in place:
                _expect(int(place.split(".")[0]) == done, f"empty node {place} after word {done}")
            else:
                _expect(int(place) == done + 1, f"word {place} after word {done}")
                inside = done + 1 < last
                made.words.append(form)
                made.upos.append(upos)
                made.heads.append(int(head))
                made.deprels.append(deprel)
                made.spaces.append(spaced if done + 1 == last else space and not inside)
        num = len(made.words)
        _expect(last <= num, f"a range ends at {last} in a sentence of {num} words")
        _expect(_is_tree(made.heads), f"heads {made.heads} are no tree")
    except ValueError as error:
        raise ValueError(f"{path}, line {number}: not CoNLL-U: {error}") from None
    return made


def _expect(right: bool, message: str) -> None:
    if not right:
        raise ValueError(message)


def _is_tree(heads: Sequence[int]) -> bool:
    """Returns True if there is one root, and every word is below it."""
    if heads.count(0) != 1 or not 0 <= min(heads) <= max(heads) <= len(heads):
        return False
    above = [0, *heads]  # ancestor of each word 1, 2, 4, ... steps up; 0 stays 0
    for _ in range(len(heads).bit_length()):
        above = [above[place] for place in above]
    return not any(above)
