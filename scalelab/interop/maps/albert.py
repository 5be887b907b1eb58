"""ALBERT, `transformers`' AlbertFor...: Lan et al. 2020."""

from scalelab.interop.mapping import Architecture, Choice, Field, Fixed, Map, affine, norm, row
from scalelab.interop.maps._layers import ACTIVATIONS, ENCODER_CHOICES, ENCODER_FIXED, PARTS

EMBED = "albert.embeddings"
LAYER = "albert.encoder.albert_layer_groups.{group}.albert_layers.0"
LAYERS = "stack/layer"
SPLIT = ("split_heads", "split_heads_bias")
ATTENTION = [
    affine(f"{LAYERS}/attention/{part}", f"{LAYER}.attention.{part}", *SPLIT) for part in PARTS
]

MAP = Map(
    system="albert",
    model_type="albert",
    prefix="albert.",
    fields=(
        Field("num_heads", "num_attention_heads", 64),
        Field("width", "hidden_size", 4096),
        Field("num_layers", "num_hidden_layers", 12),
        Field("ffn_width", "intermediate_size", 16384),
        Field("max_len", "max_position_embeddings", 512),
        Field("vocab_size", "vocab_size", 30000),
        Field("dropout_rate", "hidden_dropout_prob", 0.0),
        Field("dropout_rate", "attention_probs_dropout_prob", 0.0),
    ),
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
        *ENCODER_FIXED,
        Fixed("type_vocab_size", (2,), 2, "it has two segments"),
        Fixed("inner_group_num", (1,), 1, "a group has the parameters of one layer"),
    ),
    body=(
        row("embed/tokens/table", f"{EMBED}.word_embeddings.weight", "vocabulary"),
        row("embed/positions/table", f"{EMBED}.position_embeddings.weight"),
        row("embed/segments/table", f"{EMBED}.token_type_embeddings.weight"),
        *norm("embed/norm", f"{EMBED}.LayerNorm"),
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
        "classify": (
            *affine("head/dense", "albert.pooler"),
            *affine("head/out", "classifier"),
        ),
        "tags": affine("head/out", "classifier"),
        "spans": affine("head/out", "qa_outputs"),
        "choices": (
            *affine("head/dense", "albert.pooler"),
            *affine("head/out", "classifier"),
        ),
    },
    architectures=(
        Architecture("AlbertForPreTraining", ("mlm", "sop"), "masked"),
        Architecture("AlbertForMaskedLM", ("mlm",), "masked"),
        Architecture("AlbertForSequenceClassification", ("classify",)),
        Architecture("AlbertForTokenClassification", ("tags",)),
        Architecture("AlbertForQuestionAnswering", ("spans",)),
        Architecture("AlbertForMultipleChoice", ("choices",)),
    ),
    inputs=("input_ids", "token_type_ids", "attention_mask"),
    tied=(
        ("predictions.decoder.weight", f"{EMBED}.word_embeddings.weight"),
        ("predictions.decoder.bias", "predictions.bias"),
    ),
    buffers=(r"albert\.embeddings\.(position|token_type)_ids",),
    unused=(r"albert\.pooler\.(weight|bias)",),
)
