"""GPT-2, `transformers`' GPT2...: Radford et al. 2019."""

from scalelab.interop.mapping import Architecture, Choice, Field, Fixed, Map, Row, norm, row
from scalelab.interop.maps._layers import ACTIVATIONS, decoder_layers

MAP = Map(
    system="gpt2",
    model_type="gpt2",
    prefix="transformer.",
    fields=(
        Field("num_heads", "n_head", 12),
        Field("width", "n_embd", 768),
        Field("num_layers", "n_layer", 12),
        Field("ffn_width", "n_inner", None),
        Field("max_len", "n_positions", 1024),
        Field("vocab_size", "vocab_size", 50257),
        Field("dropout_rate", "resid_pdrop", 0.1),
        Field("dropout_rate", "embd_pdrop", 0.1),
        Field("dropout_rate", "attn_pdrop", 0.1),
    ),
    choices=(
        Choice("activation", "activation_function", "gelu_new", "gelu_new", ACTIVATIONS),
        Choice("norm_epsilon", "layer_norm_epsilon", 1e-5, 1e-5),
    ),
    fixed=(
        Fixed("scale_attn_weights", (True,), True, "attention scores are divided by sqrt(K)"),
        Fixed("scale_attn_by_inverse_layer_idx", (False,), False, "all layers use the same scale"),
        Fixed("add_cross_attention", (False,), False, "it has no cross-attention"),
    ),
    body=(
        row("embed/tokens/table", "transformer.wte.weight", "vocabulary"),
        row("embed/positions/table", "transformer.wpe.weight"),
        *decoder_layers("transformer.h.{}"),
        *norm("norm", "transformer.ln_f"),
    ),
    heads={
        "clm": (),
        "classify": (Row(("head/out/kernel", "head/out/bias"), ("score.weight",), "without_bias"),),
    },
    architectures=(
        Architecture("GPT2LMHeadModel", ("clm",), "next"),
        Architecture("GPT2ForSequenceClassification", ("classify",)),
    ),
    inputs=("input_ids", "attention_mask"),
    tied=(("lm_head.weight", "transformer.wte.weight"),),
    buffers=(r"transformer\.h\.\d+\.attn\.(bias|masked_bias)",),
    last_shift="norm/bias",
)
