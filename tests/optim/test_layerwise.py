"""Layer-wise rates by hand; layers are found by the names of axes, wherever they lie."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import unflatten_dict

from scalelab.optim import adamw

SIZES = {"layers": 3, "vocab": 7, "width": 2, "heads": 4, "ffn": 2, "norm": 2, "classes": 2}
NAMES = {
    "body/embed/tokens/table": ("vocab", "width"),
    "body/embedding_of_another_kind/table": ("vocab", "width"),
    "body/blocks/bias": ("layers", "heads"),
    "body/blocks/kernel": ("layers", "width", "ffn"),
    "body/norm/scale": ("norm",),
    "head/out/kernel": ("width", "classes"),
    "shared": ("groups", "width"),
}


def factors(num_groups: int) -> dict:
    """Of three layers, the lowest 0.5 of the next and so on."""
    sizes = SIZES | {"groups": num_groups}
    flat = {name: jnp.zeros([sizes[axis] for axis in axes]) for name, axes in NAMES.items()}
    params = unflatten_dict(flat, sep="/")
    return adamw.layerwise_factors(params, NAMES, 3, 0.5, ["body/embed"])


def test_factors_by_hand() -> None:
    made = factors(1)
    assert float(made["head"]["out"]["kernel"]) == 1
    assert float(made["body"]["norm"]["scale"]) == 1
    layer = made["body"]["blocks"]
    np.testing.assert_allclose(layer["bias"][:, 0], [0.125, 0.25, 0.5])
    np.testing.assert_allclose(layer["kernel"], np.reshape([0.125, 0.25, 0.5], (3, 1, 1)))
    assert float(made["body"]["embed"]["tokens"]["table"]) == 0.0625
    assert float(made["body"]["embedding_of_another_kind"]["table"]) == 1


@pytest.mark.parametrize(("num_groups", "expected"), [
    (1, [(0.125 + 0.25 + 0.5) / 3]),
    (2, [(0.125 + 0.25) / 2, 0.5]),  # the first two layers of three are a group
    (3, [0.125, 0.25, 0.5]),
])  # fmt: skip
def test_a_shared_parameter_has_the_mean_of_its_layers(num_groups: int, expected: list) -> None:
    made = factors(num_groups)["shared"]
    np.testing.assert_allclose(made, np.array(expected)[:, None], rtol=1e-6)
