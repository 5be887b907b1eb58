"""RoBERTa, `transformers`' RobertaFor...: Liu et al. 2019."""

from scalelab.interop.mapping import Architecture, Field, Fixed, Map, Row, affine, norm, row

LAYER, THEIRS = "stack/layer", "roberta.encoder.layer.{}"
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
    fixed=(
        Fixed("hidden_act", ("gelu", "gelu_python"), "gelu", "its activation is the exact GELU"),
        # 1e-12 is what `transformers` takes for a config.json that is silent.
        Fixed("layer_norm_eps", (1e-5,), 1e-12, "the epsilon of its norms is 1e-5"),
        Fixed("pad_token_id", (1,), 1, "its positions begin at 2, behind a padding id of 1"),
        Fixed("position_embedding_type", ("absolute",), "absolute", "its positions are absolute"),
        Fixed("is_decoder", (False,), False, "every token sees every other"),
        Fixed("add_cross_attention", (False,), False, "it has no cross-attention"),
    ),
    body=(
        row("embed/tokens/table", f"{EMBED}.word_embeddings.weight", "vocabulary"),
        Row(
            ("embed/positions/table",),
            (f"{EMBED}.position_embeddings.weight", f"{EMBED}.token_type_embeddings.weight"),
            "behind_padding",
        ),
        *norm("embed/norm", f"{EMBED}.LayerNorm"),
        *(
            r
            for part in ("query", "key", "value")
            for r in affine(
                f"{LAYER}/attention/{part}",
                f"{THEIRS}.attention.self.{part}",
                "split_heads",
                "split_heads_bias",
            )
        ),
        *affine(f"{LAYER}/attention/out", f"{THEIRS}.attention.output.dense", "join_heads"),
        *norm(f"{LAYER}/attention_norm", f"{THEIRS}.attention.output.LayerNorm"),
        *affine(f"{LAYER}/ffn/inner", f"{THEIRS}.intermediate.dense"),
        *affine(f"{LAYER}/ffn/outer", f"{THEIRS}.output.dense"),
        *norm(f"{LAYER}/ffn_norm", f"{THEIRS}.output.LayerNorm"),
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
    },
    architectures=(
        Architecture("RobertaForMaskedLM", ("mlm",), ("mlm",)),
        Architecture("RobertaForSequenceClassification", ("classify",)),
        Architecture("RobertaModel", (), ("mlm",), bare=True),
    ),
    classes="classifier.out_proj.weight",
    head_kind="double",
    inputs=("input_ids", "attention_mask"),
    tied=(
        ("lm_head.decoder.weight", f"{EMBED}.word_embeddings.weight"),
        ("lm_head.decoder.bias", "lm_head.bias"),
    ),
    buffers=(r"roberta\.embeddings\.(position|token_type)_ids",),
    unused=((r"roberta\.pooler\.dense\.(weight|bias)", "no objective of RoBERTa trains it"),),
)
