"""BERT, `transformers`' BertFor...: Devlin et al. 2019."""

from scalelab.interop.mapping import Architecture, Field, Fixed, Map, affine, norm, row
from scalelab.interop.maps._layers import ENCODER_CHOICES, ENCODER_FIXED, encoder_layers

HEAD = "cls.predictions"
FIELDS = (
    Field("num_heads", "num_attention_heads", 12),
    Field("width", "hidden_size", 768),
    Field("num_layers", "num_hidden_layers", 12),
    Field("ffn_width", "intermediate_size", 3072),
    Field("max_len", "max_position_embeddings", 512),
    Field("vocab_size", "vocab_size", 30522),
    Field("dropout_rate", "hidden_dropout_prob", 0.1),
    Field("dropout_rate", "attention_probs_dropout_prob", 0.1),
)
FIXED = (
    *ENCODER_FIXED,
    Fixed("type_vocab_size", (2,), 2, "it has two segments"),
)


def make(system: str, classes: str) -> Map:
    """Makes the map of a family with BERT's names.

    Args:
      system: in tensors' names, in place of "bert".
      classes: in names of classes, in place of "Bert".
    """
    embed = f"{system}.embeddings"
    pooled = (
        *affine("head/dense", f"{system}.pooler.dense"),
        *affine("head/out", "classifier"),
    )
    return Map(
        system=system,
        model_type=system,
        prefix=f"{system}.",
        fields=FIELDS,
        choices=ENCODER_CHOICES,
        fixed=FIXED,
        body=(
            row("embed/tokens/table", f"{embed}.word_embeddings.weight", "vocabulary"),
            row("embed/positions/table", f"{embed}.position_embeddings.weight"),
            row("embed/segments/table", f"{embed}.token_type_embeddings.weight"),
            *norm("embed/norm", f"{embed}.LayerNorm"),
            *encoder_layers(f"{system}.encoder.layer.{{}}"),
        ),
        heads={
            "mlm": (
                *affine("token_head/dense", f"{HEAD}.transform.dense"),
                *norm("token_head/norm", f"{HEAD}.transform.LayerNorm"),
                row("token_head/bias", f"{HEAD}.bias", "vocabulary"),
            ),
            "nsp": (
                *affine("pair_head/pooler", f"{system}.pooler.dense"),
                *affine("pair_head/classifier", "cls.seq_relationship"),
            ),
            "classify": pooled,
            "tags": affine("head/out", "classifier"),
            "spans": affine("head/out", "qa_outputs"),
            "choices": pooled,
        },
        architectures=(
            Architecture(f"{classes}ForPreTraining", ("mlm", "nsp"), "masked"),
            Architecture(f"{classes}ForMaskedLM", ("mlm",), "masked"),
            Architecture(f"{classes}ForNextSentencePrediction", ("nsp",)),
            Architecture(f"{classes}ForSequenceClassification", ("classify",)),
            Architecture(f"{classes}ForTokenClassification", ("tags",)),
            Architecture(f"{classes}ForQuestionAnswering", ("spans",)),
            Architecture(f"{classes}ForMultipleChoice", ("choices",)),
        ),
        inputs=("input_ids", "token_type_ids", "attention_mask"),
        tied=(
            (f"{HEAD}.decoder.weight", f"{embed}.word_embeddings.weight"),
            (f"{HEAD}.decoder.bias", f"{HEAD}.bias"),
        ),
        buffers=(rf"{system}\.embeddings\.(position|token_type)_ids",),
        unused=(rf"{system}\.pooler\.dense\.(weight|bias)",),
    )


MAP = make("bert", "Bert")
