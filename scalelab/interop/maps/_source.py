"""The map of a class with encoder and decoder: BART, Marian and Pegasus have the same names."""

from collections.abc import Mapping
from typing import Any

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
from scalelab.interop.maps._layers import ACTIVATIONS, PARTS, TIED

# Other rates of a class that are our one rate, too.
DROPOUTS = (
    Field("dropout_rate", "attention_dropout", 0.0),
    Field("dropout_rate", "activation_dropout", 0.0),
)
SINUSOIDS = (r"model\.(encoder|decoder)\.embed_positions\.weight",)
DERIVED = (
    Derived("decoder_layers", lambda f: f["num_layers"], "both sides have as many layers"),
    Derived("decoder_attention_heads", lambda f: f["num_heads"], "both sides are alike"),
    Derived("decoder_ffn_dim", lambda f: f["ffn_width"], "both sides are alike"),
)
FIXED = (
    TIED,
    Fixed("is_encoder_decoder", (True,), True, "it has an encoder and a decoder"),
)
TABLE = "model.shared.weight"
COPIES = ("model.encoder.embed_tokens", "model.decoder.embed_tokens")


def source_map(
    *,
    architecture: str,
    vocab_size: int,
    activation: str,
    fields: tuple[Field, ...] = (),
    derived: tuple[Derived, ...] = (),
    fixed: tuple[Fixed, ...],
    body: tuple[Row, ...] = (),
    heads: Mapping[str, tuple[Row, ...]] | None = None,
    architectures: tuple[Architecture, ...] = (),
    **own: Any,
) -> Map:
    """Makes the map of a class: what all share, and then its own arguments of `Map`.

    Args:
      architecture: name of the generating class.
      vocab_size: default of the class.
      activation: the system's own.
      fields: more fields of config.json that set ours.
      derived: more fields of config.json that are computed.
      fixed: fields of config.json that must have one value.
      body: more rows of parameters.
      heads: name of a head -> its rows, besides the generating class; None: none.
      architectures: classes besides the generating one.
      **own: other fields of `Map`.
    """
    shared = (
        Field("num_heads", "encoder_attention_heads", 16),
        Field("width", "d_model", 1024),
        Field("num_layers", "encoder_layers", 12),
        Field("ffn_width", "encoder_ffn_dim", 4096),
        Field("max_len", "max_position_embeddings", 1024),
        Field("vocab_size", "vocab_size", vocab_size),
        Field("dropout_rate", "dropout", 0.1),
    )
    rows = (
        row("decoder/embed/tokens/table", TABLE, "vocabulary"),
        *_layers("model.encoder.layers.{}", "encoder/layer"),
        *_layers("model.decoder.layers.{}", "decoder/stack/layer", cross=True),
    )
    return Map(
        prefix="model.", fields=shared + fields, derived=DERIVED + derived, fixed=FIXED + fixed,
        choices=(Choice("activation", "activation_function", activation, "gelu", ACTIVATIONS),),
        body=rows + body, heads={"seq2seq": (), **(heads or {})},
        inputs=("input_ids", "attention_mask"),
        architectures=(Architecture(architecture, ("seq2seq",), "next"), *architectures),
        tied=(("lm_head.weight", TABLE),),
        copies=tuple((f"{name}.weight", TABLE) for name in COPIES), zeros=("final_logits_bias",),
        **own,
    )  # fmt: skip


def _layers(tensor: str, path: str, *, cross: bool = False) -> tuple[Row, ...]:
    """Makes the rows of the layers of one side; tensor names begin with `tensor`.

    `cross`: the layers have cross-attention, as those of the decoder.
    """
    split = ("split_heads", "split_heads_bias")
    rows: list[Row] = []
    own = ("attention", "attention_norm", "self_attn")
    other = ("cross_attention", "cross_norm", "encoder_attn")
    for ours, its_norm, theirs in (own, other)[: 1 + cross]:
        for part in PARTS:
            rows += affine(f"{path}/{ours}/{part}", f"{tensor}.{theirs}.{part[0]}_proj", *split)
        rows += affine(f"{path}/{ours}/out", f"{tensor}.{theirs}.out_proj", "join_heads")
        rows += norm(f"{path}/{its_norm}", f"{tensor}.{theirs}_layer_norm")
    return (
        *rows,
        *affine(f"{path}/ffn/inner", f"{tensor}.fc1"),
        *affine(f"{path}/ffn/outer", f"{tensor}.fc2"),
        *norm(f"{path}/ffn_norm", f"{tensor}.final_layer_norm"),
    )
