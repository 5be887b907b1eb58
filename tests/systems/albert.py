"""What is expected of ALBERT."""

from typing import Any

import pytest
from declared import COIN, CUT, GUESS, Expected, Peer, berts_kernels, encoder_settings

from scalelab.nn import axes

BASE = 11_683_584  # transformers' AlbertModel with its pooler; 12M in the paper
TOKEN_HEAD = 768 * 128 + 128 + 2 * 128 + 30000


def options(num_layers: int) -> dict[str, Any]:
    """An odd width of the embedding; two groups of layers."""
    groups = min(2, num_layers)
    return {"hidden_act": "gelu_new", "embedding_size": 11, "num_hidden_groups": groups}


def groups_reversed(patch: pytest.MonkeyPatch, module: Any) -> None:
    """The first layers have the parameters of the last group."""

    del module
    group_of = axes.group_of
    patch.setattr(axes, "group_of", lambda n, size, groups: groups - 1 - group_of(n, size, groups))


EXPECTED = Expected(
    tokenizer="unigram",
    stddevs={"": CUT},
    largest=0.04,
    first_losses={"mlm": GUESS, "sop": COIN},
    num_parameters={("mlm+sop", 30000, 512): BASE + TOKEN_HEAD + 2 * 768 + 2},
    decayed=berts_kernels(
        "embed/projection/kernel", "pair_head/pooler/kernel", "pair_head/classifier/kernel"
    ),
    more_parts=True,
    peer=Peer(
        "AlbertForPreTraining",
        "AlbertForSequenceClassification",
        encoder_settings,
        lowercase=True,
        options=options,
        pair=("sentence_order_label", "sop_logits"),
        mutations={"groups reversed": groups_reversed},
    ),
)
