"""A second language of the grammar corpus, and translations into it with known truth.

A word is spelt with other letters: a permutation of the vowels and one of the consonants, so that
inflections stay regular and words map one to one. The order differs in two ways. The children of a
predicate are reversed, so that verbs come last ("the dog a cat sees", "not seen by a cat is" ->
"by a cat seen not is"); an adjective follows its noun. Both are undone by the same rules, so each
sentence has one translation. So it shows whether pre-training helps to translate when there are few
pairs.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from scalelab.worlds import pairs
from scalelab.worlds.corpus import counts, write_sections
from scalelab.worlds.discourse import World
from scalelab.worlds.lexicon import QUALITIES
from scalelab.worlds.pcfg import Tree

VOWELS, CONSONANTS = "aeiou", "bcdfghjklmnpqrstvwxyz"
TASKS = FOLDER, SUMMARIES = "cipher", "summary"  # each task has this folder in tasks/
PASSAGE = 3  # sentences


Letters = dict[int, str]  # as of str.maketrans: a word of the second language is word.translate(it)


def translate(tree: Tree, letters: Letters) -> list[str]:
    """Returns the words of a sentence's translation."""
    children = tree.children
    if tree.label == "VP":
        children = children[::-1]
    elif tree.label == "BNP" and len(children) == 3:
        children = (children[0], children[2], children[1])
    parts = (
        translate(child, letters) if isinstance(child, Tree) else [child.translate(letters)]
        for child in children
    )
    return [word for words in parts for word in words]


def draw(seed: int) -> Letters:
    """Draws the letters."""
    rng = np.random.default_rng([seed, 2])
    mapped = {}
    for letters in (VOWELS, CONSONANTS):
        mapped |= dict(zip(letters, rng.permutation(list(letters)).tolist(), strict=True))
    return str.maketrans(mapped)


def write(
    world: World, seed: int, num_documents: int, num_pairs: int, folder: Path
) -> dict[str, dict[str, int]]:
    """Writes a corpus of both languages, and sentences with their translations.

    Every second document of wiki.{train,valid,test}.raw is a translation; the two languages have
    different documents. tasks/cipher/{train,dev,test}.jsonl have a sentence and its translation a
    line, those of tasks/summary a passage and its summary; no source occurs twice. Their documents
    are drawn after those of the corpus.

    Args:
      world: source of the documents.
      seed: seed of all draws.
      num_documents: documents of all splits.
      num_pairs: training pairs of each task; 0: no tasks.
      folder: an existing folder.

    Returns:
      The numbers of documents and of pairs by split.

    Raises:
      ValueError: the lexicon is too small for this number of pairs.
    """
    letters, rng = draw(seed), np.random.default_rng([seed, 3])

    def translated(trees: tuple[Tree, ...]) -> str:
        return " ".join(word for tree in trees for word in translate(tree, letters))

    for split, count in counts(num_documents).items():
        documents = [world.sample(rng) for _ in range(count)]
        texts = (translated(d.trees) if k % 2 else d.text for k, d in enumerate(documents))
        write_sections(folder / f"wiki.{split}.raw", texts)
    if not num_pairs:
        return {"documents": counts(num_documents)}
    sizes = pairs.split_sizes(num_pairs)

    def translations() -> Iterator[tuple[str, str]]:
        while True:
            for tree in world.sample(rng).trees:
                yield " ".join(tree.words()), " ".join(translate(tree, letters))

    pairs.write(folder / f"tasks/{FOLDER}", pairs.draw(sizes, translations()))
    pairs.write(folder / f"tasks/{SUMMARIES}", pairs.draw(sizes, _summaries(world, rng)))
    return {"documents": counts(num_documents), "pairs": sizes}


def summarize(tree: Tree) -> list[str]:
    """Returns the words of a sentence's summary: none for a deed.

    Of a quality it keeps the predicate and the subject without adjectives, phrases and clauses:
    "later the red dog near a cat is not good ." -> "the dog is not good ."
    """
    if tree.symbol[3] not in QUALITIES:
        return []
    _, subject, predicate, _ = (child for child in tree.children if isinstance(child, Tree))
    (base, *_) = (child for child in subject.children if isinstance(child, Tree))
    determiner, *_, noun = base.words()
    return [determiner, noun, *predicate.words(), "."]


def _summaries(world: World, rng: np.random.Generator) -> Iterator[tuple[str, str]]:
    """Draws the first sentences of documents that describe a quality, and their summaries."""
    while True:
        trees = world.sample(rng).trees[:PASSAGE]
        summary = [word for tree in trees for word in summarize(tree)]
        if summary:
            yield " ".join(word for tree in trees for word in tree.words()), " ".join(summary)
