"""A user's own files become a task like any other."""

import in_process
import pytest

from scalelab.eval import program, score_names, tsv
from scalelab.eval.tsv import make_task
from scalelab.tasks import recipes, submission
from scalelab.tasks.task import load, task_names


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "reviews"
    path.mkdir()
    (path / "train.tsv").write_text(
        "n\tstars\ttext\tnote\n0\t2\tfine\tx\n1\t1\tbad\ty\n2\t2\tgood\tz"
    )
    (path / "dev.tsv").write_text("text\tstars\tnote\nso so\t1\tq\n")
    (path / "test.tsv").write_text("text\tnote\nwell\tr\n")
    return path


def test_classes_are_those_of_the_training_file(folder):
    task = make_task(folder, "classification", ["text", "stars"])
    assert (task.name, task.relation, task.labels) == ("reviews", "single", ("1", "2"))
    splits = load(task, folder)
    assert splits.train.texts == (["fine", "bad", "good"],)
    assert splits.train.labels is not None and splits.train.labels.tolist() == [1, 0, 1]
    assert splits.dev["dev"] is not None and splits.dev["dev"].texts == (["so so"],)
    assert splits.test["test"] is not None and splits.test["test"].labels is None


def test_regression_and_pairs(folder):
    task = make_task(folder, "regression", ["text", "note", "stars"])
    assert (task.name, task.relation, task.labels) == ("reviews", "entailment", None)
    assert task.metrics == ("pearson", "spearman")
    splits = load(task, folder)
    assert splits.train.texts == (["fine", "bad", "good"], ["x", "y", "z"])
    assert splits.train.labels is not None and splits.train.labels.tolist() == [2.0, 1.0, 2.0]
    same = make_task(folder, "regression", ["text", "note", "stars"], relation="similarity")
    assert same.relation == "similarity"


@pytest.mark.parametrize("name", ["rte", "RTE", "SST-2", "stsb", "same_document"])
def test_a_folder_called_like_a_published_task_is_not_taken_for_it(folder, name):
    """Its results have another name: what knows GLUE's by theirs, averages too, passes it over."""
    own = folder.rename(folder.parent / name)
    task = make_task(own, "classification", ["text", "stars"])
    assert task.name == task.title == f"own-{name}"
    assert task.name not in task_names() and task.name not in score_names.GLUE_TITLES
    assert not any(task.name in recipe.tasks for recipe in recipes.RECIPES.values())
    assert task.test_splits[0].submission == f"own-{name}.tsv" not in submission.official_files()


def test_fields_for_a_users_task_alone():
    def settings(*given):
        return program.task_fields(given, "my.task", ["my.task"])

    found = settings("my.task.epochs=7", "my.task.optim.eps=1e-8")
    assert found == {"epochs": 7, "optim.eps": 1e-8}
    with pytest.raises(ValueError, match="expected task.field=value"):
        settings("my.task.epochs")
    with pytest.raises(ValueError, match="rte.*my.task"):
        settings("rte.epochs=7")


def test_a_dev_label_that_training_does_not_have(folder):
    (folder / "dev.tsv").write_text("text\tstars\nnew\t3\n")
    (folder / "test.tsv").unlink()  # it is not needed
    task = make_task(folder, "classification", ["text", "stars"])
    with pytest.raises(ValueError, match="dev.tsv, line 2: .*'3' .*'1', '2'"):
        load(task, folder)


def test_labels_that_are_no_classes(folder):
    with pytest.raises(ValueError, match=" 2 .*1000 .* 1;"):
        (folder / "train.tsv").write_text("text\tstars\na\tc\nb\tc\n")
        make_task(folder, "classification", ["text", "stars"])
    rows = "".join(f"a\t{i / 7}\n" for i in range(1001))
    (folder / "train.tsv").write_text("text\tstars\n" + rows)
    with pytest.raises(ValueError, match="1001.*--kind=regression"):
        make_task(folder, "classification", ["text", "stars"])


def test_the_flags_describe_a_task(folder, monkeypatch, capsys):
    made = []
    monkeypatch.setattr(program, "fine_tune", lambda given, task: made.append(task))
    asked = [f"--data={folder}", "--kind=regression"]
    in_process.run(tsv, [*asked, "--columns=text,note,stars", "--relation=similarity"])
    columns = ["text", "note", "stars"]
    assert made == [make_task(folder, "regression", columns, relation="similarity")]
    assert in_process.code(tsv, asked) == 2 and "--columns is missing" in capsys.readouterr().err


def test_a_file_in_place_of_the_folder_gets_its_folder_named(folder):
    with pytest.raises(ValueError, match=f"is a file; .*--data={folder}$"):
        make_task(folder / "train.tsv", "classification", ["text", "stars"])
