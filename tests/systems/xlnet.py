"""What is expected of XLNet."""

import contextlib
from typing import Any
from unittest import mock

from declared import GUESS, Expected, Peer, Shape, kernels_of_layers


def settings(shape: Shape, max_len: int) -> dict[str, Any]:
    """Fields of its config.json."""
    num_heads, width, num_layers = shape
    given = {"n_head": num_heads, "d_model": width, "n_layer": num_layers, "d_inner": 4 * width}
    return given | {"n_positions": max_len, "pad_token_id": 0}


def exact() -> contextlib.AbstractContextManager[Any]:
    """Their sinusoids are float32."""
    import torch

    return mock.patch.object(torch.Tensor, "float", torch.Tensor.double)


LAYER = 13 * 768**2 + (3 + 2) * 768 + (4 + 1) * 768 + 4 * 768
BASE = 32000 * 769 + 768 + 12 * LAYER

EXPECTED = Expected(
    tokenizer="unigram",
    stddevs={"": 0.02},
    first_losses={"plm": GUESS},
    # In transformers; the layers have 3 biases of scores and 2 segment vectors.
    num_parameters={("plm", 32000, 512): BASE},
    decayed=kernels_of_layers()
    | {"stack/layer/attention/distances/key/kernel", "stack/layer/attention/segment_table"}
    | {"embed/tokens/table", "query_embed/vector"},
    more_parts=True,  # W_kR maps each distance once a batch
    fields={"system_options__memory_len": 8},
    memory_len=8,
    peer=Peer(
        "XLNetLMHeadModel",
        "XLNetForSequenceClassification",
        settings,
        exact=exact,
        own_test="tests/systems/test_xlnet.py compares it: its class reads an order, too",
    ),
)
