"""What is expected of T5."""

from typing import Any
from unittest import mock

import pytest
from declared import VOCAB, Expected, Mutation, Peer, Shape, kernels_of_layers, source_inputs

from scalelab.nn import buckets

WIDTH, K, FFN = 64, 32, 256  # sizes in the test of initialisation
DECODER = "decoder/stack/stack"
CROSS = {f"{DECODER}/layer/cross_attention/{n}/kernel" for n in ("query", "key", "value", "out")}


def settings(shape: Shape, max_len: int) -> dict[str, Any]:
    """Fields of its config.json."""
    num_heads, width, num_layers = shape
    given = {"d_model": width, "d_kv": width // num_heads, "d_ff": 4 * width}
    given |= {"num_heads": num_heads, "num_layers": num_layers, "n_positions": max_len}
    return given | {"decoder_start_token_id": 0}


def exact() -> Any:
    """Their norm rounds to float32."""
    from transformers.models.t5.modeling_t5 import T5LayerNorm

    def forward(norm: Any, x: Any) -> Any:
        return norm.weight * x * (x.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt()

    return mock.patch.object(T5LayerNorm, "forward", forward)


def one_way(causal: bool) -> Mutation:
    """Both stacks have the buckets of one of them."""

    def mutate(patch: pytest.MonkeyPatch, module: Any) -> None:
        bucket = buckets.bucket
        patch.setattr(buckets, "bucket", lambda distance, _: bucket(distance, causal))

    return mutate


EXPECTED = Expected(
    tokenizer="unigram",
    stddevs={
        "query/kernel": (WIDTH * K) ** -0.5,
        "ffn/outer/kernel": FFN**-0.5,
        "tokens/table": 1.0,
        "": WIDTH**-0.5,
    },
    # Above a guess, 4.57: rows of the tied table have the length sqrt(D), so that scores differ.
    first_losses={"seq2seq": 5.13},
    # 12 layers on each side; the paper says about 220M, of 12 layers and 32,128 rows.
    num_parameters={("seq2seq", 32128, 512): 222_903_552},
    decayed=kernels_of_layers("encoder/stack")
    | kernels_of_layers(DECODER)
    | CROSS
    | {"decoder/embed/tokens/table", "encoder/buckets", "decoder/stack/buckets"},
    body="",
    more_parts=True,
    peer=Peer(
        "T5ForConditionalGeneration",
        None,
        settings,
        vocab_size=VOCAB,
        inputs=source_inputs,
        outputs={
            "encoder_hidden_states": ("encoder", "source"),
            "encoder_attentions": ("encoder", "source"),
            "decoder_hidden_states": ("decoder", "tokens"),
            "decoder_attentions": (f"{DECODER}/layer/attention", "tokens"),
            "cross_attentions": (f"{DECODER}/layer/cross_attention", "tokens"),
        },
        exact=exact,
        small=((3, 24, 2), 150),  # distances beyond the last bucket
        shapes=(((7, 84, 1), 128), ((3, 21, 5), 128), ((1, 11, 2), 7)),
        mutations={
            "no factor before the table": lambda patch, to: patch.setattr(
                to, "ScaledHead", to.PlainHead
            ),
            "one direction": one_way(True),
            "both directions": one_way(False),
            "nearer buckets": lambda patch, _: patch.setattr(buckets, "MAX_DISTANCE", 64),
        },
    ),
)
