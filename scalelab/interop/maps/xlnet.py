"""XLNet, `transformers`' XLNet...: Yang et al. 2019.

`XLNetForQuestionAnswering` has no map: its head scores ends for each of its best starts, a beam,
and a fine-tuning on spans has one vector for starts and one for ends (`finetuning/kinds/spans.py`).
"""

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
from scalelab.interop.maps._layers import ACTIVATIONS, ENCODER_CHOICES, PARTS

LAYER, LAYERS = "transformer.layer.{}", "stack/layer"
ATTENTION, RELATIVE = f"{LAYERS}/attention", f"{LAYER}.rel_attn"
OUT = (lambda _, x: x.transpose(1, 2, 0), lambda x: x.transpose(2, 0, 1))  # [D, N, K] <-> [N, K, D]
VECTOR = (lambda _, x: x.reshape(-1), lambda x: x[None, None])  # [1, 1, D] <-> [D]


def _attention() -> tuple[Row, ...]:
    """Makes the rows of the attention, whose kernels are [D, N, K] on both sides."""
    same = {f"{part}/kernel": part[0] for part in PARTS} | {
        "distances/key/kernel": "r",
        "distances/u_bias": "r_w_bias",
        "distances/v_bias": "r_r_bias",
        "segment_bias": "r_s_bias",
        "segment_table": "seg_embed",
    }
    rows = (row(f"{ATTENTION}/{ours}", f"{RELATIVE}.{its}") for ours, its in same.items())
    return *rows, row(f"{ATTENTION}/out/kernel", f"{RELATIVE}.o", OUT)


MAP = Map(
    system="xlnet",
    model_type="xlnet",
    prefix="transformer.",
    fields=(
        Field("num_heads", "n_head", 16),
        Field("width", "d_model", 1024),
        Field("num_layers", "n_layer", 24),
        Field("ffn_width", "d_inner", 4096),
        Field("max_len", "n_positions", 512),  # the class has no limit and ignores it
        Field("vocab_size", "vocab_size", 32000),
        Field("dropout_rate", "dropout", 0.1),
    ),
    options=(Field("memory_len", "mem_len", 512, switch="use_mems_train"),),
    choices=(
        Choice("activation", "ff_activation", "gelu", "gelu", ACTIVATIONS),
        ENCODER_CHOICES[1],
    ),
    head_dropout=Field("dropout_rate", "summary_last_dropout", 0.1),
    fixed=(
        Fixed("attn_type", ("bi",), "bi", "tokens see both sides"),
        Fixed("bi_data", (False,), False, "all rows are read forward"),
        Fixed("clamp_len", (-1,), -1, "distances are not clamped"),
        Fixed("same_length", (False,), False, "a token sees the whole memory"),
        Fixed("reuse_len", (None,), None, "the memory keeps the whole segment"),
        # With the memory, the class has an output that pipelines cannot split by example.
        Fixed("use_mems_eval", (False, True), True, "evaluations choose whether there is a memory"),
        Fixed("summary_type", ("last",), "last", "a classifier reads the last token"),
        Fixed("summary_use_proj", (True,), True, "a classifier has two layers"),
        Fixed("summary_activation", ("tanh",), "tanh", "a classifier has tanh between its layers"),
    ),
    derived=(Derived("d_head", lambda f: f["width"] // f["num_heads"], "heads divide the width"),),
    body=(
        row("embed/tokens/table", "transformer.word_embedding.weight", "vocabulary"),
        *_attention(),
        *norm(f"{LAYERS}/attention_norm", f"{RELATIVE}.layer_norm"),
        *affine(f"{LAYERS}/ffn/inner", f"{LAYER}.ff.layer_1"),
        *affine(f"{LAYERS}/ffn/outer", f"{LAYER}.ff.layer_2"),
        *norm(f"{LAYERS}/ffn_norm", f"{LAYER}.ff.layer_norm"),
    ),
    heads={
        "plm": (
            row("query_embed/vector", "transformer.mask_emb", VECTOR),
            row("token_head/bias", "lm_loss.bias", "vocabulary"),
        ),
        "classify": (
            *affine("head/dense", "sequence_summary.summary"),
            *affine("head/out", "logits_proj"),
        ),
    },
    architectures=(
        Architecture("XLNetLMHeadModel", ("plm",), "masked"),
        Architecture("XLNetForSequenceClassification", ("classify",)),
    ),
    inputs=("input_ids", "token_type_ids", "attention_mask"),
    token_types={"cls": 2},
    fills_masks=False,
    pads_left=True,
    tied=(("lm_loss.weight", "transformer.word_embedding.weight"),),
    unused=(r"transformer\.mask_emb",),
)
