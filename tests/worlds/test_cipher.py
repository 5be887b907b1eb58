"""The second language: translations by hand, their inverse, and the files."""

import argparse
import json
import pathlib
import types
from typing import Any

import numpy as np
import pytest

from scalelab.tasks.task import load, load_task
from scalelab.worlds import __main__ as program
from scalelab.worlds import cipher, discourse
from scalelab.worlds.lexicon import Sizes
from scalelab.worlds.pcfg import Tree

PLAIN: cipher.Letters = {}  # the same letters
WORLD = discourse.draw(Sizes(num_topics=2, num_nouns=4, num_verbs=2, num_adjectives=2), 0)


def tree(label: str, *children: Tree | str) -> Tree:
    return Tree((label,), children)


def test_order_by_hand() -> None:
    cat = tree("BNP", tree("DET", "a"), tree("ADJ", "red"), tree("NOUN", "cat"))
    dog = tree("BNP", tree("DET", "the"), tree("NOUN", "dog"))
    seen = tree("VP", tree("AUX", "is"), tree("PART", "not"), tree("VERB", "seen"),
                tree("PP", tree("ADP", "by"), tree("NP", cat)))  # fmt: skip
    whole = tree("S", tree("ADV", "then"), tree("NP", dog), seen, tree("PUNCT", "."))
    assert " ".join(cipher.translate(whole, PLAIN)) == "then the dog by a cat red seen not is ."
    active = tree("VP", tree("VERB", "sees"), tree("NP", cat))
    assert " ".join(cipher.translate(active, PLAIN)) == "a cat red sees"


def test_letters_are_permuted_within_their_kinds() -> None:
    made = cipher.draw(0)
    for letters in (cipher.VOWELS, cipher.CONSONANTS):
        assert sorted(letters.translate(made)) == sorted(letters)
    assert cipher.CONSONANTS.translate(made) != cipher.CONSONANTS and ".".translate(made) == "."
    assert made != cipher.draw(1)


def undo(part: Tree, words: list[str], back: cipher.Letters) -> list[str]:
    """The sentence of a translation, given its derivation: takes the words of each child."""
    children = list(part.children)
    order = list(range(len(children)))
    if part.label == "VP":
        order.reverse()
    if part.label == "BNP" and len(children) == 3:
        order = [0, 2, 1]
    found: dict[int, list[str]] = {}
    for place in order:
        child = children[place]
        size = len(child.words()) if isinstance(child, Tree) else 1
        own, words = words[:size], words[size:]
        found[place] = (
            undo(child, own, back) if isinstance(child, Tree) else [own[0].translate(back)]
        )
    return [word for place in sorted(found) for word in found[place]]


def test_every_translation_can_be_undone() -> None:
    made, rng = cipher.draw(0), np.random.default_rng(0)
    back = {ord(new): chr(old) for old, new in made.items()}
    changed = 0
    for _ in range(40):
        for sentence in WORLD.sample(rng).trees:
            translated = cipher.translate(sentence, made)
            assert undo(sentence, translated, back) == sentence.words()
            changed += [word.translate(back) for word in translated] != sentence.words()
    assert changed > 30


def test_the_files(tmp_path: pathlib.Path) -> None:
    arguments = {"kind": "cipher", "documents": 20, "seed": 3, "tasks_examples": 40}
    for name in ("a", "b"):
        program.write(argparse.Namespace(**arguments, to=tmp_path / name))
    for path in (tmp_path / "a").rglob("*.*"):
        assert path.read_bytes() == (tmp_path / "b" / path.relative_to(tmp_path / "a")).read_bytes()
    splits = load(load_task("cipher"), tmp_path / "a/tasks")
    texts = [text for own in (splits.train, *splits.dev.values()) for text in own.texts[0]]
    assert len(texts) == len(set(texts)) == 60
    first = json.loads(str(splits.train.labels[0]))[0][0]
    made = cipher.draw(3)
    assert sorted(first.split()) == sorted(texts[0].translate(made).split())
    lines = (tmp_path / "a/wiki.train.raw").read_text().splitlines()
    documents = [line.strip() for line in lines if line.strip() and " = " not in line]
    starts = {text.split()[0] for text in documents}
    assert len(documents) == 20 and starts == {"first", "first".translate(made)}


def test_summaries_by_hand() -> None:
    cat = tree("NP", tree("BNP", tree("DET", "a"), tree("NOUN", "cat")))
    base = tree("BNP", tree("DET", "the"), tree("ADJ", "red"), tree("NOUN", "dog"))
    subject = tree("NP", base, tree("PP", tree("ADP", "near"), cat))
    is_not = tree("VP", tree("AUX", "is"), tree("PART", "not"), tree("ADJ", "nice"))
    parts = tree("ADV", "later"), subject, is_not, tree("PUNCT", ".")
    quality, deed = (Tree(("S", 0, "event", kind, 1), parts) for kind in ("good", "deed"))
    assert " ".join(quality.words()) == "later the red dog near a cat is not nice ."
    assert " ".join(cipher.summarize(quality)) == "the dog is not nice ."
    assert cipher.summarize(deed) == []


def test_summaries_keep_words_of_their_passages(tmp_path: pathlib.Path) -> None:
    given = argparse.Namespace(kind="cipher", documents=4, seed=1, tasks_examples=40, to=tmp_path)
    program.write(given)
    splits = load(load_task("summary"), tmp_path / "tasks")
    lengths = set[int]()
    for records in (splits.train, *splits.dev.values()):
        for text, label in zip(records.texts[0], records.labels, strict=True):
            sentences = [own.split() for own in text.split(" .")[:-1]]
            summaries = [own.split() for own in json.loads(str(label))[0][0].split(" .")[:-1]]
            assert 1 <= len(summaries) <= len(sentences) == cipher.PASSAGE
            for own in summaries:  # its words stand in one sentence, in order
                assert any(in_order(own, sentence) for sentence in sentences)
            lengths.add(len(summaries))
    assert lengths == {1, 2, 3}


def in_order(words: list[str], text: list[str]) -> bool:
    rest = iter(text)
    return all(word in rest for word in words)


def test_a_lexicon_with_too_few_sentences_is_refused_and_0_pairs_are_none(
    tmp_path: pathlib.Path,
) -> None:
    facts = cipher.write(WORLD, 0, 2, 0, tmp_path)
    assert [*facts] == ["documents"] and not (tmp_path / "tasks").exists()
    document = WORLD.sample(np.random.default_rng(0))
    repeated: Any = types.SimpleNamespace(sample=lambda rng: document)
    with pytest.raises(ValueError, match="lexicon is too small for so many pairs"):
        cipher.write(repeated, 0, 2, 40, tmp_path)


def test_a_wrong_argument_is_named(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ValueError, match="--order is not an argument of --kind=cipher"):
        program.write(argparse.Namespace(kind="cipher", documents=2, seed=0, order=2, to=tmp_path))
