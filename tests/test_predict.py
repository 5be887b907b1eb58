"""A fine-tuned model on new text: what the fine-tuning itself predicted, from three kinds of
file."""

import csv
import io
import json
import pathlib

import fine_tuned
import glue_folder
import in_process
import numpy as np
import pytest

from scalelab import finetune, predict
from scalelab.finetuning import reopen
from scalelab.records import predictions
from scalelab.tasks import batches


@pytest.fixture
def seed(pretrained_runs, cache_dir, tmp_path, monkeypatch):
    """seed(system, task) -> the folder of a seed after a few steps, and its GLUE folder."""
    monkeypatch.setattr(batches, "BUCKETS", (64,))
    data = glue_folder.write(tmp_path / "glue")

    def made(system: str, task: str) -> tuple[pathlib.Path, pathlib.Path]:
        run = fine_tuned.prepare(
            pretrained_runs(system), task, data, tmp_path / f"{system}-{task}",
            **fine_tuned.values(cache_dir, optim__learning_rate=3e-2),
        )  # fmt: skip
        finetune.train([run], 0, run.workdir)
        return run.folder(0), data

    return made


def table(lines: list[str]) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO("".join(lines)), delimiter="\t", quoting=csv.QUOTE_NONE))


@pytest.mark.parametrize(("system", "task", "file"), [
    ("bert", "rte", "RTE/dev.tsv"),
    ("bert", "cola", "CoLA/dev.tsv"),  # without a header; classes have names
    ("gpt", "stsb", "STS-B/dev.tsv"),  # added tokens, both orders, a score
])  # fmt: skip
def test_the_dev_file_gets_the_predictions_of_the_fine_tuning(system, task, file, seed) -> None:
    folder, data = seed(system, task)
    known = predictions.read(folder / "predictions.tsv")
    for rows in (4096, 2):  # in one part, and in two
        parts = [*predict.predict(folder.parent, data / file, rows=rows)]
        found = table([line for lines, _ in parts for line in lines])
        assert len(parts) == (1 if rows > 3 else 2)
        names = [name for name in found[0] if name.startswith(("text", "sentence"))]
        assert names == (["text"] if task == "cola" else ["sentence1", "sentence2"])
        texts = [[row[name] for row in found] for name in names]
        assert texts == [*map(list, known.texts)] and [r["index"] for r in found] == ["0", "1", "2"]
        if known.labels is None:
            made = np.array([float(row["prediction"]) for row in found])
            np.testing.assert_allclose(made, known.predicted, atol=1e-5)
            continue
        assert [row["prediction"] for row in found] == [known.labels[i] for i in known.predicted]
        made = np.array([[float(row[f"p:{name}"]) for name in known.labels] for row in found])
        np.testing.assert_allclose(made, known.probabilities, atol=1e-5)
        if task == "cola":
            names = {"0": "unacceptable", "1": "acceptable"}
            assert all(row["class"] == names[row["prediction"]] for row in found)


def test_other_kinds_of_file_and_other_columns(seed, tmp_path, capsys) -> None:
    folder, data = seed("bert", "rte")
    rows = [('An "odd", cold day.', "It was\ncold."), ("No.", "x " * 200)]
    with (tmp_path / "new.csv").open("w", newline="") as file:
        csv.writer(file).writerows(
            [("id", "sentence2", "sentence1"), *((7, b, a) for a, b in rows)]
        )
    objects = [json.dumps({"a": a, "b": b, "n": 1}) for a, b in rows]
    (tmp_path / "new.jsonl").write_text("\n".join(objects) + "\n")
    arguments, _ = [f"--run={folder}", f"--output={tmp_path}/out.tsv"], capsys.readouterr()
    written = []
    for more in ([f"{tmp_path}/new.csv"], [f"{tmp_path}/new.jsonl", "--columns=a,b"]):
        in_process.run(predict, [*more, *arguments])
        assert capsys.readouterr().err == "2 predictions; 1 texts were cut to fit\n"
        written.append((tmp_path / "out.tsv").read_text())
    assert written[0].startswith("index\tsentence1\tsentence2\tprediction\t")  # the task's order
    assert written[0].replace("sentence1\tsentence2", "a\tb") == written[1]
    assert "It was\\ncold." in written[0]
    (tmp_path / "new.txt").write_text("")
    (tmp_path / "short.tsv").write_text("sentence1\tsentence2\nx\n")
    for more, message in (
        (["new.jsonl"], "sentence1,sentence2"), (["new.csv", "--columns=a"], "2 text columns"),
        (["new.txt"], ".csv"), (["short.tsv"], "line 2"),
    ):  # fmt: skip
        with pytest.raises(SystemExit) as ended:
            in_process.run(predict, [f"{tmp_path}/{more[0]}", *more[1:], *arguments])
        assert ended.value.code == 2 and message in capsys.readouterr().err
    assert (tmp_path / "out.tsv").read_text() == written[1]  # the last good result


def test_a_tokenizer_that_has_changed_is_refused(seed) -> None:
    folder, _ = seed("bert", "rte")
    path = folder / "tokenizer/tokenizer.json"
    path.write_text(path.read_text() + " ")
    with pytest.raises(ValueError, match="seed0/tokenizer has changed since the run was trained"):
        reopen.load(folder)


def test_what_is_no_fine_tuning(pretrained_runs) -> None:
    with pytest.raises(ValueError, match="is no fine-tuning"):
        reopen.load(pretrained_runs("bert"))


def test_an_imported_classifier(pretrained_runs, tmp_path) -> None:
    run = fine_tuned.from_elsewhere(pretrained_runs("bert"), tmp_path, "double", ["bad", "good"])
    (tmp_path / "new.csv").write_text("text\nThe river froze.\nNobody counted.\n")
    with pytest.raises(ValueError, match="give --columns"):
        reopen.load(run)
    ((lines, cut),) = predict.predict(run, tmp_path / "new.csv", ["text"])
    rows = table(lines)
    assert cut == 0 and {row["prediction"] for row in rows} <= {"bad", "good"}
    assert all(abs(float(row["p:bad"]) + float(row["p:good"]) - 1) < 1e-6 for row in rows)
