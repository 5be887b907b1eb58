"""ELECTRA, `transformers`' ElectraFor...: Clark et al. 2020.

Each class is one model: the discriminator, or a generator. An import is a run without a generator.
"""

from scalelab.interop.mapping import Architecture, Field, Fixed, Map, affine, norm, row
from scalelab.interop.maps._layers import ENCODER_CHOICES, ENCODER_FIXED, encoder_layers

EMBED = "electra.embeddings"
NOISE = (("proposal", "uniform"),)  # an imported discriminator has no generator

MAP = Map(
    system="electra",
    model_type="electra",
    prefix="electra.",
    fields=(
        Field("num_heads", "num_attention_heads", 4),
        Field("width", "hidden_size", 256),
        Field("num_layers", "num_hidden_layers", 12),
        Field("ffn_width", "intermediate_size", 1024),
        Field("max_len", "max_position_embeddings", 512),
        Field("vocab_size", "vocab_size", 30522),
        Field("dropout_rate", "hidden_dropout_prob", 0.1),
        Field("dropout_rate", "attention_probs_dropout_prob", 0.1),
    ),
    options=(Field("embed_width", "embedding_size", 128, none="width"),),
    required={"generator_rate": None},
    choices=ENCODER_CHOICES,
    fixed=(
        *ENCODER_FIXED,
        Fixed("type_vocab_size", (2,), 2, "it has two segments"),
    ),
    body=(
        row("embed/tokens/table", f"{EMBED}.word_embeddings.weight", "vocabulary"),
        row("embed/positions/table", f"{EMBED}.position_embeddings.weight"),
        row("embed/segments/table", f"{EMBED}.token_type_embeddings.weight"),
        *norm("embed/norm", f"{EMBED}.LayerNorm"),
        *encoder_layers("electra.encoder.layer.{}", "discriminator/stack/layer"),
    ),
    extras=("projection",),  # only if the embedding is not as wide as the model
    heads={
        "projection": affine("discriminator/projection", "electra.embeddings_project"),
        "rtd": (
            *affine("replaced_head/dense", "discriminator_predictions.dense"),
            *affine("replaced_head/out", "discriminator_predictions.dense_prediction"),
        ),
        "mlm": (
            *affine("token_head/dense", "generator_predictions.dense"),
            *norm("token_head/norm", "generator_predictions.LayerNorm"),
            row("token_head/bias", "generator_lm_head.bias", "vocabulary"),
        ),
        "classify": (
            *affine("head/dense", "classifier.dense"),
            *affine("head/out", "classifier.out_proj"),
        ),
        "tags": affine("head/out", "classifier"),
        "spans": affine("head/out", "qa_outputs"),
    },
    architectures=(
        Architecture("ElectraForPreTraining", ("rtd",), objective_options=NOISE),
        Architecture("ElectraForMaskedLM", ("mlm",), "masked"),
        Architecture("ElectraForSequenceClassification", ("classify",)),
        Architecture("ElectraForTokenClassification", ("tags",)),
        Architecture("ElectraForQuestionAnswering", ("spans",)),
    ),
    inputs=("input_ids", "token_type_ids", "attention_mask"),
    tied=(("generator_lm_head.weight", f"{EMBED}.word_embeddings.weight"),),
    buffers=(r"electra\.embeddings\.(position|token_type)_ids",),
)
