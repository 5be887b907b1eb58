"""Layers and config fields that two families share."""

from scalelab.interop.mapping import Choice, Fixed, Row, affine, norm

PARTS = ("query", "key", "value")
# Spellings of `transformers` -> names in nn.ffn.ACTIVATIONS.
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
ENCODER_CHOICES = (
    Choice("activation", "hidden_act", "gelu", "gelu", ACTIVATIONS),
    Choice("norm_epsilon", "layer_norm_eps", 1e-12, 1e-12),
)
TIED = Fixed(
    "tie_word_embeddings", (True,), True, "the input's table scores tokens (model.output_embedding)"
)
ENCODER_FIXED = (
    Fixed("position_embedding_type", ("absolute",), "absolute", "its positions are absolute"),
    Fixed("is_decoder", (False,), False, "every token attends to every other"),
    Fixed("add_cross_attention", (False,), False, "it has no cross-attention"),
)


def encoder_layers(tensor: str, path: str = "stack/layer") -> tuple[Row, ...]:
    """Makes the rows of the layers of BERT and RoBERTa.

    Args:
      tensor: prefix of the tensors' names.
      path: prefix of our parameters' paths.
    """
    split = ("split_heads", "split_heads_bias")
    each = [
        affine(f"{path}/attention/{part}", f"{tensor}.attention.self.{part}", *split)
        for part in PARTS
    ]
    return (
        *(row for rows in each for row in rows),
        *affine(f"{path}/attention/out", f"{tensor}.attention.output.dense", "join_heads"),
        *norm(f"{path}/attention_norm", f"{tensor}.attention.output.LayerNorm"),
        *affine(f"{path}/ffn/inner", f"{tensor}.intermediate.dense"),
        *affine(f"{path}/ffn/outer", f"{tensor}.output.dense"),
        *norm(f"{path}/ffn_norm", f"{tensor}.output.LayerNorm"),
    )


def decoder_layers(tensor: str, path: str = "stack/layer") -> tuple[Row, ...]:
    """Makes the rows of the layers of GPT and GPT-2.

    Args:
      tensor: prefix of the tensors' names.
      path: prefix of our parameters' paths.
    """
    kernels, biases = (
        tuple(f"{path}/attention/{part}/{kind}" for part in PARTS) for kind in ("kernel", "bias")
    )
    return (
        Row(kernels, (f"{tensor}.attn.c_attn.weight",), "fused_qkv"),
        Row(biases, (f"{tensor}.attn.c_attn.bias",), "fused_qkv"),
        *affine(f"{path}/attention/out", f"{tensor}.attn.c_proj", "conv1d_join_heads"),
        *norm(f"{path}/attention_norm", f"{tensor}.ln_1"),
        *affine(f"{path}/ffn/inner", f"{tensor}.mlp.c_fc", "same"),
        *affine(f"{path}/ffn/outer", f"{tensor}.mlp.c_proj", "same"),
        *norm(f"{path}/ffn_norm", f"{tensor}.ln_2"),
    )
