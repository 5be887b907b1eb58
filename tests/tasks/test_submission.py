"""The leaderboard's files, byte by byte, and the archive of them."""

import dataclasses
import re
import zipfile

import glue_folder
import numpy as np
import pytest

from scalelab.tasks import submission
from scalelab.tasks.task import load, load_task


@pytest.fixture(scope="module")
def glue(tmp_path_factory):
    return glue_folder.write(tmp_path_factory.mktemp("glue"))


@pytest.mark.parametrize("name, split, file, predicted, lines", [
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
])  # fmt: skip
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


def test_no_test_set_at_all_is_said_and_no_archive_is_made(tmp_path, capsys):
    submission.pack(tmp_path)
    assert capsys.readouterr().out.startswith("no ") and not list(tmp_path.iterdir())


def test_a_score_that_is_not_finite(glue, tmp_path):
    task = load_task("stsb")
    with pytest.raises(ValueError, match="STS-B test: .* not finite"):
        submission.write(task, load(task, glue), {"test": np.array([1, np.nan, 2])}, tmp_path)


def test_the_archive(tmp_path, capsys):
    """Counts are those of the leaderboard's own instructions; equal files, an equal archive."""
    rows = {"STS-B.tsv": 1379, "RTE.tsv": 2999, "AX.tsv": 1104, "notes.tsv": 1}
    archives = []
    for name, files in (("one", list(rows)), ("two", list(reversed(rows)))):
        folder = tmp_path / name / "submission"
        folder.mkdir(parents=True)
        for i, file in enumerate(files):
            (folder / file).write_text("index\tprediction\n" + "0\t0\n" * rows[file])
            (folder / file).chmod(0o600 + 0o44 * (i % 2))
        submission.pack(tmp_path / name)
        archives.append(tmp_path / name / "submission.zip")
        assert not list((tmp_path / name).glob(".*"))
    lines = capsys.readouterr().out.splitlines()[1:3]
    assert "absent: CoLA.tsv, MNLI-m.tsv" in lines[0] and "AX.tsv" not in lines[0]
    assert re.search("RTE.tsv .*2,999 .*3,000$", lines[1])
    assert archives[0].read_bytes() == archives[1].read_bytes()
    with zipfile.ZipFile(archives[0]) as archive:
        assert archive.namelist() == ["AX.tsv", "RTE.tsv", "STS-B.tsv"]
        assert archive.read("RTE.tsv") == (tmp_path / "one/submission/RTE.tsv").read_bytes()
