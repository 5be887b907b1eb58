"""T5, `transformers`' T5ForConditionalGeneration: Raffel et al. 2020; and its version 1.1."""

from scalelab.interop.mapping import Architecture, Choice, Derived, Field, Fixed, Map, Row, row
from scalelab.interop.maps._layers import ACTIVATIONS

# "gelu" is exact alone, and the tanh form behind "gated-".
GATED = {f"gated-{word}": name for word, name in ACTIVATIONS.items()} | {"gated-gelu": "gelu_tanh"}
FFNS = ACTIVATIONS | GATED
FFN = "{}.block.{{}}.layer.{}.DenseReluDense"


def _attention(path: str, tensor: str) -> tuple[Row, ...]:
    parts = (("query", "q"), ("key", "k"), ("value", "v"))
    return (
        *(
            row(f"{path}/{ours}/kernel", f"{tensor}.{its}.weight", "split_heads")
            for ours, its in parts
        ),
        row(f"{path}/out/kernel", f"{tensor}.o.weight", "join_heads"),
    )


def _stack(path: str, side: str, *, cross: bool) -> tuple[Row, ...]:
    """Makes the rows of one side, "encoder" or "decoder"."""
    block, layer, last = f"{side}.block.{{}}.layer", f"{path}/stack/layer", 1 + cross
    ffn = FFN.format(side, last)
    rows = (
        *_attention(f"{layer}/attention", f"{block}.0.SelfAttention"),
        row(f"{layer}/attention_norm/scale", f"{block}.0.layer_norm.weight"),
        row(f"{layer}/ffn/inner/kernel", f"{ffn}.wi.weight", "transpose"),
        row(f"{layer}/ffn/outer/kernel", f"{ffn}.wo.weight", "transpose"),
        row(f"{layer}/ffn_norm/scale", f"{block}.{last}.layer_norm.weight"),
        row(
            f"{path}/buckets",
            f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
        ),
        row(f"{path}/norm/scale", f"{side}.final_layer_norm.weight"),
    )
    if not cross:
        return rows
    return (
        *rows,
        *_attention(f"{layer}/cross_attention", f"{block}.1.EncDecAttention"),
        row(f"{layer}/cross_norm/scale", f"{block}.1.layer_norm.weight"),
    )


MAP = Map(
    system="t5",
    model_type="t5",
    prefix="",
    fields=(
        Field("num_heads", "num_heads", 8),
        Field("width", "d_model", 512),
        Field("num_layers", "num_layers", 6),
        Field("ffn_width", "d_ff", 2048),
        Field("max_len", "n_positions", 512),
        Field("vocab_size", "vocab_size", 32128),
        Field("dropout_rate", "dropout_rate", 0.1),
    ),
    derived=(
        Derived("d_kv", lambda f: f.get("head_size") or f["width"] // f["num_heads"], "it is K"),
        Derived("num_decoder_layers", lambda f: f["num_layers"], "both sides have as many layers"),
    ),
    choices=(
        Choice("activation", "feed_forward_proj", "relu", "relu", FFNS),
        Choice("norm_epsilon", "layer_norm_epsilon", 1e-6, 1e-6),
    ),
    fixed=(
        Fixed("relative_attention_num_buckets", (32,), 32, "distances have 32 buckets"),
        Fixed("relative_attention_max_distance", (128,), 128, "buckets grow up to distance 128"),
        Fixed("is_encoder_decoder", (True,), True, "it has an encoder and a decoder"),
        Fixed("decoder_start_token_id", (0,), 0, "a target starts with the padding token, id 0"),
    ),
    options=(Field("head_size", "d_kv", 64, none="head_size"),),  # None: exports take `derived`
    required={"layers": None},
    option_choices=(
        Choice(
            "ffn",
            "feed_forward_proj",
            "relu",
            "relu",
            dict.fromkeys(FFNS) | dict.fromkeys(GATED, "gated"),
        ),
    ),
    body=(
        row("decoder/embed/tokens/table", "shared.weight", "vocabulary"),
        *_stack("encoder", "encoder", cross=False),
        *_stack("decoder/stack", "decoder", cross=True),
    ),
    heads={
        "seq2seq": (),
        "gate": tuple(
            row(f"{path}/stack/layer/ffn/{ours}/kernel", f"{tensor}.{its}.weight", "transpose")
            for path, tensor in (
                ("encoder", FFN.format("encoder", 1)),
                ("decoder/stack", FFN.format("decoder", 2)),
            )
            for ours, its in (("inner", "wi_0"), ("gate", "wi_1"))
        ),
    },
    extras=("gate",),
    architectures=(Architecture("T5ForConditionalGeneration", ("seq2seq",), "next"),),
    inputs=("input_ids", "attention_mask"),
    special=("<extra_id_0>", "<extra_id_1>"),
    tied=(("lm_head.weight", "shared.weight"),),
    # A tied model has the factor D^-0.5, an untied one none; new versions write that as a field.
    untied=lambda c: False in (c.get("tie_word_embeddings"), c.get("scale_decoder_outputs")),
    # Transformers 5 ties the tables of such a model.
    one_table=lambda c: (
        c.get("scale_decoder_outputs") is False and "ForConditional" in str(c.get("architectures"))
    ),
    copies=(
        ("encoder.embed_tokens.weight", "shared.weight"),
        ("decoder.embed_tokens.weight", "shared.weight"),
    ),
    unused=(r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",),
)
