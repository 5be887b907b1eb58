"""A second language of the grammar corpus, and translations into it with known truth.

A word is spelt with other letters: a permutation of the vowels and one of the consonants, so that
inflections stay regular and words map one to one. The order differs in two ways. The children of a
predicate are reversed, so that verbs come last ("the dog a cat sees", "not seen by a cat is" ->
"by a cat seen not is"); an adjective follows its noun. Both are undone by the same rules, so each
sentence has one translation. The language serves P3-01's question: does pre-training help to
translate when there are few pairs?
"""

import dataclasses
import json
from pathlib import Path

import numpy as np

from scalelab.worlds.corpus import counts, write_sections
from scalelab.worlds.discourse import World
from scalelab.worlds.pcfg import Tree

VOWELS, CONSONANTS = "aeiou", "bcdfghjklmnpqrstvwxyz"
FOLDER = "cipher"  # of the pairs, in the folder of all tasks
TEST_SHARE = 4  # training pairs for each pair of dev or test


@dataclasses.dataclass(frozen=True)
class Cipher:
    """The map of letters."""

    letters: dict[int, int]

    def spell(self, word: str) -> str:
        """Returns a word of the second language."""
        return word.translate(self.letters)

    def translate(self, tree: Tree) -> list[str]:
        """Returns the words of a sentence's translation."""
        children = tree.children
        if tree.label == "VP":
            children = children[::-1]
        elif tree.label == "BNP" and len(children) == 3:
            children = (children[0], children[2], children[1])
        return [
            word
            for child in children
            for word in (self.translate(child) if isinstance(child, Tree) else [self.spell(child)])
        ]


def draw(seed: int) -> Cipher:
    """Draws the letters."""
    rng = np.random.default_rng([seed, 2])
    mapped = {}
    for letters in (VOWELS, CONSONANTS):
        mapped |= dict(zip(letters, rng.permutation(list(letters)).tolist(), strict=True))
    return Cipher(str.maketrans(mapped))


def write(
    world: World, seed: int, num_documents: int, num_pairs: int, folder: Path
) -> dict[str, dict[str, int]]:
    """Writes a corpus of both languages, and sentences with their translations.

    Every second document of wiki.{train,valid,test}.raw is a translation; the two languages have
    different documents. tasks/cipher/{train,dev,test}.jsonl have a sentence and its translation a
    line; no sentence occurs twice, and none was drawn for the corpus.

    Returns:
      The numbers of documents and of pairs by split.
    """
    cipher, rng = draw(seed), np.random.default_rng([seed, 3])

    def translated(trees: tuple[Tree, ...]) -> str:
        return " ".join(word for tree in trees for word in cipher.translate(tree))

    for split, count in counts(num_documents).items():
        documents = [world.sample(rng) for _ in range(count)]
        texts = (translated(d.trees) if k % 2 else d.text for k, d in enumerate(documents))
        write_sections(folder / f"wiki.{split}.raw", texts)
    sizes = {"train": num_pairs} | dict.fromkeys(("dev", "test"), max(1, num_pairs // TEST_SHARE))
    (folder / "tasks" / FOLDER).mkdir(parents=True)
    seen: set[str] = set()
    for split, count in sizes.items():
        lines: list[str] = []
        while len(lines) < count:
            for tree in world.sample(rng).trees:
                text = " ".join(tree.words())
                if text not in seen and len(lines) < count:
                    seen.add(text)
                    own = {"source": text, "target": " ".join(cipher.translate(tree))}
                    lines.append(json.dumps(own) + "\n")
        (folder / f"tasks/{FOLDER}/{split}.jsonl").write_text("".join(lines), encoding="utf-8")
    return {"documents": counts(num_documents), "pairs": sizes}
