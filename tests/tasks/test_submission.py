"""The leaderboard's files, byte by byte, and the archive of them."""

import dataclasses
import zipfile

import glue_folder
import numpy as np
import pytest

from scalelab.tasks import submission
from scalelab.tasks.task import load, load_task

FILES = {
    "CoLA.tsv", "SST-2.tsv", "MRPC.tsv", "STS-B.tsv", "QQP.tsv", "MNLI-m.tsv", "MNLI-mm.tsv",
    "QNLI.tsv", "RTE.tsv", "WNLI.tsv", "AX.tsv",
}  # fmt: skip


@pytest.fixture(scope="module")
def glue(tmp_path_factory):
    return glue_folder.write(tmp_path_factory.mktemp("glue"))


def test_the_names_of_a_whole_submission():
    assert set(submission.official_files()) == FILES
    assert len(submission.official_files()) == len(FILES)


@pytest.mark.parametrize(
    "name, split, file, predicted, lines",
    [
        ("cola", "test", "CoLA.tsv", [0, 1, 1], "0 1 1"),
        ("sst2", "test", "SST-2.tsv", [1, 0, 1], "1 0 1"),
        ("mrpc", "test", "MRPC.tsv", [1, 0, 0], "1 0 0"),
        ("stsb", "test", "STS-B.tsv", [-0.3, 5.01, 2.34567], "0.000 5.000 2.346"),
        ("qqp", "test", "QQP.tsv", [0, 0, 1], "0 0 1"),
        ("mnli", "test_matched", "MNLI-m.tsv", [2, 0, 1], "contradiction entailment neutral"),
        ("mnli", "test_mismatched", "MNLI-mm.tsv", [0, 0, 1], "entailment entailment neutral"),
        ("mnli", "AX", "AX.tsv", [1, 1, 2], "neutral neutral contradiction"),
        ("qnli", "test", "QNLI.tsv", [0, 1, 1], "entailment not_entailment not_entailment"),
        ("rte", "test", "RTE.tsv", [1, 0, 0], "not_entailment entailment entailment"),
        ("wnli", "test", "WNLI.tsv", [1, 1, 0], "1 1 0"),
    ],
)
def test_a_file(glue, tmp_path, name, split, file, predicted, lines):
    task = load_task(name)
    written = submission.write(
        task, load(task, glue), {split: np.array(predicted)}, tmp_path / "out"
    )
    assert written == [tmp_path / "out" / file]
    rows = "".join(f"{i}\t{line}\n" for i, line in enumerate(lines.split()))
    assert written[0].read_bytes() == f"index\tprediction\n{rows}".encode()


def test_a_score_that_rounds_to_nothing_has_no_sign(glue, tmp_path):
    task = dataclasses.replace(load_task("stsb"), score_range=None)
    (path,) = submission.write(
        task, load(task, glue), {"test": np.array([-0.0002, -1.5, 7], np.float32)}, tmp_path
    )
    assert path.read_text().split("\n")[1:4] == ["0\t0.000", "1\t-1.500", "2\t7.000"]


@pytest.mark.parametrize(
    "name, predicted, message",
    [
        ("rte", [0, 1], r"RTE test: expected 3 predictions, one a row, found the shape \(2,\)"),
        ("rte", [[0], [1], [1]], r"found the shape \(3, 1\)"),
        ("rte", [0, 2, 1], "RTE test: the prediction of row 1 is 2, expected an index from 0 to 1"),
        ("rte", [0, 1, -1], "row 2 is -1"),
        ("rte", [0.0, 1.0, 1.0], "expected class indices, found float64"),
        ("stsb", [1.0, np.nan, 2.0], "STS-B test: the prediction of row 1 is nan"),
        ("stsb", [np.inf, 1, 2.0], "row 0 is inf"),
    ],
)
def test_predictions_that_cannot_be(glue, tmp_path, name, predicted, message):
    task = load_task(name)
    with pytest.raises(ValueError, match=message):
        submission.write(task, load(task, glue), {"test": np.array(predicted)}, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_predictions_of_a_split_that_is_not_there(glue, tmp_path):
    task = load_task("rte")
    splits = load(task, glue)
    with pytest.raises(ValueError, match="predictions of 'dev', .* that are there are: test$"):
        submission.write(task, splits, {"dev": np.zeros(3, int)}, tmp_path)
    splits = dataclasses.replace(splits, test={"test": None})
    with pytest.raises(ValueError, match="that are there are: none$"):
        submission.write(task, splits, {"test": np.zeros(3, int)}, tmp_path)


def test_the_archive(glue, tmp_path):
    out = tmp_path / "out"
    for name in ("rte", "mnli"):
        task = load_task(name)
        tests = {s.name: np.zeros(3, int) for s in task.test_splits}
        submission.write(task, load(task, glue), tests, out)
    (out / "notes.tsv").write_text("not for the leaderboard")
    absent, *short = submission.zip_all(out, tmp_path / "a.zip")
    wanted = sorted(FILES - {"RTE.tsv", "MNLI-m.tsv", "MNLI-mm.tsv", "AX.tsv"})
    assert absent == f"absent: {', '.join(wanted)}"
    assert "RTE.tsv has 3 rows, not the official 3,000" in short and len(short) == 4
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        assert archive.namelist() == ["AX.tsv", "MNLI-m.tsv", "MNLI-mm.tsv", "RTE.tsv"]
        assert archive.read("RTE.tsv") == (out / "RTE.tsv").read_bytes()


def test_a_whole_test_set_is_not_called_short_and_one_row_less_is(tmp_path, capsys):
    """The counts are those of the leaderboard's own instructions."""
    folder = tmp_path / "submission"
    folder.mkdir()
    for name, rows in (("STS-B.tsv", 1379), ("RTE.tsv", 2999), ("AX.tsv", 1104)):
        (folder / name).write_text("index\tprediction\n" + "0\t0\n" * rows)
    _, *short = submission.zip_all(folder, tmp_path / "a.zip")
    assert short == ["RTE.tsv has 2,999 rows, not the official 3,000"]
    submission.pack(tmp_path)
    said = capsys.readouterr().out
    assert "not a whole submission: RTE.tsv has 2,999 rows, not the official 3,000" in said
    assert "not a whole submission: absent: CoLA.tsv, MNLI-m.tsv" in said
    assert (tmp_path / "submission.zip").read_bytes() == (tmp_path / "a.zip").read_bytes()


def test_no_test_set_at_all_is_said_and_no_archive_is_made(tmp_path, capsys):
    submission.pack(tmp_path)
    assert capsys.readouterr().out.startswith("no ") and not list(tmp_path.iterdir())


def test_equal_files_make_an_equal_archive(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    for folder, files in (("one", ("RTE.tsv", "AX.tsv")), ("two", ("AX.tsv", "RTE.tsv"))):
        for i, file in enumerate(files):
            path = tmp_path / folder / file
            path.write_text(file)
            path.chmod(0o600 + 0o44 * i)
        submission.zip_all(tmp_path / folder, tmp_path / f"{folder}.zip")
    assert (tmp_path / "one.zip").read_bytes() == (tmp_path / "two.zip").read_bytes()
    assert not list(tmp_path.glob(".*"))


def test_nothing_to_pack(tmp_path):
    with pytest.raises(ValueError, match="expected submission files, such as AX.tsv; found none"):
        submission.zip_all(tmp_path, tmp_path / "a.zip")
    assert not (tmp_path / "a.zip").exists()
