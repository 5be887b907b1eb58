"""The documents of the grammar corpus, and the exact entropy of the process that writes them.

A document has a topic, uniform over all topics, and these stages in order: one opening sentence,
one or more scenes, one or more events, one closing sentence. The predicate of a sentence is a deed,
or a quality, good or bad. The first quality of a document is good or bad with equal probability;
later ones repeat it with different words. The last participant of a sentence is the subject of the
next sentence with probability CHAIN_RATE; otherwise the subject is drawn anew, and may be the same.

A text determines all choices: a sentence's first word shows its stage, and the closing sentence
shows the end. So the entropy of texts is the entropy of the choices, one term each in `facts`.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping

import numpy as np

from scalelab.worlds import grammar, lexicon
from scalelab.worlds.grammar import STAGES
from scalelab.worlds.lexicon import NUMBERS, QUALITIES, Lexicon, Sizes, chances, noun
from scalelab.worlds.markov import entropy
from scalelab.worlds.pcfg import Pcfg, Symbol, Tree

REPEAT_RATES = {"scene": 0.4, "event": 0.6}  # probability of another sentence of the stage
QUALITY_RATE = 0.3
CHAIN_RATE = 0.5


@dataclasses.dataclass(frozen=True)
class Document:
    """A document: the number of its topic, and a derivation for each sentence."""

    topic: int
    trees: tuple[Tree, ...]

    @property
    def sentences(self) -> list[list[str]]:
        """The words of each sentence."""
        return [tree.words() for tree in self.trees]

    @property
    def text(self) -> str:
        """All words, with single spaces between."""
        return " ".join(" ".join(words) for words in self.sentences)


@dataclasses.dataclass(frozen=True)
class World:
    """The distribution of documents for a lexicon and the rules of sentences (`grammar`)."""

    lexicon: Lexicon
    pcfg: Pcfg

    @functools.cached_property
    def noun_chances(self) -> np.ndarray:
        """Probabilities of a subject that is drawn anew: [num_nouns]."""
        return chances(self.lexicon.sizes.num_nouns)

    @functools.cached_property
    def noun_places(self) -> dict[str, tuple[int, int]]:
        """{form of a noun: (topic, index in the topic's nouns)}."""
        return {
            noun(stem, num): (t, i)
            for t, topic in enumerate(self.lexicon.topics)
            for i, stem in enumerate(topic.nouns)
            for num in NUMBERS
        }

    def last_head(self, tree: Tree) -> int:
        """Returns the index of the last participant's head in its topic's nouns."""
        (predicate,) = (c for c in tree.children if isinstance(c, Tree) and c.label == "VP")
        nouns = [self.noun_places[word] for word in predicate.words() if word in self.noun_places]
        return nouns[0][1] if nouns else tree.symbol[4]

    def subject_chances(self, last: int | None) -> np.ndarray:
        """Returns the probabilities of the subject after a last participant: [num_nouns]."""
        if last is None:
            return self.noun_chances
        kept = np.arange(len(self.noun_chances)) == last
        return CHAIN_RATE * kept + (1 - CHAIN_RATE) * self.noun_chances

    def sample(self, rng: np.random.Generator) -> Document:
        """Draws a document."""
        topic = int(rng.integers(len(self.lexicon.topics)))
        trees: list[Tree] = []
        mood = last = None
        for stage in STAGES:
            another = True
            while another:
                kind = "deed"
                if rng.random() < QUALITY_RATE:
                    mood = mood or QUALITIES[int(rng.integers(2))]
                    kind = mood
                head = int(rng.choice(len(self.noun_chances), p=self.subject_chances(last)))
                trees.append(self.pcfg.sample(("S", topic, stage, kind, head), rng))
                last = self.last_head(trees[-1])
                another = rng.random() < REPEAT_RATES.get(stage, 0)
        return Document(topic, tuple(trees))

    def facts(self) -> dict[str, float]:
        """Returns expectations and entropies of documents, and the entropy of each choice."""
        num_sentences = sum(map(_visits, STAGES))
        after = sum(
            p * float(entropy(self.subject_chances(last)))
            for last, p in enumerate(self.noun_chances)
        )
        # Probability of a document without a quality: E[z^n], n a sum of geometric draws.
        z, rates = 1 - QUALITY_RATE, [REPEAT_RATES.get(stage, 0) for stage in STAGES]
        no_quality = math.prod(z * (1 - rate) / (1 - rate * z) for rate in rates)
        terms = {
            "topic": math.log(len(self.lexicon.topics)),
            "stages": sum(_visits(s) * _coin(REPEAT_RATES.get(s, 0)) for s in STAGES),
            "kinds": num_sentences * _coin(QUALITY_RATE),
            "mood": math.log(2) * (1 - no_quality),
            # The marginal distribution of each subject equals the distribution of a new one.
            "subjects": float(entropy(self.noun_chances)) + (num_sentences - 1) * after,
            "sentences": self._expect(self.pcfg.entropies()),
        }
        words = self._expect(self.pcfg.lengths())
        num_bytes = self._expect(self.pcfg.lengths(lambda word: len(word) + 1)) - 1
        total = float(sum(terms.values()))
        return {
            "nats_per_document": total,
            "words_per_document": words,
            "bytes_per_document": num_bytes,
            "sentences_per_document": num_sentences,
            "nats_per_word": total / words,
            "bits_per_byte": total / math.log(2) / num_bytes,
        } | {f"nats_of_{name}": float(nats) for name, nats in terms.items()}

    def _expect(self, values: Mapping[Symbol, float]) -> float:
        """Returns the expected sum over a document's sentences of a value of their symbols."""
        topics = range(len(self.lexicon.topics))
        kinds = {"deed": 1 - QUALITY_RATE} | {q: QUALITY_RATE / 2 for q in QUALITIES}
        return sum(
            _visits(stage) * p_kind * p_head / len(topics) * values["S", t, stage, kind, head]
            for stage in STAGES
            for kind, p_kind in kinds.items()
            for head, p_head in enumerate(self.noun_chances.tolist())
            for t in topics
        )


def draw(sizes: Sizes, seed: int) -> World:
    """Returns the world of a seed."""
    words = lexicon.draw(sizes, seed)
    return World(words, Pcfg(grammar.rules(words)))


def _visits(stage: str) -> float:
    """Returns the expected number of sentences of a stage."""
    return 1 / (1 - REPEAT_RATES.get(stage, 0))


def _coin(rate: float) -> float:
    return float(entropy(np.array([rate, 1 - rate])))
