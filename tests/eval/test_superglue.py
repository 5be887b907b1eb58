"""SuperGLUE and SWAG: readers on rows by hand, metrics by scikit-learn, every program once."""

import json
import pathlib
import re
from typing import Any

import numpy as np
import pytest
from test_programs import Start
from test_programs import start as start

from scalelab import predict
from scalelab.records import predictions
from scalelab.tasks.metrics import METRICS
from scalelab.tasks.task import load, load_task

ANSWERS = [{"text": "a  dog", "label": 1}, {"text": "no", "label": 0}]
ROWS: dict[str, dict[str, Any]] = {
    "BoolQ": {"question": "is it", "passage": "It is .", "label": True},
    "CB": {"premise": "I say so .", "hypothesis": "so", "label": "neutral"},
    "COPA": {"premise": "He fell.", "choice1": "It hurt.", "choice2": "I ran.",
             "question": "effect", "label": 0},
    "MultiRC": {"passage": {"text": "A dog .", "questions": [
        {"question": "Who?", "answers": ANSWERS}, {"question": "What?", "answers": ANSWERS[::-1]},
        {"question": "One?", "answers": ANSWERS[:1]}]}},
    "RTE": {"premise": "It is so .", "hypothesis": "so", "label": "not_entailment"},
    "WiC": {"sentence1": "Go there", "sentence2": "I do go .", "start1": 0, "end1": 2, "start2": 5,
            "end2": 7, "label": False},
    "WSC": {"text": "The old dog saw it .", "label": True, "target": {
        "span1_index": 0, "span1_text": "The old dog", "span2_index": 4, "span2_text": "it"}},
}  # fmt: skip
MADE = {
    "BoolQ": (("It is .", "is it"), "true"),
    "CB": (("I say so .", "so"), "neutral"),
    "COPA": (("He fell so", "it hurt.", "I ran."), "0"),
    "MultiRC": (("A dog .", "Who?\na dog\nno"), "1 0"),
    "RTE": (("It is so .", "so"), "not_entailment"),
    "WiC": (("* Go * there", "I do * go * ."), "false"),
    "WSC": (("* The old dog * saw # it # .",), "true"),
}
SWAG = "sent1,sent2,ending0,ending1,ending2,ending3,label\n"


def write(folder: pathlib.Path, name: str, row: dict[str, Any], count: int = 4) -> None:
    (folder / name).mkdir(parents=True, exist_ok=True)
    for split in ("train", "val"):
        (folder / f"{name}/{split}.jsonl").write_text(f"{json.dumps(row)}\n" * count)


@pytest.mark.parametrize("name", ROWS)
def test_rows_become_records(tmp_path, name: str) -> None:
    write(tmp_path, name, ROWS[name])
    task = load_task(f"superglue_{name.lower()}")
    records = load(task, tmp_path).dev["dev"]
    assert records is not None and records.labels is not None and task.labels is not None
    texts = tuple(column[0] for column in records.texts)
    label = records.labels[0]
    assert (texts, label if name == "MultiRC" else task.labels[label]) == MADE[name]
    if name == "MultiRC":
        assert records.labels.tolist() == ["1 0", "0 1", "1"] * 4


BABYLM = {  # rows of the BabyLM Challenge, and the records of them
    "BoolQ": (ROWS["BoolQ"] | {"label": 1}, ("is it", "It is ."), 1),
    "MultiRC": ({"paragraph": "A dog .", "question": "Who?", "answer": "a  dog", "label": 0},
                ("A dog .", "Question: Who? Answer:\na dog"), "0"),
    "WSC": ({"text": "She saw it .", "span1_text": "She", "span2_text": "it", "label": 0},
            ('Does "it" refer to "She" in this passage?', "She saw it ."), 0),
}  # fmt: skip


def write_babylm(folder: pathlib.Path, name: str, *rows: dict[str, Any]) -> None:
    folder.mkdir(exist_ok=True)
    for split in ("train", "valid"):
        path = folder / f"{name.lower()}.{split}.jsonl"
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


@pytest.mark.parametrize("name", BABYLM)
def test_rows_of_the_babylm_challenge(tmp_path, name: str) -> None:
    row, texts, label = BABYLM[name]
    task = load_task(f"superglue_{name.lower()}")
    write_babylm(tmp_path, name, row, row)
    records = load(task, tmp_path).dev["dev"]
    assert records is not None and records.labels is not None
    assert [*zip(*records.texts, strict=True)] == [texts] * 2
    assert records.labels.tolist() == [label] * 2
    for change, message in (({"label": 2}, "2"), ({"question": 1, "text": 1}, "1|split")):
        write_babylm(tmp_path, name, row, row | change)
        with pytest.raises(ValueError, match=f"train.jsonl, line 2: .*({message})"):
            load(task, tmp_path)
    write_babylm(tmp_path, name, row)
    (tmp_path / f"{name.lower()}.train.jsonl").unlink()
    with pytest.raises(ValueError, match=f"expected the file .*{name.lower()}.train.jsonl"):
        load(task, tmp_path)


@pytest.mark.parametrize(("name", "change", "message"), [
    ("BoolQ", {"label": "yes"}, "'yes'.*'false', 'true'"),
    ("CB", {"premise": None}, "texts.*None"),
    ("CB", {"hypothesis": ...}, "'hypothesis'"),
    ("RTE", {"label": ...}, "'label'"),
    ("COPA", {"label": 2}, "'2'.*'0', '1'"),
    ("COPA", {"choice3": "More."}, "two choices"),
    ("COPA", {"question": "why"}, "'why'"),
    ("MultiRC", {"passage": []}, "MultiRC"),
    ("MultiRC", {"passage": {"text": "", "questions": [{"question": "Who?", "answers": [{
        "text": "a", "label": 3}]}]}}, "'3'"),
    ("MultiRC", {"passage": {"text": "", "questions": [{"question": "Who?", "answers": []}]}},
     "'Who\\?' has no answer"),
    ("WiC", {"end2": 70}, "5 to 70"),
    ("WSC", {"text": "The old dog"}, "word 4"),
])  # fmt: skip
def test_a_wrong_row_is_named(tmp_path, name: str, change: dict[str, Any], message: str) -> None:
    write(tmp_path, name, ROWS[name])
    row = {key: value for key, value in (ROWS[name] | change).items() if value is not ...}
    good, path = json.dumps(ROWS[name]), tmp_path / name / "val.jsonl"
    path.write_text(f"{good}\n\n{json.dumps(row)}\n")
    with pytest.raises(ValueError, match=f"val.jsonl, line 3: .*{message}"):
        load(load_task(f"superglue_{name.lower()}"), tmp_path)


def write_swag(folder: pathlib.Path, table: str) -> pathlib.Path:
    (folder / "swag").mkdir(parents=True)
    for split in ("train", "val"):
        (folder / f"swag/{split}.csv").write_text(table)
    return folder


def test_swag_is_read_with_quotes(tmp_path) -> None:
    data = write_swag(tmp_path, f'{SWAG}"He sits, up.",He,runs.,"says ""no"".",eats.,"go\nes.",3\n')
    records = load(load_task("swag"), data).train
    assert [c[0] for c in records.texts][:3] == ["He sits, up.", "He runs.", 'He says "no".']
    assert records.labels is not None and records.labels.tolist() == [3]


@pytest.mark.parametrize(("table", "message"), [
    (f"{SWAG}a,b,c,d,e,f,4\n", "line 2: .*'4'"),
    (f"{SWAG}a,b,c,d,e,f\n", "line 2: .*7 fields"),
    (f"{SWAG}", "no rows"),
    (f"ending4,{SWAG}x,a,b,c,d,e,f,1\n", "found the column ending4"),
    ("sent1,label\na,0\n", "ending0"),
])  # fmt: skip
def test_a_wrong_swag_is_named(tmp_path, table: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"(?s)train.csv.*{message}"):
        load(load_task("swag"), write_swag(tmp_path, table))


def test_metrics_of_multirc_by_hand() -> None:
    """Answers found 2, marked 4, right 3; questions without an error: one of three."""
    gold, predicted = np.array(["1 0", "0 1 1", "0"]), np.array(["1 0", "1 1 0", "1"])
    assert METRICS["f1a"](gold, predicted) == pytest.approx(2 * 2 / (4 + 3))
    assert METRICS["question_match"](gold, predicted) == pytest.approx(1 / 3)


SLOW = ("CB", "swag")  # compile programs of their own, and are alike to others


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (n in SLOW)) for n in [*ROWS, "swag"]]
)
def test_every_program_runs(start: Start, pretrained_runs, tmp_path, name: str) -> None:
    data, task = tmp_path / "data", f"superglue_{name.lower()}" if name in ROWS else name
    if name in ROWS:
        write(data, name, ROWS[name])
    else:
        write_swag(data, SWAG + "a,b,c,d,e,f,1\n" * 4)
    code, out, errors = start(task, f"--init={pretrained_runs('bert')}", f"--data={data}")
    assert code == 0, errors
    assert re.search("train .* of ", out)  # not the published number
    result = json.loads((tmp_path / "work/seed0/result.json").read_text())
    assert tuple(result["eval"]["dev"]) == load_task(task).metrics
    table = (tmp_path / "work/seed0/predictions.tsv").read_text().splitlines()
    assert len(table) == 1 + 4 * (3 if name == "MultiRC" else 1)
    assert not (name == "MultiRC" and "probability" in table[0])


@pytest.mark.ci
@pytest.mark.parametrize("name", ["COPA", "MultiRC", "WSC"])
def test_every_kind_of_label_becomes_words(start, pretrained_runs, tmp_path, name: str) -> None:
    write(tmp_path / "data", name, ROWS[name])
    task, own = load_task(f"superglue_{name.lower()}"), tmp_path / "work/seed0"
    given = f"--init={pretrained_runs('gpt2')}", f"--data={tmp_path}/data", "--as=text"
    code, out, errors = start(task.name, *given)
    assert code == 0, errors
    count = 20 if name == "MultiRC" else 4
    assert re.search(rf"replaced by the best of the labels: \d+ of {count} \(dev[:)]", out)
    result, known = json.loads((own / "result.json").read_text()), own / "predictions.tsv"
    found = predictions.read(known)
    assert tuple(result["eval"]["dev"]) == task.metrics
    for metric, value in result["eval"]["dev"].items():
        assert value == pytest.approx(METRICS[metric](found.gold, found.predicted)), metric
    if name == "MultiRC":
        with pytest.raises(ValueError, match="head of kind answer_words, which predicts no class"):
            next(predict.predict(own, known))
    else:
        rows = tmp_path / "new.jsonl"
        texts = dict(zip(task.columns.texts, MADE[name][0], strict=True))
        rows.write_text(json.dumps(texts) + "\n")
        ((lines, _),) = predict.predict(own, rows)
        assert lines[1].split()[-3:] == known.read_text().splitlines()[1].split("\t")[-3:]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["MultiRC", "WSC"])  # BoolQ is read as WSC
def test_the_babylm_recipe(start: Start, pretrained_runs, tmp_path, name: str) -> None:
    task = f"superglue_{name.lower()}"
    write_babylm(tmp_path / "filtered", name, *[BABYLM[name][0]] * 4)
    given = f"--init={pretrained_runs('bert')}", f"--data={tmp_path}/filtered", "--recipe=babylm"
    code, _, errors = start(task, *given)
    assert code == 0, errors
    result = json.loads((tmp_path / "work/seed0/result.json").read_text())
    assert (result["recipe"], *result["eval"]["dev"]) == ("babylm", *load_task(task).metrics)
    lines = (tmp_path / "work/seed0/predictions.tsv").read_text().splitlines()
    assert len(lines) == 1 + 4 and "passage" in lines[1] or "Question:" in lines[1]
