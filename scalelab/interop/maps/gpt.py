"""GPT, `transformers`' OpenAIGPT...: Radford et al. 2018."""

from scalelab.interop.mapping import Architecture, Choice, Field, Map, Row, row
from scalelab.interop.maps._layers import decoder_layers

ACTIVATIONS = {"gelu": "gelu_tanh", "relu": "relu", "silu": "silu", "swish": "silu"}

MAP = Map(
    system="gpt",
    model_type="openai-gpt",
    prefix="transformer.",
    fields=(
        Field("num_heads", "n_head", 12),
        Field("width", "n_embd", 768),
        Field("num_layers", "n_layer", 12),
        Field("max_len", "n_positions", 512),
        Field("vocab_size", "vocab_size", 40478),
        Field("dropout_rate", "resid_pdrop", 0.1),
        Field("dropout_rate", "embd_pdrop", 0.1),
        Field("dropout_rate", "attn_pdrop", 0.1),
    ),
    choices=(
        # This class of `transformers` calls the tanh form "gelu".
        Choice("activation", "afn", "gelu", "gelu", ACTIVATIONS),
        Choice("norm_epsilon", "layer_norm_epsilon", 1e-5, 1e-5),
    ),
    fixed=(),
    body=(
        row("embed/tokens/table", "transformer.tokens_embed.weight", "vocabulary"),
        row("embed/positions/table", "transformer.positions_embed.weight"),
        *decoder_layers("transformer.h.{}"),
    ),
    heads={
        "clm": (),
        "classify": (Row(("head/out/kernel", "head/out/bias"), ("score.weight",), "without_bias"),),
    },
    architectures=(
        Architecture("OpenAIGPTLMHeadModel", ("clm",), "next"),
        Architecture("OpenAIGPTForSequenceClassification", ("classify",)),
    ),
    inputs=("input_ids", "attention_mask"),
    tied=(("lm_head.weight", "transformer.tokens_embed.weight"),),
    buffers=(r"transformer\.h\.\d+\.attn\.bias", r"transformer\.position_ids"),
    last_shift="stack/layer/ffn_norm/bias",
)
