"""Statements of known meaning, in the words of the grammar corpus.

They are the grammar's deeds without the adverb of a document's stage.
"""

import dataclasses
from typing import TypeVar

import numpy as np

from scalelab.worlds.lexicon import BE, DO, NUMBERS, Lexicon, noun, verb

T = TypeVar("T")

ADJECTIVE_RATE = 0.5


@dataclasses.dataclass(frozen=True)
class Thing:
    """A definite noun phrase."""

    stem: str
    number: str
    adjective: str | None = None

    def __str__(self) -> str:
        return " ".join(["the", *filter(None, [self.adjective]), noun(self.stem, self.number)])


@dataclasses.dataclass(frozen=True)
class Deed:
    """A transitive statement.

    Attributes:
      subject: the agent, whatever the voice.
      verb: its stem.
      object: the patient.
      positive: False negates it.
    """

    subject: Thing
    verb: str
    object: Thing
    positive: bool = True

    @property
    def swapped(self) -> "Deed":
        """The statement with exchanged roles."""
        return dataclasses.replace(self, subject=self.object, object=self.subject)

    def phrase(self, voice: str) -> str:
        """Returns the words in the voice "active" or "passive", without a stop."""
        if voice == "passive":
            no = "" if self.positive else "not "
            participle = verb(self.verb, "participle")
            return f"{self.object} {BE[self.object.number]} {no}{participle} by {self.subject}"
        number = self.subject.number
        does = verb(self.verb, number) if self.positive else f"{DO[number]} not {self.verb}"
        return f"{self.subject} {does} {self.object}"


@dataclasses.dataclass(frozen=True)
class Draws:
    """A random source of words and statements.

    Attributes:
      lexicon: the words.
      topics: the topics to draw from.
      rng: of every choice.
    """

    lexicon: Lexicon
    topics: tuple[int, ...]
    rng: np.random.Generator

    def coin(self) -> bool:
        """Returns True or False."""
        return bool(self.rng.random() < 0.5)

    def choose(self, choices: tuple[T, ...]) -> T:
        """Returns one of the choices, uniformly."""
        return choices[int(self.rng.integers(len(choices)))]

    def choose_other(self, choices: tuple[T, ...], but: tuple[T, ...]) -> T:
        """Returns one of the choices that are not in `but`."""
        return self.choose(tuple(c for c in choices if c not in but))

    def adjective(self, topic: int) -> str | None:
        """Returns an adjective, or None."""
        some = self.rng.random() < ADJECTIVE_RATE
        return self.choose(self.lexicon.topics[topic].adjectives) if some else None

    def things(self, topic: int, numbers: tuple[str, ...]) -> list[Thing]:
        """Returns different things of these numbers."""
        stems = self.rng.permutation(self.lexicon.topics[topic].nouns)[: len(numbers)].tolist()
        pairs = zip(stems, numbers, strict=True)
        return [Thing(stem, number, self.adjective(topic)) for stem, number in pairs]

    def deed(self, topic: int | None = None) -> Deed:
        """Returns a deed of two things of the same number, so that forms do not reveal roles."""
        topic = self.choose(self.topics) if topic is None else topic
        doer, other = self.things(topic, (self.choose(NUMBERS),) * 2)
        return Deed(doer, self.choose(self.lexicon.topics[topic].verbs), other)

    def voice(self) -> str:
        """Returns "active" or "passive"."""
        return self.choose(("active", "passive"))
