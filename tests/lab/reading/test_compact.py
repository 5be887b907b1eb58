"""Packed runs: what stays, what goes, and that no reader can tell the difference."""

import json
import pathlib

import numpy as np
import pytest
import run_folders
import task_folders

from scalelab.lab.compare import bootstrap
from scalelab.lab.reading import compact, predictions, run_files, task_runs
from scalelab.lab.tasks import comparison, glue_table

TASKS = ("cola", "stsb", "mnli", "rte")


@pytest.fixture
def run(tmp_path: pathlib.Path) -> pathlib.Path:
    folder = run_folders.write(tmp_path / "run", steps=6000)
    run_folders.add_tasks(folder, TASKS)
    task_folders.write_run(folder / "scratch/rte", "rte", 0, 30)
    run_folders.complete(folder / "scratch/rte/seed0")
    return folder


def files(folder: pathlib.Path) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}


def size(folder: pathlib.Path) -> int:
    return sum(p.stat().st_size for p in folder.iterdir() if p.is_file())


def test_what_stays(run, tmp_path) -> None:
    to = compact.pack(run, tmp_path / "kept")
    facts = {"config.json", "environment.json", "metrics.jsonl", "result.json"}
    assert {f for f in files(to) if "/" not in f} == facts
    assert {p.name for p in (to / "tasks/mnli/seed2").iterdir()} == facts | {
        "predictions.npz",
        "predictions-mismatched.npz",
    }
    assert (to / "scratch/rte/seed0/predictions.npz").exists()
    for name in ("config.json", "tasks/rte/seed1/result.json"):
        assert (to / name).read_bytes() == (run / name).read_bytes()
    assert not [f for f in files(to) if f.endswith((".tsv", "large"))]
    texts = b"".join((to / f).read_bytes() for f in files(to))
    assert b"rte dev 7" not in texts  # compressed it would not show: see the next test
    assert size(to) < 60_000
    assert max(map(size, to.glob("tasks/*/seed*"))) < 10_000
    assert sorted(p.name for p in tmp_path.iterdir()) == ["kept", "run"]


def test_no_text_and_no_probability_is_in_the_arrays(run, tmp_path) -> None:
    to = compact.pack(run, tmp_path / "kept")
    with np.load(to / "tasks/mnli/seed0/predictions.npz") as packed:
        assert {name: packed[name].dtype.kind for name in packed.files} == {
            "gold": "u", "predicted": "u", "labels": "U", "texts": "U",
        }  # fmt: skip
        assert packed["gold"].dtype == np.uint8 and packed["texts"].shape == ()
    with np.load(to / "tasks/stsb/seed0/predictions.npz") as packed:
        assert sorted(packed.files) == ["gold", "predicted", "texts"]
        assert packed["predicted"].dtype == np.float32


def test_scores_intervals_and_differences_are_the_same_bit_for_bit(run, tmp_path) -> None:
    to = compact.pack(run, tmp_path / "kept")
    assert glue_table.csv(glue_table.read(to / "tasks")) == glue_table.csv(
        glue_table.read(run / "tasks")
    )
    whole, packed = task_runs.read(run / "tasks"), task_runs.read(to / "tasks")
    for name in TASKS:
        for split, metric in whole[name].keys:
            (a, one), (b, two) = (task_runs.stack(t[name], split) for t in (whole, packed))
            assert task_runs.differ(a, b) is None
            assert one.dtype == two.dtype and a.gold.dtype == b.gold.dtype
            estimates = [
                bootstrap.multi_bootstrap(x.gold, p, metric, seed=3)
                for x, p in ((a, one), (b, two))
            ]
            assert estimates[0].low == estimates[1].low
            assert estimates[0].value == estimates[1].value


def test_a_packed_run_compares_with_one_that_is_not(run, tmp_path) -> None:
    to = compact.pack(run, tmp_path / "kept")
    a, b = (comparison.open_system(str(folder / "tasks")) for folder in (run, to))
    claims, _ = comparison.compare(a, b)
    assert [c.difference.value for c in claims] == [0] * len(claims) and claims[0].paired


@pytest.mark.parametrize("packed", [False, True])
def test_other_texts_are_told_from_the_digest(run, tmp_path, monkeypatch, packed: bool) -> None:
    other = run_folders.write(tmp_path / "other")
    texts, gold = task_folders.dev_set("rte")
    monkeypatch.setattr(task_folders, "dev_set", lambda *_: ([*texts[:-1], "another"], gold))
    run_folders.add_tasks(other, ("rte",))
    if packed:
        other = compact.pack(other, tmp_path / "other-kept")
    (one, _), (two, _) = (
        task_runs.stack(task_runs.read(folder / "tasks")["rte"], "dev")
        for folder in (compact.pack(run, tmp_path / "kept"), other)
    )
    assert task_runs.differ(one, two) == "other texts of the dev set"


def test_the_digest_sees_order_columns_and_boundaries() -> None:
    def digest(*texts: list[str]) -> str:
        return predictions.Predictions(texts, np.zeros(2), np.zeros(2)).texts_digest

    different = [
        digest(["a", "b"]), digest(["b", "a"]), digest(["ab", ""]), digest(["a"], ["b"]),
        digest(["a", "b"], ["", ""]), digest(["a", "b\ud800"]),
    ]  # fmt: skip
    assert len(set(different)) == len(different)
    assert digest(["a", "b"]) == different[0]


def test_packing_what_is_packed_changes_nothing(run, tmp_path) -> None:
    once = compact.pack(run, tmp_path / "once")
    twice = compact.pack(once, tmp_path / "twice")
    assert files(once) == files(twice)
    for name in files(once):
        assert (once / name).read_bytes() == (twice / name).read_bytes(), name


def test_packing_leaves_the_same_bytes_each_time(run, tmp_path) -> None:
    one, two = (compact.pack(run, tmp_path / name) for name in "ab")
    for name in files(one):
        assert (one / name).read_bytes() == (two / name).read_bytes(), name


def test_metrics_are_thinned(run, tmp_path) -> None:
    to = compact.pack(run, tmp_path / "kept")
    rows = run_files.read_metrics(to / "metrics.jsonl", [])
    whole = run_files.read_metrics(run / "metrics.jsonl", [])
    assert [r for r in rows if "eval/loss" in r] == [r for r in whole if "eval/loss" in r]
    trained = [r["step"] for r in rows if "train/loss" in r]
    assert trained == list(range(40, 6001, 40))  # 600 lines: every fourth, 150
    assert [r for r in whole if r in rows] == rows  # in their order
    assert len(run_files.read_metrics(to / "tasks/rte/seed0/metrics.jsonl", [])) == 10 + 1


@pytest.mark.parametrize(
    ("count", "kept"), [(0, []), (1, [0]), (3, [0, 1, 2]), (4, [1, 3]), (7, [0, 3, 6])]
)
def test_every_kth_line_and_the_last(count: int, kept: list[int]) -> None:
    lines = [json.dumps({"step": k}) + "\n" for k in range(count)]
    found = compact.thin("".join(lines), 3).splitlines()
    assert [json.loads(line)["step"] for line in found] == kept


def test_a_failed_fine_tuning_stays_one(run, tmp_path) -> None:
    path = run / "tasks/rte/seed1/result.json"
    result = json.loads(path.read_text()) | {"status": "failed", "degenerate": "not finite"}
    path.write_text(json.dumps(result | {"eval": {"dev": {"accuracy": None}}}))
    to = compact.pack(run, tmp_path / "kept")
    assert [r.failed for r in task_runs.read(to / "tasks")["rte"].runs] == [
        None,
        "not finite",
        None,
    ]


def spoil_score(run: pathlib.Path) -> None:
    path = run / "tasks/rte/seed1/result.json"
    path.write_text(path.read_text().replace("0.81", "0.82"))


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda run: (run / "result.json").unlink(), "run holds no finished run"),
        (lambda run: (run / "result.json").write_text("{"), "result.json is damaged"),
        (lambda run: (run / "result.json").write_text('{"status": "failed"}'), "status 'failed'"),
        (lambda run: (run / "metrics.jsonl").write_text("{\n"), "metrics.jsonl is damaged"),
        (lambda run: (run / "tasks/rte/seed0/result.json").unlink(), "seed0 is not finished"),
        (spoil_score, "has accuracy 0.816667, but result.json beside it 0.82"),
    ],
)
def test_what_is_not_whole_is_refused_and_nothing_is_left(run, tmp_path, spoil, words: str) -> None:
    spoil(run)
    with pytest.raises(ValueError, match=words):
        compact.pack(run, tmp_path / "kept")
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


def test_a_folder_that_exists_is_left_alone(run, tmp_path) -> None:
    (tmp_path / "kept").mkdir()
    with pytest.raises(ValueError, match="kept exists"):
        compact.pack(run, tmp_path / "kept")
    with pytest.raises(ValueError, match="expected a finished pre-training, found .* task 'rte'"):
        compact.pack(run / "tasks/rte/seed0", tmp_path / "other")


def test_more_than_256_classes(tmp_path) -> None:
    labels = tuple(map(str, range(300)))
    classes = np.arange(300, dtype=np.int32)
    made = predictions.Predictions((["x"] * 300,), classes, classes[::-1], labels)
    predictions.pack(tmp_path / "p.npz", made)
    found = predictions.read(tmp_path / "p.npz")
    np.testing.assert_array_equal(found.gold, classes)
    np.testing.assert_array_equal(found.predicted, classes[::-1])
    assert found.labels == labels and found.texts is None


def test_a_damaged_packed_file_is_named(tmp_path) -> None:
    path = tmp_path / "p.npz"
    made = predictions.Predictions((["x", "y"],), np.zeros(2, np.float32), np.ones(2, np.float32))
    predictions.pack(path, made)
    whole = path.read_bytes()
    for content in (b"", b"no archive", whole[:40], whole[:-30], whole.replace(b"gold", b"gild")):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="p.npz is not as it was packed"):
            predictions.read(path)
