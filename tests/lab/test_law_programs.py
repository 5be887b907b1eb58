"""Laws and frontiers of run folders: what is read, printed, drawn and refused."""

import csv
import json
import math
import pathlib

import matplotlib.image
import numpy as np
import pytest
import run_folders

from scalelab.lab import compound, frontier, laws, run_points, run_table
from scalelab.lab import runs as runs_program
from scalelab.lab.run_points import RunPoint

WIDTHS = (16, 24, 32, 48, 64, 96, 128)


def loss(n_model: float) -> float:
    return 2 + 30 * n_model**-0.3


def write(folder: pathlib.Path, widths=WIDTHS, system: str = "bert", num_seeds: int = 2, **fields):
    """Runs with planted losses: seeds scatter by 0.4% around them."""
    rng = np.random.default_rng(0)
    for width in widths:
        n_model = 24 * width**2
        for seed in range(num_seeds):
            config = run_folders.config_of(system, f"2x{width}x2", seed=seed)
            value = loss(n_model) * math.exp(0.004 * rng.normal())
            own = {"eval": {"128": {"loss": value, "step": 10}}, "seconds": 1e-3 * n_model} | fields
            run_folders.write(folder / f"{system}{width}-{seed}", config=config, steps=10, **own)
    return folder


def output(capsys, program, *arguments) -> str:
    program.main([str(a) for a in arguments])
    return capsys.readouterr().out


def fails(capsys, program, *arguments) -> str:
    """The one line of a refusal."""
    with pytest.raises(SystemExit) as end:
        program.main([str(a) for a in arguments])
    assert end.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


# --- Points ---------------------------------------------------------------------------------------


def test_points_are_finished_pre_trainings(tmp_path) -> None:
    write(tmp_path, (16, 32), num_seeds=1)
    run_folders.write(tmp_path / "going", finished=False)
    points, notes = run_points.read([tmp_path], "loss")
    assert [p.shape for p in points] == ["2x16x2", "2x32x2"]
    assert points[1].clocks == {"n_model": 24576, "tokens": 1000, "flops": 1e10,
                                "seconds": pytest.approx(24.576)}  # fmt: skip
    assert notes == ["1 runs are not finished, and left out"]


def test_scores_are_means_of_tasks_below_the_run(tmp_path) -> None:
    """10 of 60 wrong, and one more each seed; QQP's main metric is its accuracy too."""
    write(tmp_path, (16, 32), num_seeds=1)
    run_folders.add_tasks(tmp_path / "bert16-0", ("mnli", "qqp", "qnli"), 10, 3)
    for measure, right in (("mnli", 49), ("glue_large", 49)):
        (point,), notes = run_points.read([tmp_path], measure)
        assert point.value == pytest.approx(right / 60)
        assert point.shape == "2x16x2" and point.clocks["tokens"] == 1000
        assert notes == [f"1 runs have no {measure}, and are left out"]
    with pytest.raises(ValueError, match="no finished run with glue in"):
        run_points.read([tmp_path], "glue")


def test_fine_tunings_elsewhere_know_the_size_alone(tmp_path) -> None:
    tasks = run_folders.add_tasks(tmp_path / "somewhere", ("rte",), 6, 2)
    points, notes = run_points.read([tasks], "rte")
    assert [p.value for p in points] == pytest.approx([54 / 60, 53 / 60])
    assert all(p.clocks == {"n_model": 393_216} for p in points)
    assert "each point is one fine-tuning" in notes[0]


def test_losses_at_different_lengths_do_not_mix(tmp_path) -> None:
    write(tmp_path, (16,), num_seeds=1)
    config = run_folders.config_of(shape="2x32x2")
    config["long"]["example_rate"] = 0.5 if not config["long"]["example_rate"] else 0.0
    run_folders.write(tmp_path / "other", config=config)
    with pytest.raises(ValueError, match="different lengths, .* do not compare"):
        run_points.read([tmp_path], "loss")
    points, _ = run_points.read([tmp_path], "loss", "long.example_rate=0")
    assert len(points) == 1


EDITS = {
    "a loss": ("result.json", ("eval", "128", "loss"), 0.01, "last loss at length 128 is 0.01"),
    "tokens": ("result.json", ("tokens",), 1, "tokens are 1 in result.json"),
    "a width": ("config.json", ("net", "width"), 512, "512"),
    "a score": ("tasks/rte/seed1/result.json", ("eval", "dev", "accuracy"), 0.99,
                "has accuracy 0.883333, but result.json beside it 0.990000"),
}  # fmt: skip


@pytest.mark.parametrize("name", EDITS)
def test_an_edited_run_is_damaged_and_no_point(tmp_path, capsys, name) -> None:
    """In the run table, for laws, frontiers and compound scaling, and for a card."""
    file, path, value, said = EDITS[name]
    runs = write(tmp_path / "runs", num_seeds=1)
    for run in runs.iterdir():
        run_folders.add_tasks(run, ("rte",), 6, 2)
    spoilt = runs / "bert32-0" / file
    content = json.loads(spoilt.read_text())
    group = content
    for part in path[:-1]:
        group = group[part]
    group[path[-1]] = value
    spoilt.write_text(json.dumps(content))
    rows = {row["run"]: row for row in run_table.read([runs])}
    row = rows.pop(str(spoilt.parent))
    assert row["status"] == "damaged" and said in row["note"]
    assert not any(row[column] for column in run_table.MEASURED)
    assert {row["status"] for row in rows.values()} == {"completed"}
    measure = "rte" if name == "a score" else "loss"
    points, notes = run_points.read([runs], measure)
    assert notes[0].startswith(f"1 {run_points.DAMAGED}: {spoilt.parent}: ")
    right = dict.fromkeys(WIDTHS, 53.5 / 60) | {32: 54 / 60}
    if measure == "rte":
        found = {p.clocks["n_model"]: p.value for p in points}
        assert found == pytest.approx({24 * width**2: right[width] for width in WIDTHS})
    else:
        assert len(points) == len(WIDTHS) - 1
    assert said in output(capsys, frontier, runs, f"--figure={tmp_path / 'f.png'}")
    assert said in output(capsys, laws, runs, f"--figure={tmp_path / 'l.png'}")
    assert said in output(capsys, compound, f"--results={runs}", "--score=none", "--step=1")
    if name == "a score":
        card = output(capsys, runs_program, "card", runs / "bert32-0")
        assert said in card and "1 of 2 seeds finished" in card and "99.0" not in card
    else:
        assert said in fails(capsys, runs_program, "card", runs / "bert32-0")


# --- Laws -----------------------------------------------------------------------------------------


def test_the_binary_finds_the_planted_law(tmp_path, capsys) -> None:
    write(tmp_path / "runs")
    figure, table = tmp_path / "law.png", tmp_path / "law.csv"
    said = output(capsys, laws, tmp_path / "runs", "--predict=1M,2e6", f"--figure={figure}",
                  f"--csv={table}")  # fmt: skip
    assert "bert: loss = E + A x^-a, x = n_model; 7 points, 14 runs" in said
    assert "held out at" in said and "3.932e+05" in said and "one run at" in said
    assert "differ in tokens" not in said
    assert matplotlib.image.imread(figure).std() > 0.05
    rows = {row["parameter"]: row for row in csv.DictReader(table.read_text().splitlines())}
    for name, planted in (("A", 30), ("a", 0.3), ("E", 2)):
        assert float(rows[name]["low"]) < planted < float(rows[name]["high"])
        assert rows[name]["form"] == "power" and rows[name]["x"] == "n_model"


def test_each_system_has_its_own_law(tmp_path, capsys) -> None:
    write(tmp_path, num_seeds=1)
    write(tmp_path, num_seeds=1, system="gpt2", tokens=5e6)
    write(tmp_path / "more", (20,), num_seeds=1, system="gpt2", tokens=9e6)
    where = f"--figure={tmp_path / 'law.svg'}"
    said = output(capsys, laws, tmp_path, "--form=plain", where)
    assert "bert: loss = A x^-a" in said and "gpt2: loss = A x^-a" in said
    assert "* gpt2: runs differ in tokens too, and the law mixes both" in said
    assert "* bert: runs differ" not in said
    assert "one run a point" in said
    assert "<svg" in (tmp_path / "law.svg").read_text()


def test_a_joint_law_of_runs(tmp_path, capsys) -> None:
    for tokens in (1e6, 4e6, 2e7):
        for width in (16, 32, 64, 128):
            value = 1.7 + 30 * (24 * width**2) ** -0.3 + 400 * tokens**-0.4
            name = f"{width}-{tokens:g}"
            run_folders.write(tmp_path / name, config=run_folders.config_of(shape=f"2x{width}x2"),
                              steps=10, tokens=tokens,
                              eval={"128": {"loss": value, "step": 10}})  # fmt: skip
    said = output(capsys, laws, tmp_path, "--form=joint", f"--figure={tmp_path / 'law.png'}")
    assert "E + A N^-a + B D^-b, x = n_model and tokens; 12 points" in said
    values = dict(line.split()[:2] for line in said.splitlines()[3:8])
    assert values == {"A": "30", "B": "400", "a": "0.3", "b": "0.4", "E": "1.7"}
    assert said.count(" yes") + said.count(" NO") == 3  # every D of the largest N
    assert "leave out --x" in fails(capsys, laws, tmp_path, "--form=joint", "--x=tokens")


def test_scores_rise(tmp_path, capsys) -> None:
    write(tmp_path, num_seeds=1)
    for k, width in enumerate(WIDTHS):
        run_folders.add_tasks(
            tmp_path / f"bert{width}-0", ("rte",), (30, 22, 17, 13, 10, 8, 7)[k], 1
        )
    said = output(capsys, laws, tmp_path, "--y=rte", "--x=seconds",
                  f"--figure={tmp_path / 'law.png'}")  # fmt: skip
    assert "rte = C - A x^-a, x = seconds; 7 points" in said


def test_what_does_not_go_is_said_in_one_line(tmp_path, capsys) -> None:
    write(tmp_path / "few", WIDTHS[:4])
    assert "bert: E + A x^-a has 3 parameters and needs 5 different x, got 4" in fails(
        capsys, laws, tmp_path / "few"
    )
    write(tmp_path / "near", (16, 18, 20, 22, 24), num_seeds=1)
    assert "spans a factor of 2.25" in fails(capsys, laws, tmp_path / "near")
    (tmp_path / "empty").mkdir()
    assert "no runs in" in fails(capsys, laws, tmp_path / "empty")
    assert "no such folder" in fails(capsys, laws, tmp_path / "nowhere")
    run_folders.write(tmp_path / "going/on", finished=False)
    assert "no finished run with loss" in fails(capsys, laws, tmp_path / "going")
    assert "unknown measure 'rouge'" in fails(capsys, laws, tmp_path / "few", "--y=rouge")
    assert "--help says" in fails(capsys, laws, tmp_path / "few", "--x=epochs")
    write(tmp_path / "runs", num_seeds=1)
    far = fails(capsys, laws, tmp_path / "runs", "--predict=1B")
    assert "more than a factor 10 outside" in far
    assert "unknown column 'wide'" in fails(capsys, laws, tmp_path / "runs", "--where=wide>3")
    assert not list(tmp_path.glob("*.png")) and not pathlib.Path("laws.png").exists()


# --- Frontier -------------------------------------------------------------------------------------


def test_the_envelope_by_hand() -> None:
    cost = [4.0, 1.0, 2.0, 2.0, 3.0, 5.0, 6.0]
    score = [0.7, 0.5, 0.4, 0.6, 0.6, 0.65, math.nan]
    assert frontier.envelope(cost, score, rising=True) == [1, 3, 0]
    assert frontier.envelope(cost, score, rising=False) == [1, 2]
    assert frontier.envelope([], [], rising=True) == []
    assert frontier.envelope([1.0, 1.0], [0.5, 0.5], rising=True) == [0]


def test_the_envelope_is_what_nothing_cheaper_beats() -> None:
    rng = np.random.default_rng(0)
    cost, score = rng.random(60).round(1), rng.random(60).round(1)  # with ties
    found = frontier.envelope(cost.tolist(), score.tolist(), rising=True)
    for i in range(60):
        best = score[cost <= cost[i]].max()
        assert max(score[j] for j in found if cost[j] <= cost[i]) == best
    assert (np.diff(score[found]) > 0).all() and (np.diff(cost[found]) > 0).all()


def test_the_frontier_is_drawn_against_each_clock(tmp_path, capsys) -> None:
    write(tmp_path / "runs", (16, 32, 64), num_seeds=1)
    said = output(capsys, frontier, tmp_path / "runs", f"--figure={tmp_path / 'best.png'}")
    rows = [line.split() for line in said.splitlines()]
    assert [row[2] for row in rows if row[0] == "N"] == ["2x16x2", "2x32x2", "2x64x2"]
    assert [row[2] for row in rows if row[0] == "tokens"] == ["2x64x2"]  # all cost the same
    assert matplotlib.image.imread(tmp_path / "best.png").std() > 0.05
    drawn = (tmp_path / "best.svg").read_text()
    assert "<svg" in drawn
    assert "no such folder" in fails(capsys, frontier, tmp_path / "nowhere")


def test_a_clock_that_nobody_knows_has_no_panel(tmp_path) -> None:
    points = [RunPoint("bert", f"2x{w}x2", {"n_model": 24.0 * w * w}, 0.5) for w in (16, 32)]
    png, svg = frontier.draw(points, "rte", tmp_path / "best")
    assert png.exists() and svg.exists()
    height, width = matplotlib.image.imread(png).shape[:2]
    assert width < 1.6 * height  # one panel


def test_each_system_has_its_own_envelope() -> None:
    """Losses of different objectives do not compare; nor need the dearer system be worse."""
    reached = (("bert", 1, 3.0), ("gpt2", 2, 5.0), ("bert", 3, 4.0))
    points = [RunPoint(name, f"2x16x{k}", {"seconds": k}, y) for name, k, y in reached]
    rows = [line.split()[3:] for line in frontier.table(points, "loss").splitlines()[2:]]
    assert rows == [["bert", "2x16x1", "1", "3.0000", "1"], ["gpt2", "2x16x2", "2", "5.0000", "1"]]


def test_the_frontier_is_of_means_over_seeds() -> None:
    """The luckiest seed of a wide net does not beat a narrow one that is better on average."""
    runs = (("2x16x2", 3.0), ("2x16x2", 3.2), ("2x32x2", 2.9), ("2x32x2", 3.9))
    points = [RunPoint("bert", shape, {"n_model": len(shape) + (shape > "2x2"), "seconds": k}, y)
              for k, (shape, y) in enumerate(runs)]  # fmt: skip
    small, large = run_points.means(points)
    assert (small.value, large.value) == (pytest.approx(3.1), pytest.approx(3.4))
    assert (small.clocks["seconds"], large.num_seeds) == (0.5, 2)
    rows = [line.split() for line in frontier.table(points, "loss").splitlines()[2:]]
    assert [row[2:] for row in rows if row[0] == "N"] == [["2x16x2", "6", "3.1000", "2"]]
    # Runs of another config are not seeds of it.
    other = RunPoint("bert", "2x16x2", {"seconds": 1.0}, 9.0, config="half the batch")
    assert len(run_points.means([*points, other])) == 3


def test_objectives_have_panels_of_their_own(tmp_path, monkeypatch) -> None:
    saved = []
    monkeypatch.setattr(frontier.palette, "save", lambda figure, *_, **__: saved.append(figure))
    points = [
        RunPoint(name, f"2x{w}x2", {"n_model": 24.0 * w * w}, 100 / w, objective)
        for name, objective in (("bert", "mlm+nsp"), ("gpt2", "clm"), ("roberta", "mlm"))
        for w in (16, 32)
    ]
    frontier.draw(points, "loss", tmp_path / "best.png")
    assert [axis.get_ylabel() for axis in saved[0].axes] == [
        "mlm+nsp loss (nats)", "clm loss (nats)", "mlm loss (nats)",
    ]  # fmt: skip
    looks = [(line.get_color(), line.get_marker(), line.get_linestyle())
             for axis in saved[0].axes for line in axis.get_lines()[1:2]]  # fmt: skip
    assert [len({look[k] for look in looks}) for k in range(2)] == [3, 3]  # each tells them apart
    assert looks[0][2] != looks[1][2]
    frontier.draw(points, "rte", tmp_path / "best.png")
    assert [axis.get_ylabel() for axis in saved[-1].axes] == ["rte (dev)"]
