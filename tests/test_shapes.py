"""Shape advice: grades and sizes by hand, and the program."""

import operator
import types

import in_process
import pytest
from law_folders import fails

from scalelab import shapes
from scalelab.config.pretraining import Shape
from scalelab.resources import flops

PLAIN = len(shapes.GRADES)
N_MODEL = operator.attrgetter("n_model")


@pytest.mark.parametrize(("shape", "grade"), [
    (Shape(8, 512, 3), 0),
    (Shape(6, 384, 6), 0),
    (Shape(7, 448, 4), 1),  # 448 = 7 x 64, no multiple of 128
    (Shape(8, 448, 4), 2),  # heads of 56
    (Shape(6, 480, 4), 3),  # heads of 80
    (Shape(7, 469, 4), PLAIN),
    (Shape(2, 104, 3), PLAIN),  # heads of 52
    (Shape(3, 448, 4), PLAIN),  # 3 does not divide 448
])  # fmt: skip
def test_grades_by_hand(shape: Shape, grade: int) -> None:
    assert shapes.grade(shape) == grade


def test_nothing_nearer_is_left_out() -> None:
    """Every shape in reach is looked at: the advice against a search of them all."""
    wanted = Shape(9, 585, 5)
    all_of = [
        shapes.judge(Shape(a, h, depth), wanted, N_MODEL)
        for depth in range(3, 8)
        for h in range(8, 1000, 8)
        for a in range(1, 64)
        if h % a == 0 and 16 <= h // a <= 128
    ]
    for place in range(PLAIN):
        near = [a for a in all_of if a.grade == place and abs(a.size_change) <= 0.15]
        expected = sorted(near, key=lambda a: a.distance)[:2]
        found = [a for a in shapes.find_near(wanted, 2, N_MODEL)[1:] if a.grade == place]
        assert [a.distance for a in found] == [a.distance for a in expected]


def test_tiles_by_hand() -> None:
    assert shapes.padding(Shape(7, 448, 4), 64) == (1.0, 1.0)
    # 469 in tiles of 64 takes 512, 4 x 469 = 1876 takes 1920; heads of 67 take 128.
    weights, heads = shapes.padding(Shape(7, 469, 4), 64)
    assert weights == pytest.approx((4 * 512**2 + 2 * 512 * 1920) / (12 * 469**2))
    assert heads == pytest.approx(128 / 67)


def test_work_by_hand() -> None:
    def work_of(shape: Shape, **more: float) -> float:
        forward = flops.Flops(body=100.0, attention=10.0, head=7.0, **more)
        plan = types.SimpleNamespace(costs=[forward])
        return shapes.count_work(plan, shape, 64)

    assert work_of(Shape(1, 64, 1)) == pytest.approx(3 * 117)
    # A projection of embeddings counts, and what has no backward pass counts once.
    assert work_of(Shape(1, 64, 1), embedding=5.0, forward_only=2.0) == pytest.approx(3 * 122 - 4)
    # Width 32 in tiles of 64: four times the weights but for the FFN's inner side, which is full.
    weights = (4 * 64**2 + 2 * 64 * 128) / (12 * 32**2)
    work = 3 * (100 * weights + 10 * 2 + 7 * 2)
    assert work_of(Shape(1, 32, 1)) == pytest.approx(work)


def run(*arguments: str) -> None:
    in_process.run(shapes, ["--vocab_size=97", "--batch_size=4", "--length=16", *arguments])


@pytest.mark.slow
def test_the_program_predicts_and_measures(capsys: pytest.CaptureFixture[str]) -> None:
    run("--near=2x33x2", "--system=gpt2", "--measure", "--each=1")
    lines = capsys.readouterr().out.splitlines()
    assert sum("x2 " in line for line in lines) <= 1 + len(shapes.GRADES)
    assert "measured" in lines[0] and lines[2].split()[0] == "2x33x2"
    assert any(line.startswith("* 2x33x2") for line in lines)
    assert any("ms)" in line for line in lines)


def test_the_programs_mistakes(capsys: pytest.CaptureFixture[str]) -> None:
    for wrong, message in [
        (["--near=7x46"], "7x46"),
        (["--near=2x32x2", "--batch_size=0"], "--batch_size"),
        (["--near=2x32x2", "--length=1000000000"], "16,777,216"),
        ([], "--near"),
    ]:
        assert message in fails(capsys, shapes, "--vocab_size=97", *wrong)


def test_size_is_what_the_system_declares() -> None:
    """Layers that share their parameters count once, so N does not fall with depth."""
    near = shapes.find_near(Shape(2, 64, 4), 3, lambda shape: 12 * shape.width**2)
    assert {(advice.shape.width, advice.size_change) for advice in near} == {(64, 0.0)}
    assert {advice.shape.num_layers for advice in near[1:]} >= {3, 4, 5}
