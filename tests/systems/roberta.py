"""What is expected of RoBERTa."""

from typing import Any

from declared import GUESS, Expected, Peer, Shape, encoder_settings, kernels_of_layers


def settings(shape: Shape, max_len: int) -> dict[str, Any]:
    """Positions begin behind the padding id."""
    more = {"layer_norm_eps": 1e-5, "type_vocab_size": 1, "pad_token_id": 1}
    return encoder_settings(shape, max_len + 2) | more


EXPECTED = Expected(
    tokenizer="bytebpe",
    stddevs={"": 0.02},
    zero_rows={"embed/tokens/table": 1},  # padding
    first_losses={"mlm": GUESS},
    # 124,697,433 in transformers: 2 positions and 1 segment that nothing uses less.
    num_parameters={("mlm", 50265, 512): 124_697_433 - 3 * 768},
    decayed=kernels_of_layers()
    | {"embed/tokens/table", "embed/positions/table", "token_head/dense/kernel"},
    peer=Peer(
        "RobertaForMaskedLM",
        "RobertaForSequenceClassification",
        settings,
        constant="roberta.embeddings.token_type_embeddings.weight",  # its one segment
        shapes=(((3, 84, 5), 7), ((7, 84, 2), 512)),
    ),
)
