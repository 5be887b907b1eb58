"""Corpora of the worlds, in WikiText's layout: `corpus=wikitext:DIR` reads them."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from scalelab.worlds import gold, lexicon
from scalelab.worlds.discourse import World

SPLITS = ("train", "valid", "test")
HELD_SHARE = 10  # one document for validation, and one for a test, for so many in the training set


def counts(num_documents: int) -> dict[str, int]:
    """Documents of each split.

    Args:
      num_documents: of the training split.
    """
    held = max(1, num_documents // HELD_SHARE)
    return {"train": num_documents, "valid": held, "test": held}


def write_sections(path: Path, texts: Iterable[str]) -> None:
    """Writes documents, each a section under a heading that only numbers it."""
    with path.open("w", encoding="utf-8") as file:
        for number, text in enumerate(texts):
            file.write(f" \n = Document {number} = \n \n {text} \n")


def write_grammar(world: World, seed: int, num_documents: int, folder: Path) -> dict[str, int]:
    """Writes documents of the grammar world, and beside them `gold.jsonl`.

    That has an object for each document: its split and number, its topic, and for each sentence
    what `gold.annotate` says.

    Args:
      world: the world.
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
            documents = _told(world, rng, split, count, file)
            write_sections(folder / f"wiki.{split}.raw", documents)
    return made


def _told(
    world: World, rng: np.random.Generator, split: str, count: int, file: TextIO
) -> Iterable[str]:
    """Streams the texts of a split, writing their annotations."""
    for number in range(count):
        document = world.sample(rng)
        row = {"split": split, "document": number, "topic": document.topic}
        sentences = [gold.annotate(tree) for tree in document.trees]
        file.write(json.dumps(row | {"sentences": sentences}) + "\n")
        yield document.text


def write_tokens(
    source: Any, seed: int, num_documents: int, length: int, folder: Path
) -> tuple[dict[str, int], list[str]]:
    """Writes texts of a source of tokens, each token an invented word.

    Args:
      source: with `vocab_size` and `sample(rng, count, length)`: of `markov` or `neighbours`.
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
