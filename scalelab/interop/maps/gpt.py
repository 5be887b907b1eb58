"""GPT, `transformers`' OpenAIGPT...: Radford et al. 2018."""

from scalelab.interop.mapping import Architecture, Field, Fixed, Map, Row, affine, norm, row

LAYER, THEIRS = "stack/layer", "transformer.h.{}"
PARTS = ("query", "key", "value")

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
    fixed=(
        # The class calls the tanh form "gelu".
        Fixed("afn", ("gelu",), "gelu", "its activation is the tanh form of GELU"),
        Fixed("layer_norm_epsilon", (1e-5,), 1e-5, "the epsilon of its norms is 1e-5"),
    ),
    body=(
        row("embed/tokens/table", "transformer.tokens_embed.weight", "vocabulary"),
        row("embed/positions/table", "transformer.positions_embed.weight"),
        Row(
            tuple(f"{LAYER}/attention/{part}/kernel" for part in PARTS),
            (f"{THEIRS}.attn.c_attn.weight",),
            "fused_qkv",
        ),
        Row(
            tuple(f"{LAYER}/attention/{part}/bias" for part in PARTS),
            (f"{THEIRS}.attn.c_attn.bias",),
            "fused_qkv",
        ),
        *affine(f"{LAYER}/attention/out", f"{THEIRS}.attn.c_proj", "conv1d_join_heads"),
        *norm(f"{LAYER}/attention_norm", f"{THEIRS}.ln_1"),
        *affine(f"{LAYER}/ffn/inner", f"{THEIRS}.mlp.c_fc", "same"),
        *affine(f"{LAYER}/ffn/outer", f"{THEIRS}.mlp.c_proj", "same"),
        *norm(f"{LAYER}/ffn_norm", f"{THEIRS}.ln_2"),
    ),
    heads={
        "clm": (),
        "classify": (Row(("head/out/kernel", "head/out/bias"), ("score.weight",), "without_bias"),),
    },
    architectures=(
        Architecture("OpenAIGPTLMHeadModel", ("clm",), ("clm",)),
        Architecture("OpenAIGPTForSequenceClassification", ("classify",)),
        Architecture("OpenAIGPTModel", ("clm",), ("clm",), bare=True),
    ),
    classes="score.weight",
    head_kind="single",
    inputs=("input_ids", "attention_mask"),
    tied=(("lm_head.weight", "transformer.tokens_embed.weight"),),
    buffers=(r"transformer\.h\.\d+\.attn\.bias", r"transformer\.position_ids"),
    last_shift="stack/layer/ffn_norm/bias",
)
