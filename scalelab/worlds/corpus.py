"""Synthetic corpora on disk, in WikiText's layout: `corpus=wikitext:DIR` reads them."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol, TextIO

import numpy as np

from scalelab.worlds import gold, lexicon
from scalelab.worlds.discourse import World

SPLITS = ("train", "valid", "test")
HELD_SHARE = 10  # training documents for each validation document, and for each test document


class TokenSource(Protocol):
    """A distribution over token sequences."""

    @property
    def vocab_size(self) -> int:
        """Different tokens."""
        ...

    def sample(self, rng: np.random.Generator, count: int, length: int) -> np.ndarray:
        """Draws texts: [count, length] int32."""
        ...


def counts(num_documents: int) -> dict[str, int]:
    """Returns the number of documents of each split.

    Args:
      num_documents: of the training split.
    """
    held = max(1, num_documents // HELD_SHARE)
    return {"train": num_documents, "valid": held, "test": held}


def write_sections(path: Path, texts: Iterable[str]) -> None:
    """Writes documents, each a section under a numbered heading."""
    with path.open("w", encoding="utf-8") as file:
        for number, text in enumerate(texts):
            file.write(f" \n = Document {number} = \n \n {text} \n")


def write_grammar(world: World, seed: int, num_documents: int, folder: Path) -> dict[str, int]:
    """Writes documents of the grammar corpus, and `gold.jsonl` beside them.

    `gold.jsonl` has one object a document: split, number, topic, and the annotations of each
    sentence (`gold.annotate`).

    Args:
      world: the distribution of documents.
      seed: of the documents.
      num_documents: of the training split.
      folder: an existing one.

    Returns:
      The documents of each split.
    """
    rng = np.random.default_rng([seed, 1])
    made = counts(num_documents)
    with (folder / "gold.jsonl").open("w", encoding="utf-8") as file:
        for split, count in made.items():
            documents = _annotate(world, rng, split, count, file)
            write_sections(folder / f"wiki.{split}.raw", documents)
    return made


def _annotate(
    world: World, rng: np.random.Generator, split: str, count: int, file: TextIO
) -> Iterable[str]:
    """Streams the texts of a split and writes their annotations."""
    for number in range(count):
        document = world.sample(rng)
        row = {"split": split, "document": number, "topic": document.topic}
        sentences = [gold.annotate(tree) for tree in document.trees]
        file.write(json.dumps(row | {"sentences": sentences}) + "\n")
        yield document.text


def write_tokens(
    source: TokenSource, seed: int, num_documents: int, length: int, folder: Path
) -> tuple[dict[str, int], list[str]]:
    """Writes texts of a token source; each token is an invented word.

    Args:
      source: from `markov` or `neighbours`.
      seed: of the words and texts.
      num_documents: of the training split.
      length: words of each.
      folder: an existing one.

    Returns:
      The documents of each split, and the word of each token.
    """
    rng = np.random.default_rng([seed, 1])
    words = lexicon.stems(rng, source.vocab_size)
    made = counts(num_documents)
    for split, count in made.items():
        tokens = source.sample(rng, count, length)
        texts = (" ".join(words[t] for t in row) for row in tokens.tolist())
        write_sections(folder / f"wiki.{split}.raw", texts)
    return made, words
