"""Nine tasks of the grammar corpus, one for each of GLUE's, with labels that the text decides.

In all but STS-B, the words without their order do not reveal the label:

  CoLA   the main verb agrees with its subject (1) or not (0), whatever stands between
  SST-2  the subject is good, or not bad (1); bad, or not good (0)
  MRPC   two statements have the same roles (1) or exchanged ones (0), each in its own voice
  QQP    two questions ask for the same role in a deed (1) or for different ones (0)
  STS-B  how many of five parts (both nouns, both adjectives, verb) two deeds share, 0 to 5
  MNLI   the hypothesis drops adjectives at most: entailment, or contradiction if only one of the
         two is negated; with an adjective that the premise lacks, or exchanged roles: neutral
  QNLI   the sentence answers the question, or has the question's thing in the other role
  RTE    a sentence with a relative clause states two deeds; the hypothesis is one of them, or has
         exchanged roles, or makes the noun inside the clause the subject of the main verb
  WNLI   a pronoun's number decides its noun; the hypothesis puts a noun in its place

No two examples of a task, in any split, have the same key text: the sentence of CoLA, SST-2 and
QNLI, the first text of the others. Labels are equally frequent, in random order.
"""

import dataclasses
import zlib
from collections.abc import Callable

import numpy as np

from scalelab.worlds import gold
from scalelab.worlds.discourse import World
from scalelab.worlds.grammar import STAGES
from scalelab.worlds.lexicon import BE, DO, NUMBERS, QUALITIES, Lexicon, verb
from scalelab.worlds.pcfg import Tree
from scalelab.worlds.statements import Deed, Draws, Thing

MAX_TRIES = 200  # draws of an example before the lexicon counts as too small
NLI = ("entailment", "not_entailment")
MARKERS = ("then", "later")


@dataclasses.dataclass(frozen=True)
class Example:
    """An example: its texts, and its label as in the files."""

    texts: tuple[str, ...]
    label: str


Maker = Callable[[World, Draws, str], tuple[str, ...]]


def _sentence(world: World, draws: Draws, kind: str) -> Tree:
    """Draws a sentence of the grammar, from any stage."""
    topic, stage = draws.choose(draws.topics), draws.choose(tuple(STAGES))
    head = int(draws.rng.choice(len(world.noun_chances), p=world.noun_chances))
    return world.grammar.pcfg.sample(("S", topic, stage, kind, head), draws.rng)


def other_number(word: str) -> str:
    """Returns the form of a verb for a subject of the other number."""
    pairs = [(table["sg"], table["pl"]) for table in (BE, DO)]
    swaps = dict(pairs) | {b: a for a, b in pairs}
    return swaps.get(word) or (word.removesuffix("s") if word.endswith("s") else word + "s")


def _cola(world: World, draws: Draws, label: str) -> tuple[str, ...]:
    attracted = draws.coin()
    while True:
        tree = _sentence(world, draws, draws.choose(("deed", *QUALITIES)))
        found = gold.annotate(tree)
        subject = next(span for span in found["spans"] if span[0] == "NP")
        main = next(pair for pair in found["agreement"] if pair["verb"] == subject[2])
        if (main["attractors"] > 0) == attracted:
            break
    words = found["words"]
    if label == "0":
        words[main["verb"]] = other_number(words[main["verb"]])
    return (" ".join(words),)


def _sst2(world: World, draws: Draws, label: str) -> tuple[str, ...]:
    negated = draws.coin()
    while True:
        words = _sentence(world, draws, QUALITIES[label == "0"]).words()
        if ("not" in words) == negated:
            return (" ".join(words),)


def _mrpc(world: World, draws: Draws, label: str) -> tuple[str, ...]:
    del world
    deed = draws.deed()
    other = deed if label == "1" else deed.swapped
    markers = draws.rng.permutation(MARKERS).tolist()
    pairs = zip(markers, (deed, other), strict=True)
    return tuple(f"{m} {d.phrase(draws.voice())} ." for m, d in pairs)


def _questions(role: str, thing: Thing, stem: str) -> tuple[str, str]:
    """Returns two questions for the agent of a deed to a thing, or for its patient."""
    participle = verb(stem, "participle")
    if role == "subject":
        return (
            f"who {verb(stem, 'sg')} {thing} ?",
            f"by whom {BE[thing.number]} {thing} {participle} ?",
        )
    return f"who {DO[thing.number]} {thing} {stem} ?", f"who is {participle} by {thing} ?"


def _qqp(world: World, draws: Draws, label: str) -> tuple[str, ...]:
    del world
    deed = draws.deed()
    roles = draws.rng.permutation(("subject", "object")).tolist()
    first, second = (_questions(role, deed.subject, deed.verb) for role in roles)
    if label == "1":
        return tuple(draws.rng.permutation(first).tolist())
    return draws.choose(first), draws.choose(second)


def _stsb(world: World, draws: Draws, label: str) -> tuple[str, ...]:
    del world
    topic = draws.choose(draws.topics)
    own = draws.lexicon.topics[topic]
    number = draws.choose(NUMBERS)
    nouns = draws.rng.permutation(own.nouns)[:4].tolist()
    adjectives = [draws.choose(own.adjectives) for _ in range(2)]
    parts = [*nouns[:2], *adjectives, draws.choose(own.verbs)]
    changed = [*nouns[2:], *(draws.choose_other(own.adjectives, (a,)) for a in adjectives)]
    changed.append(draws.choose_other(own.verbs, (parts[4],)))
    for place in draws.rng.permutation(5)[: int(float(label))]:
        changed[place] = parts[place]

    def deed(p: list[str]) -> Deed:
        return Deed(Thing(p[0], number, p[2]), p[4], Thing(p[1], number, p[3]))

    return tuple(f"{deed(p).phrase(draws.voice())} ." for p in (parts, changed))


def _without_some(draws: Draws, deed: Deed) -> Deed:
    """Returns a deed without some of its adjectives."""
    bare = [
        dataclasses.replace(thing, adjective=None) if draws.coin() else thing
        for thing in (deed.subject, deed.object)
    ]
    return dataclasses.replace(deed, subject=bare[0], object=bare[1])


def _mnli(world: World, draws: Draws, label: str) -> tuple[str, ...]:
    del world
    topic = draws.choose(draws.topics)
    premise = dataclasses.replace(draws.deed(topic), positive=draws.coin())
    claim = _without_some(draws, premise)
    negated = draws.coin() if label == "neutral" else label == "contradiction"
    if negated:
        claim = dataclasses.replace(claim, positive=not claim.positive)
    if label == "neutral":
        if draws.coin():
            claim = claim.swapped
        else:
            choices = draws.lexicon.topics[topic].adjectives
            new = draws.choose_other(choices, (premise.subject.adjective or "",))
            subject = dataclasses.replace(claim.subject, adjective=new)
            claim = dataclasses.replace(claim, subject=subject)
    return f"{premise.phrase(draws.voice())} .", f"{claim.phrase(draws.voice())} ."


def _qnli(world: World, draws: Draws, label: str) -> tuple[str, ...]:
    del world
    deed = draws.deed()
    role = draws.choose(("subject", "object"))  # that is asked for
    named = deed.object if role == "subject" else deed.subject
    question = draws.choose(_questions(role, named, deed.verb))
    answer = deed if label == NLI[0] else deed.swapped
    return question, f"{answer.phrase(draws.voice())} ."


def _rte(world: World, draws: Draws, label: str) -> tuple[str, ...]:
    del world
    topic = draws.choose(draws.topics)
    numbers = tuple(draws.choose(NUMBERS) for _ in range(3))
    head, inner, last = draws.things(topic, numbers)
    first, main = draws.rng.permutation(draws.lexicon.topics[topic].verbs)[:2].tolist()
    if draws.coin():
        clause = Deed(head, first, inner)
        relative = f"that {verb(first, head.number)} {inner}"
    else:
        clause = Deed(inner, first, head)
        relative = f"that {inner} {verb(first, inner.number)}"
    text = f"{head} {relative} {verb(main, head.number)} {last} ."
    if label == NLI[0]:
        claim = draws.choose((clause, Deed(head, main, last)))
    else:
        claim = draws.choose((clause.swapped, Deed(inner, main, last)))
    return text, f"{claim.phrase('active')} ."


def _wnli(world: World, draws: Draws, label: str) -> tuple[str, ...]:
    topic = draws.choose(draws.topics)
    things = draws.things(topic, tuple(draws.rng.permutation(NUMBERS).tolist()))
    deed = Deed(things[0], draws.choose(draws.lexicon.topics[topic].verbs), things[1])
    meant, other = draws.rng.permutation([0, 1]).tolist()
    pronoun = {"sg": "it is", "pl": "they are"}[things[meant].number]
    quality = draws.choose(tuple(w for q in QUALITIES for w in world.grammar.lexicon.qualities[q]))
    claim = things[meant if label == "1" else other]
    return (
        f"{deed.phrase('active')} because {pronoun} {quality} .",
        f"{claim} {BE[claim.number]} {quality} .",
    )


@dataclasses.dataclass(frozen=True)
class Task:
    """A task.

    Attributes:
      name: as in scalelab/eval.
      labels: as in the files.
      maker: draws the texts of an example with a label.
      key: index of the text that is unique to an example.
    """

    name: str
    labels: tuple[str, ...]
    maker: Maker
    key: int = 0


TASKS = (
    Task("cola", ("0", "1"), _cola),
    Task("sst2", ("0", "1"), _sst2),
    Task("mrpc", ("0", "1"), _mrpc),
    Task("stsb", tuple(f"{i}.000" for i in range(6)), _stsb),
    Task("qqp", ("0", "1"), _qqp),
    Task("mnli", ("entailment", "neutral", "contradiction"), _mnli),
    Task("qnli", NLI, _qnli, key=1),
    Task("rte", NLI, _rte),
    Task("wnli", ("0", "1"), _wnli),
)


def check(lexicon: Lexicon) -> None:
    """Refuses a lexicon with too few words for the tasks."""
    needed = {"num_topics": 2, "num_nouns": 4, "num_verbs": 2, "num_adjectives": 2}
    for name, least in needed.items():
        if getattr(lexicon.sizes, name) < least:
            raise ValueError(
                f"{name}={getattr(lexicon.sizes, name)}: the tasks need {least} or more;"
                " without them (--tasks_examples=0) fewer are enough"
            )


def make(task: Task, world: World, seed: int, counts: dict[str, int]) -> dict[str, list[Example]]:
    """Makes the splits of a task.

    Args:
      task: one of TASKS.
      world: with the words and the grammar.
      seed: of every choice.
      counts: examples of each split. Splits of MNLI named "...mismatched" have the last quarter of
        the topics, the others have the rest.

    Raises:
      ValueError: the lexicon is too small for so many.
    """
    rng = np.random.default_rng([seed, zlib.crc32(task.name.encode())])
    count = len(world.grammar.lexicon.topics)
    kept = count - max(1, count // 4) if task.name == "mnli" else count
    used: set[str] = set()
    made = {}
    for split, number in counts.items():
        topics = range(kept, count) if split.endswith("mismatched") else range(kept)
        draws = Draws(world.grammar.lexicon, tuple(topics), rng)
        labels = rng.permutation([task.labels[i % len(task.labels)] for i in range(number)])
        made[split] = [_example(task, world, draws, label, used) for label in labels.tolist()]
    return made


def _example(task: Task, world: World, draws: Draws, label: str, used: set[str]) -> Example:
    """Draws an example with a new key text and different texts."""
    for _ in range(MAX_TRIES):
        texts = task.maker(world, draws, label)
        if texts[task.key] not in used and len(set(texts)) == len(texts):
            used.add(texts[task.key])
            return Example(texts, label)
    raise ValueError(
        f"the lexicon is too small for so many examples of {task.name}: ask for fewer, or for more"
        " nouns or topics"
    )
