"""BART, `transformers`' BartFor...: Lewis et al. 2020."""

import numpy as np

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
from scalelab.interop.maps._layers import ACTIVATIONS, TIED, source_layers

UNUSED_ROWS = 2  # the class adds 2 to all positions (fairseq: the first after the padding id 1)
POSITIONS = (lambda _, x: x[UNUSED_ROWS:], lambda x: np.pad(x, [(UNUSED_ROWS, 0), (0, 0)]))


def _side(side: str, embed: str, layer: str, *, cross: bool) -> tuple[Row, ...]:
    """Makes the rows of one side, "encoder" or "decoder", without its token table."""
    outer = f"model.{side}"
    return (
        row(f"{embed}/positions/table", f"{outer}.embed_positions.weight", POSITIONS),
        *norm(f"{embed}/norm", f"{outer}.layernorm_embedding"),
        *source_layers(f"{outer}.layers.{{}}", layer, cross=cross),
    )


MAP = Map(
    system="bart",
    model_type="bart",
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
        Derived("decoder_attention_heads", lambda f: f["num_heads"], "both sides have as many"),
        Derived("decoder_layers", lambda f: f["num_layers"], "both sides have as many layers"),
        Derived("decoder_ffn_dim", lambda f: f["ffn_width"], "both sides have one width"),
    ),
    choices=(Choice("activation", "activation_function", "gelu", "gelu", ACTIVATIONS),),
    fixed=(
        Fixed("scale_embedding", (False,), False, "embeddings are not multiplied by sqrt(D)"),
        Fixed("is_encoder_decoder", (True,), True, "it has an encoder and a decoder"),
        Fixed("decoder_start_token_id", (2,), 2, "a target starts with the end token, id 2"),
        TIED,
    ),
    body=(
        row("decoder/embed/tokens/table", "model.shared.weight", "vocabulary"),
        *_side("encoder", "source_embed", "encoder/layer", cross=False),
        *_side("decoder", "decoder/embed", "decoder/stack/layer", cross=True),
    ),
    heads={
        "seq2seq": (),
        "classify": (
            *affine("head/dense", "classification_head.dense"),
            *affine("head/out", "classification_head.out_proj"),
        ),
        "spans": affine("head/out", "qa_outputs"),
    },
    head_dropout=Field("dropout_rate", "classifier_dropout", 0.0),
    architectures=(
        Architecture("BartForConditionalGeneration", ("seq2seq",), "next"),
        Architecture("BartForSequenceClassification", ("classify",)),
        Architecture("BartForQuestionAnswering", ("spans",)),
    ),
    inputs=("input_ids", "attention_mask"),
    tied=(("lm_head.weight", "model.shared.weight"),),
    copies=(
        ("model.encoder.embed_tokens.weight", "model.shared.weight"),
        ("model.decoder.embed_tokens.weight", "model.shared.weight"),
    ),
    zeros=("final_logits_bias",),
)
