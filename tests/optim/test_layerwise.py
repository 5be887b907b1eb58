"""Layer-wise rates by hand; layers are found by the names of axes, wherever they lie."""

import jax.numpy as jnp
import numpy as np
import pytest

from scalelab.optim import adamw

NAMES = {
    "body/embed/tokens/table": ("vocab", "width"),
    "body/embedding_of_another_kind/table": ("vocab", "width"),
    "body/blocks/bias": ("layers", "heads"),
    "body/blocks/kernel": ("layers", "width", "ffn"),
    "body/norm/scale": ("norm",),
    "head/out/kernel": ("width", "classes"),
}


def factors(num_layers: int, names: dict = NAMES, **more: tuple[int, ...]) -> dict:
    params = {
        "body": {
            "embed": {"tokens": {"table": jnp.zeros((7, 2))}},
            "embedding_of_another_kind": {"table": jnp.zeros((7, 2))},
            "blocks": {"bias": jnp.zeros((3, 4)), "kernel": jnp.zeros((3, 2, 2))},
            "norm": {"scale": jnp.zeros(2)},
        },
        "head": {"out": {"kernel": jnp.zeros((2, 2))}},
    }
    params |= {name: jnp.zeros(shape) for name, shape in more.items()}
    return adamw.layerwise_factors(params, names, num_layers, 0.5, ["body/embed"])


def test_factors_by_hand() -> None:
    made = factors(3)
    assert float(made["head"]["out"]["kernel"]) == 1
    assert float(made["body"]["norm"]["scale"]) == 1
    layer = made["body"]["blocks"]
    np.testing.assert_allclose(layer["bias"][:, 0], [0.125, 0.25, 0.5])
    np.testing.assert_allclose(layer["kernel"][:, 0, 0], [0.125, 0.25, 0.5])
    assert layer["kernel"].shape == (3, 1, 1)
    assert float(made["body"]["embed"]["tokens"]["table"]) == 0.0625
    assert float(made["body"]["embedding_of_another_kind"]["table"]) == 1


@pytest.mark.parametrize(("num_groups", "expected"), [
    (1, [(0.125 + 0.25 + 0.5) / 3]),
    (2, [(0.125 + 0.25) / 2, 0.5]),  # of three layers the first two are a group
    (3, [0.125, 0.25, 0.5]),
])  # fmt: skip
def test_a_shared_parameter_has_the_mean_of_its_layers(num_groups: int, expected: list) -> None:
    names = NAMES | {"shared": ("groups", "width")}
    made = factors(3, names, shared=(num_groups, 5))["shared"]
    np.testing.assert_allclose(made, np.array(expected)[:, None], rtol=1e-6)
