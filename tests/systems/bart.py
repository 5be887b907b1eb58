"""What is expected of BART."""

from typing import Any

import numpy as np
import pytest
from declared import GUESS, Batch, Expected, Peer, Shape, kernels_of_layers, valid_places

DECODER = "decoder/stack"
CROSS = {f"{DECODER}/layer/cross_attention/{n}/kernel" for n in ("query", "key", "value", "out")}


def settings(shape: Shape, max_len: int) -> dict[str, Any]:
    """Fields of its config.json."""
    num_heads, width, num_layers = shape
    sides = {"attention_heads": num_heads, "layers": num_layers, "ffn_dim": 4 * width}
    given = {f"{side}_{name}": n for side in ("encoder", "decoder") for name, n in sides.items()}
    return given | {"d_model": width, "max_position_embeddings": max_len}


def inputs(batch: Batch) -> Batch:
    """The decoder reads the target behind the start token."""
    return {
        "input_ids": batch["source"],
        "attention_mask": valid_places(batch, "source"),
        "decoder_input_ids": batch["tokens"],
        "labels": np.where(valid_places(batch), batch["targets"], -100),
    }


def one_table_of_positions(patch: pytest.MonkeyPatch, module: Any) -> None:
    """The encoder reads the decoder's positions and norm."""
    made = module.EncoderDecoder
    patch.setattr(module, "EncoderDecoder", lambda source_embed, **parts: made(**parts))


EXPECTED = Expected(
    tokenizer="bytebpe",
    stddevs={"": 0.02},
    zero_rows={"decoder/embed/tokens/table": 1},  # padding
    first_losses={"seq2seq": GUESS},
    # 12 layers on each side; two rows of each table of positions, which nothing uses, less.
    num_parameters={("seq2seq", 50265, 1024): 238_658_304 - 4 * 768},
    decayed=kernels_of_layers("encoder")
    | kernels_of_layers(DECODER)
    | CROSS
    | {"decoder/embed/tokens/table"}
    | {f"{side}/positions/table" for side in ("decoder/embed", "source_embed")},
    body="",
    more_parts=True,
    peer=Peer(
        "BartForConditionalGeneration",
        "BartForSequenceClassification",
        settings,
        inputs=inputs,
        outputs={
            "encoder_hidden_states": ("encoder", "source"),
            "encoder_attentions": ("encoder", "source"),
            "decoder_hidden_states": (DECODER, "tokens"),
            "decoder_attentions": (f"{DECODER}/layer/attention", "tokens"),
            "cross_attentions": (f"{DECODER}/layer/cross_attention", "tokens"),
        },
        shapes=(((7, 84, 1), 128), ((3, 21, 3), 64), ((1, 11, 2), 7)),
        mutations={"one table of positions": one_table_of_positions},
    ),
)
