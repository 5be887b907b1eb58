"""The documents of the grammar world, and the exact entropy of the process that writes them.

A document has a topic, uniform among all, and runs through the stages in order: one opening
sentence, one or more scenes, one or more events, one closing sentence. A sentence says of its
subject a deed, or that it is good or bad. The first such quality is a coin's; all later ones in the
document are the same, in other words. What the last sentence spoke of last is the next one's
subject with probability CHAIN_RATE; otherwise the subject is drawn anew, and may be the same.

All choices are read back from the text: the first word of a sentence tells its stage, and the
closing one the end. So the entropy of texts is that of the choices, one term each in `facts`.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence

import numpy as np

from scalelab.worlds import grammar as grammar_lib
from scalelab.worlds import lexicon as lexicon_lib
from scalelab.worlds.grammar import STAGES, Grammar
from scalelab.worlds.lexicon import QUALITIES, Sizes, chances
from scalelab.worlds.markov import entropy
from scalelab.worlds.pcfg import Symbol, Tree

REPEAT_RATES = {"scene": 0.4, "event": 0.6}  # that another sentence of the stage follows
QUALITY_RATE = 0.3
CHAIN_RATE = 0.5


@dataclasses.dataclass(frozen=True)
class Document:
    """A document.

    Attributes:
      topic: its number.
      trees: a derivation for each sentence.
    """

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
    """A world.

    Attributes:
      grammar: of its sentences.
    """

    grammar: Grammar

    @functools.cached_property
    def noun_chances(self) -> np.ndarray:
        """Chances of a subject that is drawn anew: [num_nouns]."""
        sizes = self.grammar.lexicon.sizes
        return chances(sizes.num_nouns, sizes.zipf)

    def subject_chances(self, last: int | None) -> np.ndarray:
        """Chances of the next subject: [num_nouns].

        Args:
          last: what the last sentence spoke of last; None before the first.
        """
        if last is None:
            return self.noun_chances
        kept = np.arange(len(self.noun_chances)) == last
        return CHAIN_RATE * kept + (1 - CHAIN_RATE) * self.noun_chances

    def sample(self, rng: np.random.Generator) -> Document:
        """Draws a document."""
        topic = int(rng.integers(len(self.grammar.lexicon.topics)))
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
                trees.append(self.grammar.pcfg.sample(("S", topic, stage, kind, head), rng))
                last = self.grammar.last_head(trees[-1])
                another = rng.random() < REPEAT_RATES.get(stage, 0)
        return Document(topic, tuple(trees))

    def log_prob(self, sentences: Sequence[list[str]]) -> float:
        """Log-probability of a document's text in nats; minus infinity if it cannot come about."""
        trees = [self.grammar.read(words) for words in sentences]
        symbols = [tree.symbol for tree in trees if tree is not None]
        if not symbols or len(symbols) < len(trees) or len({s[1] for s in symbols}) > 1:
            return -math.inf
        total = -math.log(len(self.grammar.lexicon.topics)) + _stage_log_prob(
            [symbol[2] for symbol in symbols]
        )
        mood = last = None
        for tree in trees:
            assert tree is not None
            _, _, _, kind, head = tree.symbol
            total += math.log(QUALITY_RATE if kind in QUALITIES else 1 - QUALITY_RATE)
            if kind in QUALITIES:
                if mood not in (None, kind):
                    return -math.inf
                total += math.log(0.5) if mood is None else 0.0
                mood = kind
            total += math.log(self.subject_chances(last)[head]) + self.grammar.pcfg.log_prob(tree)
            last = self.grammar.last_head(tree)
        return total

    def facts(self) -> dict[str, float]:
        """What is known of its documents: expectations, entropies, and what each choice adds."""
        pcfg = self.grammar.pcfg
        num_sentences = sum(map(_visits, STAGES))
        terms = {
            "topic": math.log(len(self.grammar.lexicon.topics)),
            "stages": sum(_visits(s) * _coin(REPEAT_RATES.get(s, 0)) for s in STAGES),
            "kinds": num_sentences * _coin(QUALITY_RATE),
            "mood": math.log(2) * (1 - _no_quality()),
            "subjects": self._subject_nats(num_sentences),
            "sentences": self._of_sentences(pcfg.entropies()),
        }
        words = self._of_sentences(pcfg.lengths())
        num_bytes = self._of_sentences(pcfg.lengths(lambda word: len(word) + 1)) - 1
        total = float(sum(terms.values()))
        return {
            "nats_per_document": total,
            "words_per_document": words,
            "bytes_per_document": num_bytes,
            "sentences_per_document": num_sentences,
            "nats_per_word": total / words,
            "bits_per_byte": total / math.log(2) / num_bytes,
        } | {f"nats_of_{name}": float(nats) for name, nats in terms.items()}

    def _subject_nats(self, num_sentences: float) -> float:
        """Whatever was said, a subject and what is spoken of last have the chances of a new one."""
        after = sum(
            p * float(entropy(self.subject_chances(last)))
            for last, p in enumerate(self.noun_chances)
        )
        return float(entropy(self.noun_chances)) + (num_sentences - 1) * after

    def _of_sentences(self, values: Mapping[Symbol, float]) -> float:
        """Expected sum over a document's sentences of a value that their symbols have."""
        topics = range(len(self.grammar.lexicon.topics))
        kinds = {"deed": 1 - QUALITY_RATE} | {q: QUALITY_RATE / 2 for q in QUALITIES}
        return sum(
            _visits(stage) * p_kind * p_head / len(topics) * values["S", t, stage, kind, head]
            for stage in STAGES
            for kind, p_kind in kinds.items()
            for head, p_head in enumerate(self.noun_chances.tolist())
            for t in topics
        )


def draw(sizes: Sizes, seed: int) -> World:
    """The world of a seed."""
    return World(grammar_lib.make(lexicon_lib.draw(sizes, seed)))


def _visits(stage: str) -> float:
    """Expected sentences of a stage."""
    return 1 / (1 - REPEAT_RATES.get(stage, 0))


def _no_quality() -> float:
    """Chance that no sentence of a document is of a quality: E[z^n], n a sum of geometric ones."""
    z = 1 - QUALITY_RATE
    rates = [REPEAT_RATES.get(stage, 0) for stage in STAGES]
    return math.prod(z * (1 - rate) / (1 - rate * z) for rate in rates)


def _coin(rate: float) -> float:
    return float(entropy(np.array([rate, 1 - rate])))


def _stage_log_prob(stages: list[str]) -> float:
    """Log-probability of the order of stages."""
    if [s for i, s in enumerate(stages) if s not in stages[:i]] != list(STAGES):
        return -math.inf
    if stages != sorted(stages, key=list(STAGES).index):
        return -math.inf
    return sum(
        (stages.count(stage) - 1) * math.log(rate) + math.log(1 - rate)
        for stage, rate in REPEAT_RATES.items()
    )
