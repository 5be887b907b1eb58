"""ALBERT, `transformers`' AlbertFor...: Lan et al. 2020."""

from scalelab.interop.mapping import Architecture, Choice, Field, Fixed, affine, norm, row
from scalelab.interop.maps._layers import ACTIVATIONS, ENCODER_CHOICES, PARTS, SEGMENTS, encoder_map

LAYER = "albert.encoder.albert_layer_groups.{group}.albert_layers.0"
LAYERS = "stack/layer"
SPLIT = ("split_heads", "split_heads_bias")
ATTENTION = [
    affine(f"{LAYERS}/attention/{part}", f"{LAYER}.attention.{part}", *SPLIT) for part in PARTS
]
POOLED = (*affine("head/dense", "albert.pooler"), *affine("head/out", "classifier"))

MAP = encoder_map(
    "albert",
    "Albert",
    (64, 4096, 12, 16384, 512, 30000),
    dropout=0.0,
    options=(
        Field("embed_width", "embedding_size", 128),
        Field("num_groups", "num_hidden_groups", 1),
    ),
    required={"shared": "all"},
    choices=(
        Choice("activation", "hidden_act", "gelu_new", "gelu_new", ACTIVATIONS),
        ENCODER_CHOICES[1],
    ),
    head_dropout=Field("dropout_rate", "classifier_dropout_prob", 0.1),
    fixed=(
        SEGMENTS,
        Fixed("inner_group_num", (1,), 1, "a group has the parameters of one layer"),
    ),
    body=(
        *affine("embed/projection", "albert.encoder.embedding_hidden_mapping_in"),
        *(row for rows in ATTENTION for row in rows),
        *affine(f"{LAYERS}/attention/out", f"{LAYER}.attention.dense", "join_heads"),
        *norm(f"{LAYERS}/attention_norm", f"{LAYER}.attention.LayerNorm"),
        *affine(f"{LAYERS}/ffn/inner", f"{LAYER}.ffn"),
        *affine(f"{LAYERS}/ffn/outer", f"{LAYER}.ffn_output"),
        *norm(f"{LAYERS}/ffn_norm", f"{LAYER}.full_layer_layer_norm"),
    ),
    heads={
        "mlm": (
            *affine("token_head/dense", "predictions.dense"),
            *norm("token_head/norm", "predictions.LayerNorm"),
            row("token_head/bias", "predictions.bias", "vocabulary"),
        ),
        "sop": (
            *affine("pair_head/pooler", "albert.pooler"),
            *affine("pair_head/classifier", "sop_classifier.classifier"),
        ),
        "classify": POOLED,
        "choices": POOLED,
    },
    architectures=(
        Architecture("AlbertForPreTraining", ("mlm", "sop"), "masked"),
        Architecture("AlbertForMaskedLM", ("mlm",), "masked"),
    ),
    tied=(
        ("predictions.decoder.weight", "albert.embeddings.word_embeddings.weight"),
        ("predictions.decoder.bias", "predictions.bias"),
    ),
    unused=(r"albert\.pooler\.(weight|bias)",),
)
