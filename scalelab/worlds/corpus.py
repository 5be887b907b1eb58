"""Synthetic corpora on disk, in WikiText's layout: `corpus=wikitext:DIR` reads them."""

import itertools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from scalelab.worlds import gold, lexicon
from scalelab.worlds.discourse import World

NUM_PAIRS = 400  # pairs of each group


class Tokens(Protocol):
    """A source of texts whose words are invented, such as `markov.Source`."""

    @property
    def vocab_size(self) -> int:
        """Number of different tokens."""
        ...

    def sample(self, rng: np.random.Generator, count: int, length: int) -> np.ndarray:
        """Draws texts: [count, length] int32.

        Args:
          rng: generator of the draws.
          count: number of texts.
          length: tokens of a text.
        """
        ...


def counts(num_documents: int) -> dict[str, int]:
    """Returns the number of documents of each split; valid and test have a tenth of train."""
    held_out = max(1, num_documents // 10)
    return {"train": num_documents, "valid": held_out, "test": held_out}


def write_sections(path: Path, texts: Iterable[str]) -> None:
    """Writes documents, each a section under a numbered heading."""
    with path.open("w", encoding="utf-8") as file:
        for number, text in enumerate(texts):
            file.write(f" \n = Document {number} = \n \n {text} \n")


def write_grammar(world: World, seed: int, num_documents: int, folder: Path) -> dict[str, int]:
    """Writes documents of the grammar corpus, `gold.jsonl` and minimal pairs.

    `gold.jsonl` has one object per document: split, number, topic, and the annotations of each
    sentence (`gold.annotate`). `pairs/` has order.jsonl, agreement.jsonl and the harder
    attraction.jsonl: up to NUM_PAIRS minimal pairs of the test split each (`gold.minimal_pairs`).
    `wordsim/` has lexicon.txt, up to NUM_PAIRS pairs of words of each similarity
    (`lexicon.word_pairs`).

    Args:
      world: source of the documents.
      seed: seed of all draws.
      num_documents: documents of all splits.
      folder: an existing folder.

    Returns:
      The number of documents of each split.
    """
    rng = np.random.default_rng([seed, 1])
    pairs: dict[str, list[dict[str, str]]] = {}
    with (folder / "gold.jsonl").open("w", encoding="utf-8") as file:
        for split, count in counts(num_documents).items():
            texts = []
            for number in range(count):
                document = world.sample(rng)
                row = {"split": split, "document": number, "topic": document.topic}
                row["sentences"] = [gold.annotate(tree) for tree in document.trees]
                file.write(json.dumps(row) + "\n")
                texts.append(document.text)
                for pair in itertools.chain(*map(gold.minimal_pairs, row["sentences"])):
                    if split == "test":
                        pairs.setdefault(pair["group"], []).append(pair)
            write_sections(folder / f"wiki.{split}.raw", texts)
    (folder / "pairs").mkdir()
    for name, own in pairs.items():
        lines = [json.dumps(pair) + "\n" for pair in own[:NUM_PAIRS]]
        path = folder / f"{name}.jsonl" if name == "attraction" else folder / f"pairs/{name}.jsonl"
        path.write_text("".join(lines), encoding="utf-8")
    (folder / "wordsim").mkdir()
    words = lexicon.word_pairs(world.lexicon, np.random.default_rng([seed, 2]), NUM_PAIRS)
    lines = [f"{first}\t{second}\t{score}\n" for first, second, score in words]
    (folder / "wordsim/lexicon.txt").write_text("".join(lines), encoding="utf-8")
    return counts(num_documents)


def write_tokens(
    source: Tokens,
    seed: int,
    num_documents: int,
    length: int,
    folder: Path,
) -> dict[str, Any]:
    """Writes texts of a token source; each token is an invented word.

    Args:
      source: draws the tokens.
      seed: seed of all draws.
      num_documents: documents of all splits.
      length: tokens of a document.
      folder: an existing folder.

    Returns:
      The "documents" of each split, and the "words", one for each token.
    """
    rng = np.random.default_rng([seed, 1])
    words = lexicon.stems(rng, source.vocab_size)
    for split, count in counts(num_documents).items():
        tokens = source.sample(rng, count, length)
        texts = (" ".join(words[t] for t in row) for row in tokens.tolist())
        write_sections(folder / f"wiki.{split}.raw", texts)
    return {"documents": counts(num_documents), "words": words}
