"""Compound scaling: the protocol's own grid, base and scaled shapes; targets, refusals."""

import law_folders
import numpy as np
import pytest

from scalelab.config.pretraining import Shape
from scalelab.lab import compound

# Table 7.6 of the protocol: heads, width, layers, N, loss, score on GLUE-Large.
GRID = (
    (2, 128, 2, 393216, 5.66, 66.6),
    (2, 104, 3, 389376, 6.34, 68.2),
    (2, 90, 4, 388800, 6.41, 67.1),
    (2, 74, 6, 394272, 6.47, None),
    (2, 64, 8, 393216, 6.50, None),
    (2, 58, 10, 403680, 6.54, None),
    (2, 52, 12, 389376, 6.58, None),
    (2, 48, 14, 387072, 6.62, None),
    (2, 46, 16, 406272, 6.62, None),
)
BASE = Shape(2, 104, 3)
PHI, ALPHA, BETA = compound.coefficients(BASE)


def output(capsys, *arguments) -> str:
    return law_folders.output(capsys, compound, *arguments)


def fails(capsys, *arguments) -> str:
    return law_folders.fails(capsys, compound, *arguments)


@pytest.mark.parametrize("n_model", [0.39e6, 393_216])
def test_the_grid_is_the_protocols(n_model: float) -> None:
    shapes = compound.grid(n_model)
    assert [(*shape, shape.n_model) for shape in shapes] == [row[:4] for row in GRID]


def test_a_base_gives_the_protocols_coefficients() -> None:
    """Its text: phi = 14.99, alpha = 1.076, beta = 1.363."""
    assert PHI == pytest.approx(14.99, abs=0.005)
    assert ALPHA == pytest.approx(1.076, abs=0.0005)
    assert BETA == pytest.approx(1.363, abs=0.0005)
    assert ALPHA * BETA**2 == pytest.approx(2, abs=1e-12)
    assert compound.shape_at(PHI, ALPHA) == BASE


SCALED = [(10.6e6, "7x469x4"), (20.5e6, "9x585x5"), (41.5e6, "13x832x5")]


@pytest.mark.parametrize(("n_model", "shape"), SCALED)
def test_the_protocols_scaled_shapes_come_out_exactly(n_model: float, shape: str) -> None:
    assert str(compound.shape_at(compound.size_to_phi(n_model), ALPHA)) == shape
    exact = Shape.parse(shape).n_model  # Tables 7.7 and 7.8, as corrected
    assert str(compound.shape_at(compound.size_to_phi(exact), ALPHA)) == shape
    step = [shape for _, shape in SCALED].index(shape)
    assert str(compound.shape_at(19.727 + step, ALPHA)) == shape  # whole steps of phi apart


def test_a_step_doubles_the_size_and_heads_divide_the_width() -> None:
    for phi in np.arange(10, 32, 0.05):
        shape = compound.shape_at(phi, ALPHA)
        assert shape.width % shape.num_heads == 0 and shape.num_heads >= 2

    def up(shape: Shape) -> Shape:
        phi, alpha, _ = compound.coefficients(shape)
        return compound.shape_at(phi + 1, alpha)

    for shape in compound.grid(3e6):
        larger = up(shape)
        assert larger.n_model / shape.n_model == pytest.approx(2, rel=0.1)
        assert larger.width % larger.num_heads == 0
        assert larger.width / larger.num_heads == pytest.approx(64, rel=0.2)
    assert up(Shape(2, 12, 1)) == Shape(2, 16, 1)  # one layer stays one


def test_the_binary_lists_the_grid(capsys) -> None:
    lines = output(capsys, "--n=0.39M").splitlines()
    assert [line.split()[0] for line in lines[2:]] == [str(s) for s in compound.grid(0.39e6)]
    assert "389,376  -0.2%" in lines[3]
    text = output(capsys, "--n=20k")
    assert "* 5 depths" in text


def test_the_binary_goes_from_a_base_to_the_protocols_shapes(capsys) -> None:
    text = output(capsys, "--base=2x104x3", "--target_n=10.6M,20.5M,41.5M")
    assert "alpha = 1.0761, beta = 1.3633" in text
    for _, shape in SCALED:
        assert shape in text
    assert "7x469x4" in output(capsys, "--base=2x104x3", "--phi=19.727")


def test_wrong_arguments_are_one_message(capsys) -> None:
    base = "--base=2x104x3"
    for named, *arguments in [
        ("--base",),
        ("--base", "--n=1M", base),
        ("'big'", base, "--target_n=big"),
        ("phi = 98", base, "--step=84"),
        ("'0'", "--n=1M", "--depths=0"),
    ]:
        assert named in fails(capsys, *arguments)
