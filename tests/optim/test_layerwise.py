"""Layer-wise rates by hand."""

import jax.numpy as jnp
import numpy as np

from scalelab.optim import adamw


def test_factors_by_hand() -> None:
    params = {
        "body": {
            "embed": {"tokens": {"table": jnp.zeros((7, 2))}},
            "stack": {"layer": {"bias": jnp.zeros((3, 4)), "kernel": jnp.zeros((3, 2, 2))}},
            "norm": {"scale": jnp.zeros(2)},
        },
        "head": {"out": {"kernel": jnp.zeros((2, 2))}},
    }
    made = adamw.layerwise_factors(params, 3, 0.5)
    assert float(made["head"]["out"]["kernel"]) == 1
    assert float(made["body"]["norm"]["scale"]) == 1
    layer = made["body"]["stack"]["layer"]
    np.testing.assert_allclose(layer["bias"][:, 0], [0.125, 0.25, 0.5])
    np.testing.assert_allclose(layer["kernel"][:, 0, 0], [0.125, 0.25, 0.5])
    assert layer["kernel"].shape == (3, 1, 1)
    assert float(made["body"]["embed"]["tokens"]["table"]) == 0.0625
