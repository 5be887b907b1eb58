"""T5's buckets and exports; tests/interop/test_parity.py compares it with its class."""

import pathlib
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from scalelab.interop import exporting
from scalelab.systems import t5


@pytest.mark.parity
@pytest.mark.parametrize("causal", [False, True])
def test_buckets_are_those_of_transformers(causal: bool) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    from transformers.models.t5.modeling_t5 import T5Attention

    distance = np.arange(-600, 601)
    found = T5Attention._relative_position_bucket(torch.tensor(distance), not causal)
    np.testing.assert_array_equal(t5.bucket(jnp.asarray(distance), causal), found.numpy())


def test_buckets_by_hand() -> None:
    """The exact ones, and both ends of the logarithmic ones."""
    distance = jnp.array([0, -1, -7, -8, -127, -128, -900, 1, 7, 8, 900])
    assert t5.bucket(distance, False).tolist() == [0, 1, 7, 8, 15, 15, 15, 17, 23, 24, 31]
    assert t5.bucket(distance, True).tolist() == [0, 1, 7, 8, 31, 31, 31, 0, 0, 0, 0]


def test_an_untied_net_is_not_exported(wikitext: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """The class scores with the input's table, whatever its config says."""
    untied: dict[str, Any] = {"net__output_embedding": "untied"}
    tiny.write_run(tmp_path / "run", "t5", wikitext, tmp_path / "cache", **untied)
    message = "T5ForConditionalGeneration cannot .* by a table of its own"
    with pytest.raises(ValueError, match=message):
        exporting.run(tmp_path / "run", tmp_path / "out")
