"""BERT, `transformers`' BertFor...: Devlin et al. 2019."""

from scalelab.interop.mapping import Architecture, Field, Fixed, Map, affine, norm, row
from scalelab.interop.maps._layers import ENCODER_FIXED, encoder_layers

EMBED = "bert.embeddings"
HEAD = "cls.predictions"

MAP = Map(
    system="bert",
    model_type="bert",
    prefix="bert.",
    fields=(
        Field("num_heads", "num_attention_heads", 12),
        Field("width", "hidden_size", 768),
        Field("num_layers", "num_hidden_layers", 12),
        Field("ffn_width", "intermediate_size", 3072),
        Field("max_len", "max_position_embeddings", 512),
        Field("vocab_size", "vocab_size", 30522),
        Field("dropout_rate", "hidden_dropout_prob", 0.1),
        Field("dropout_rate", "attention_probs_dropout_prob", 0.1),
    ),
    fixed=(
        *ENCODER_FIXED,
        Fixed("layer_norm_eps", (1e-12,), 1e-12, "the epsilon of its norms is 1e-12"),
        Fixed("type_vocab_size", (2,), 2, "it has two segments"),
    ),
    body=(
        row("embed/tokens/table", f"{EMBED}.word_embeddings.weight", "vocabulary"),
        row("embed/positions/table", f"{EMBED}.position_embeddings.weight"),
        row("embed/segments/table", f"{EMBED}.token_type_embeddings.weight"),
        *norm("embed/norm", f"{EMBED}.LayerNorm"),
        *encoder_layers("bert.encoder.layer.{}"),
    ),
    heads={
        "mlm": (
            *affine("token_head/dense", f"{HEAD}.transform.dense"),
            *norm("token_head/norm", f"{HEAD}.transform.LayerNorm"),
            row("token_head/bias", f"{HEAD}.bias", "vocabulary"),
        ),
        "nsp": (
            *affine("pair_head/pooler", "bert.pooler.dense"),
            *affine("pair_head/classifier", "cls.seq_relationship"),
        ),
        "classify": (
            *affine("head/dense", "bert.pooler.dense"),
            *affine("head/out", "classifier"),
        ),
        "tags": affine("head/out", "classifier"),
        "spans": affine("head/out", "qa_outputs"),
        "choices": (
            *affine("head/dense", "bert.pooler.dense"),
            *affine("head/out", "classifier"),
        ),
    },
    architectures=(
        Architecture("BertForPreTraining", ("mlm", "nsp"), "masked"),
        Architecture("BertForMaskedLM", ("mlm",), "masked"),
        Architecture("BertForNextSentencePrediction", ("nsp",)),
        Architecture("BertForSequenceClassification", ("classify",)),
        Architecture("BertForTokenClassification", ("tags",)),
        Architecture("BertForQuestionAnswering", ("spans",)),
        Architecture("BertForMultipleChoice", ("choices",)),
    ),
    inputs=("input_ids", "token_type_ids", "attention_mask"),
    tied=(
        (f"{HEAD}.decoder.weight", f"{EMBED}.word_embeddings.weight"),
        (f"{HEAD}.decoder.bias", f"{HEAD}.bias"),
    ),
    buffers=(r"bert\.embeddings\.(position|token_type)_ids",),
    unused=(r"bert\.pooler\.dense\.(weight|bias)",),
)
