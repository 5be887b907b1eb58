"""The program: what it writes, that scalelab reads it, and what it says of a mistake."""

import json
import pathlib

import in_process
import numpy as np
import pytest
import reading
from law_folders import fails

from scalelab.data.corpora import open_corpus
from scalelab.eval import suites, wordsim
from scalelab.worlds import __main__ as program
from scalelab.worlds import discourse, markov
from scalelab.worlds.lexicon import Sizes


def run(folder: pathlib.Path, *arguments: str) -> dict:
    in_process.run(program, [f"--to={folder}", "--documents=30", *arguments])
    return json.loads((folder / "world.json").read_text())


@pytest.fixture(scope="module")
def grammar(tmp_path_factory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("made") / "grammar"
    run(folder, "--kind=grammar", "--tasks_examples=12", "--num_nouns=6")
    return folder


def test_a_grammar_world(grammar: pathlib.Path) -> None:
    facts = json.loads((grammar / "world.json").read_text())
    names = {path.name for path in grammar.iterdir()}
    splits = {f"wiki.{split}.raw" for split in ("train", "valid", "test")}
    others = {"world.json", "gold.jsonl", "glue", "pairs", "attraction.jsonl", "wordsim"}
    assert names == splits | others
    assert facts["documents"] == {"train": 30, "valid": 3, "test": 3}
    assert facts["tasks"]["mnli"]["dev_mismatched"] == 3
    exact = discourse.draw(Sizes(num_nouns=6), 0).facts()
    assert {name: facts[name] for name in exact} == exact


def test_the_corpus_is_what_gold_annotates(grammar: pathlib.Path) -> None:
    corpus = open_corpus(f"wikitext:{grammar}")
    rows = [json.loads(line) for line in (grammar / "gold.jsonl").read_text().splitlines()]
    for split in ("train", "valid", "test"):
        own = [row for row in rows if row["split"] == split]
        assert [row["document"] for row in own] == list(range(len(own)))
        texts = [" ".join(" ".join(s["words"]) for s in row["sentences"]) for row in own]
        assert list(corpus.documents(split)) == texts


def test_a_parser_accepts_the_good_sentence_of_a_pair_alone(grammar: pathlib.Path) -> None:
    world = discourse.draw(Sizes(num_nouns=6), 0)
    paths = [*(grammar / "pairs").iterdir(), grammar / "attraction.jsonl"]
    rows = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
    assert {row["group"] for row in rows} == {"order", "agreement", "attraction"}
    for row in rows:
        assert reading.read(world, row["good"].split()) is not None
        assert reading.read(world, row["bad"].split()) is None
    easy = [row for row in rows if row["group"] != "attraction"]
    assert len(suites.read_pairs(grammar / "pairs")) == len(easy) > 10


def test_word_pairs_share_as_much_as_they_say(grammar: pathlib.Path) -> None:
    topics = discourse.draw(Sizes(num_nouns=6), 0).lexicon.topics
    found = wordsim.read(grammar / "wordsim")
    assert len({frozenset(pair.words) for pair in found}) == len(found) == 800 + 6 * (15 + 28 + 15)
    for pair in found:
        topic, part = ([[w in own for own in kinds] for w in pair.words] for kinds in (
            [{*t.nouns, *t.verbs, *t.adjectives} for t in topics],
            [{x for t in topics for x in getattr(t, name)}
             for name in ("nouns", "verbs", "adjectives")]))  # fmt: skip
        assert pair.score == (topic[0] == topic[1]) + (part[0] == part[1])


def test_a_markov_world(tmp_path) -> None:
    facts = run(tmp_path / "world", "--kind=markov", "--vocab_size=6", "--length=20", "--seed=3")
    source = markov.draw(6, 2, 3)
    assert facts["nats_per_word"] == source.bound(source.order) == facts["nats_per_word_seeing_2"]
    assert facts["nats_per_word_seeing_0"] == source.bound(0)
    documents = list(open_corpus(f"wikitext:{tmp_path}/world").documents("train"))
    place = {word: i for i, word in enumerate(facts["words"])}
    tokens = np.array([[place[word] for word in text.split()] for text in documents])
    assert tokens.shape == (30, 20)
    nats = -np.log(source.transitions[tokens[:, :-2], tokens[:, 1:-1], tokens[:, 2:]])
    assert nats.mean() < (source.bound(source.order) + source.bound(1)) / 2


def test_a_world_of_neighbours(tmp_path) -> None:
    facts = run(tmp_path / "world", "--kind=neighbours", "--num_letters=4", "--length=9")
    place = {word: i for i, word in enumerate(facts["words"])}
    for text in open_corpus(f"wikitext:{tmp_path}/world").documents("valid"):
        tokens = [place[word] for word in text.split()]
        for i in range(1, 9, 2):
            assert tokens[i] == 4 + facts["table"][tokens[i - 1]][tokens[i + 1]]


def test_a_world_of_copies(tmp_path) -> None:
    own = "--num_letters=4", "--lag=6", "--percent_copied=100", "--length=20"
    facts = run(tmp_path / "world", "--kind=copies", *own)
    assert facts["nats_per_word"] == pytest.approx(3 / 20 * np.log(4))
    place = {word: i for i, word in enumerate(facts["words"])}
    for text in open_corpus(f"wikitext:{tmp_path}/world").documents("train"):
        tokens = [place[word] for word in text.split()]
        assert tokens[6:] == tokens[:-6] and len(tokens) == 20


def test_equal_arguments_give_equal_files(grammar: pathlib.Path, tmp_path) -> None:
    run(tmp_path / "same", "--kind=grammar", "--tasks_examples=12", "--num_nouns=6")
    for path in grammar.rglob("*.*"):
        assert path.read_bytes() == (tmp_path / "same" / path.relative_to(grammar)).read_bytes()


@pytest.mark.parametrize(("arguments", "message"), [
    (["--kind=markov", "--num_nouns=3"], "--num_nouns"),
    (["--kind=markov", "--vocab_size=1"], "2 tokens"),
    (["--kind=markov", "--order=9"], "at most 4096"),
    (["--kind=neighbours", "--length=8"], "odd number"),
    (["--kind=copies", "--lag=5"], "even number"),
    (["--kind=copies", "--percent_copied=101"], "0 to 100"),
    (["--kind=grammar", "--documents=0"], "documents"),
    (["--kind=grammar", "--num_topics=1"], "num_topics=1: "),
    (["--kind=grammar", "--num_nouns=1"], "num_nouns: expected 2"),
])  # fmt: skip
def test_mistakes_are_one_message(arguments: list[str], message: str, tmp_path, capsys) -> None:
    assert message in fails(capsys, program, f"--to={tmp_path}/world", "--documents=5", *arguments)
    assert not list(tmp_path.glob("world/*"))


def test_a_folder_with_something_in_it_is_left_alone(tmp_path, capsys) -> None:
    (tmp_path / "mine.txt").write_text("keep")
    refusal = fails(capsys, program, f"--to={tmp_path}", "--documents=5", "--kind=markov")
    assert f"--to={tmp_path}" in refusal
    assert [p.name for p in tmp_path.iterdir()] == ["mine.txt"]
