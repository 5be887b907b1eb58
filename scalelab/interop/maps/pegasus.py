"""PEGASUS, `transformers`' PegasusForConditionalGeneration: Zhang et al. 2020."""

from scalelab.interop.mapping import Fixed, norm
from scalelab.interop.maps._source import DROPOUTS, SINUSOIDS, source_map

MAP = source_map(
    system="pegasus",
    model_type="pegasus",
    architecture="PegasusForConditionalGeneration",
    vocab_size=50265,
    activation="relu",
    fields=DROPOUTS,
    fixed=(
        Fixed("scale_embedding", (True,), False, "embeddings are multiplied by sqrt(D)"),
        Fixed("decoder_start_token_id", (0,), 0, "a target starts with `<pad>`, id 0"),
        # Only `generate` of the class reads it.
        Fixed("forced_eos_token_id", (None, 1), 1, "a text may end anywhere"),
    ),
    body=(
        *norm("source_norm", "model.encoder.layer_norm"),
        *norm("decoder/norm", "model.decoder.layer_norm"),
    ),
    buffers=SINUSOIDS,
)
