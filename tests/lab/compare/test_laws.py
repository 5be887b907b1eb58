"""Laws of run folders: what is read, printed, drawn and refused."""

import pathlib
import re

import matplotlib.image
import pytest
import run_folders
from law_folders import WIDTHS, budgets, fails, output, start, write

from scalelab.lab import laws
from scalelab.lab.compare import run_points


def test_points_are_finished_pre_trainings(tmp_path) -> None:
    write(tmp_path, (16, 32), num_seeds=1)
    run_folders.write(tmp_path / "going", finished=False)
    points, notes = run_points.make(run_points.load([tmp_path]), "loss")
    assert list(points["shape"]) == ["2x16x2", "2x32x2"]
    axes = {"n_model": 24576, "tokens": 1000, "flops": 1e10, "seconds": pytest.approx(24.576)}
    assert points[[*axes]].iloc[1].to_dict() == axes
    assert len(notes) == 1 and re.match("1 .*unfinished", notes[0])


def test_runs_without_the_score_are_left_out(tmp_path) -> None:
    write(tmp_path, (16, 32), num_seeds=1)
    run_folders.add_tasks(tmp_path / "bert16-0", ("mnli", "qqp", "qnli"), 10, 3)
    (note,) = run_points.make(run_points.load([tmp_path]), "large")[1]
    assert note.startswith("1 ") and "large" in note
    with pytest.raises(ValueError, match="finished .*glue"):
        run_points.make(run_points.load([tmp_path]), "glue")


def test_losses_at_different_lengths_do_not_mix(tmp_path) -> None:
    write(tmp_path, (16,), num_seeds=1)
    config = run_folders.config_of(shape="2x32x2")
    config["long"]["example_rate"] = 0.5 if not config["long"]["example_rate"] else 0.0
    run_folders.write(tmp_path / "other", config=config)
    with pytest.raises(ValueError, match="different lengths"):
        run_points.make(run_points.load([tmp_path]), "loss")
    points, _ = run_points.make(run_points.load([tmp_path], "long.example_rate=0"), "loss")
    assert len(points) == 1


def parameters(text: str) -> dict[str, list[float]]:
    """Value and ends of the interval of each parameter that a program printed."""
    found = re.findall(r"^(\w) +(\S+) +\[(\S+), (\S+)\]$", text, re.M)
    return {name: [float(x) for x in numbers] for name, *numbers in found}


def test_the_binary_finds_the_planted_law(tmp_path, capsys) -> None:
    write(tmp_path / "runs")
    figure = tmp_path / "law.png"
    files = f"--figure={figure}", f"--csv={tmp_path / 'law.csv'}"
    text = output(capsys, laws, tmp_path / "runs", "--predict=1M,2e6", *files)
    header, first, *_ = (tmp_path / "law.csv").read_text().splitlines()
    assert header == "system,y,x,parameter,value,low,high"
    assert re.match(r"bert,loss,n_model,A,\d+\.\d{5,},", first)
    assert re.search("bert: loss = E .*n_model; 7 points, 14", text)
    assert "held out at" in text and "3.932e+05" in text and "one run at" in text
    assert "differ in tokens" not in text
    assert matplotlib.image.imread(figure).std() > 0.05
    for name, planted in (("A", 30), ("a", 0.3), ("E", 2)):
        _, low, high = parameters(text)[name]
        assert low < planted < high


def test_each_system_has_its_own_law(tmp_path, capsys) -> None:
    write(tmp_path, num_seeds=1)
    write(tmp_path, num_seeds=1, system="gpt2", tokens=5e6)
    write(tmp_path / "more", (20,), num_seeds=1, system="gpt2", tokens=9e6)
    where = f"--figure={tmp_path / 'law.svg'}"
    text = output(capsys, laws, tmp_path, where)
    assert "bert: loss = E + A x^-a" in text and "gpt2: loss = E + A x^-a" in text
    assert re.search(r"\* gpt2: .* tokens", text)
    assert "* bert: runs differ" not in text
    assert "a point" in text
    assert "<svg" in (tmp_path / "law.svg").read_text()


def test_runs_that_the_contract_keeps_apart_have_laws_of_their_own(tmp_path, capsys) -> None:
    """They were seeds of one point, "7 points, 14 runs", between both."""
    arguments = (budgets(tmp_path / "runs"), f"--figure={tmp_path / 'law.png'}")
    text = output(capsys, laws, *arguments)
    for budget in ("optim.total_steps=400", "optim.total_steps=800"):
        assert re.search(f"bert, {budget}: .*n_model; 7 points, 7", text)
    assert "--where=" in text
    chosen = output(capsys, laws, *arguments, "--where=optim.total_steps=800")
    assert re.search("bert: .*n_model; 7 points, 7", chosen)


def test_seeds_differ_in_nothing_else(tmp_path, capsys) -> None:
    """Two shapes of one N are two points at one x, and count as one size."""
    write(tmp_path / "runs", num_seeds=2)
    for heads in (2, 4):
        config = run_folders.config_of(shape=f"{heads}x64x8", seed=7)
        run_folders.write(tmp_path / f"runs/{heads}", config=config, steps=10)
    text = output(capsys, laws, tmp_path / "runs", f"--figure={tmp_path / 'l.png'}")
    assert "9 points, 16" in text  # 2x64x8 has the N of 2x128x2 and is no seed of it
    few = write(tmp_path / "few", WIDTHS[:3])
    for heads in (1, 4, 8):
        config = run_folders.config_of(shape=f"{heads}x16x2", seed=7)
        run_folders.write(few / str(heads), config=config, steps=10)
    assert "got 3" in fails(capsys, laws, few)


def test_along_a_cost_one_thing_may_differ(tmp_path, capsys) -> None:
    runs = budgets(tmp_path / "runs", (16, 32))
    points, _ = run_points.make(run_points.load([runs]), "loss")

    def names(clock: str, given=points) -> list[str]:
        return list(laws.group_runs(given, clock)[0])

    by_budget = ["bert, optim.total_steps=400", "bert, optim.total_steps=800"]
    assert names("n_model") == names("flops") == names("seconds") == by_budget
    by_shape = ["bert, model.width=16", "bert, model.width=32"]
    assert names("tokens") == by_shape
    assert names("flops", given=points[points["shape"] == "2x16x2"]) == ["bert"]


def test_a_system_without_a_law_does_not_hide_the_others(tmp_path, capsys) -> None:
    write(tmp_path / "runs")
    write(tmp_path / "runs", WIDTHS[:4], system="gpt2")
    where = f"--figure={tmp_path / 'law.png'}"
    text = output(capsys, laws, tmp_path / "runs", where, "--predict=1M")
    assert re.search("bert: loss = E .*n_model; 7 points, 14", text)
    assert re.search("gpt2: no law .*8 .*3 .*5", text) and "different objectives" in text
    write(tmp_path / "few", WIDTHS[:3])
    write(tmp_path / "few", WIDTHS[:4], system="gpt2")
    both = fails(capsys, laws, tmp_path / "few")
    assert "got 3" in both and "got 4" in both


def rising(folder: pathlib.Path) -> pathlib.Path:
    """Losses that rise with the size, which the law of a loss cannot follow."""
    for k, width in enumerate(WIDTHS):
        config, reached = run_folders.config_of(shape=f"2x{width}x2"), 7 + 0.1 * k**2
        run_folders.write(folder / str(width), config=config, steps=10,
                          eval={"128": {"loss": reached, "step": 10}})  # fmt: skip
    return folder


def test_what_stands_at_its_limit_has_no_value_and_predicts_nothing(tmp_path, capsys) -> None:
    """It had one, with an interval of no width, and the prediction was made."""
    figure = tmp_path / "law.png"
    arguments = (rising(tmp_path / "runs"), f"--figure={figure}")
    text = output(capsys, laws, *arguments)
    rows = {line.split()[0]: line.split()[1:] for line in text.splitlines()[3:6]}
    assert rows == {name: ["-", "not", "determined"] for name in "AaE"}
    assert "held out at" not in text and "no check" in text
    assert matplotlib.image.imread(figure).std() > 0.05
    code, out, errors = start(capsys, laws, *arguments, "--predict=1M")
    assert code == 2 and "bert" in errors
    assert "not predicted" in out and "R^2" in out


def test_a_score_has_the_law_of_its_error(tmp_path, capsys) -> None:
    write(tmp_path, num_seeds=1)
    for k, width in enumerate(WIDTHS):
        run_folders.add_tasks(
            tmp_path / f"bert{width}-0", ("rte",), (30, 22, 17, 13, 10, 8, 7)[k], 1
        )
    text = output(capsys, laws, tmp_path, "--y=rte", "--x=seconds",
                  f"--figure={tmp_path / 'law.png'}")  # fmt: skip
    assert "1 - rte = E + A x^-a, x = seconds; 7 points" in text


def test_wrong_arguments_are_one_message(tmp_path, capsys) -> None:
    write(tmp_path / "few", WIDTHS[:4])
    write(tmp_path / "near", (16, 18, 20, 22, 24), num_seeds=1)
    write(tmp_path / "runs", num_seeds=1)
    run_folders.write(tmp_path / "going/on", finished=False)
    (tmp_path / "empty").mkdir()
    for named, folder, *arguments in [
        ("factor of 2.25", "near"),
        ("empty", "empty"),
        ("loss", "going"),
        ("'rouge'", "few", "--y=rouge"),
        ("--x", "few", "--x=epochs"),
        ("factor 10", "runs", "--predict=1B"),
    ]:
        assert named in fails(capsys, laws, tmp_path / folder, *arguments)
    assert not list(tmp_path.glob("*.png")) and not pathlib.Path("laws.png").exists()
