"""Answers that are texts: tags and spans, their files and their scores, against references."""

import json
import pathlib

import numpy as np
import predicted
import pytest

from scalelab.records import predictions
from scalelab.tasks import tagging
from scalelab.tasks.metrics import METRICS
from scalelab.tasks.task import load, load_task, remarks

TAGS = ["O", "B-PER", "I-PER", "B-ORG", "I-ORG"]


def conlleval(tags: list[str]) -> set[tuple[str, int, int]]:
    """Entities by the rules of conlleval and seqeval: where a chunk ends, where one starts."""
    found, begin, before, kind_before = set(), 0, "O", ""
    for i, tag in enumerate([*tags, "O"]):
        mark, kind = tag[0], tag.split("-")[-1]
        ends = before != "O" and (mark in "BO" or kind != kind_before)
        starts = mark == "B" or (mark == "I" and (before == "O" or kind != kind_before))
        if ends:
            found.add((kind_before, begin, i))
        begin = i if starts else begin
        before, kind_before = mark, kind
    return found


def test_entity_f1_is_that_of_conlleval() -> None:
    rng = np.random.default_rng(0)
    pairs = [rng.choice(TAGS, (2, rng.integers(1, 9))).tolist() for _ in range(300)]
    hits = sum(len(conlleval(a) & conlleval(b)) for a, b in pairs)
    every = sum(len(conlleval(a)) + len(conlleval(b)) for a, b in pairs)
    gold, predicted = (np.array([" ".join(pair[k]) for pair in pairs]) for k in (0, 1))
    assert METRICS["entity_f1"](gold, predicted) == pytest.approx(2 * hits / every)
    right = np.concatenate([np.equal(*pair) for pair in pairs]).mean()
    assert METRICS["word_accuracy"](gold, predicted) == pytest.approx(right)
    # An entity with a wrong end is not found; I- without B- begins one.
    assert METRICS["entity_f1"](np.array(["B-PER I-PER O"]), np.array(["B-PER O O"])) == 0
    assert METRICS["entity_f1"](np.array(["B-PER I-PER O"]), np.array(["I-PER I-PER O"])) == 1
    assert METRICS["entity_f1"](np.array(["O O"]), np.array(["O O"])) == 0  # nothing to find


@pytest.mark.parametrize("metric", ["entity_f1", "word_accuracy"])
def test_weights_are_multiplicities(metric: str) -> None:
    gold = np.array(["B-PER O", "O B-ORG I-ORG", "O"])
    runs = np.array([["B-PER O", "O O O", "O"], ["O O", "O B-ORG I-ORG", "B-PER"]])
    weights = np.array([[2, 0, 1], [1, 3, 0]])
    found = METRICS[metric](gold, runs, weights)
    for r, own in enumerate(weights):
        for s, run in enumerate(runs):
            repeated = (np.repeat(x, own) for x in (gold, run))
            assert found[r, s] == pytest.approx(METRICS[metric](*repeated))


@pytest.mark.parametrize(("answers", "predicted", "exact", "f1"), [
    (["the Cat."], "cat", 1, 1),
    (["Denver Broncos"], "the Broncos of Denver", 0, 0.8),  # 2 of 3 and 2 of 2 words
    (["a b", "b c d"], "b c", 0, 0.8),  # "a" is an article; 2 of 2 and 2 of 3 words
    (["x"], "", 0, 0),
])  # fmt: skip
def test_exact_match_and_f1_by_hand(answers, predicted, exact, f1) -> None:
    gold = np.array([json.dumps([(text, 0) for text in answers])])
    assert METRICS["exact_match"](gold, np.array([predicted])) == exact
    assert METRICS["answer_f1"](gold, np.array([predicted])) == pytest.approx(f1)


def test_predictions_that_are_texts_are_read_as_written(tmp_path) -> None:
    gold, found = np.array(["a\tb", "\\n"]), np.array(["", "x\ny"])
    path = tmp_path / "predictions.tsv"
    predicted.write(path, texts=[["q", "r"]], gold=gold, outputs=found[:, None], labels=None)
    predictions.pack(tmp_path / "predictions.npz", predictions.read(path))
    for made in map(predictions.read, (path, tmp_path / "predictions.npz")):
        assert (made.gold.tolist(), made.predicted.tolist()) == (gold.tolist(), found.tolist())


# --- Files ---------------------------------------------------------------------------------------


def squad(*paragraphs: tuple[str, str, int], titles: bool = True) -> str:
    """A file with an article for each context, answer and place."""
    data = [
        {"title": f"T{i}" * titles, "paragraphs": [{"context": context, "qas": [
            {"id": str(i), "question": f"What {i}?", "answers": [
                {"text": answer, "answer_start": start}]}]}]}
        for i, (context, answer, start) in enumerate(paragraphs)
    ]  # fmt: skip
    return json.dumps({"data": data})


def test_articles_are_split_and_absent_answers_are_counted(tmp_path: pathlib.Path) -> None:
    (tmp_path / "squad").mkdir()
    own = [(f"A {i} b", str(i), 2) for i in range(10)]
    own[3] = ("A 3 b", "4", 2)
    (tmp_path / "squad/dev-v1.1.json").write_text(squad(*own))
    task = load_task("squad")
    splits = load(task, tmp_path)
    assert splits.train.texts[1] == [f"A {i} b" for i in (0, 1, 2, 3, 5, 6, 7, 8)]
    assert splits.dev["dev"].texts[1] == ["A 4 b", "A 9 b"]
    text = "\n".join(remarks(task, splits))
    assert "1 of 8 questions of train" in text and "every fifth article" in text
    (tmp_path / "squad/train-v1.1.json").write_text(squad(("c", "c", 0)))
    whole = load(task, tmp_path)
    assert (len(whole.train), len(whole.dev["dev"])) == (1, 10)
    assert "fifth" not in "\n".join(remarks(task, whole))


CONLLU = "1\tHi\t_\tINTJ\t_\t_\t0\troot\t_\t_\n"


@pytest.mark.parametrize(("task", "path", "train", "dev", "message"), [
    ("ner", "panx/{}-en.tsv", "a\tO\n", "b\tB-MISC\n", "dev-en.tsv, sentence 1: .*B-MISC.*B-PER"),
    ("ner", "panx/{}-en.tsv", "a\tO\nb\n", "", "train-en.tsv, line 2: .*tab"),
    ("ner", "panx/{}-en.tsv", "\n", "", "no sentences"),
    ("pos", "ud-english-ewt/en_ewt-ud-{}.conllu", CONLLU, CONLLU.replace("INTJ", "UH"), "dev.*UH"),
    ("pos", "ud-english-ewt/en_ewt-ud-{}.conllu", "1-3\tHi\t" + "_\t" * 7 + "_\n" + CONLLU, "",
     "train.conllu, line 2: .*range"),
    ("mctest", "mctest/mc160.{}.tsv", "i\tp\tstory" + "\tone: q\ta\tb\tc\td\te" * 4, "",
     "4 choices"),
    ("tydiqa", "tydiqa/tydiqa.goldp.en.{}.json", squad(("c", "", 0)), "", "no answer"),
    ("squad", "squad/{}-v1.1.json", squad(("c", "d", 0)), squad(("c", "c", 0)), "train.*no quest"),
    ("tydiqa", "tydiqa/tydiqa.goldp.en.{}.json", "{}", "", "layout of SQuAD"),
])  # fmt: skip
def test_what_is_refused(
    tmp_path, task: str, path: str, train: str, dev: str, message: str
) -> None:
    for split, content in (("train", train), ("dev", dev)):
        file = tmp_path / path.format(split)
        file.parent.mkdir(exist_ok=True)
        file.write_text(content)
        file.with_suffix(".ans").write_text("A\tA\tA\tA\n")
        other = pathlib.Path(str(file).replace("mc160", "mc500"))
        other.write_text(content)
        other.with_suffix(".ans").write_text("A\tA\tA\tA\n")
    with pytest.raises(ValueError, match=message):
        load(load_task(task), tmp_path)


def test_a_blank_inside_a_word_is_none_between_words(tmp_path) -> None:
    made = tagging.make_records(tmp_path, [(["10 000", "x"], ["O", "O"])], TAGS)
    assert len(made.texts[0][0].split(" ")) == 2
