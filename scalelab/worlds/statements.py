"""Statements of the grammar world, made of parts so that their meaning is known.

Their words are those of the grammar's deeds, without the adverb that tells a document's stage.
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
    """Somebody does, or does not do, something to somebody.

    Attributes:
      subject: who does it, whatever the voice.
      verb: its stem.
      object: whom it is done to.
      positive: whether it is done.
    """

    subject: Thing
    verb: str
    object: Thing
    positive: bool = True

    @property
    def swapped(self) -> "Deed":
        """The same with the roles exchanged."""
        return dataclasses.replace(self, subject=self.object, object=self.subject)

    def told(self, voice: str) -> str:
        """The words in the voice "active" or "passive", without a stop."""
        if voice == "passive":
            no = "" if self.positive else "not "
            participle = verb(self.verb, "participle")
            return f"{self.object} {BE[self.object.number]} {no}{participle} by {self.subject}"
        number = self.subject.number
        does = verb(self.verb, number) if self.positive else f"{DO[number]} not {self.verb}"
        return f"{self.subject} {does} {self.object}"


@dataclasses.dataclass(frozen=True)
class Draws:
    """What tasks draw from.

    Attributes:
      lexicon: the words.
      topics: which topics there are.
      rng: of every choice.
    """

    lexicon: Lexicon
    topics: tuple[int, ...]
    rng: np.random.Generator

    def coin(self) -> bool:
        """Heads or tails."""
        return bool(self.rng.random() < 0.5)

    def one(self, choices: tuple[T, ...]) -> T:
        """One of some things, each as likely."""
        return choices[int(self.rng.integers(len(choices)))]

    def other(self, choices: tuple[T, ...], but: tuple[T, ...]) -> T:
        """One of those that are not in `but`."""
        return self.one(tuple(c for c in choices if c not in but))

    def adjective(self, topic: int) -> str | None:
        """An adjective, or none."""
        some = self.rng.random() < ADJECTIVE_RATE
        return self.one(self.lexicon.topics[topic].adjectives) if some else None

    def things(self, topic: int, numbers: tuple[str, ...]) -> list[Thing]:
        """Different things of these numbers."""
        stems = self.rng.permutation(self.lexicon.topics[topic].nouns)[: len(numbers)].tolist()
        pairs = zip(stems, numbers, strict=True)
        return [Thing(stem, number, self.adjective(topic)) for stem, number in pairs]

    def deed(self, topic: int | None = None) -> Deed:
        """A deed whose two things have one number, so that their forms do not tell the roles."""
        topic = self.one(self.topics) if topic is None else topic
        doer, other = self.things(topic, (self.one(NUMBERS),) * 2)
        return Deed(doer, self.one(self.lexicon.topics[topic].verbs), other)

    def voice(self) -> str:
        """Active or passive."""
        return self.one(("active", "passive"))
