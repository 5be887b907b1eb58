"""Nine tasks of the grammar corpus, one for each of GLUE's; the text decides the label.

In all but STS-B, the words without their order do not reveal the label:

  CoLA   the main verb agrees with its subject (1) or not (0), with any words between
  SST-2  the subject is good, or not bad (1); bad, or not good (0)
  MRPC   two statements have the same roles (1) or exchanged ones (0), each in its own voice
  QQP    two questions ask for the same role in a deed (1) or for different ones (0)
  STS-B  how many of five parts (both nouns, both adjectives, verb) two deeds share, 0 to 5
  MNLI   the hypothesis drops adjectives at most: entailment, or contradiction if only one of the
         two is negated; with an adjective that the premise lacks, or exchanged roles: neutral
  QNLI   the sentence answers the question, or has the question's thing in the other role
  RTE    a sentence with a relative clause states two deeds; the hypothesis is one of them, or has
         exchanged roles, or makes the noun inside the clause the subject of the main verb
  WNLI   a pronoun's number determines its noun; the hypothesis replaces the pronoun by a noun

Statements are the grammar's deeds without the adverb of a document's stage. Each maker draws the
texts of an example with a given label.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from scalelab.tasks.glue import NLI
from scalelab.worlds import gold, lexicon
from scalelab.worlds.discourse import World
from scalelab.worlds.grammar import STAGES
from scalelab.worlds.lexicon import BE, DO, NUMBERS, QUALITIES, noun, verb
from scalelab.worlds.pcfg import Tree

T = TypeVar("T")
ROLES = ("subject", "object")
ADJECTIVE_RATE = 0.5


# --- Statements -----------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Thing:
    """A definite noun phrase."""

    stem: str
    number: str
    adjective: str | None = None
    place: str | None = None  # "near the cats"

    def __str__(self) -> str:
        words = "the", self.adjective, noun(self.stem, self.number), self.place
        return " ".join(filter(None, words))


@dataclasses.dataclass(frozen=True)
class Deed:
    """A transitive statement of an agent, a verb's stem and a patient, optionally negated."""

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
    """A random source of statements on some topics of a world."""

    world: World
    topics: tuple[int, ...]
    rng: np.random.Generator

    def coin(self) -> bool:
        """Returns True or False."""
        return bool(self.rng.random() < 0.5)

    def choose(self, choices: Sequence[T], but: T | None = None) -> T:
        """Returns one of the choices, uniformly.

        Args:
          choices: the choices.
          but: a choice that is never returned; None: none.
        """
        left = [c for c in choices if c != but]
        return left[int(self.rng.integers(len(left)))]

    def shuffle(self, choices: Sequence[T]) -> list[T]:
        """Returns the choices in random order."""
        return self.rng.permutation(choices).tolist()  # pyright: ignore

    def sentence(self, kind: str) -> Tree:
        """Returns a sentence of the grammar, from any stage."""
        topic, stage = self.choose(self.topics), self.choose(tuple(STAGES))
        chances = self.world.noun_chances
        head = int(self.rng.choice(len(chances), p=chances))
        return self.world.pcfg.sample(("S", topic, stage, kind, head), self.rng)

    def things(self, topic: int, numbers: Sequence[str]) -> list[Thing]:
        """Returns different things of these numbers, about half of them with an adjective."""
        own, made = self.world.lexicon.topics[topic], []
        for stem, number in zip(self.shuffle(own.nouns), numbers, strict=False):
            some = self.rng.random() < ADJECTIVE_RATE
            made.append(Thing(stem, number, self.choose(own.adjectives) if some else None))
        return made

    def deed(self, topic: int | None = None) -> Deed:
        """Returns a deed of two things of the same number, so that forms do not reveal roles."""
        topic = self.choose(self.topics) if topic is None else topic
        doer, other = self.things(topic, [self.choose(NUMBERS)] * 2)
        return Deed(doer, self.choose(self.world.lexicon.topics[topic].verbs), other)

    def say(self, deed: Deed) -> str:
        """Returns a deed as a sentence in either voice."""
        return f"{deed.phrase(self.choose(('active', 'passive')))} ."


# --- Tasks ----------------------------------------------------------------------------------------


def _cola(draws: Draws, label: str) -> tuple[str, ...]:
    attracted = draws.coin()
    while True:
        found = gold.annotate(draws.sentence(draws.choose(("deed", *QUALITIES))))
        subject = next(span for span in found["spans"] if span[0] == "NP")
        main = next(pair for pair in found["agreement"] if pair["verb"] == subject[2])
        if (main["attractors"] > 0) == attracted:
            break
    words = found["words"]
    if label == "0":
        words[main["verb"]] = lexicon.other_number(words[main["verb"]])
    return (" ".join(words),)


def _sst2(draws: Draws, label: str) -> tuple[str, ...]:
    negated = draws.coin()
    while True:
        words = draws.sentence(QUALITIES[label == "0"]).words()
        if ("not" in words) == negated:
            return (" ".join(words),)


def _mrpc(draws: Draws, label: str) -> tuple[str, ...]:
    deed = draws.deed()
    deeds = (deed, deed if label == "1" else deed.swapped)
    markers = draws.shuffle(("then", "later"))
    return tuple(f"{m} {draws.say(d)}" for m, d in zip(markers, deeds, strict=True))


def _questions(role: str, thing: Thing, stem: str) -> tuple[str, str]:
    """Returns two questions for the agent of a deed to a thing, or for its patient."""
    participle = verb(stem, "participle")
    if role == "subject":
        passive = f"by whom {BE[thing.number]} {thing} {participle} ?"
        return f"who {verb(stem, 'sg')} {thing} ?", passive
    return f"who {DO[thing.number]} {thing} {stem} ?", f"who is {participle} by {thing} ?"


def _qqp(draws: Draws, label: str) -> tuple[str, ...]:
    deed = draws.deed()
    first, second = (_questions(role, deed.subject, deed.verb) for role in draws.shuffle(ROLES))
    if label == "1":
        return tuple(draws.shuffle(first))
    return draws.choose(first), draws.choose(second)


def _stsb(draws: Draws, label: str) -> tuple[str, ...]:
    own = draws.world.lexicon.topics[draws.choose(draws.topics)]
    number, nouns = draws.choose(NUMBERS), draws.shuffle(own.nouns)
    adjectives = [draws.choose(own.adjectives) for _ in range(2)]
    parts = [*nouns[:2], *adjectives, draws.choose(own.verbs)]
    changed = [*nouns[2:4], *(draws.choose(own.adjectives, but=a) for a in adjectives)]
    changed.append(draws.choose(own.verbs, but=parts[4]))
    for place in draws.shuffle(range(5))[: int(float(label))]:
        changed[place] = parts[place]
    return tuple(
        draws.say(Deed(Thing(p[0], number, p[2]), p[4], Thing(p[1], number, p[3])))
        for p in (parts, changed)
    )


def _mnli(draws: Draws, label: str) -> tuple[str, ...]:
    topic = draws.choose(draws.topics)
    premise = dataclasses.replace(draws.deed(topic), positive=draws.coin())
    bare = {
        role: dataclasses.replace(getattr(premise, role), adjective=None)
        for role in ROLES if draws.coin()
    }  # fmt: skip
    claim = dataclasses.replace(premise, **bare)
    negated = draws.coin() if label == "neutral" else label == "contradiction"
    claim = dataclasses.replace(claim, positive=claim.positive != negated)
    if label == "neutral" and draws.coin():
        claim = claim.swapped
    elif label == "neutral":
        adjectives = draws.world.lexicon.topics[topic].adjectives
        new = draws.choose(adjectives, but=premise.subject.adjective)
        subject = dataclasses.replace(claim.subject, adjective=new)
        claim = dataclasses.replace(claim, subject=subject)
    return draws.say(premise), draws.say(claim)


def _qnli(draws: Draws, label: str) -> tuple[str, ...]:
    deed = draws.deed()
    role = draws.choose(ROLES)  # the role in question
    named = deed.object if role == "subject" else deed.subject
    question = draws.choose(_questions(role, named, deed.verb))
    return question, draws.say(deed if label == NLI[0] else deed.swapped)


def _rte(draws: Draws, label: str) -> tuple[str, ...]:
    topic = draws.choose(draws.topics)
    head, inner, last = draws.things(topic, [draws.choose(NUMBERS) for _ in range(3)])
    first, main, *_ = draws.shuffle(draws.world.lexicon.topics[topic].verbs)
    if draws.coin():
        clause = Deed(head, first, inner)
        relative = f"that {verb(first, head.number)} {inner}"
    else:
        clause = Deed(inner, first, head)
        relative = f"that {inner} {verb(first, inner.number)}"
    claims = clause.swapped, Deed(inner, main, last)
    if label == NLI[0]:
        claims = clause, Deed(head, main, last)
    text = f"{head} {relative} {verb(main, head.number)} {last} ."
    return text, f"{draws.choose(claims).phrase('active')} ."


def _wnli(draws: Draws, label: str) -> tuple[str, ...]:
    lexicon, topic = draws.world.lexicon, draws.choose(draws.topics)
    things = draws.things(topic, draws.shuffle(NUMBERS))
    deed = Deed(things[0], draws.choose(lexicon.topics[topic].verbs), things[1])
    meant, other = draws.shuffle((0, 1))
    pronoun = {"sg": "it is", "pl": "they are"}[things[meant].number]
    quality = draws.choose([w for q in QUALITIES for w in lexicon.qualities[q]])
    claim = things[meant if label == "1" else other]
    text = f"{deed.phrase('active')} because {pronoun} {quality} ."
    return text, f"{claim} {BE[claim.number]} {quality} ."


Maker = Callable[[Draws, str], tuple[str, ...]]
SIMILARITIES = tuple(f"{i}.000" for i in range(6))  # labels of STS-B
TASKS: dict[str, Maker] = {
    "cola": _cola, "sst2": _sst2, "mrpc": _mrpc, "stsb": _stsb, "qqp": _qqp, "mnli": _mnli,
    "qnli": _qnli, "rte": _rte, "wnli": _wnli,
}  # fmt: skip
