"""Questions on passages of the grammar corpus, answered by a noun phrase of the passage.

A passage has two deeds of two verbs in random order, each in the active or the passive voice: "A
sees B", "C is heard by D". Two questions ask who sees (A) and who is seen (B). All four things have
one number, so neither the words of the passage nor agreement tells A from B: the order of the words
does, together with the voice. An answer has two to six words, such as "the red dog near the cats".
"""

import dataclasses
import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from scalelab.worlds.discourse import World
from scalelab.worlds.glue_files import MAX_TRIES, TEST_SHARE
from scalelab.worlds.lexicon import NUMBERS, PREPOSITIONS, verb
from scalelab.worlds.tasks import ROLES, Deed, Draws, Thing

FOLDER = "squad"
PLACE_RATE = 0.3  # probability that a thing has a place
NUM_THINGS = 4  # things in a passage; the same number of other nouns may be places
LEAST = {"num_nouns": 2 * NUM_THINGS, "num_verbs": 2}


Passages = list[dict[str, Any]]  # the "data" of SQuAD v1.1


def make(world: World, seed: int, num_questions: int) -> dict[str, Passages]:
    """Draws the passages of each split with their questions.

    The dev set has a quarter as many questions as the training set; no passage occurs twice.

    Raises:
      ValueError: the lexicon is too small for this number of questions.
    """
    for name, least in LEAST.items():
        if (found := getattr(world.lexicon.sizes, name)) < least:
            raise ValueError(f"{name}={found}: questions need {least} or more")
    rng = np.random.default_rng([seed, zlib.crc32(FOLDER.encode())])
    draws = Draws(world, tuple(range(len(world.lexicon.topics))), rng)
    seen: set[str] = set()
    counts, made = {"train": num_questions, "dev": max(1, num_questions // TEST_SHARE)}, {}
    for split, count in counts.items():
        passages: Passages = []
        while (left := count - len(ROLES) * len(passages)) > 0:
            found = _new_passage(draws, seen)
            title = f"{split}-{len(passages)}"
            qas = [
                {
                    "id": f"{title}-{number}",
                    "question": question,
                    "answers": [{"text": answer, "answer_start": start}],
                }
                for number, (question, answer, start) in enumerate(found[1][:left])
            ]
            passages.append({"title": title, "paragraphs": [{"context": found[0], "qas": qas}]})
        made[split] = passages
    return made


def write(made: dict[str, Passages], folder: Path) -> dict[str, int]:
    """Writes squad/train-v1.1.json and squad/dev-v1.1.json; returns their numbers of questions."""
    (folder / FOLDER).mkdir(parents=True)
    for split, passages in made.items():
        text = json.dumps({"version": "1.1", "data": passages}) + "\n"
        (folder / FOLDER / f"{split}-v1.1.json").write_text(text, encoding="utf-8")
    return {
        split: sum(len(p["paragraphs"][0]["qas"]) for p in passages)
        for split, passages in made.items()
    }


Asked = tuple[str, str, int]  # question, answer and the answer's first character in the passage


def _new_passage(draws: Draws, seen: set[str]) -> tuple[str, list[Asked]]:
    for _ in range(MAX_TRIES):
        found = draw_passage(draws)
        if found[0] not in seen:
            seen.add(found[0])
            return found
    raise ValueError(
        "the lexicon is too small for so many questions: ask for fewer, or for more nouns or topics"
    )


def draw_passage(draws: Draws) -> tuple[str, list[Asked]]:
    """Draws a passage, and its two questions in random order."""
    topic, number = draws.choose(draws.topics), draws.choose(NUMBERS)
    own = draws.world.lexicon.topics[topic]
    things = draws.things(topic, [number] * NUM_THINGS)
    stems = [stem for stem in draws.shuffle(own.nouns) if stem not in {t.stem for t in things}]
    doer, other, *rest = (
        _locate(draws, thing, stem) for thing, stem in zip(things, stems, strict=False)
    )
    verbs = draws.shuffle(own.verbs)
    deeds = Deed(doer, verbs[0], other), Deed(rest[0], verbs[1], rest[1])
    sentences = [f"{draws.choose(('then', 'later'))} {draws.say(deed)}" for deed in deeds]
    first = 0 if draws.coin() else len(sentences[1]) + 1  # the asked deed's place in the passage
    text = " ".join(sentences if first == 0 else sentences[::-1])
    questions = f"who {verb(verbs[0], 'sg')} ?", f"who is {verb(verbs[0], 'participle')} ?"
    found = []
    for question, answer in zip(questions, (str(doer), str(other)), strict=True):
        # A space on both sides, because a stem may begin with another stem.
        start = f" {sentences[0]} ".index(f" {answer} ")
        found.append((question, answer, first + start))
    return text, [found[place] for place in draws.shuffle(range(len(found)))]


def _locate(draws: Draws, thing: Thing, stem: str) -> Thing:
    """Returns the thing, or by chance the thing beside one or several of another kind."""
    if draws.rng.random() >= PLACE_RATE:
        return thing
    place = f"{draws.choose(tuple(PREPOSITIONS))} {Thing(stem, draws.choose(NUMBERS))}"
    return dataclasses.replace(thing, place=place)
