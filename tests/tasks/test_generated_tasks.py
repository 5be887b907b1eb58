"""Readers of tasks that are generated, and scores of texts beside their own libraries."""

import gzip
import json
import lzma
import pathlib
import sys

import numpy as np
import pytest

from scalelab.tasks import generation, metrics, text_counts
from scalelab.tasks.task import as_text, load, load_task

pytest.importorskip("sacrebleu", reason="not installed: pip install '.[generation]'")
TEXTS = ["a dog runs on the wet grass", "two men sit", "a red ball", "the cat sat on the mat"]
GOLD = [["a dog runs over the wet grass", "the dog runs on grass"], ["two men are sitting down"],
        ["a big red ball is here", "one red ball"], ["the cat sat on the mat"]]  # fmt: skip
LABELS = np.array([json.dumps([[text, -1] for text in own]) for own in GOLD])


def test_bleu_is_that_of_sacrebleu() -> None:
    import sacrebleu

    most = max(map(len, GOLD))
    streams = [[own[k] if k < len(own) else None for own in GOLD] for k in range(most)]
    exact = sacrebleu.BLEU().corpus_score(TEXTS, streams).score / 100
    assert 0.2 < exact < 0.9
    found = metrics.METRICS["bleu"](LABELS, np.array(TEXTS))
    assert found == pytest.approx(exact, abs=1e-12)
    sentence_mean = np.mean(
        [metrics.METRICS["bleu"](LABELS[k : k + 1], np.array(TEXTS[k : k + 1])) for k in range(4)]
    )
    assert abs(sentence_mean - exact) > 0.01  # it is no mean over sentences


def test_bleu_is_smoothed_as_its_signature_says() -> None:
    """Without four words in a row that match; sacrebleu alone has no score of 0."""
    import sacrebleu

    gold, texts = ["the cat sat on the mat", "a dog runs fast"], ["the cat sat in it", "a dog is"]
    labels = np.array([json.dumps([[text, -1]]) for text in gold])
    exact = sacrebleu.BLEU().corpus_score(texts, [gold]).score / 100
    assert exact > 0.1
    assert metrics.METRICS["bleu"](labels, np.array(texts)) == pytest.approx(exact, abs=1e-12)
    assert "smooth:exp" in str(text_counts.signature("bleu", labels))


def test_rouge_is_the_mean_of_the_best_references() -> None:
    from rouge_score.rouge_scorer import RougeScorer

    for name, theirs in (("rouge1", "rouge1"), ("rouge2", "rouge2"), ("rouge_l", "rougeL")):
        scorer = RougeScorer([theirs], use_stemmer=True)
        best = [
            max(scorer.score(gold, text)[theirs].fmeasure for gold in own)
            for own, text in zip(GOLD, TEXTS, strict=True)
        ]
        found = metrics.METRICS[name](LABELS, np.array(TEXTS))
        assert found == pytest.approx(np.mean(best), abs=1e-12)


@pytest.mark.parametrize("name", ["bleu", "rouge1", "rouge2", "rouge_l"])
def test_equal_texts_have_the_highest_score(name: str) -> None:
    """BLEU 100, ROUGE 1; a word less has less."""
    same = np.array([own[0] for own in GOLD])
    assert metrics.METRICS[name](LABELS, same) == pytest.approx(1, abs=1e-9)
    same[0] = same[0].replace(" wet", "")
    assert metrics.METRICS[name](LABELS, same) < 0.99


@pytest.mark.parametrize("name", ["bleu", "rouge2", "exact_match"])
def test_a_weight_of_two_is_an_example_twice(name: str) -> None:
    """For two systems and two resamples at once."""
    runs = np.array([TEXTS, [own[0] for own in GOLD]])
    weights = np.array([[2, 0, 1, 1], [1, 1, 1, 1]])
    found = metrics.METRICS[name](LABELS, runs, weights)
    assert found.shape == (2, 2)
    for r, own in enumerate(weights):
        rows = np.repeat(np.arange(4), own)
        for s in range(2):
            alone = metrics.METRICS[name](LABELS[rows], runs[s][rows])
            assert found[r, s] == pytest.approx(alone)


def write_all(root: pathlib.Path) -> pathlib.Path:
    """Writes small files in the layout of every task."""
    for name in ("multi30k/task1/raw", "dialogsum", "scitldr/SciTLDR-A", "e2e", "webquestions"):
        (root / name).mkdir(parents=True)
    for split in ("train", "val", "test_2016_flickr"):
        for language, lines in (("en", "A dog .\nTwo men\n"), ("de", "Ein Hund .\nZwei \n")):
            packed = gzip.compress(lines.encode())
            (root / f"multi30k/task1/raw/{split}.{language}.gz").write_bytes(packed)
    dialogue = {"dialogue": "#Person1#: Hi!\n#Person2#: Bye.", "fname": "x"}
    train = json.dumps(dialogue | {"summary": "They meet."})
    (root / "dialogsum/dialogsum.train.jsonl.xz").write_bytes(lzma.compress(train.encode()))
    (root / "dialogsum/dialogsum.dev.jsonl").write_text(train)
    three = json.dumps(dialogue | {f"summary{k}": f"S{k}" for k in (1, 2, 3)})
    (root / "dialogsum/dialogsum.test.jsonl").write_text(three)
    row = json.dumps({"source": ["One.", "Two."], "target": ["A", "B"]})
    for split in ("train", "dev"):
        (root / f"scitldr/SciTLDR-A/{split}.jsonl").write_text(row)
    table = 'mr,ref\n"name[A], area[b]",A is in b.\nname[C],C.\n"name[A], area[b]",In b is A.\n'
    for split in ("train", "dev"):
        (root / f"e2e/{split}set.csv").write_text(table)
    asked = json.dumps([{"qId": "1", "qText": "who?", "answers": ["Ada", "Bob"]}])
    for split in ("trainmodel", "val"):
        (root / f"webquestions/{split}.json").write_text(asked)
    return root


def test_readers(tmp_path: pathlib.Path) -> None:
    root = write_all(tmp_path)
    found = {task.name: (task, load(task, root)) for task in generation.GENERATION if
             task.name != "multi30k_fr" and task.train.count}  # fmt: skip

    def first(name: str, split: str) -> tuple[list[str], list[str]]:
        records = found[name][1].dev[split] if split != "train" else found[name][1].train
        assert records is not None and records.labels is not None
        return records.texts[0], [text_counts.accepted(label) for label in records.labels]

    assert first("multi30k_de", "test_2016") == (["A dog .", "Two men"], [["Ein Hund ."], ["Zwei"]])
    assert first("dialogsum", "train") == (["#Person1#: Hi! #Person2#: Bye."], [["They meet."]])
    assert first("dialogsum", "test")[1] == [["S1", "S2", "S3"]]
    assert first("scitldr", "dev") == (["One. Two."], [["A", "B"]])
    assert first("e2e", "train")[1] == [["A is in b."], ["C."], ["In b is A."]]
    assert first("e2e", "dev")[1] == [["A is in b.", "In b is A."], ["C."]]
    assert first("webquestions", "dev") == (["who?"], [["Ada", "Bob"]])
    assert found["multi30k_de"][1].dev["test_2017"] is None


def test_files_that_do_not_fit(tmp_path: pathlib.Path) -> None:
    root = write_all(tmp_path)
    raw = root / "multi30k/task1/raw"
    (raw / "train.de.gz").write_bytes(gzip.compress(b"Ein Hund .\n"))
    with pytest.raises(ValueError, match=r"train.en.gz has 2 lines, and .*train.de.gz has 1"):
        load(load_task("multi30k_de"), root)
    (raw / "train.de.gz").write_bytes(gzip.compress(b"Ein Hund .\n\n"))
    with pytest.raises(ValueError, match=r"row 2 has an empty text or answer"):
        load(load_task("multi30k_de"), root)
    (root / "dialogsum/dialogsum.dev.jsonl").write_text(json.dumps({"dialogue": "x"}))
    with pytest.raises(ValueError, match=r"dev.jsonl, line 1: has no 'summary'"):
        load(load_task("dialogsum"), root)
    (root / "scitldr/SciTLDR-A/dev.jsonl").write_text(json.dumps({"source": "a", "target": [3]}))
    with pytest.raises(ValueError, match=r"dev.jsonl, line 1: .*nor a list of texts: \[3\]"):
        load(load_task("scitldr"), root)
    (root / "webquestions/val.json").write_text("[]")
    with pytest.raises(ValueError, match=r"val.json: there are no rows of data"):
        load(load_task("webquestions"), root)


def test_one_text_is_not_a_list_of_letters(tmp_path: pathlib.Path) -> None:
    root = write_all(tmp_path)
    row = json.dumps({"source": "One.", "target": "Ada"})
    (root / "scitldr/SciTLDR-A/dev.jsonl").write_text(row)
    (root / "webquestions/val.json").write_text(json.dumps([{"qText": "a?", "answers": "Ada"}]))
    for name in ("scitldr", "webquestions"):
        records = load(load_task(name), root).dev["dev"]
        assert records is not None and records.labels is not None
        assert text_counts.accepted(records.labels[0]) == ["Ada"]
        assert records.texts[0] == ["One." if name == "scitldr" else "a?"]


def test_tasks_as_text() -> None:
    """Scores become the 26 numbers of T5, spans become answers."""
    scores = as_text(load_task("stsb"))
    assert scores.class_names[:3] == ("0.0", "0.2", "0.4") and len(scores.class_names) == 26
    assert not scores.regression and as_text(load_task("squad")).kind == "texts"
    with pytest.raises(ValueError, match="--as=text generates label words"):
        as_text(load_task("pos"))


@pytest.mark.parametrize("name", ["bleu", "rouge2"])
def test_a_missing_library_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for library in ("sacrebleu", "rouge_score"):
        monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ValueError, match=r"need (sacrebleu|rouge_score): pip install 'scalelab"):
        text_counts.signature(name)


def test_every_score_names_its_library() -> None:
    for task in generation.GENERATION:
        for name in task.metrics:
            signed = text_counts.signature(name)
            own = "SQuAD v1.1's normalization" in str(signed)
            assert signed and own == (name in ("exact_match", "answer_f1")), name
    two, one = ['[["a", 0], ["b", 0]]', '[["c", 0], ["d", 0]]'], ['[["a", 0]]']
    for golds, number in ((two, "2"), (one, "1"), (two + one, "var")):
        signed = str(text_counts.signature("bleu", golds))
        assert f"sacrebleu nrefs:{number}|" in signed, golds
        assert "tok:13a" in signed and "smooth:exp" in signed
