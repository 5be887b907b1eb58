"""RoBERTa, `transformers`' RobertaFor...: Liu et al. 2019."""

from scalelab.interop.mapping import Architecture, Choice, Field, Fixed, Row, affine, norm, row
from scalelab.interop.maps._layers import ENCODER_CHOICES, encoder_layers, encoder_map

EMBED = "roberta.embeddings"

MAP = encoder_map(
    "roberta",
    "Roberta",
    (12, 768, 12, 3072, 512, 50265),
    offset=2,
    fields=(Field("num_segments", "type_vocab_size", 2),),
    choices=(
        ENCODER_CHOICES[0],
        # `transformers` uses 1e-12 if config.json has no value.
        Choice("norm_epsilon", "layer_norm_eps", 1e-5, 1e-12),
    ),
    fixed=(Fixed("pad_token_id", (1,), 1, "its positions begin at 2, after the padding id 1"),),
    embeddings=(
        Row(
            ("embed/positions/table",),
            (f"{EMBED}.position_embeddings.weight", f"{EMBED}.token_type_embeddings.weight"),
            "behind_padding",
        ),
    ),
    body=encoder_layers("roberta.encoder.layer.{}"),
    heads={
        "mlm": (
            *affine("token_head/dense", "lm_head.dense"),
            *norm("token_head/norm", "lm_head.layer_norm"),
            row("token_head/bias", "lm_head.bias", "vocabulary"),
        ),
        "classify": (
            *affine("head/dense", "classifier.dense"),
            *affine("head/out", "classifier.out_proj"),
        ),
        "choices": (
            *affine("head/dense", "roberta.pooler.dense"),
            *affine("head/out", "classifier"),
        ),
    },
    architectures=(Architecture("RobertaForMaskedLM", ("mlm",), "masked"),),
    inputs=("input_ids", "attention_mask"),
    tied=(
        ("lm_head.decoder.weight", f"{EMBED}.word_embeddings.weight"),
        ("lm_head.decoder.bias", "lm_head.bias"),
    ),
    unused=(r"roberta\.pooler\.dense\.(weight|bias)",),
)
