"""The look of lines: told apart by more than color."""

import numpy as np
import pytest

from scalelab.records import plots


def test_styles_differ_and_are_the_palettes() -> None:
    styles = [tuple(plots.style(i).values()) for i in range(252)]
    assert len(set(styles)) == 252
    for first, second in zip(styles, styles[1:], strict=False):
        assert all(a != b for a, b in zip(first, second, strict=True))


# RGB in linear light to the cones, and what a missing cone leaves (Viénot, Brettel and Mollon 1999,
# Color Res. Appl. 24:243, Table 1 and equations 4 and 5).
CONES = np.array(
    [[17.8824, 43.5161, 4.11935], [3.45565, 27.1554, 3.86714], [0.0299566, 0.184309, 1.46709]]
)
WITHOUT_RED = np.array([[0, 2.02344, -2.52581], [0, 1, 0], [0, 0, 1]])
WITHOUT_GREEN = np.array([[1, 0, 0], [0.494207, 0, 1.24827], [0, 0, 1]])
TABLEAU = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2")


def nearest_pair(colors, loss) -> float:
    """Least distance of two colors, each 0 to 1 in RGB, as one without a cone sees them."""
    rgb = np.array([[int(c[i : i + 2], 16) / 255 for i in (1, 3, 5)] for c in colors]) ** 2.2
    seen = (np.linalg.inv(CONES) @ loss @ CONES @ rgb.T).T.clip(0, 1) ** (1 / 2.2)
    apart = np.linalg.norm(seen[:, None] - seen[None], axis=-1)
    return apart[np.triu_indices(len(seen), 1)].min()


@pytest.mark.parametrize("loss", [WITHOUT_RED, WITHOUT_GREEN])
def test_the_colour_blind_tell_the_colours_apart(loss) -> None:
    assert nearest_pair(plots.COLORS, loss) > 0.12 > nearest_pair(TABLEAU, loss)
