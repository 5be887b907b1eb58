"""Questions on passages: read by scalelab's reader, answered by a parse, not by shortcuts."""

import json
import pathlib
import re

import numpy as np
import pytest
import reading

from scalelab.tasks import task as task_lib
from scalelab.worlds import discourse, gold, questions
from scalelab.worlds.discourse import World
from scalelab.worlds.lexicon import Sizes

NUM = 240
SIZES = Sizes(num_topics=2, num_nouns=9, num_verbs=3, num_adjectives=2)
Rows = list[tuple[str, str, str, int]]  # question, context, answer, its first character


@pytest.fixture(scope="module")
def world() -> World:
    return discourse.draw(SIZES, seed=0)


@pytest.fixture(scope="module")
def splits(world: World, tmp_path_factory) -> dict[str, Rows]:
    folder: pathlib.Path = tmp_path_factory.mktemp("made")
    counts = questions.write(questions.make(world, 0, NUM), folder)
    assert counts == {"train": NUM, "dev": NUM // 4}
    read = task_lib.load(task_lib.load_task("squad"), str(folder), tests=False)
    made = {}
    for name, records in {"train": read.train, **read.dev}.items():
        assert len(records) == counts[name] and not records.remarks  # every answer is at its place
        answers = [json.loads(label)[0] for label in records.labels]
        made[name] = [
            (*texts, *answer)
            for texts, answer in zip(zip(*records.texts, strict=True), answers, strict=True)
        ]
    return made


def test_answers_are_spans_of_several_words(splits: dict[str, Rows]) -> None:
    rows = [*splits["train"], *splits["dev"]]
    assert all(context[start:].startswith(f"{answer} ") for _, context, answer, start in rows)
    lengths = {len(answer.split()) for _, _, answer, _ in rows}
    assert lengths == {2, 3, 5, 6}  # with or without an adjective, with or without a place
    assert len({context for _, context, _, _ in rows}) == len(rows) // 2


def parse(world: World, context: str) -> list[tuple[str, str, str, int]]:
    """Subject, verb's stem, object and first character of each sentence, by the grammar's rules."""
    found, start = [], 0
    for sentence in context.removesuffix(" .").split(" . "):
        tree = reading.read(world, [*sentence.split(), "."])
        assert tree is not None, sentence
        read = gold.annotate(tree)
        words, places = read["words"], [s for s in read["spans"] if s[0] == "NP"]
        first = places[0]
        second = next(s for s in places if s[1] >= first[2])
        pair = [" ".join(words[s[1] : s[2]]) for s in (first, second)]
        verb = words[read["tags"].index("VERB", first[2])]
        passive = words[second[1] - 1] == "by"
        stem = verb.removesuffix("ed") if passive else re.sub("s$", "", verb)
        found.append((*(pair[::-1] if passive else pair), stem, start))
        start += len(sentence) + 3
    return [(subject, stem, other, at) for subject, other, stem, at in found]


def ask_of(question: str) -> tuple[bool, str]:
    """Whether a question asks for the one who acts, and its verb's stem."""
    found = re.fullmatch(r"who (is )?(\w+?)(ed|s) \?", question)
    assert found is not None and (found[1] is None) == (found[3] == "s")
    return found[1] is None, found[2]


def test_the_gold_parse_answers(splits: dict[str, Rows], world: World) -> None:
    for question, context, answer, start in splits["dev"]:
        acts, stem = ask_of(question)
        ((subject, _, other, at),) = [d for d in parse(world, context) if d[1] == stem]
        assert (subject if acts else other) == answer and start > at


def test_words_and_places_do_not_answer(splits: dict[str, Rows]) -> None:
    """The words, the place in the passage, and reading all as active fail half the time."""
    rows = splits["train"]
    for first, second in zip(rows[::2], rows[1::2], strict=True):  # one passage, two answers
        assert first[1] == second[1] and first[2] != second[2]
        assert {ask_of(row[0])[0] for row in (first, second)} == {True, False}
    places, right = [], []
    for question, context, _, start in rows:
        acts, stem = ask_of(question)
        sentence = next(s for s in context.split(" . ") if re.search(rf"\b{stem}(s|ed)?\b", s))
        at = context.index(sentence)
        assert at <= start < at + len(sentence)
        middle = at + re.search(rf" {stem}(s|ed)? ", sentence).start()
        places.append((at > 0, start > middle))
        right.append(acts == (start < middle))
    assert 0.4 < np.mean(right) < 0.6
    _, counts = np.unique(places, axis=0, return_counts=True)
    assert len(counts) == 4 and counts.max() < 0.32 * len(rows)


def test_a_small_world_says_so() -> None:
    with pytest.raises(ValueError, match="num_nouns=6"):
        questions.make(discourse.draw(Sizes(num_nouns=6), 0), 0, 4)
    small = discourse.draw(Sizes(1, 8, 2, 1, 1), 0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(questions, "draw_passage", lambda draws: ("the same", []))
        with pytest.raises(ValueError, match="too small for so many questions"):
            questions.make(small, 0, 4)
