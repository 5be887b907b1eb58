"""The words of the grammar corpus.

Content words are invented from the seed and belong to one topic each. Words of quality, good or
bad, belong to all topics. Nouns and verbs have two numbers, with the endings of English: one dog
runs, two dogs run. Function words are English.
"""

import dataclasses
import itertools

import numpy as np

CONSONANTS, VOWELS = "bdfgklmnprtvz", "aeiou"  # no s: it marks number
NUMBERS = ("sg", "pl")
DETERMINERS = {
    "sg": {"the": 0.5, "a": 0.3, "this": 0.2},
    "pl": {"the": 0.5, "some": 0.3, "these": 0.2},
}
BE = {"sg": "is", "pl": "are"}
DO = {"sg": "does", "pl": "do"}
PREPOSITIONS = {"near": 0.4, "under": 0.3, "behind": 0.2, "with": 0.1}
QUALITIES = ("good", "bad")
ZIPF = 0.5  # the probability of word i of a class is proportional to 1 / (i + 1)**ZIPF


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Numbers of words; all except topics and qualities are per topic."""

    num_topics: int = 6
    num_nouns: int = 16
    num_verbs: int = 8
    num_adjectives: int = 6
    num_qualities: int = 4  # number of good words, and of bad words

    def __post_init__(self) -> None:
        for name, found in dataclasses.asdict(self).items():
            least = 1 + (name == "num_nouns")
            if found < least:
                raise ValueError(f"{name}: expected {least} or more, got {found}")


@dataclasses.dataclass(frozen=True)
class Topic:
    """The stems of a topic."""

    nouns: tuple[str, ...]
    verbs: tuple[str, ...]
    adjectives: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Lexicon:
    """All content words; `qualities` has the words that mean "good" and "bad"."""

    sizes: Sizes
    topics: tuple[Topic, ...]
    qualities: dict[str, tuple[str, ...]]


def draw(sizes: Sizes, seed: int) -> Lexicon:
    """Draws invented words."""
    rng = np.random.default_rng(seed)
    count = sizes.num_nouns + sizes.num_verbs + sizes.num_adjectives
    made = iter(stems(rng, sizes.num_topics * count + 2 * sizes.num_qualities))

    def take(number: int) -> tuple[str, ...]:
        return tuple(next(made) for _ in range(number))

    topics = tuple(
        Topic(take(sizes.num_nouns), take(sizes.num_verbs), take(sizes.num_adjectives))
        for _ in range(sizes.num_topics)
    )
    return Lexicon(sizes, topics, {q: take(sizes.num_qualities) for q in QUALITIES})


def stems(rng: np.random.Generator, count: int) -> list[str]:
    """Invents different stems of two or three open syllables.

    They end in a vowel, so that different stems never share a form (`s`, `ed`).

    Args:
      rng: generator of the draws.
      count: number of stems.
    """
    found: dict[str, None] = {}
    while len(found) < count:
        num_syllables = 2 + int(rng.random() < 0.3)
        picks = rng.integers((len(CONSONANTS), len(VOWELS)), size=(num_syllables, 2))
        found["".join(CONSONANTS[c] + VOWELS[v] for c, v in picks)] = None
    return list(found)


def chances(count: int) -> np.ndarray:
    """Returns Zipf's law over the words of a class: [count], sum 1."""
    weights = 1 / np.arange(1, count + 1) ** ZIPF
    return weights / weights.sum()


def word_pairs(lexicon: Lexicon, rng: np.random.Generator, most: int) -> list[tuple[str, str, int]]:
    """Draws pairs of stems with their similarity: 1 for the same topic, 1 for the same class.

    Classes are nouns, verbs and adjectives. Words of quality have no topic and are left out.

    Args:
      lexicon: the words.
      rng: generator of the draws.
      most: pairs of each similarity, 0, 1 and 2, at most.
    """
    places = [
        (stem, number, name)
        for number, topic in enumerate(lexicon.topics)
        for name, stems in vars(topic).items()
        for stem in stems
    ]
    found: dict[int, list[tuple[str, str, int]]] = {0: [], 1: [], 2: []}
    for (a, *own), (b, *other) in itertools.combinations(places, 2):
        score = sum(x == y for x, y in zip(own, other, strict=True))
        found[score].append((a, b, score))
    return [
        pairs[k]
        for pairs in found.values()
        for k in np.sort(rng.permutation(len(pairs))[:most]).tolist()
    ]


def noun(stem: str, number: str) -> str:
    """Returns a noun's form.

    Args:
      stem: its singular.
      number: "sg" or "pl".
    """
    return stem + "s" * (number == "pl")


def verb(stem: str, form: str) -> str:
    """Returns a verb's form.

    Args:
      stem: its base.
      form: "sg", "pl", "base" or "participle".
    """
    return stem + {"sg": "s", "pl": "", "base": "", "participle": "ed"}[form]


def other_number(word: str) -> str:
    """Returns the form of a verb for a subject of the other number."""
    swaps = {table[a]: table[b] for table in (BE, DO) for a, b in (NUMBERS, NUMBERS[::-1])}
    return swaps.get(word) or (word.removesuffix("s") if word.endswith("s") else word + "s")
