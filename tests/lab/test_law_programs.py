"""Laws and frontiers of run folders: what is read, printed, drawn and refused."""

import csv
import math
import pathlib
import re

import matplotlib.image
import numpy as np
import pytest
import run_folders

from scalelab.lab import compound, frontier, kinds, laws, run_points
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
            own = {"eval": {"128": {"loss": value}}, "seconds": 1e-3 * n_model} | fields
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


def budgets(folder: pathlib.Path, widths=WIDTHS, warmups=(10, 10)) -> pathlib.Path:
    """Each net with 400 steps, and again with 800, and a loss 1 lower."""
    for k, steps in enumerate((400, 800)):
        for width in widths:
            config = run_folders.config_of(
                "bert", f"2x{width}x2", optim__total_steps=steps, optim__warmup_steps=warmups[k]
            )
            run_folders.write(folder / f"{width}-{steps}", config=config, steps=steps,
                              eval={"128": {"loss": loss(24 * width**2) - k}})  # fmt: skip
    return folder


def test_runs_that_the_contract_keeps_apart_have_laws_of_their_own(tmp_path, capsys) -> None:
    """They were seeds of one point, "7 points, 14 runs", between both."""
    arguments = (budgets(tmp_path / "runs"), "--form=plain", f"--figure={tmp_path / 'law.png'}")
    said = output(capsys, laws, *arguments)
    for budget in ("400 steps", "800 steps"):
        assert f"bert, {budget}: loss = A x^-a, x = n_model; 7 points, 7 runs" in said
    assert (
        "* bert: runs differ in optim.total_steps, which the comparability contract holds equal,"
        " and are not pooled: 400 steps (--where=optim.total_steps=400); 800 steps"
        " (--where=optim.total_steps=800); --allow=optim.total_steps pools them all the same"
    ) in said
    chosen = output(capsys, laws, *arguments, "--where=optim.total_steps=800")
    assert "bert: loss = A x^-a, x = n_model; 7 points, 7 runs" in chosen
    pooled = output(capsys, laws, *arguments, "--allow=optim.total_steps")
    assert "14 points, 14 runs" in pooled  # not seeds even so
    assert "* bert: allowed to differ, against the contract: optim.total_steps: 400, 800" in pooled
    assert "no such field" in fails(capsys, laws, *arguments, "--allow=steps")


def test_seeds_differ_in_nothing_else(tmp_path, capsys) -> None:
    """Two shapes of one N are two points at one x, and count as one size."""
    write(tmp_path / "runs", num_seeds=2)
    for heads in (2, 4):
        config = run_folders.config_of(shape=f"{heads}x64x8", seed=7)
        run_folders.write(tmp_path / f"runs/{heads}", config=config, steps=10)
    said = output(capsys, laws, tmp_path / "runs", "--form=plain", f"--figure={tmp_path / 'l.png'}")
    assert "9 points, 16 runs" in said  # 2x64x8 has the N of 2x128x2 and is no seed of it
    few = write(tmp_path / "few", WIDTHS[:3])
    for heads in (1, 4, 8):
        config = run_folders.config_of(shape=f"{heads}x16x2", seed=7)
        run_folders.write(few / str(heads), config=config, steps=10)
    assert "needs 4 different x, got 3" in fails(capsys, laws, few, "--form=plain")


def test_along_a_cost_one_thing_may_differ(tmp_path, capsys) -> None:
    runs = budgets(tmp_path / "runs", (16, 32))
    points, _ = run_points.read([runs], "loss")

    def names(*clocks: str, of=points) -> list[str]:
        return list(laws.sort(of, clocks, "")[0])

    by_budget = ["bert, 400 steps", "bert, 800 steps"]
    assert names("n_model") == names("flops") == names("seconds") == by_budget
    by_shape = ["bert, net.width=16", "bert, net.width=32"]
    assert names("tokens") == by_shape
    assert names("n_model", "tokens") == ["bert"]
    assert names("flops", of=[p for p in points if p.shape == "2x16x2"]) == ["bert"]


def test_budgets_that_are_an_axis_bring_one_kind_of_warm_up(tmp_path) -> None:
    """One that grows with the budget, or stays, is one kind; two for one budget are two."""
    for k, warmups in enumerate(((10, 10), (40, 80))):
        budgets(tmp_path / f"runs{k}", (16,), warmups)
        points, _ = run_points.read([tmp_path / f"runs{k}"], "loss")
        assert list(laws.sort(points, ("tokens",), "")[0]) == ["bert"]
    points, _ = run_points.read([tmp_path / "runs0", tmp_path / "runs1"], "loss")
    found, notes = laws.sort(points, ("tokens",), "")
    shares = ("0.025", "0.0125", "0.1")
    assert list(found) == [f"bert, warm-up {share} of the budget" for share in shares]
    assert "bert: runs differ in optim.warmup_steps, which" in notes[0]
    assert list(laws.sort(points, ("tokens",), "optim.warmup_steps")[0]) == ["bert"]


def test_a_joint_law_of_runs(tmp_path, capsys) -> None:
    for tokens in (1e6, 4e6, 2e7):
        for width in (16, 32, 64, 128):
            value = 1.7 + 30 * (24 * width**2) ** -0.3 + 400 * tokens**-0.4
            name = f"{width}-{tokens:g}"
            config = run_folders.config_of(shape=f"2x{width}x2", optim__total_steps=tokens // 100)
            run_folders.write(tmp_path / name, config=config, steps=10, tokens=tokens,
                              eval={"128": {"loss": value}})  # fmt: skip
    said = output(capsys, laws, tmp_path, "--form=joint", f"--figure={tmp_path / 'law.png'}")
    assert "E + A N^-a + B D^-b, x = n_model and tokens; 12 points" in said
    values = dict(line.split()[:2] for line in said.splitlines()[3:8])
    assert values == {"A": "30", "B": "400", "a": "0.3", "b": "0.4", "E": "1.7"}
    assert said.count(" yes") + said.count(" NO") == 3  # every D of the largest N
    assert "leave out --x" in fails(capsys, laws, tmp_path, "--form=joint", "--x=tokens")


def test_a_system_without_a_law_does_not_hide_the_others(tmp_path, capsys) -> None:
    write(tmp_path / "runs")
    write(tmp_path / "runs", WIDTHS[:4], system="gpt2")
    where = f"--figure={tmp_path / 'law.png'}"
    said = output(capsys, laws, tmp_path / "runs", where, "--predict=1M")
    assert "bert: loss = E + A x^-a, x = n_model; 7 points, 14 runs" in said
    assert "gpt2: no law of its 8 runs: E + A x^-a has 3 parameters and needs 5" in said
    assert "* losses of different objectives do not compare" in said
    assert "bert and gpt2 differ in" in said  # these folders declare no departures
    write(tmp_path / "few", WIDTHS[:3])
    write(tmp_path / "few", WIDTHS[:4], system="gpt2")
    both = fails(capsys, laws, tmp_path / "few")
    assert "got 3" in both and "got 4" in both


def test_what_systems_declare_may_differ() -> None:
    """Of two systems the kinds that are most alike are looked at."""

    def point(system: str, departures: tuple[str, ...] = (), **fields) -> RunPoint:
        fields = {name.replace("__", "."): value for name, value in fields.items()}
        fields["system"] = system
        return RunPoint(system, "2x16x2", {}, 1.0, "", fields, frozenset(departures))

    ours = point("bert", ("objective",), objective="mlm+nsp", optim__learning_rate=1e-3)
    theirs = point("gpt2", objective="clm", optim__learning_rate=1e-3)
    assert not kinds.undeclared({"bert": [ours], "gpt2": [theirs]}, kinds.SHAPE)
    other = point("gpt2", objective="clm", optim__learning_rate=2e-3, data="ab")
    (said,) = kinds.undeclared({"bert": [ours], "gpt2": [other]}, kinds.SHAPE)
    assert "bert and gpt2 differ in data, optim.learning_rate, which neither declares" in said
    assert not kinds.undeclared({"bert": [ours], "a": [other], "b": [theirs]}, kinds.SHAPE)
    allowed = kinds.allowed("data, optim.learning_rate", [ours, other])
    assert not kinds.undeclared({"bert": [ours], "gpt2": [other]}, kinds.SHAPE, allowed)


def rising(folder: pathlib.Path) -> pathlib.Path:
    """Losses that rise with the size, which no form of a loss can follow."""
    for k, width in enumerate(WIDTHS):
        run_folders.write(folder / str(width), config=run_folders.config_of(shape=f"2x{width}x2"),
                          steps=10, eval={"128": {"loss": 7 + 0.1 * k**2}})  # fmt: skip
    return folder


def test_what_stands_at_its_limit_has_no_value_and_predicts_nothing(tmp_path, capsys) -> None:
    """It had one, with an interval of no width, and the prediction was made."""
    figure, table = tmp_path / "law.png", tmp_path / "law.csv"
    arguments = (rising(tmp_path / "runs"), f"--figure={figure}", f"--csv={table}")
    said = output(capsys, laws, *arguments)
    rows = {line.split()[0]: line.split()[1:] for line in said.splitlines()[3:6]}
    assert rows == {name: ["-", "not", "determined"] for name in "AaE"}
    assert "held out at" not in said and "no check on the largest size" in said
    assert matplotlib.image.imread(figure).std() > 0.05
    for row in csv.DictReader(table.read_text().splitlines()):
        assert (row["value"], row["low"], row["high"]) == ("", "", "")
    with pytest.raises(SystemExit) as end:
        laws.main([*map(str, arguments), "--predict=1M"])
    told = capsys.readouterr()
    assert end.value.code == 2 and "nothing is predicted from it" in told.err
    assert "not predicted" in told.out and "R^2" in told.out


def test_one_law_predicts_where_another_cannot(tmp_path, capsys) -> None:
    write(tmp_path / "runs/gpt2", system="gpt2")
    rising(tmp_path / "runs/bert")
    said = output(capsys, laws, tmp_path / "runs", "--predict=1M",
                  f"--figure={tmp_path / 'law.png'}")  # fmt: skip
    assert said.count("not predicted") == 1 and said.count("nothing is predicted from it") == 1
    values = [line.split()[1] for line in said.splitlines() if line.startswith("1e+06")]
    assert values[0] == "-" and float(values[1]) == pytest.approx(loss(1e6), rel=0.02)


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
    rows = [
        line.split()[3:]
        for line in frontier.table(frontier.sort(points)[0], "loss").splitlines()[2:]
    ]
    assert rows == [["bert", "2x16x1", "1", "3.0000", "1"], ["gpt2", "2x16x2", "2", "5.0000", "1"]]


def test_the_frontier_is_of_means_over_seeds() -> None:
    """The luckiest seed of a wide net does not beat a narrow one that is better on average."""
    runs = (("2x16x2", 3.0), ("2x16x2", 3.2), ("2x32x2", 2.9), ("2x32x2", 3.9))
    points = [RunPoint("bert", shape, {"n_model": len(shape) + (shape > "2x2"), "seconds": k}, y)
              for k, (shape, y) in enumerate(runs)]  # fmt: skip
    small, large = run_points.means(points)
    assert (small.value, large.value) == (pytest.approx(3.1), pytest.approx(3.4))
    assert (small.clocks["seconds"], large.num_seeds) == (0.5, 2)
    rows = [
        line.split() for line in frontier.table(frontier.sort(points)[0], "loss").splitlines()[2:]
    ]
    assert [row[2:] for row in rows if row[0] == "N"] == [["2x16x2", "6", "3.1000", "2"]]
    # Runs of another config are not seeds of it.
    other = RunPoint("bert", "2x16x2", {"seconds": 1.0}, 9.0, fields={"short.batch_size": 32})
    assert len(run_points.means([*points, other])) == 3


def test_frontiers_of_what_does_not_compare_are_apart(tmp_path, capsys) -> None:
    """A budget is a cost, so it is one envelope against costs; against N it is not."""
    budgets(tmp_path / "runs", (16, 32))
    config = run_folders.config_of(
        shape="2x16x2", optim__learning_rate=7e-4, optim__warmup_steps=10
    )
    run_folders.write(tmp_path / "runs/rate", config=config, steps=400)
    where = f"--figure={tmp_path / 'best.png'}"
    said = output(capsys, frontier, tmp_path / "runs", where)
    rows = [re.split(r" {2,}", line) for line in said.splitlines()]
    names = {
        clock: list(dict.fromkeys(r[1] for r in rows if r[0] == clock)) for clock in ("N", "tokens")
    }
    rate = run_folders.config_of()["optim"]["learning_rate"]
    assert names["tokens"] == [
        f"bert, optim.learning_rate={rate}",
        "bert, optim.learning_rate=0.0007",
    ]
    assert [name.split(", ", 1)[1] for name in names["N"]] == [
        f"400 steps, optim.learning_rate={rate}", f"800 steps, optim.learning_rate={rate}",
        "400 steps, optim.learning_rate=0.0007",
    ]  # fmt: skip
    assert "* against N: bert: runs differ in optim.learning_rate, optim.total_steps, which" in said
    assert "nets of different budgets on one envelope" in said
    drawn = (tmp_path / "best.svg").read_text()
    assert "bert, 800 steps" in drawn
    pooled = output(capsys, frontier, tmp_path / "runs", where, "--allow=optim.learning_rate")
    assert "bert, optim.learning_rate" not in pooled and "allowed to differ" in pooled


def test_the_stored_runs_are_not_pooled(tmp_path, capsys) -> None:
    """150 seconds and a million tokens, of five shapes each."""
    stored = pathlib.Path(__file__).parents[2] / "results/thesis_small/runs"
    said = output(capsys, frontier, stored, f"--figure={tmp_path / 'best.png'}")
    assert "bert, 150 secs " in said and "bert, 1,000,000 tokens " in said
    said = output(capsys, laws, stored, "--form=plain", f"--figure={tmp_path / 'law.png'}")
    assert "bert, 150 secs: loss = A x^-a, x = n_model; 5 points, 10 runs" in said
    results = (f"--results={stored}", "--where=system=bert", "--score=none")
    assert "optim.total_secs, optim.total_tokens, " in fails(capsys, compound, *results)


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
