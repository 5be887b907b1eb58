"""The nine tasks: read by scalelab's own readers, solved by who reads, not by who counts words."""

import json
import pathlib
import re
from collections.abc import Callable

import numpy as np
import pytest
import reading

from scalelab.tasks import task as eval_task
from scalelab.tasks.facts import TaskSplit
from scalelab.tasks.glue import GLUE
from scalelab.tasks.metrics import METRICS
from scalelab.worlds import discourse, glue_files, tasks
from scalelab.worlds.discourse import World
from scalelab.worlds.lexicon import Sizes

NUM_TRAIN = 800
NUM_HELD = NUM_TRAIN // glue_files.TEST_SHARE
NAMES = list(tasks.TASKS)


@pytest.fixture(scope="module")
def world() -> World:
    return discourse.draw(Sizes(num_topics=4, num_nouns=8, num_verbs=5, num_adjectives=4), seed=0)


@pytest.fixture(scope="module")
def folder(world: World, tmp_path_factory) -> pathlib.Path:
    made = tmp_path_factory.mktemp("world") / "glue"
    glue_files.write(world, 0, NUM_TRAIN, made)
    return made


@pytest.fixture(scope="module")
def splits(folder: pathlib.Path) -> dict[str, eval_task.Splits]:
    return {name: eval_task.load(eval_task.load_task(name), folder) for name in NAMES}


def labels_of(folder: pathlib.Path, name: str, split: TaskSplit) -> list[str]:
    """Labels of a test set, which are written apart."""
    rows = [json.loads(x) for x in (folder / "test_labels.jsonl").read_text().splitlines()]
    own = [row for row in rows if row["file"] == split.files[0]]
    assert [row["index"] for row in own] == list(range(len(own)))
    return [row["label"] for row in own]


def test_there_is_every_task() -> None:
    assert set(NAMES) == {task.name for task in GLUE}


@pytest.mark.parametrize("name", NAMES)
def test_scalelab_reads_it(name: str, splits: dict, folder: pathlib.Path) -> None:
    task, read = eval_task.load_task(name), splits[name]
    assert len(read.train) == NUM_TRAIN
    assert {len(r) for r in read.dev.values()} == {NUM_HELD}
    assert {n for n, r in (read.dev | read.test).items() if r is None} <= {"AX"}
    for split in task.test_splits:
        if read.test[split.name] is not None:
            assert len(read.test[split.name]) == NUM_HELD
            assert len(labels_of(folder, name, split)) == NUM_HELD
    assert all(text.strip() for r in (read.train, *read.dev.values()) for text in r.texts[0])


@pytest.mark.parametrize("name", NAMES)
def test_labels_are_equally_frequent_and_no_key_text_stands_twice(name: str, splits: dict) -> None:
    read = splits[name]
    for records in (read.train, *read.dev.values()):
        _, counts = np.unique(records.labels, return_counts=True)
        assert (
            len(counts) == len(eval_task.load_task(name).labels or tasks.SIMILARITIES)
            and counts.max() - counts.min() <= 1
        )
    everything = [read.train, *read.dev.values(), *(r for r in read.test.values() if r)]
    keys = [text for records in everything for text in records.texts[name == "qnli"]]
    assert len(set(keys)) == len(keys) >= NUM_TRAIN + 2 * NUM_HELD


def test_mismatched_sets_have_topics_of_their_own(splits: dict) -> None:
    def words(records: eval_task.Records) -> set[str]:
        texts = [text for column in records.texts for text in column]
        return {word for text in texts for word in text.split()}

    read = splits["mnli"]
    shared = words(read.train) & words(read.dev["mismatched"])
    assert shared == {"the", "is", "are", "not", "by", "does", "do", "."}
    assert words(read.dev["matched"]) <= words(read.train)


def test_a_small_world_says_so() -> None:
    small = discourse.draw(Sizes(2, 4, 2, 2, 1), seed=0)
    with pytest.raises(ValueError, match="qqp"):
        glue_files.make("qqp", small, 0, 1000)


def number(noun: str) -> str:
    return "pl" if noun.endswith("s") else "sg"


def read_deed(text: str, world: World) -> tuple[tuple, str, tuple, bool]:
    """(subject, verb, object, positive) of a deed, each thing its words."""
    words = [w for w in text.split() if w not in ("then", "later", ".", "?")]
    nouns = [i for i, w in enumerate(words) if w in world.noun_places]
    first = tuple(words[1 : nouns[0] + 1])
    second = tuple(words[words.index("the", nouns[0]) + 1 : nouns[1] + 1])
    between = words[nouns[0] + 1 : words.index("the", nouns[0])]
    positive = "not" not in between
    stem = next(w for w in between if w not in ("is", "are", "do", "does", "not", "by"))
    if "by" in between:
        return second, stem.removesuffix("ed"), first, positive
    return first, stem.removesuffix("s"), second, positive


def asked(question: str) -> str:
    """The role that is asked for."""
    if question.startswith("by whom"):
        return "subject"
    return "object" if re.match("who (do|does|is) ", question) else "subject"


def solve_sst2(world: World, text: str) -> str:
    words = text.split()
    good = any(w in world.lexicon.qualities["good"] for w in words)
    return str(int(good != ("not" in words)))


def solve_mnli(world: World, premise: str, hypothesis: str) -> str:
    p, h = read_deed(premise, world), read_deed(hypothesis, world)
    if not all(set(h[i]) <= set(p[i]) for i in (0, 2)) or p[1] != h[1]:
        return "neutral"
    return "entailment" if p[3] == h[3] else "contradiction"


def solve_stsb(world: World, first: str, other: str) -> str:
    a, b = read_deed(first, world), read_deed(other, world)
    same = sum(x == y for i in (0, 2) for x, y in zip(a[i], b[i], strict=True)) + (a[1] == b[1])
    return f"{same}.000"


def solve_qnli(world: World, question: str, sentence: str) -> str:
    deed = read_deed(sentence, world)
    named = next(w for w in question.split() if w in world.noun_places)
    role = 2 if asked(question) == "subject" else 0
    return "entailment" if deed[role][-1] == named else "not_entailment"


def solve_rte(world: World, text: str, hypothesis: str) -> str:
    words = text.removesuffix(" .").split()
    nouns = [i for i, w in enumerate(words) if w in world.noun_places]
    head, inner, last = (words[i] for i in nouns)
    if words[words.index("that") + 1] == "the":  # "that the x sees"
        first, main = words[nouns[1] + 1], words[nouns[1] + 2]
        clause = inner, first.removesuffix("s"), head
    else:
        first, main = words[words.index("that") + 1], words[nouns[1] + 1]
        clause = head, first.removesuffix("s"), inner
    deed = read_deed(hypothesis, world)
    expected = clause, (head, main.removesuffix("s"), last)
    return "entailment" if (deed[0][-1], deed[1], deed[2][-1]) in expected else "not_entailment"


def solve_wnli(world: World, text: str, hypothesis: str) -> str:
    meant = "sg" if "because it" in text else "pl"
    noun = next(w for w in hypothesis.split() if w in world.noun_places)
    return str(int(number(noun) == meant))


def equal_deeds(world: World, first: str, other: str) -> str:
    return str(int(read_deed(first, world) == read_deed(other, world)))


SOLVERS: dict[str, Callable[..., str]] = {
    "cola": lambda world, text: str(int(reading.read(world, text.split()) is not None)),
    "sst2": solve_sst2,
    "mrpc": equal_deeds,
    "stsb": solve_stsb,
    "qqp": lambda world, first, other: str(int(asked(first) == asked(other))),
    "mnli": solve_mnli,
    "qnli": solve_qnli,
    "rte": solve_rte,
    "wnli": solve_wnli,
}


@pytest.mark.parametrize("name", NAMES)
def test_who_reads_solves_it(name: str, splits: dict, world: World, folder: pathlib.Path) -> None:
    """Of every example the text decides the label, in the test sets too."""
    task, read = eval_task.load_task(name), splits[name]
    spelt = task.labels or [f"{i}.000" for i in range(6)]
    sets = [(r, [spelt[int(i)] for i in r.labels]) for r in (read.train, *read.dev.values())]
    for split in task.test_splits:
        if read.test[split.name] is not None:
            sets.append((read.test[split.name], labels_of(folder, name, split)))
    for records, labels in sets:
        found = [SOLVERS[name](world, *texts) for texts in zip(*records.texts, strict=True)]
        assert found == labels


def words_alone(records: eval_task.Records, vectorizer: object) -> np.ndarray:
    from scipy import sparse

    return sparse.hstack([vectorizer.transform(column) for column in records.texts]).tocsr()


@pytest.mark.parametrize("name", [n for n in NAMES if n != "stsb"])
def test_who_counts_words_does_not(name: str, splits: dict) -> None:
    """A linear classifier of the words of each text: near chance, though it fits its own set."""
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import LogisticRegression

    read = splits[name]
    vectorizer = CountVectorizer(token_pattern=r"\S+").fit([t for c in read.train.texts for t in c])
    model = LogisticRegression(max_iter=2000, C=0.1)
    model.fit(words_alone(read.train, vectorizer), read.train.labels)
    records = next(iter(read.dev.values()))
    predicted = model.predict(words_alone(records, vectorizer))
    chance = 1 / len(np.unique(records.labels))
    assert METRICS["accuracy"](records.labels, predicted) < chance + 0.15
