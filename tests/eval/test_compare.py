"""Two systems against each other: what is claimed, what is said beside, what is refused."""

import re

import law_folders
import numpy as np
import pytest
import task_folders

from scalelab.eval import compare

TASKS = ("rte", "wnli")


def two(tmp_path, wrong_a: int, wrong_b: int, tasks=TASKS, num_seeds: int = 4, **fields):
    """Two folders of fine-tunings from different weights."""
    a = task_folders.write_all(tmp_path / "a", wrong_a, tasks, num_seeds)
    apart = {"init": "runs/gpt", "init_digest": "f0f0f0f0"} | fields
    return a, task_folders.write_all(tmp_path / "b", wrong_b, tasks, num_seeds, **apart)


def claims_of(a, b, **fields):
    frame, notes = compare.compare(
        compare.open_system(str(a)), compare.open_system(str(b)), **fields
    )
    return list(frame.itertuples()), notes


def output(capsys, *arguments) -> list[str]:
    return law_folders.output(capsys, compare, *arguments).splitlines()


def fails(capsys, *arguments) -> str:
    return law_folders.fails(capsys, compare, *arguments)


def test_a_large_difference_is_found_and_a_small_one_is_not(tmp_path) -> None:
    a = task_folders.write_all(tmp_path / "a", 30, ("rte",), 4)
    b = task_folders.write_all(tmp_path / "b", 4, ("rte",), 4, init="runs/gpt", init_digest="f0")
    for first, second, verdict in ((a, b, "better"), (b, a, "worse"), (a, a, "undecided")):
        (claim,), _ = claims_of(first, second)
        assert claim.verdict == verdict
    (claim,), _ = claims_of(a, b)
    assert claim.difference == pytest.approx(26 / 60) == pytest.approx(claim.b - claim.a)
    assert 0 < claim.low < 26 / 60 < claim.high
    assert 0 < claim.detectable < 26 / 60


def test_holm_counts_one_claim_a_task(tmp_path) -> None:
    """MRPC's F1 and MNLI's mismatched set are shown, but claim nothing of their own."""
    a, b = two(tmp_path, 30, 20, ("mrpc", "mnli", "rte"))
    claims, _ = claims_of(a, b)
    main = [(c.name, c.metric) for c in claims if c.holm == c.holm]
    assert main == [("MRPC", "accuracy"), ("MNLI-m", "accuracy"), ("RTE", "accuracy")]
    beside = [(c.name, c.metric, c.verdict) for c in claims if c.holm != c.holm]
    assert beside == [("MRPC", "f1", ""), ("MNLI-mm", "accuracy", ""), ("mean of 3 tasks", "", "")]
    p = sorted(c.p for c in claims if c.holm == c.holm)
    corrected = sorted(c.holm for c in claims if c.holm == c.holm)
    assert corrected[0] == pytest.approx(min(1, 3 * p[0]))


@pytest.mark.parametrize(("fields", "more_seeds", "paired"), [
    ({"init_digest": "0123abcd"}, 0, True),
    ({"init_digest": "0123abcd"}, 1, False),
    ({"init_digest": "f0f0f0f0"}, 0, False),
    ({"init": None, "init_digest": "none"}, 0, False),
])  # fmt: skip
def test_seeds_are_paired_where_weights_and_seeds_are_the_same(
    tmp_path, fields, more_seeds, paired
) -> None:
    a, b = two(tmp_path, 12, 10, ("rte",), **fields)
    for seed in range(more_seeds):
        task_folders.write_run(b / "rte", "rte", 9 + seed, 10, **fields)
    (claim,), notes = claims_of(a, b)
    assert claim.paired == paired and (claim.seeds_a, claim.seeds_b) == (4, 4 + more_seeds)
    assert any(n.startswith("Seeds are " + ("paired" if paired else "independent")) for n in notes)


def test_several_pretrainings_are_resampled_too(tmp_path) -> None:
    """Pre-trainings that differ by 20 examples, their fine-tunings by 3: more uncertain so."""
    folders = []
    for k, wrong in enumerate((10, 20, 30)):
        folder = tmp_path / f"a{k}"
        task_folders.write_all(folder, wrong, ("rte",), 4, init_digest=f"{k}")
        folders.append(str(folder))
    b = task_folders.write_all(tmp_path / "b", 5, ("rte",), 4, init_digest="b")
    (single,), notes = claims_of(folders[1], b)
    (three,), _ = claims_of(",".join(folders), b)
    assert three.a == pytest.approx(
        np.mean([60 - w - s for w in (10, 20, 30) for s in range(4)]) / 60
    )
    assert (three.seeds_a, three.seeds_b) == (12, 4)
    assert three.standard_error > 1.5 * single.standard_error
    assert any("One pre-training" in note for note in notes)


def test_one_seed_decides_nothing(tmp_path, capsys) -> None:
    a, b = two(tmp_path, 50, 1, ("rte",), num_seeds=1)
    (claim,), _ = claims_of(a, b)
    assert claim.holm < 0.01 and claim.verdict == "undecided"
    lines = output(capsys, a, b)
    row = next(line for line in lines if line.startswith("RTE")).split()
    assert row[-2:] == ["undecided", "-"]
    assert any("single seed" in line for line in lines)


def test_other_dev_sets_are_refused(tmp_path, capsys, monkeypatch) -> None:
    """How dev sets differ: tests/lab/load/test_task_runs.py."""
    a = task_folders.write_all(tmp_path / "a", tasks=TASKS)
    b = task_folders.write_all(tmp_path / "b", tasks=("wnli",))
    texts, gold = task_folders.dev_set("rte")
    monkeypatch.setattr(task_folders, "dev_set", lambda *_: (texts, 1 - gold))
    task_folders.write_all(b, tasks=("rte",))
    line = fails(capsys, a, b)
    assert line.startswith("error: RTE dev: ") and "gold labels" in line


def test_other_recipes_are_refused_unless_allowed(tmp_path, capsys) -> None:
    a, b = two(tmp_path, 12, 10, recipe="small")
    line = fails(capsys, a, b)
    assert all(word in line for word in ("RTE", "thesis", "small", "--allow"))
    lines = output(capsys, a, b, "--allow")
    assert any(line.startswith("RTE") for line in lines)
    assert any(re.search("B: .* bert; .* small; .* runs/gpt", line) for line in lines)


def test_a_layer_chosen_on_dev_is_no_recipe(tmp_path, capsys) -> None:
    """The recipe of tree probes names the layer; their rank is a setting."""
    a, b, c = (
        task_folders.write_all(tmp_path / name, 12, ("rte",), 2, init_digest=name, recipe=recipe)
        for name, recipe in (("a", "layer 0, rank 64"), ("b", "layer 1, rank 64"),
                             ("c", "layer 1, rank 32"))
    )  # fmt: skip
    _, notes = claims_of(a, b)
    assert not any("settings" in note for note in notes)
    assert "rank 32" in fails(capsys, a, c)


def test_notes_are_about_a_side_and_name_the_task(tmp_path) -> None:
    """Two pre-trainings with one fine-tuning each are two seeds."""
    sides = []
    for letter in "ab":
        folders = [tmp_path / f"{letter}{k}" for k in range(2)]
        for folder in folders:
            task_folders.write_all(
                folder, 10, TASKS, 1, init_digest=folder.name, remarks=["5 items count as ties"]
            )
        sides.append(",".join(map(str, folders)))
    _, notes = claims_of(*sides)
    assert [n for n in notes if "ties" in n] == [
        f"A and B: {task}: 5 items count as ties" for task in ("RTE", "WNLI")
    ]
    assert not [n for n in notes if "One seed" in n]
    _, notes = claims_of(*(side.split(",")[0] for side in sides))
    assert len([n for n in notes if "One seed" in n and "RTE, WNLI" in n]) == 1


def test_other_settings_under_one_recipe_are_named(tmp_path) -> None:
    """One recipe's name, another number of epochs: the pair is not called equal."""
    same = {"init_digest": "0123abcd"}
    ours, theirs = ({"epochs": n, "learning_rate": r} for n, r in ((1.0, 2e-5), (6.0, 2e-2)))
    a = task_folders.write_all(tmp_path / "a", 12, TASKS, 3, **same, settings=ours)
    b = task_folders.write_all(
        tmp_path / "b", 10, TASKS, 3, **same, settings=theirs | {"max_len": 64}
    )
    _, notes = claims_of(a, b)
    values = "RTE, WNLI: epochs 1.0 in A, 6.0 in B; learning_rate 2e-05 in A, 0.02 in B."
    assert any(values in note for note in notes)
    _, notes = claims_of(a, a)
    assert not [note for note in notes if "settings" in note]


def test_bad_folders_are_one_message(tmp_path, capsys) -> None:
    a = task_folders.write_all(tmp_path / "a", tasks=("rte",))
    assert f"folder: {tmp_path / 'b'}" in fails(capsys, a, tmp_path / "b")
    (tmp_path / "b").mkdir()
    assert "holds no fine-tuning" in fails(capsys, a, tmp_path / "b")
    for nothing in ("", f"{a},", f"{a}, "):
        assert "empty" in fails(capsys, nothing, a)
    assert "no" in fails(capsys, a, a, f"--csv={tmp_path}/no/dir.csv")
    assert str(tmp_path) in fails(capsys, a, a, f"--csv={tmp_path}")
    task_folders.write_all(tmp_path / "b", tasks=("wnli",))
    assert re.search("A .*RTE, B .*WNLI", fails(capsys, a, tmp_path / "b"))
    c = task_folders.write_all(tmp_path / "c", tasks=("rte",))
    (c / "rte/seed1/predictions.tsv").unlink()
    assert "seed1/predictions.tsv" in fails(capsys, a, c)
    assert "of B has no" in fails(capsys, a, f"{a},{tmp_path / 'b'}")
    d = task_folders.write_all(tmp_path / "d", tasks=("rte",), num_seeds=2)
    assert "seeds" in fails(capsys, a, f"{a},{d}")
