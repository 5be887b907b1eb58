"""PEGASUS, `transformers`' PegasusForConditionalGeneration: Zhang et al. 2020."""

from scalelab.interop.mapping import Architecture, Choice, Derived, Field, Fixed, Map, norm, row
from scalelab.interop.maps._layers import ACTIVATIONS, TIED, source_layers

MAP = Map(
    system="pegasus",
    model_type="pegasus",
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
        Derived("decoder_layers", lambda f: f["num_layers"], "both sides have as many layers"),
        Derived("decoder_attention_heads", lambda f: f["num_heads"], "both sides have one shape"),
        Derived("decoder_ffn_dim", lambda f: f["ffn_width"], "both sides have one shape"),
    ),
    choices=(Choice("activation", "activation_function", "relu", "gelu", ACTIVATIONS),),
    fixed=(
        Fixed("scale_embedding", (True,), False, "embeddings are multiplied by sqrt(D)"),
        TIED,
        Fixed("is_encoder_decoder", (True,), True, "it has an encoder and a decoder"),
        Fixed("decoder_start_token_id", (0,), 0, "a target starts with `<pad>`, id 0"),
        # Only `generate` of the class reads it.
        Fixed("forced_eos_token_id", (None, 1), 1, "a text may end anywhere"),
    ),
    body=(
        row("decoder/embed/tokens/table", "model.shared.weight", "vocabulary"),
        *source_layers("model.encoder.layers.{}", "encoder/layer", cross=False),
        *source_layers("model.decoder.layers.{}", "decoder/stack/layer", cross=True),
        *norm("source_norm", "model.encoder.layer_norm"),
        *norm("decoder/norm", "model.decoder.layer_norm"),
    ),
    heads={"seq2seq": ()},
    architectures=(Architecture("PegasusForConditionalGeneration", ("seq2seq",), "next"),),
    inputs=("input_ids", "attention_mask"),
    tied=(("lm_head.weight", "model.shared.weight"),),
    copies=(
        ("model.encoder.embed_tokens.weight", "model.shared.weight"),
        ("model.decoder.embed_tokens.weight", "model.shared.weight"),
    ),
    buffers=(r"model\.(encoder|decoder)\.embed_positions\.weight",),
    zeros=("final_logits_bias",),
)
