"""The grammar world: its texts, annotations and exact entropy."""

import math
import re

import numpy as np
import pytest
import reading

from scalelab.data import sentences
from scalelab.worlds import discourse, gold, lexicon
from scalelab.worlds.discourse import Document, World
from scalelab.worlds.lexicon import Sizes

SMALL = Sizes(num_topics=3, num_nouns=5, num_verbs=3, num_adjectives=3, num_qualities=2)
NUM_DOCUMENTS = 400


@pytest.fixture(scope="module")
def world() -> World:
    return discourse.draw(SMALL, seed=0)


@pytest.fixture(scope="module")
def documents(world: World) -> list[Document]:
    rng = np.random.default_rng(0)
    return [world.sample(rng) for _ in range(NUM_DOCUMENTS)]


@pytest.fixture(scope="module")
def nats(world: World, documents: list[Document]) -> np.ndarray:
    return -np.array([reading.log_prob(world, document.trees) for document in documents])


def assert_mean(values: np.ndarray, expected: float) -> None:
    """The mean of a sample is what theory says, within four standard errors."""
    error = np.std(values) / math.sqrt(len(values))
    assert abs(np.mean(values) - expected) < 4 * error


def test_the_entropy_is_the_mean_of_minus_log_p(world: World, nats: np.ndarray) -> None:
    exact = world.facts()["nats_per_document"]
    assert_mean(nats, exact)
    assert nats.std() / math.sqrt(len(nats)) < 0.03 * exact  # so that the line above says much


def test_each_term_is_the_mean_of_its_own_choices(world: World, documents: list) -> None:
    """Counted from the texts: sentences, words, bytes, and whether a quality came up."""
    facts, bit = world.facts(), math.log(2)
    assert_mean(np.array([len(d.trees) for d in documents]), facts["sentences_per_document"])
    assert_mean(np.array([len(d.text.split()) for d in documents]), facts["words_per_document"])
    assert_mean(np.array([len(d.text) for d in documents]), facts["bytes_per_document"])
    moods = [any(t.symbol[3] != "deed" for t in d.trees) * bit for d in documents]
    assert_mean(np.array(moods), facts["nats_of_mood"])
    assert facts["nats_of_topic"] == pytest.approx(math.log(3))
    parts = sum(v for name, v in facts.items() if name.startswith("nats_of_"))
    assert parts == pytest.approx(facts["nats_per_document"])


def test_a_text_has_one_derivation(world: World, documents: list[Document]) -> None:
    """Else the entropy of texts would be less than that of derivations."""
    pcfg = world.pcfg
    for document in documents[:60]:
        for tree in document.trees:
            assert reading.whole(pcfg, tree.symbol, tree.words()) == [tree]
            assert reading.read(world, tree.words()) == tree


def test_words_are_of_one_meaning() -> None:
    """No form of one word is a form of another: what a text says is decidable."""
    made = lexicon.draw(Sizes(), seed=0)
    forms: list[str] = [w for words in made.qualities.values() for w in words]
    for topic in made.topics:
        forms += [lexicon.noun(n, num) for n in topic.nouns for num in lexicon.NUMBERS]
        forms += [lexicon.verb(v, f) for v in topic.verbs for f in ("sg", "pl", "participle")]
        forms += topic.adjectives
    assert len(set(forms)) == len(forms)


def test_documents_run_through_the_stages_in_sentences_that_scalelab_finds(documents) -> None:
    stage = {w: s[0] for s in discourse.STAGES for w in discourse.STAGES[s]}
    for document in documents:
        order = "".join(stage[words[0]] for words in document.sentences)
        assert re.fullmatch("os+e+c", order), order
        assert len({tree.symbol[3] for tree in document.trees} - {"deed"}) <= 1
        assert sentences.split(document.text) == [" ".join(w) for w in document.sentences]


def test_every_verb_agrees_with_its_noun(documents: list[Document]) -> None:
    """Looked at in the words: -s marks a plural noun and a singular verb."""
    num_attracted = 0
    for document in documents:
        for tree in document.trees:
            found = gold.annotate(tree)
            assert found["agreement"], found
            for pair in found["agreement"]:
                noun, verb = found["words"][pair["noun"]], found["words"][pair["verb"]]
                assert found["tags"][pair["noun"]] == "NOUN"
                plural = {"is": False, "does": False, "are": True, "do": True}
                assert noun.endswith("s") == plural.get(verb, not verb.endswith("s"))
                assert pair["number"] == ("pl" if noun.endswith("s") else "sg")
                num_attracted += pair["attractors"] > 0
    assert num_attracted > 0.1 * len(documents)


def test_annotations_fit_the_text(documents: list[Document]) -> None:
    for document in documents[:100]:
        for tree in document.trees:
            found = gold.annotate(tree)
            words = found["words"]
            assert words == tree.words()
            assert len(words) == len(found["tags"])
            assert re.findall(r"\(([A-Z]+) ([^ ()]+)\)", found["tree"]) == list(
                zip(found["tags"], words, strict=True)
            )
            assert [f"({label}" for label, *_ in found["spans"]] == [
                part for part in re.findall(r"\([A-Z]+", found["tree"])
                if part[1:] in gold.PHRASES
            ]  # fmt: skip
            assert found["spans"][0] == ["S", 0, len(words)]
            spans = [(start, end) for _, start, end in found["spans"]]
            assert not any(a[0] < b[0] < a[1] < b[1] for a in spans for b in spans)


def test_a_sentence_annotated_by_hand(world: World) -> None:
    """the X near the Ys is not good: one phrase inside another, one attractor."""
    (x, y, *_) = world.lexicon.topics[0].nouns
    bad = world.lexicon.qualities["bad"][0]
    tree = reading.read(world, f"first the {x} near these {y}s is not {bad} .".split())
    assert tree is not None and tree.symbol == ("S", 0, "open", "good", 0)
    assert gold.annotate(tree) == {
        "words": ["first", "the", x, "near", "these", f"{y}s", "is", "not", bad, "."],
        "tags": "ADV DET NOUN ADP DET NOUN AUX PART ADJ PUNCT".split(),
        "chunks": "O B-NP I-NP O B-NP I-NP B-VP I-VP O O".split(),
        "spans": [
            ["S", 0, 10], ["NP", 1, 6], ["BNP", 1, 3], ["PP", 3, 6],
            ["NP", 4, 6], ["BNP", 4, 6], ["VP", 6, 9],
        ],
        "tree": f"(S (ADV first) (NP (BNP (DET the) (NOUN {x})) (PP (ADP near)"
        f" (NP (BNP (DET these) (NOUN {y}s))))) (VP (AUX is) (PART not) (ADJ {bad})) (PUNCT .))",
        "agreement": [{"noun": 2, "verb": 6, "number": "sg", "attractors": 1}],
    }  # fmt: skip


def test_what_stands_in_a_clause_agrees_within_it(world: World) -> None:
    x, y, z = world.lexicon.topics[1].nouns[:3]
    v, w = world.lexicon.topics[1].verbs[:2]
    tree = reading.read(world, f"then the {x}s that a {y} {v}s {w} the {z} .".split())
    assert tree is not None
    pairs = [(p["noun"], p["verb"], p["attractors"]) for p in gold.annotate(tree)["agreement"]]
    assert pairs == [(5, 6, 0), (2, 7, 1)]
    wrong = (f"that a {y} {v} {w} the {z} .", f"that a {y} {v}s {w}s the {z} .")
    for end in wrong:
        assert reading.read(world, f"then the {x}s {end}".split()) is None
