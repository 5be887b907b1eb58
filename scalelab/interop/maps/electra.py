"""ELECTRA, `transformers`' ElectraFor...: Clark et al. 2020.

Each class is one model: the discriminator, or a generator. An import is a run without a generator.
"""

from scalelab.interop.mapping import Architecture, Field, affine, norm, row
from scalelab.interop.maps._layers import encoder_layers, encoder_map

NOISE = (("proposal", "uniform"),)  # an imported discriminator has no generator

MAP = encoder_map(
    "electra",
    "Electra",
    (4, 256, 12, 1024, 512, 30522),
    options=(Field("embed_width", "embedding_size", 128, none="width"),),
    required={"generator_rate": None},
    body=encoder_layers("electra.encoder.layer.{}", "discriminator/stack/layer"),
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
    },
    architectures=(
        Architecture("ElectraForPreTraining", ("rtd",), objective_options=NOISE),
        Architecture("ElectraForMaskedLM", ("mlm",), "masked"),
    ),
    tied=(("generator_lm_head.weight", "electra.embeddings.word_embeddings.weight"),),
)
