"""BART, `transformers`' BartForConditionalGeneration: Lewis et al. 2020."""

import numpy as np

from scalelab.interop.mapping import (
    Architecture,
    Choice,
    Derived,
    Field,
    Fixed,
    Map,
    Row,
    affine,
    norm,
    row,
)
from scalelab.interop.maps._layers import ACTIVATIONS

UNUSED_ROWS = 2  # the class adds 2 to all positions (fairseq: the first after the padding id 1)
POSITIONS = (lambda _, x: x[UNUSED_ROWS:], lambda x: np.pad(x, [(UNUSED_ROWS, 0), (0, 0)]))


def _attention(path: str, tensor: str) -> tuple[Row, ...]:
    split = "split_heads", "split_heads_bias"
    each = [
        affine(f"{path}/{ours}", f"{tensor}.{its}_proj", *split)
        for ours, its in (("query", "q"), ("key", "k"), ("value", "v"))
    ]
    rows = (row for rows in each for row in rows)
    return (*rows, *affine(f"{path}/out", f"{tensor}.out_proj", "join_heads"))


def _side(side: str, embed: str, layer: str, *, cross: bool) -> tuple[Row, ...]:
    """Makes the rows of one side, "encoder" or "decoder", without its token table."""
    outer, block = f"model.{side}", f"model.{side}.layers.{{}}"
    rows = (
        row(f"{embed}/positions/table", f"{outer}.embed_positions.weight", POSITIONS),
        *norm(f"{embed}/norm", f"{outer}.layernorm_embedding"),
        *_attention(f"{layer}/attention", f"{block}.self_attn"),
        *norm(f"{layer}/attention_norm", f"{block}.self_attn_layer_norm"),
        *affine(f"{layer}/ffn/inner", f"{block}.fc1"),
        *affine(f"{layer}/ffn/outer", f"{block}.fc2"),
        *norm(f"{layer}/ffn_norm", f"{block}.final_layer_norm"),
    )
    if not cross:
        return rows
    return (
        *rows,
        *_attention(f"{layer}/cross_attention", f"{block}.encoder_attn"),
        *norm(f"{layer}/cross_norm", f"{block}.encoder_attn_layer_norm"),
    )


MAP = Map(
    system="bart",
    model_type="bart",
    prefix="model.",
    fields=(
        Field("num_heads", "encoder_attention_heads", 16),
        Field("width", "d_model", 1024),
        Field("num_layers", "encoder_layers", 12),
        Field("ffn_width", "encoder_ffn_dim", 4096),
        Field("max_len", "max_position_embeddings", 1024),
        Field("vocab_size", "vocab_size", 50265),
        Field("dropout_rate", "dropout", 0.1),
        Field("dropout_rate", "attention_dropout", 0.0),
        Field("dropout_rate", "activation_dropout", 0.0),
    ),
    derived=(
        Derived("decoder_attention_heads", lambda f: f["num_heads"], "both sides have as many"),
        Derived("decoder_layers", lambda f: f["num_layers"], "both sides have as many layers"),
        Derived("decoder_ffn_dim", lambda f: f["ffn_width"], "both sides have one width"),
    ),
    choices=(
        Choice("activation", "activation_function", "gelu", "gelu", ACTIVATIONS),
        # The class has no field for it: another value cannot be exported.
        Choice("norm_epsilon", "layer_norm_eps", "1e-5", "1e-5", {"1e-5": "1e-5"}),
    ),
    fixed=(
        Fixed("scale_embedding", (False,), False, "embeddings are not multiplied by sqrt(D)"),
        Fixed("is_encoder_decoder", (True,), True, "it has an encoder and a decoder"),
        Fixed("decoder_start_token_id", (2,), 2, "a target starts with the end token, id 2"),
        Fixed("tie_word_embeddings", (True,), True, "one table embeds and scores all tokens"),
    ),
    body=(
        row("decoder/embed/tokens/table", "model.shared.weight", "vocabulary"),
        *_side("encoder", "source_embed", "encoder/layer", cross=False),
        *_side("decoder", "decoder/embed", "decoder/stack/layer", cross=True),
    ),
    heads={"seq2seq": ()},
    architectures=(Architecture("BartForConditionalGeneration", ("seq2seq",), "next"),),
    inputs=("input_ids", "attention_mask"),
    tied=(
        ("lm_head.weight", "model.shared.weight"),
        ("model.encoder.embed_tokens.weight", "model.shared.weight"),
        ("model.decoder.embed_tokens.weight", "model.shared.weight"),
    ),
    zeros=("final_logits_bias",),
)
