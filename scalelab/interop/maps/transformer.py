"""The Transformer, `transformers`' MarianMTModel: Vaswani et al. 2017."""

from scalelab.interop.mapping import Derived, Fixed
from scalelab.interop.maps._source import SINUSOIDS, source_map

MAP = source_map(
    system="transformer",
    model_type="marian",
    architecture="MarianMTModel",
    vocab_size=58101,
    activation="relu",
    derived=(
        Derived("decoder_vocab_size", lambda f: f["vocab_size"], "both sides have one table"),
    ),
    fixed=(
        Fixed("scale_embedding", (True,), False, "embeddings are multiplied by sqrt(D)"),
        Fixed("share_encoder_decoder_embeddings", (True,), True, "both sides have one table"),
        Fixed("attention_dropout", (0.0,), 0.0, "the attention's weights have no dropout"),
        Fixed("activation_dropout", (0.0,), 0.0, "the activations have no dropout"),
        Fixed("decoder_start_token_id", (0,), 58100, "a target starts with `<pad>`, id 0"),
        # Only `generate` of the class reads it.
        Fixed("forced_eos_token_id", (None, 0, 1), 0, "a text may end anywhere"),
    ),
    buffers=SINUSOIDS,
)
