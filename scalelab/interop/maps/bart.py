"""BART, `transformers`' BartFor...: Lewis et al. 2020."""

import numpy as np

from scalelab.interop.mapping import Architecture, Field, Fixed, affine, norm, row
from scalelab.interop.maps._source import DROPOUTS, source_map

UNUSED_ROWS = 2  # the class adds 2 to all positions (fairseq: the first after the padding id 1)
POSITIONS = (lambda _, x: x[UNUSED_ROWS:], lambda x: np.pad(x, [(UNUSED_ROWS, 0), (0, 0)]))

MAP = source_map(
    system="bart",
    model_type="bart",
    architecture="BartForConditionalGeneration",
    vocab_size=50265,
    activation="gelu",
    fields=DROPOUTS,
    fixed=(
        Fixed("scale_embedding", (False,), False, "embeddings are not multiplied by sqrt(D)"),
        Fixed("decoder_start_token_id", (2,), 2, "a target starts with the end token, id 2"),
    ),
    body=(
        row("source_embed/positions/table", "model.encoder.embed_positions.weight", POSITIONS),
        *norm("source_embed/norm", "model.encoder.layernorm_embedding"),
        row("decoder/embed/positions/table", "model.decoder.embed_positions.weight", POSITIONS),
        *norm("decoder/embed/norm", "model.decoder.layernorm_embedding"),
    ),
    heads={
        "classify": (
            *affine("head/dense", "classification_head.dense"),
            *affine("head/out", "classification_head.out_proj"),
        ),
        "spans": affine("head/out", "qa_outputs"),
    },
    architectures=(
        Architecture("BartForSequenceClassification", ("classify",)),
        Architecture("BartForQuestionAnswering", ("spans",)),
    ),
    head_dropout=Field("dropout_rate", "classifier_dropout", 0.0),
)
