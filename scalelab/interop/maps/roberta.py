"""RoBERTa, `transformers`' RobertaFor...: Liu et al. 2019."""

from scalelab.interop.mapping import Architecture, Choice, Field, Fixed, Map, Row, affine, norm, row
from scalelab.interop.maps._layers import ENCODER_CHOICES, ENCODER_FIXED, encoder_layers

EMBED = "roberta.embeddings"

MAP = Map(
    system="roberta",
    model_type="roberta",
    prefix="roberta.",
    fields=(
        Field("num_heads", "num_attention_heads", 12),
        Field("width", "hidden_size", 768),
        Field("num_layers", "num_hidden_layers", 12),
        Field("ffn_width", "intermediate_size", 3072),
        Field("max_len", "max_position_embeddings", 512, offset=2),
        Field("vocab_size", "vocab_size", 50265),
        Field("dropout_rate", "hidden_dropout_prob", 0.1),
        Field("dropout_rate", "attention_probs_dropout_prob", 0.1),
        Field("num_segments", "type_vocab_size", 2),
    ),
    choices=(
        ENCODER_CHOICES[0],
        # `transformers` uses 1e-12 if config.json has no value.
        Choice("norm_epsilon", "layer_norm_eps", 1e-5, 1e-12),
    ),
    fixed=(
        *ENCODER_FIXED,
        Fixed("pad_token_id", (1,), 1, "its positions begin at 2, after the padding id 1"),
    ),
    body=(
        row("embed/tokens/table", f"{EMBED}.word_embeddings.weight", "vocabulary"),
        Row(
            ("embed/positions/table",),
            (f"{EMBED}.position_embeddings.weight", f"{EMBED}.token_type_embeddings.weight"),
            "behind_padding",
        ),
        *norm("embed/norm", f"{EMBED}.LayerNorm"),
        *encoder_layers("roberta.encoder.layer.{}"),
    ),
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
        "tags": affine("head/out", "classifier"),
        "spans": affine("head/out", "qa_outputs"),
        "choices": (
            *affine("head/dense", "roberta.pooler.dense"),
            *affine("head/out", "classifier"),
        ),
    },
    architectures=(
        Architecture("RobertaForMaskedLM", ("mlm",), "masked"),
        Architecture("RobertaForSequenceClassification", ("classify",)),
        Architecture("RobertaForTokenClassification", ("tags",)),
        Architecture("RobertaForQuestionAnswering", ("spans",)),
        Architecture("RobertaForMultipleChoice", ("choices",)),
    ),
    inputs=("input_ids", "attention_mask"),
    tied=(
        ("lm_head.decoder.weight", f"{EMBED}.word_embeddings.weight"),
        ("lm_head.decoder.bias", "lm_head.bias"),
    ),
    buffers=(r"roberta\.embeddings\.(position|token_type)_ids",),
    unused=(r"roberta\.pooler\.dense\.(weight|bias)",),
)
