"""Rows of the self-supervised tasks: each rule against shortcuts."""

import collections
import itertools

import numpy as np
import pytest
import tiny

from scalelab.data import sentences
from scalelab.tasks import self_supervised
from scalelab.tasks.self_supervised import DIFFERENT, ORIGINAL, SAME, SWAPPED

SIZES = {"dev": 200, "train": 400}
TASKS = tuple(self_supervised.MAKERS)


@pytest.fixture(scope="module")
def documents():
    """In drawn order; capitals and full stops as in prose, and a short sentence now and then."""
    texts = []
    for section in tiny.sections(5, 700):
        prose = section.replace(" .", ".").replace("\n", " ")
        texts.append("\n".join(sentences.split(prose)))
    return self_supervised.draw(texts, 0)


@pytest.fixture(scope="module")
def made(documents):
    return {name: self_supervised.make_rows(name, documents, SIZES, 0) for name in TASKS}


def key(text):
    return " ".join(text.split()).casefold()


def lengths(*texts):
    return tuple(len(text.split()) for text in texts)


def test_the_order_is_the_documents_own():
    texts = [f"document {i}" for i in range(50)]
    drawn = self_supervised.draw(texts, 3)
    assert sorted(drawn) == sorted(texts) and drawn != texts
    assert self_supervised.draw(texts[::-1] + texts[7:9], 3) == drawn
    assert [text for text in self_supervised.draw([*texts, "more"], 3) if text != "more"] == drawn
    assert self_supervised.draw(texts, 4) != drawn
    few = self_supervised.draw(texts, 3, 0.5)
    assert 10 < len(few) < 40 and drawn[: len(few)] == few


@pytest.mark.parametrize("name", TASKS)
def test_classes_are_balanced_and_mixed(made, name):
    for split, rows in made[name].items():
        labels = [row.label for row in rows]
        assert collections.Counter(labels) == {0: SIZES[split] // 2, 1: SIZES[split] // 2}
        assert labels != sorted(labels) and labels[::2] != labels[1::2]


@pytest.mark.parametrize("name", TASKS)
def test_the_seed_decides_and_the_training_set_leaves_the_dev_set_alone(documents, made, name):
    make_rows = self_supervised.make_rows
    assert make_rows(name, documents, SIZES, 0) == made[name]
    assert make_rows(name, documents, SIZES, 1)["dev"] != made[name]["dev"]
    few = make_rows(name, documents, {"dev": 200, "train": 40}, 0)
    assert few["dev"] == made[name]["dev"]


@pytest.mark.parametrize("name", TASKS)
def test_too_few_documents(name):
    line = "One of {} had a page of some others that lay near it , and {} of them more ."
    good = ["\n".join(line.format(i, k) for k in range(3)) for i in range(50)]
    with pytest.raises(ValueError, match=f"{name}: 60 .* 100 .*dev"):
        self_supervised.make_rows(name, [*good, *["Too short ."] * 10], SIZES, 0)


def test_both_versions_of_a_sentence_are_in_one_split(documents, made):
    home = {key(line): i for i, text in enumerate(documents) for line in text.split("\n")}
    homes = {}
    for split, rows in made["swapped_words"].items():
        written = {row.texts[0] for row in rows if row.label == ORIGINAL}
        assert len(written) == SIZES[split] // 2
        homes[split] = {home[key(text)] for text in written}
        assert len(homes[split]) == len(written)  # one sentence a document
        bags = collections.Counter(tuple(sorted(text.split())) for text in written)
        others = [row.texts[0] for row in rows if row.label == SWAPPED]
        assert collections.Counter(tuple(sorted(text.split())) for text in others) == bags
        assert not set(others) & written
    assert not homes["dev"] & homes["train"]
    keys = [{key(r.texts[0]) for r in made["swapped_words"][s]} for s in ("dev", "train")]
    assert not keys[0] & keys[1]


def test_two_inner_lower_case_words_are_exchanged(made):
    distances = collections.Counter()
    for rows in made["swapped_words"].values():
        by_bag = collections.defaultdict(dict)
        for row in rows:
            by_bag[tuple(sorted(row.texts[0].split()))][row.label] = row.texts[0].split()
        for versions in by_bag.values():
            a, b = versions[ORIGINAL], versions[SWAPPED]
            assert 8 <= len(a) <= 40
            i, j = (k for k in range(len(a)) if a[k] != b[k])
            assert (a[i], a[j]) == (b[j], b[i]) and 0 < i < j < len(a) - 1
            assert a[i].casefold() != a[j].casefold()
            for word in (a[i], a[j]):
                assert word.isalpha() and word == word.lower()
            distances[j - i] += 1
    assert distances[1] and len(distances) > 3  # neighbours too, and not they alone


@pytest.mark.parametrize(("sentence", "swapped"), [
    ("The old boat sank", "The boat old sank"),
    ("Old boats Sink slowly , they say", "Old slowly Sink boats , they say"),
    ("The far far away", None),
    ("The Strasse straße strasse Is", None),  # the same but for case
    ("The old, boat. (left) sank", None),
    ("We 3 saw it", None),
    ("It sank", None),
])  # fmt: skip
def test_what_can_be_exchanged(sentence, swapped):
    found = self_supervised.swap(sentence.split(), np.random.default_rng(0))
    if sentence.startswith("Old boats"):  # three inner words: any two of them
        versions = {
            " ".join(self_supervised.swap(sentence.split(), np.random.default_rng(k)) or [])
            for k in range(40)
        }
        assert swapped in versions and len(versions) == 3
    else:
        assert found == (swapped and swapped.split())


def runs(documents):
    """Every passage that a document can have -> the document, first sentence, past the last."""
    found = {}
    for number, text in enumerate(documents):
        lines = text.split("\n")
        for start, end in itertools.combinations(range(len(lines) + 1), 2):
            found.setdefault(" ".join(" ".join(lines[start:end]).split()), (number, start, end))
    return found


def test_passages_are_what_their_label_says(documents, made):
    found = runs(documents)
    used = {}
    for split, rows in made["same_document"].items():
        used[split] = set()
        for row in rows:
            (i, start, end), (j, begin, stop) = (found[text] for text in row.texts)
            assert (i == j) == (row.label == SAME)
            assert all(16 <= n <= 48 for n in lengths(*row.texts))
            if row.label == SAME:
                assert max(start, begin) > min(end, stop)  # a sentence lies between them
            used[split] |= {i, j}
        assert len(used[split]) == SIZES[split] // 2
    assert not used["dev"] & used["train"]


def test_passages_and_pairs_of_lengths_are_the_same_in_both_classes(made):
    for rows in made["same_document"].values():
        assert all(text == " ".join(text.split()) for row in rows for text in row.texts)
        sides = [
            collections.Counter((place, text) for r in rows if r.label == label
                                for place, text in enumerate(r.texts))
            for label in (DIFFERENT, SAME)
        ]  # fmt: skip
        assert sides[0] == sides[1] and set(sides[0].values()) == {1}
        pairs = [
            collections.Counter(lengths(*r.texts) for r in rows if r.label == label)
            for label in (DIFFERENT, SAME)
        ]
        assert pairs[0] == pairs[1] and len(pairs[0]) > 20


def test_a_sentence_is_in_one_passage_alone(documents):
    spoilt = ["This Page is a stub .", "THIS page  is A stub ."]  # every document has both
    texts = [
        "\n".join([spoilt[i % 2], *text.replace(".", " .").split("\n"), spoilt[(i + 1) % 2]])
        for i, text in enumerate(documents)
    ]
    homes = collections.defaultdict(set)
    for rows in self_supervised.make_rows("same_document", texts, SIZES, 0).values():
        for text in (text for row in rows for text in row.texts):
            for sentence in filter(None, text.split(" .")):
                homes[key(sentence)].add(key(text))
    assert all(len(passages) == 1 for passages in homes.values())
