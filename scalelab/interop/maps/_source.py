"""The map of a class with encoder and decoder: BART, Marian and Pegasus have the same names."""

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
from scalelab.interop.maps._layers import ACTIVATIONS, PARTS

# Other rates of the class that are our one rate, too.
DROPOUTS = (
    Field("dropout_rate", "attention_dropout", 0.0),
    Field("dropout_rate", "activation_dropout", 0.0),
)
SINUSOIDS = (r"model\.(encoder|decoder)\.embed_positions\.weight",)


def source_map(
    system: str,
    model_type: str,
    architecture: str,
    *,
    vocab_size: int,
    activation: str,
    fields: tuple[Field, ...] = (),
    derived: tuple[Derived, ...] = (),
    fixed: tuple[Fixed, ...],
    body: tuple[Row, ...] = (),
    buffers: tuple[str, ...] = (),
) -> Map:
    """Makes a map; `fields` to `body` come after those of all classes.

    Args:
      system: name of the system.
      model_type: the class's name in config.json.
      architecture: name of the class.
      vocab_size: default of the class.
      activation: the system's own.
      fields: as in `Map`.
      derived: as in `Map`.
      fixed: as in `Map`.
      body: as in `Map`.
      buffers: as in `Map`.
    """
    shared = "model.shared.weight"
    return Map(
        system=system,
        model_type=model_type,
        prefix="model.",
        fields=(
            Field("num_heads", "encoder_attention_heads", 16),
            Field("width", "d_model", 1024),
            Field("num_layers", "encoder_layers", 12),
            Field("ffn_width", "encoder_ffn_dim", 4096),
            Field("max_len", "max_position_embeddings", 1024),
            Field("vocab_size", "vocab_size", vocab_size),
            Field("dropout_rate", "dropout", 0.1),
            *fields,
        ),
        derived=(
            Derived("decoder_layers", lambda f: f["num_layers"], "both sides have as many layers"),
            Derived("decoder_attention_heads", lambda f: f["num_heads"], "both sides are alike"),
            Derived("decoder_ffn_dim", lambda f: f["ffn_width"], "both sides are alike"),
            *derived,
        ),
        choices=(Choice("activation", "activation_function", activation, "gelu", ACTIVATIONS),),
        fixed=(
            Fixed("tie_word_embeddings", (True,), True, "the input's table scores tokens"),
            Fixed("is_encoder_decoder", (True,), True, "it has an encoder and a decoder"),
            *fixed,
        ),
        body=(
            row("decoder/embed/tokens/table", shared, "vocabulary"),
            *_layers("model.encoder.layers.{}", "encoder/layer"),
            *_layers("model.decoder.layers.{}", "decoder/stack/layer", cross=True),
            *body,
        ),
        heads={"seq2seq": ()},
        architectures=(Architecture(architecture, ("seq2seq",), "next"),),
        inputs=("input_ids", "attention_mask"),
        tied=(
            ("lm_head.weight", shared),
            ("model.encoder.embed_tokens.weight", shared),
            ("model.decoder.embed_tokens.weight", shared),
        ),
        buffers=buffers,
        zeros=("final_logits_bias",),
    )


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
