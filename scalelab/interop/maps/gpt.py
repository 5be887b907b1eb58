"""GPT, `transformers`' OpenAIGPT...: Radford et al. 2018."""

import dataclasses

from scalelab.interop.mapping import Architecture, Choice, row
from scalelab.interop.maps import gpt2
from scalelab.interop.maps._layers import decoder_layers, with_defaults

ACTIVATIONS = {"gelu": "gelu_tanh", "relu": "relu", "silu": "silu", "swish": "silu"}
SIZES = tuple(field for field in gpt2.MAP.fields if field.name != "ffn_width")

MAP = dataclasses.replace(
    gpt2.MAP,
    system="gpt",
    model_type="openai-gpt",
    fields=with_defaults(SIZES, {"n_positions": 512, "vocab_size": 40478}),
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
    architectures=(
        Architecture("OpenAIGPTLMHeadModel", ("clm",), "next"),
        Architecture("OpenAIGPTForSequenceClassification", ("classify",)),
    ),
    tied=(("lm_head.weight", "transformer.tokens_embed.weight"),),
    buffers=(r"transformer\.h\.\d+\.attn\.bias", r"transformer\.position_ids"),
    last_shift="stack/layer/ffn_norm/bias",
)
