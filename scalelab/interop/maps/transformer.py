"""The Transformer, `transformers`' MarianMTModel: Vaswani et al. 2017."""

from scalelab.interop.mapping import Architecture, Choice, Derived, Field, Fixed, Map, row
from scalelab.interop.maps._layers import ACTIVATIONS, TIED, source_layers

MAP = Map(
    system="transformer",
    model_type="marian",
    prefix="model.",
    fields=(
        Field("num_heads", "encoder_attention_heads", 16),
        Field("width", "d_model", 1024),
        Field("num_layers", "encoder_layers", 12),
        Field("ffn_width", "encoder_ffn_dim", 4096),
        Field("max_len", "max_position_embeddings", 1024),
        Field("vocab_size", "vocab_size", 58101),
        Field("dropout_rate", "dropout", 0.1),
    ),
    derived=(
        Derived("decoder_layers", lambda f: f["num_layers"], "both sides have as many layers"),
        Derived("decoder_attention_heads", lambda f: f["num_heads"], "both sides have one shape"),
        Derived("decoder_ffn_dim", lambda f: f["ffn_width"], "both sides have one shape"),
        Derived("decoder_vocab_size", lambda f: f["vocab_size"], "both sides have one table"),
    ),
    choices=(Choice("activation", "activation_function", "relu", "gelu", ACTIVATIONS),),
    fixed=(
        Fixed("scale_embedding", (True,), False, "embeddings are multiplied by sqrt(D)"),
        Fixed("share_encoder_decoder_embeddings", (True,), True, "both sides have one table"),
        TIED,
        Fixed("attention_dropout", (0.0,), 0.0, "the attention's weights have no dropout"),
        Fixed("activation_dropout", (0.0,), 0.0, "the activations have no dropout"),
        Fixed("is_encoder_decoder", (True,), True, "it has an encoder and a decoder"),
        Fixed("decoder_start_token_id", (0,), 58100, "a target starts with `<pad>`, id 0"),
        # Only `generate` of the class reads it.
        Fixed("forced_eos_token_id", (None, 0, 1), 0, "a text may end anywhere"),
    ),
    body=(
        row("decoder/embed/tokens/table", "model.shared.weight", "vocabulary"),
        *source_layers("model.encoder.layers.{}", "encoder/layer", cross=False),
        *source_layers("model.decoder.layers.{}", "decoder/stack/layer", cross=True),
    ),
    heads={"seq2seq": ()},
    architectures=(Architecture("MarianMTModel", ("seq2seq",), "next"),),
    inputs=("input_ids", "attention_mask"),
    tied=(("lm_head.weight", "model.shared.weight"),),
    copies=(
        ("model.encoder.embed_tokens.weight", "model.shared.weight"),
        ("model.decoder.embed_tokens.weight", "model.shared.weight"),
    ),
    buffers=(r"model\.(encoder|decoder)\.embed_positions\.weight",),
    zeros=("final_logits_bias",),
)
