"""Ensembles: the average of probabilities against a hand-computed one, and what is refused."""

import pathlib

import law_folders
import numpy as np
import predicted
import pytest
import task_folders

from scalelab.eval import ensemble
from scalelab.records import predictions

GOLD = np.array([0, 1, 2, 0])
MEMBERS = np.array([  # each alone is right in 2, 2 and 3 of 4; their mean in all
    [[.6, .3, .1], [.2, .5, .3], [.5, .2, .3], [.3, .6, .1]],
    [[.4, .5, .1], [.3, .4, .3], [.1, .2, .7], [.4, .5, .1]],
    [[.8, .1, .1], [.5, .4, .1], [.2, .2, .6], [.9, .0, .1]],
])  # fmt: skip


def write(folder: pathlib.Path, shares: np.ndarray, name: str = "predictions", **given) -> None:
    fields = {"texts": [list("abcd")], "gold": GOLD, "labels": ["x", "y", "z"]} | given
    with np.errstate(divide="ignore"):
        predicted.write(folder / f"{name}.tsv", outputs=np.log(shares), **fields)


@pytest.fixture
def runs(tmp_path: pathlib.Path) -> list[pathlib.Path]:
    """Three runs of MNLI with these predictions on both dev sets."""
    task_folders.write_all(tmp_path, tasks=("mnli",))
    folders = [tmp_path / f"mnli/seed{k}" for k in range(3)]
    for folder, shares in zip(folders, MEMBERS, strict=True):
        write(folder, shares)
        write(folder, shares, "predictions-mismatched")
    return folders


def test_an_average_by_hand(runs, capsys) -> None:
    table = ensemble.score(runs).set_index(["split", "metric"])
    assert [*table.index] == [
        (split, metric)
        for split in ("matched", "mismatched")
        for metric in ("accuracy", "log loss")
    ]
    right = MEMBERS[:, np.arange(4), GOLD]
    losses = -np.log(right).mean(axis=1)
    expected = {"accuracy": (7 / 12, 3 / 4, 1.0)}
    expected["log loss"] = (losses.mean(), losses.min(), -np.log(right.mean(axis=0)).mean())
    for (_, metric), row in table.iterrows():
        np.testing.assert_allclose(
            [*row[["mean", "best", "ensemble"]]], expected[metric], rtol=1e-6
        )
    assert expected["log loss"][2] < expected["log loss"][0]  # Jensen
    voted = np.array([np.bincount(m, minlength=3).argmax() for m in MEMBERS.argmax(axis=2).T])
    assert (voted == GOLD).mean() < 1  # a vote is another ensemble
    lines = law_folders.output(capsys, ensemble, *map(str, runs)).splitlines()
    assert len(lines) == 6 and lines[2].split()[-3:] == ["0.5833", "0.7500", "1.0000"]


def test_a_model_with_itself_is_the_model(runs) -> None:
    table = ensemble.score([runs[1]] * 3)
    for column in ("mean", "best"):
        np.testing.assert_allclose(table[column], table["ensemble"], rtol=1e-12)


def test_scores_of_a_regression_are_averaged(tmp_path) -> None:
    gold, members = np.array([0.0, 1.0, 2.0, 3.0]), np.array([[0, 2, 1, 3], [0, 0, 3, 3]])
    task_folders.write_all(tmp_path, tasks=("stsb",), num_seeds=2)
    for k, scores in enumerate(members):
        folder = tmp_path / f"stsb/seed{k}"
        given = {"texts": [list("abcd")], "gold": gold, "labels": None}
        predicted.write(folder / "predictions.tsv", outputs=scores[:, None], **given)
    table = ensemble.score([tmp_path / f"stsb/seed{k}" for k in range(2)]).set_index("metric")
    assert table["ensemble"]["pearson"] == pytest.approx(1.0)
    assert table["best"]["pearson"] < 0.95
    assert "log loss" not in table.index


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"texts": [list("abce")]}, "other texts"),
        ({"gold": np.array([0, 1, 2, 1])}, "other gold labels from example 3 on"),
        ({"labels": ["y", "x", "z"]}, "the labels"),
        (None, "other tasks"), ("packed", "packed"), ("one", "at least two"), ("none", "seed7"),
    ],
    ids=str,
)  # fmt: skip
def test_what_cannot_be_averaged_is_refused(runs, capsys, changes, message: str) -> None:
    given = runs
    if isinstance(changes, dict):
        write(runs[2], MEMBERS[2], **changes)
    elif changes is None:
        task_folders.write_all(runs[0].parents[1], tasks=("rte",), num_seeds=1)
        given = [runs[0], runs[0].parents[1] / "rte/seed0"]
    elif changes == "packed":
        path = runs[1] / "predictions.tsv"
        predictions.pack(path.with_suffix(".npz"), predictions.read(path))
        path.unlink()
    else:
        given = runs[:1] + [runs[0].parent / "seed7"] * (changes == "none")
    assert message in law_folders.fails(capsys, ensemble, *map(str, given))


def test_tags_and_spans_have_no_average(tmp_path) -> None:
    task_folders.write_all(tmp_path, tasks=("rte",), num_seeds=2)
    folders = [tmp_path / f"rte/seed{k}" for k in range(2)]
    for folder in folders:
        words = np.array(["a", "b"])
        given = {"texts": [["x", "y"]], "gold": words, "labels": None}
        predicted.write(folder / "predictions.tsv", outputs=words[:, None], **given)
    with pytest.raises(ValueError, match="no average"):
        ensemble.score(folders)
