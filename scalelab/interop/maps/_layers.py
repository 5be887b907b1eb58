"""Layers and config fields that two families share."""

from scalelab.interop.mapping import Fixed, Row, affine, norm

PARTS = ("query", "key", "value")
ENCODER_FIXED = (
    Fixed("hidden_act", ("gelu", "gelu_python"), "gelu", "its activation is the exact GELU"),
    Fixed("position_embedding_type", ("absolute",), "absolute", "its positions are absolute"),
    Fixed("is_decoder", (False,), False, "every token attends to every other"),
    Fixed("add_cross_attention", (False,), False, "it has no cross-attention"),
)


def encoder_layers(theirs: str, ours: str = "stack/layer") -> tuple[Row, ...]:
    """Makes the rows of the layers of BERT and RoBERTa, whose names begin with `theirs`."""
    split = ("split_heads", "split_heads_bias")
    each = [
        affine(f"{ours}/attention/{part}", f"{theirs}.attention.self.{part}", *split)
        for part in PARTS
    ]
    return (
        *(row for rows in each for row in rows),
        *affine(f"{ours}/attention/out", f"{theirs}.attention.output.dense", "join_heads"),
        *norm(f"{ours}/attention_norm", f"{theirs}.attention.output.LayerNorm"),
        *affine(f"{ours}/ffn/inner", f"{theirs}.intermediate.dense"),
        *affine(f"{ours}/ffn/outer", f"{theirs}.output.dense"),
        *norm(f"{ours}/ffn_norm", f"{theirs}.output.LayerNorm"),
    )


def decoder_layers(theirs: str, ours: str = "stack/layer") -> tuple[Row, ...]:
    """Makes the rows of the layers of GPT and GPT-2, whose names begin with `theirs`."""
    kernels, biases = (
        tuple(f"{ours}/attention/{part}/{kind}" for part in PARTS) for kind in ("kernel", "bias")
    )
    return (
        Row(kernels, (f"{theirs}.attn.c_attn.weight",), "fused_qkv"),
        Row(biases, (f"{theirs}.attn.c_attn.bias",), "fused_qkv"),
        *affine(f"{ours}/attention/out", f"{theirs}.attn.c_proj", "conv1d_join_heads"),
        *norm(f"{ours}/attention_norm", f"{theirs}.ln_1"),
        *affine(f"{ours}/ffn/inner", f"{theirs}.mlp.c_fc", "same"),
        *affine(f"{ours}/ffn/outer", f"{theirs}.mlp.c_proj", "same"),
        *norm(f"{ours}/ffn_norm", f"{theirs}.ln_2"),
    )
